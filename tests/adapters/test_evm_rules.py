"""Pure rules of the EVM adapter: fees, error messages, strict parsing of responses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.evm import calls
from app.adapters.evm.calls import FeeHistory, logs_call
from app.adapters.evm.send import refusals, transactions
from app.adapters.evm.send.transactions import CallTarget, FeeTerms, GasPrice
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcError
from tests.support.evm import Person

WEI = st.integers(min_value=0, max_value=2**96)


@given(tip=WEI, extra=WEI, market_tip=WEI, market_extra=WEI)
def test_a_replacement_raises_both_fee_fields_by_an_eighth(
    tip: int, extra: int, market_tip: int, market_extra: int
) -> None:
    old, market = GasPrice(tip + extra, tip), GasPrice(market_tip + market_extra, market_tip)

    new = transactions.replacement_price(old, market)

    assert new.tip * 8 > old.tip * 9
    assert new.max_fee * 8 > old.max_fee * 9
    assert new.max_fee >= market.max_fee
    assert new.tip >= market.tip
    assert new.tip <= new.max_fee, "nodes refuse a tip above the maximum fee"


GWEI = 10**9


def market_tip(*tips: int, base_fee: int = 10**7, suggested: int | None = 10**6, rollup: bool = True) -> int:
    history = FeeHistory(baseFeePerGas=(base_fee,), reward=[(tip,) for tip in tips])
    price = transactions.market_price(history, suggested_tip=suggested, is_rollup=rollup)
    assert price.max_fee == 2 * base_fee + price.tip
    return price.tip


def test_the_tip_is_the_median_of_recent_blocks_then_the_nodes_and_is_never_zero() -> None:
    assert market_tip(1, 7, 3, base_fee=100, suggested=50) == 3
    assert market_tip(0, 0, base_fee=100, suggested=50) == 50
    assert market_tip(base_fee=0, suggested=None) == 1


@pytest.mark.parametrize("rollup", [True, False])
def test_one_outsiders_tip_does_not_move_what_we_pay(*, rollup: bool) -> None:
    assert market_tip(0, 0, 300 * GWEI, 0, 0, rollup=rollup) == 10**6
    assert market_tip(GWEI, GWEI, 100 * GWEI, GWEI, GWEI, rollup=rollup) == GWEI
    few = [GWEI // 10, GWEI // 5, 2 * GWEI, GWEI // 10, GWEI // 10]
    assert market_tip(*few, rollup=rollup) == GWEI // 10


@given(
    honest=st.lists(WEI, min_size=1, max_size=20),
    chosen=st.lists(WEI, max_size=19),
    suggested=WEI,
    base_fee=WEI,
    rollup=st.booleans(),
)
def test_who_chooses_the_tips_of_a_minority_of_blocks_chooses_nothing(
    *, honest: list[int], chosen: list[int], suggested: int, base_fee: int, rollup: bool
) -> None:
    chosen = chosen[: len(honest) - 1]
    quiet_bound = min(GWEI, base_fee) if rollup else GWEI

    tip = market_tip(*chosen, *honest, base_fee=base_fee, suggested=suggested, rollup=rollup)

    # Without any tip of the others, only the bounded suggestion is left.
    assert tip <= max(*honest, quiet_bound, 1) if min(honest) == 0 else tip <= max(honest)
    ceiling = max(10 * base_fee, GWEI if rollup else 10 * GWEI)
    assert tip >= min(max(min(honest), 1), ceiling), "a minority cannot hold our transactions back"


@given(tips=st.lists(WEI, min_size=1), suggested=WEI, base_fee=WEI, rollup=st.booleans())
def test_not_even_all_blocks_raise_the_tip_above_its_ceiling(
    *, tips: list[int], suggested: int, base_fee: int, rollup: bool
) -> None:
    tip = market_tip(*tips, base_fee=base_fee, suggested=suggested, rollup=rollup)
    assert tip <= max(10 * base_fee, GWEI if rollup else 10 * GWEI)


@pytest.mark.parametrize("rollup", [True, False])
def test_the_nodes_inflated_suggestion_is_bounded(*, rollup: bool) -> None:
    assert market_tip(0, 0, 0, suggested=500 * GWEI, rollup=rollup) == (10**7 if rollup else GWEI)


def test_terms_come_back_from_json_as_they_were() -> None:
    terms = FeeTerms(21_000, GasPrice(10**12, 10**9), 2**70)
    assert FeeTerms.from_terms(terms.as_terms()) == terms
    assert terms.max_units == 21_000 * 10**12 + -(-(2**70) * 6 // 5)


@given(nonce=st.integers(0, 2**63), tip=WEI, extra=WEI, value=WEI, gas=st.integers(21_000, 2**40), data=st.binary())
def test_signed_bytes_are_those_of_the_reference_library(
    nonce: int, tip: int, extra: int, value: int, gas: int, data: bytes
) -> None:
    person, to = Person(), "0x00000000000000000000000000000000C0FFEE00"
    fee = FeeTerms(gas, GasPrice(tip + extra, tip), 0)
    fields = transactions.fields_of(900001, nonce, fee, CallTarget(to, value, data))

    raw, tx_hash = transactions.sign(fields, person, sender=person.address)

    read = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    assert Account.recover_transaction(raw) == person.address
    assert (read["chainId"], read["nonce"], read["gas"], read["value"]) == (900001, nonce, gas, value)
    assert (read["maxFeePerGas"], read["maxPriorityFeePerGas"]) == (tip + extra, tip)
    assert bytes(read["data"]) == data
    assert tx_hash == transactions.hash_of(raw)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("already known", refusals.ALREADY_KNOWN),
        ("transaction already imported", refusals.ALREADY_KNOWN),
        ("AlreadyKnown", refusals.ALREADY_KNOWN),
        ("Known transaction", refusals.ALREADY_KNOWN),
        ("nonce too low: next nonce 5, tx nonce 3", "nonce_too_low"),
        ("OldNonce", "nonce_too_low"),
        ("replacement transaction underpriced", "replacement_underpriced"),
        ("transaction underpriced: tip needed 1, tip permitted 0", "fee_too_low"),
        ("max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1", "fee_too_low"),
        ("insufficient funds for gas * price + value: balance 1, tx cost 2, overshot 1", "insufficient_funds"),
        ("Insufficient funds for gas * price + value", "insufficient_funds"),
        ("invalid chain id for signer: have 1 want 8453", "wrong_chain"),
        ("max priority fee per gas higher than max fee per gas", "invalid_transaction"),
        ("intrinsic gas too low: gas 20000, minimum needed 21000", "invalid_transaction"),
        ("txpool is full", "pool_full"),
    ],
)
def test_known_node_errors_are_mapped(words: str, reason: str) -> None:
    assert RpcError(-32000, words).look_up(refusals.SEND_REFUSALS) == reason


@pytest.mark.parametrize("words", ["internal error", "", "timeout", "header not found"])
def test_unknown_node_errors_are_not_refusals(words: str) -> None:
    assert RpcError(-32000, words).look_up(refusals.SEND_REFUSALS) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "execution reverted"),
        ("0x", "execution reverted"),
        ("0xzz", "execution reverted"),
        ("0x08c379a0", "execution reverted"),
        ("0x08c379a0" + "ff" * 64, "execution reverted"),
        ("0x4e487b71" + "11".rjust(64, "0"), "panic 0x11"),
        ("0xdeadbeef" + "00" * 32, "custom error 0xdeadbeef"),
    ],
)
def test_every_form_of_revert_data_has_a_text(data: str | None, text: str) -> None:
    assert refusals.revert_text(RpcError(3, "execution reverted", data)) == text


@given(st.text(), st.one_of(st.none(), st.binary().map(lambda data: "0x" + data.hex()), st.text()))
def test_no_revert_text_can_contain_markup(message: str, data: str | None) -> None:
    text = refusals.revert_text(RpcError(3, message, data))
    assert 0 < len(text) <= 120
    assert text.isascii()
    assert text.isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
FIELDS = st.sampled_from(
    ["number", "hash", "transactions", "blockHash", "status", "gasUsed", "baseFeePerGas", "reward", "topics"]
)


READ: dict[str, RpcCall[Any]] = {
    "quantity": calls.balance("0x" + "11" * 20),
    "count": calls.head(),
    "code": calls.code("0x" + "11" * 20),
    "block": calls.block("latest"),
    "whole block": calls.whole_block(1),
    "receipt": calls.receipt("0x" + "11" * 32),
    "transaction": calls.transaction("0x" + "11" * 32),
    "fee history": calls.fee_history(1, 50),
    "logs": logs_call("0x" + "11" * 20, [], first=1, last=2),
}


@given(st.one_of(JSON, st.dictionaries(FIELDS, JSON)))
@pytest.mark.parametrize("name", READ)
def test_any_response_is_read_or_malformed(name: str, answer: object) -> None:
    call = READ[name]
    with suppress(EndpointError):
        call.set_reply({"result": answer})
        call.assert_tolerated()
        assert not isinstance(call.result, int) or call.result >= 0


HASH = "0x" + "11" * 32
LOG = {
    "address": "0x" + "11" * 20, "topics": [HASH], "data": "0x", "logIndex": "0x0",
    "transactionHash": HASH, "blockNumber": "0x1", "blockHash": HASH,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("count", hex(2**63)),
        ("count", "7"),
        ("count", "-0x1"),
        ("count", 7),
        ("quantity", hex(2**256)),
        ("block", {"number": hex(2**63), "hash": HASH, "timestamp": "0x1"}),
        ("block", {"number": "0x1", "hash": "0x11", "timestamp": "0x1"}),
        ("block", {"number": "0x1", "timestamp": "0x1"}),
        ("fee history", {"baseFeePerGas": [hex(2**128)], "reward": [["0x1"]]}),
        ("fee history", {"baseFeePerGas": ["0x1"], "reward": [[hex(2**128)]]}),
        ("fee history", {"baseFeePerGas": [], "reward": []}),
        ("logs", [{**LOG, "removed": True}]),
        ("logs", [{**LOG, "address": "0x11"}]),
        ("logs", [{**LOG, "topics": ["0x11"]}]),
        ("logs", [{**LOG, "data": None}]),
    ],
)
def test_an_answer_of_another_shape_or_range_makes_the_endpoint_fail(name: str, answer: object) -> None:
    with pytest.raises(EndpointError):
        READ[name].set_reply({"result": answer})
