"""Drafts and signatures on EVM chains: early refusals, and signed bytes that match the intent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import rlp  # type: ignore[import-untyped]

from app.adapters.evm.contracts import calls as contracts
from app.core.chains import ETH, USDC
from app.ports.chain import TransactionStatus
from app.ports.errors import Rejected, Unreachable
from sandbox.evm import EvmNode, roles
from sandbox.evm.abi import call_data
from tests.support.evm import (
    DOLLAR,
    ETHER,
    Calls,
    Person,
    await_mined,
    chain_at,
    funded,
    holdings,
    intent,
    landed,
    proxy,
    refuse,
    sent,
    signed,
    spoil,
)

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module", params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> Iterator[EvmNode]:
    with EvmNode(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def ethereum() -> Iterator[EvmNode]:
    with EvmNode("ethereum") as running:
        yield running


def _usdc_owner(node: EvmNode, signature: str, address: str | None = None) -> None:
    data = call_data(signature, address) if address else call_data(signature)
    owner = node.rpc("eth_accounts")[roles.OWNER]
    await_mined(node, node.rpc("eth_sendTransaction", {"from": owner, "to": node.deployment.usdc, "data": data}))


def test_a_draft_costs_one_http_request(node: EvmNode) -> None:
    person = funded(node, usdc_units=DOLLAR)
    with proxy(node.url) as front:
        chain = chain_at(node, front.url)
        chain.draft(intent(person, Person().address, 1))
        chain.draft(intent(person, Person().address, 1, USDC))

        assert len(front.requests) == 2
        assert front.requests[1][0]["method"] == "eth_getTransactionCount", "the nonce is read first"


def test_a_quote_says_that_the_recipient_is_a_contract(node: EvmNode) -> None:
    person, chain = funded(node, usdc_units=2 * DOLLAR), chain_at(node)
    contract, delegated = Person().address, Person().address
    node.rpc("anvil_setCode", contract, "0x00")
    node.rpc("anvil_setCode", delegated, "0xef0100" + "11" * 20)
    for token in (ETH, USDC):
        assert chain.draft(intent(person, contract, 1, token)).recipient_is == "contract"
        assert chain.draft(intent(person, Person().address, 1, token)).recipient_is is None
    assert chain.draft(intent(person, delegated, 1, USDC)).recipient_is is None, "an account with a key"


def test_one_strangers_tip_raises_the_fee_of_nobody(node: EvmNode) -> None:
    person, stranger = funded(node), node.rpc("eth_accounts")[roles.OWNER]
    node.mine(3)
    quiet = chain_at(node).draft(intent(person, Person().address, 1)).fee_units
    greedy = {"from": stranger, "to": Person().address, "value": "0x1", "gas": hex(21_000)}
    prices = {"maxPriorityFeePerGas": hex(300 * 10**9), "maxFeePerGas": hex(400 * 10**9)}
    await_mined(node, node.rpc("eth_sendTransaction", {**greedy, **prices}))

    assert chain_at(node).draft(intent(person, Person().address, 1)).fee_units < 2 * quiet


def test_a_blacklisted_address_and_a_paused_token_are_found_before_anything_is_sent_there() -> None:
    with EvmNode("base") as node:
        chain, villain = chain_at(node), Person().address
        assert chain.receiving_refusal(villain, USDC) is None
        _usdc_owner(node, "blacklist(address)", villain)
        assert chain.receiving_refusal(villain, USDC) == "blacklisted"
        assert chain.receiving_refusal(villain, ETH) is None
        _usdc_owner(node, "pause()")
        assert chain.receiving_refusal(Person().address, USDC) == "paused"


def test_a_plain_transfer_has_no_gas_margin_and_a_contract_call_has_a_quarter(node: EvmNode) -> None:
    person = funded(node, usdc_units=DOLLAR)
    chain = chain_at(node)
    recipient = Person().address

    plain = chain.draft(intent(person, recipient, 1))
    token = chain.draft(intent(person, recipient, 1, USDC))
    data = "0x" + contracts.TRANSFER.encode(recipient, 1).hex()
    asked = {"from": person.address, "to": node.deployment.usdc, "data": data}
    estimate = int(node.rpc("eth_estimateGas", asked), 16)

    assert plain.terms["gas"] == 21_000
    assert token.terms["gas"] == -(-estimate * 5 // 4)


def test_all_but_the_drafted_fee_can_be_sent_and_one_wei_more_is_refused(node: EvmNode) -> None:
    # On Base the L1 data fee is added to gas: without it the node refuses the transaction.
    chain = chain_at(node)
    person, recipient = funded(node), Person().address
    fee = chain.draft(intent(person, recipient, ETHER // 2)).fee_units

    with pytest.raises(Rejected) as refused:
        chain.draft(intent(person, recipient, ETHER - fee + 1))
    assert refused.value.reason == "insufficient_funds"
    assert refused.value.details["missing"] == "0.000000000000000001"
    transaction = sent(chain, person, recipient, ETHER - fee)

    assert landed(chain, person, transaction).status is TransactionStatus.SUCCEEDED
    assert holdings(chain, recipient)[0] == ETHER - fee


def test_the_l1_fee_of_base_is_included_and_never_underestimated() -> None:
    with EvmNode("base") as base:
        chain = chain_at(base)
        person = funded(base, usdc_units=DOLLAR)
        for token, units in ((ETH, 12345), (USDC, 54321)):
            draft, transaction = signed(chain, person, Person().address, units, token=token)
            chain.broadcast(transaction.raw)
            found = landed(chain, person, transaction)
            receipt = base.rpc("eth_getTransactionReceipt", transaction.tx_hash)
            l2_fee = int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
            assert found.fee_units is not None
            charged = found.fee_units - l2_fee
            assert 0 < charged <= int(draft.terms["l1_fee"] or 0)
            gas, price = draft.terms["gas"], draft.terms["max_fee_per_gas"]
            l1_fee = int(draft.terms["l1_fee"] or 0)
            assert draft.fee_units == int(gas or 0) * int(price or 0) + -(-l1_fee * 6 // 5)


def test_a_fee_spike_shows_in_the_draft(ethereum: EvmNode) -> None:
    person = funded(ethereum)
    with proxy(ethereum.url) as front:
        spike = {"baseFeePerGas": [hex(10**9), hex(10**13)], "reward": [[hex(10**12)]], "oldestBlock": "0x1"}
        front.after = spoil("eth_feeHistory", spike)

        draft = chain_at(ethereum, front.url).draft(intent(person, Person().address, 1))

    assert draft.terms["max_fee_per_gas"] == 2 * 10**13 + 10**12
    assert draft.fee_units == 21_000 * (2 * 10**13 + 10**12)


def test_usdc_blacklist_errors_reach_the_client() -> None:
    with EvmNode("ethereum") as node:
        chain = chain_at(node)
        person, villain = funded(node, usdc_units=DOLLAR), Person().address
        _usdc_owner(node, "blacklist(address)", villain)

        with pytest.raises(Rejected) as refused:
            chain.draft(intent(person, villain, 1, USDC))

        assert refused.value.reason == "simulation_failed"
        assert refused.value.details == {"revert": "Blacklistable: account is blacklisted"}
        _usdc_owner(node, "pause()")
        with pytest.raises(Rejected) as refused:
            chain.draft(intent(person, Person().address, 1, USDC))
        assert refused.value.details == {"revert": "Pausable: paused"}


def test_ether_for_a_contract_that_rejects_it_is_refused_before_signing(ethereum: EvmNode) -> None:
    person = funded(ethereum)

    with pytest.raises(Rejected) as refused:
        chain_at(ethereum).draft(intent(person, ethereum.deployment.uniswap_quoter, 1))

    assert refused.value.reason == "simulation_failed"


def test_revert_texts_of_untrusted_contracts_are_sanitized(ethereum: EvmNode) -> None:
    person = funded(ethereum)
    hostile = "<script>see https://evil.example/" + "a" * 500 + "\n{{x}}\u202e"
    text = hostile.encode()
    padded = text.ljust(-(-len(text) // 32) * 32, b"\0")
    data = bytes.fromhex("08c379a0") + (32).to_bytes(32, "big") + len(text).to_bytes(32, "big") + padded

    def after(calls: Calls, replies: Calls) -> Calls:
        error = {"code": 3, "message": f"execution reverted: {hostile}", "data": "0x" + data.hex()}
        estimates = {call["id"] for call in calls if call["method"] == "eth_estimateGas"}
        return [
            {"jsonrpc": "2.0", "id": reply["id"], "error": error} if reply["id"] in estimates else reply
            for reply in replies
        ]

    with proxy(ethereum.url) as front:
        front.after = after
        with pytest.raises(Rejected) as refused:
            chain_at(ethereum, front.url).draft(intent(person, Person().address, 1))

    shown = refused.value.details["revert"]
    assert len(shown) <= 120
    assert "//" not in shown
    assert shown.isascii()
    assert shown.isprintable()
    assert "{" not in shown


def test_a_revert_text_about_rate_limits_does_not_disable_the_endpoint(ethereum: EvmNode) -> None:
    # Otherwise any contract could make the service treat its nodes as unreachable.
    person = funded(ethereum)
    with proxy(ethereum.url) as front:
        front.after = refuse("eth_estimateGas", "execution reverted: rate limit exceeded", code=3)
        chain = chain_at(ethereum, front.url)
        with pytest.raises(Rejected, match="simulation_failed"):
            chain.draft(intent(person, Person().address, 1))


@pytest.mark.parametrize(
    ("method", "lie"),
    [
        ("eth_getTransactionCount", "-0x1"),
        ("eth_getTransactionCount", 7),
        ("eth_getTransactionCount", None),
        ("eth_getTransactionCount", "0x" + "f" * 65),
        ("eth_call", "0x"),
        ("eth_call", "0x" + "ff" * 320),
        ("eth_call", {"evil": 1}),
        ("eth_feeHistory", {"baseFeePerGas": [], "reward": []}),
        ("eth_feeHistory", {"baseFeePerGas": ["0x1"], "reward": [["-0x5"]]}),
        ("eth_feeHistory", ["0x1"]),
        ("eth_estimateGas", "0x1"),
        ("eth_estimateGas", "21000"),
    ],
)
def test_a_node_with_malformed_draft_data_counts_as_unreachable(ethereum: EvmNode, method: str, lie: object) -> None:
    person = funded(ethereum)
    with proxy(ethereum.url) as front:
        front.after = spoil(method, lie)
        with pytest.raises(Unreachable) as gone:
            chain_at(ethereum, front.url).draft(intent(person, Person().address, 1))
        honest = chain_at(ethereum, front.url, ethereum.url).draft(intent(person, Person().address, 1))

    assert gone.value.reason == "chain_unreachable"
    assert honest.native_units == ETHER


def test_the_signed_transaction_decodes_to_the_intent(node: EvmNode) -> None:
    chain = chain_at(node)
    person, recipient = funded(node, usdc_units=DOLLAR), Person().address
    draft, transaction = signed(chain, person, recipient, 123_456, token=USDC, sequence=77)
    fields = rlp.decode(transaction.raw[1:])

    assert transaction.raw[0] == 2
    assert int.from_bytes(fields[0], "big") == node.chain_id
    assert int.from_bytes(fields[1], "big") == 77
    assert int.from_bytes(fields[4], "big") == draft.terms["gas"]
    assert fields[5] == bytes.fromhex(node.deployment.usdc[2:])
    assert fields[6] == b""
    assert fields[7] == contracts.TRANSFER.encode(recipient, 123_456)
    assert transaction.sequence == 77


def test_a_signature_of_another_wallet_is_detected_before_recording(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    draft = chain.draft(intent(funded(ethereum), Person().address, 1))

    with pytest.raises(ValueError, match="another key"):
        chain.sign(draft, Person(), sequence=0)
    with pytest.raises(ValueError, match="nonce"):
        chain.sign(draft, Person(), sequence=None)
