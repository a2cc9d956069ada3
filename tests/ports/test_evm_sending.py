"""Drafting, signing, replacing and sending on EVM chains, with nodes that fail at the worst moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import rlp  # type: ignore[import-untyped]

from app.adapters.evm import contracts
from app.core.chains import ETH, USDC
from app.ports.chain import Fate
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from sandbox.evm import EvmNode, roles
from sandbox.evm.abi import call_data
from tests.support.evm import (
    DOLLAR,
    ETHER,
    Calls,
    Person,
    asks,
    attempt,
    chain_at,
    funded,
    holdings,
    intent,
    json_reply,
    landed,
    outcome,
    proxy,
    refuse,
    sent,
    signed,
    spoil,
    watch,
)
from tests.support.loopback_http import Reply, unused_url

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module", params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> Iterator[EvmNode]:
    with EvmNode(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def ethereum() -> Iterator[EvmNode]:
    with EvmNode("ethereum") as running:
        yield running


@pytest.fixture
def held(ethereum: EvmNode) -> Iterator[EvmNode]:
    """Let a node keep transactions in its pool until it is told to mine."""
    ethereum.set_automine(False)
    yield ethereum
    ethereum.set_automine(True)
    ethereum.mine(1)


def _usdc_owner(node: EvmNode, signature: str, address: str | None = None) -> None:
    data = call_data(signature, address) if address else call_data(signature)
    owner = node.rpc("eth_accounts")[roles.OWNER]
    node.rpc("eth_sendTransaction", {"from": owner, "to": node.deployment.usdc, "data": data})


def test_a_draft_costs_one_http_request(node: EvmNode) -> None:
    person = funded(node, usdc_units=DOLLAR)
    with proxy(node.url) as front:
        chain = chain_at(node, front.url)
        chain.draft(intent(person, Person().address, 1))
        chain.draft(intent(person, Person().address, 1, USDC))

        assert len(front.requests) == 2
        assert front.requests[1][0]["method"] == "eth_getTransactionCount", "the nonce is read first"


def test_a_plain_transfer_has_no_gas_margin_and_a_contract_call_has_a_quarter(node: EvmNode) -> None:
    person = funded(node, usdc_units=DOLLAR)
    chain = chain_at(node)
    recipient = Person().address

    plain = chain.draft(intent(person, recipient, 1))
    token = chain.draft(intent(person, recipient, 1, USDC))
    data = "0x" + contracts.transfer(recipient, 1).hex()
    asked = {"from": person.address, "to": node.deployment.usdc, "data": data}
    estimate = int(node.rpc("eth_estimateGas", asked), 16)

    assert plain.terms["gas"] == 21_000
    assert token.terms["gas"] == -(-estimate * 5 // 4)


def test_all_but_the_drafted_fee_can_be_sent_and_one_wei_more_is_refused(node: EvmNode) -> None:
    # On Base the L1 data fee comes on top of gas: forgetting it makes the node refuse the whole.
    chain = chain_at(node)
    person, recipient = funded(node), Person().address
    fee = chain.draft(intent(person, recipient, ETHER // 2)).fee_units

    with pytest.raises(Rejected) as refused:
        chain.draft(intent(person, recipient, ETHER - fee + 1))
    assert refused.value.reason == "insufficient_funds"
    assert refused.value.details["missing"] == "0.000000000000000001"
    transaction = sent(chain, person, recipient, ETHER - fee)

    assert landed(chain, person, transaction).fate is Fate.SUCCEEDED
    assert holdings(chain, recipient)[0] == ETHER - fee


def test_the_l1_fee_of_base_is_part_of_the_fee_and_never_less_than_what_is_charged() -> None:
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


def test_what_usdc_says_of_a_blacklisted_recipient_reaches_the_caller() -> None:
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


def test_ether_for_a_contract_that_takes_none_is_refused_before_signing(ethereum: EvmNode) -> None:
    person = funded(ethereum)

    with pytest.raises(Rejected) as refused:
        chain_at(ethereum).draft(intent(person, ethereum.deployment.uniswap_quoter, 1))

    assert refused.value.reason == "simulation_failed"


def test_a_text_that_a_strangers_contract_wrote_is_made_harmless(ethereum: EvmNode) -> None:
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


def test_a_revert_that_talks_of_rate_limits_does_not_silence_the_endpoint(ethereum: EvmNode) -> None:
    # Else anybody's contract could make the service believe that its nodes are gone.
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
def test_a_node_that_lies_in_a_draft_counts_as_no_node(ethereum: EvmNode, method: str, lie: object) -> None:
    person = funded(ethereum)
    with proxy(ethereum.url) as front:
        front.after = spoil(method, lie)
        with pytest.raises(Unreachable) as gone:
            chain_at(ethereum, front.url).draft(intent(person, Person().address, 1))
        honest = chain_at(ethereum, front.url, ethereum.url).draft(intent(person, Person().address, 1))

    assert gone.value.reason == "chain_unreachable"
    assert honest.native_units == ETHER


def test_what_is_signed_decodes_to_what_was_meant(node: EvmNode) -> None:
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
    assert fields[7] == contracts.transfer(recipient, 123_456)
    assert transaction.sequence == 77


def test_another_wallets_signature_is_noticed_before_anything_is_recorded(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    draft = chain.draft(intent(funded(ethereum), Person().address, 1))

    with pytest.raises(ValueError, match="another key"):
        chain.sign(draft, Person(), sequence=0)
    with pytest.raises(ValueError, match="nonce"):
        chain.sign(draft, Person(), sequence=None)


def test_a_replacement_is_accepted_by_the_node_and_pays_once(held: EvmNode) -> None:
    held.set_automine(True)
    chain, recipient = chain_at(held), Person().address
    person = funded(held)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, 1000)
    chain.broadcast(first.raw)

    dearer = chain.replacement(attempt(draft, first))
    assert dearer is not None
    second = chain.sign(dearer, person, sequence=first.sequence)
    chain.broadcast(second.raw)
    held.mine(1)

    for name in ("max_fee_per_gas", "max_priority_fee_per_gas"):
        assert int(dearer.terms[name] or 0) * 8 > int(draft.terms[name] or 0) * 9
    assert dearer.terms["gas"] == draft.terms["gas"]
    found = landed(chain, person, first, second)
    assert (found.fate, found.tx_hash) == (Fate.SUCCEEDED, second.tx_hash)
    assert holdings(chain, recipient)[0] == 1000


def test_the_old_one_may_land_although_a_replacement_was_signed(held: EvmNode) -> None:
    held.set_automine(True)
    chain, recipient = chain_at(held), Person().address
    person = funded(held)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, 1000)
    dearer = chain.replacement(attempt(draft, first))
    assert dearer is not None
    second = chain.sign(dearer, person, sequence=first.sequence)

    chain.broadcast(first.raw)
    held.mine(1)
    with pytest.raises(Rejected, match="nonce_too_low"):
        chain.broadcast(second.raw)

    found = landed(chain, person, first, second)
    assert (found.fate, found.tx_hash) == (Fate.SUCCEEDED, first.tx_hash)
    assert holdings(chain, recipient)[0] == 1000


def test_a_replacement_follows_the_market_when_that_is_dearer(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    draft, first = signed(chain, person, Person().address, 1000)
    cheap = dataclasses.replace(
        attempt(draft, first), terms={**draft.terms, "max_fee_per_gas": 100, "max_priority_fee_per_gas": 10}
    )

    dearer = chain.replacement(cheap)

    assert dearer is not None
    assert int(dearer.terms["max_priority_fee_per_gas"] or 0) >= 10**9, "the market's tip on anvil"
    assert int(dearer.terms["max_fee_per_gas"] or 0) > int(dearer.terms["max_priority_fee_per_gas"] or 0)


def test_a_replacement_that_cannot_be_paid_is_refused(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    fee = chain.draft(intent(person, Person().address, 1)).fee_units
    draft, first = signed(chain, person, Person().address, ETHER - fee)

    with pytest.raises(Rejected, match="insufficient_funds"):
        chain.replacement(attempt(draft, first))


def test_a_cancellation_uses_the_slot_up_and_moves_nothing(held: EvmNode) -> None:
    held.set_automine(True)
    chain, recipient = chain_at(held), Person().address
    person = funded(held, usdc_units=DOLLAR)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, DOLLAR, token=USDC)
    chain.broadcast(first.raw)

    nothing = chain.cancellation(attempt(draft, first))
    assert nothing is not None
    assert (nothing.intent.recipient, nothing.intent.amount.units) == (person.address, 0)
    second = chain.sign(nothing, person, sequence=first.sequence)
    chain.broadcast(second.raw)
    held.mine(1)

    found = landed(chain, person, first, second)
    assert (found.fate, found.tx_hash) == (Fate.SUCCEEDED, second.tx_hash)
    assert holdings(chain, recipient) == (0, 0)
    assert holdings(chain, person.address) == (ETHER - (found.fee_units or 0), DOLLAR)


def test_a_nonce_ahead_of_its_turn_waits_in_the_pool_until_the_gap_is_filled(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    later = sent(chain, person, recipient, 2000, sequence=1)
    assert outcome(chain, person, later).fate is Fate.WAITING

    first = sent(chain, person, recipient, 1000, sequence=0)
    ethereum.mine(1)

    assert landed(chain, person, first).fate is Fate.SUCCEEDED
    assert landed(chain, person, later).fate is Fate.SUCCEEDED
    assert holdings(chain, recipient)[0] == 3000


@pytest.mark.parametrize(
    "spoiled",
    [Reply(b"", status=503), Reply(None), Reply(b"<html>bad gateway", status=502), Reply(b'{"result":')],
    ids=["503", "hang up", "502", "torn"],
)
def test_a_lost_answer_is_never_taken_for_a_refusal(ethereum: EvmNode, spoiled: Reply) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    _, transaction = signed(chain, person, recipient, 1000)
    with proxy(ethereum.url) as front:

        def lose(calls: Calls, replies: Calls) -> Reply | Calls:
            return spoiled if asks(calls, "eth_sendRawTransaction") else replies

        front.after = lose
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)

    assert landed(chain, person, transaction).fate is Fate.SUCCEEDED, "the node had taken it"
    chain.broadcast(transaction.raw)
    assert holdings(chain, recipient)[0] == 1000


def test_an_answer_lost_by_one_endpoint_is_cleared_up_by_the_next(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    _, transaction = signed(chain, person, recipient, 1000)
    with proxy(ethereum.url) as front:
        front.after = lambda _calls, _replies: Reply(b"", status=503)

        chain_at(ethereum, front.url, ethereum.url).broadcast(transaction.raw)

    assert holdings(chain, recipient)[0] == 1000


def test_a_refusal_after_a_lost_answer_is_not_certain(ethereum: EvmNode) -> None:
    # The first endpoint may have passed the transaction on; what the second one refuses proves nothing.
    chain, person = chain_at(ethereum), funded(ethereum)
    _, transaction = signed(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as lossy, proxy(ethereum.url) as stern:
        lossy.before = lambda _calls: Reply(b"", status=504)
        stern.after = refuse("eth_sendRawTransaction", "insufficient funds for gas * price + value")
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, lossy.url, stern.url).broadcast(transaction.raw)


def test_nobody_there_and_rate_limits_are_certain_not_to_have_sent_anything(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    _, transaction = signed(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as front:
        front.before = lambda _calls: Reply(b"slow down", status=429)
        with pytest.raises(Unreachable):
            chain_at(ethereum, front.url, unused_url()).broadcast(transaction.raw)
        front.before = lambda calls: json_reply(
            {"jsonrpc": "2.0", "id": calls[0]["id"], "error": {"code": -32005, "message": "limit exceeded"}}
        )
        with pytest.raises(Unreachable):
            chain_at(ethereum, front.url).broadcast(transaction.raw)

    assert outcome(chain, person, transaction).fate is Fate.WAITING


def test_a_node_that_swallows_the_transaction_and_says_nothing_leaves_the_outcome_open(
    ethereum: EvmNode,
) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    _, transaction = signed(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as front:
        front.after = spoil("eth_sendRawTransaction", "0x" + "00" * 32)
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)
        front.after = refuse("eth_sendRawTransaction", "words that nobody has heard before")
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)


def test_bytes_that_are_mined_already_are_sent_with_success(ethereum: EvmNode) -> None:
    # Nodes answer "nonce too low" then, in the same words as for another transaction in that slot.
    chain, person, recipient = chain_at(ethereum), funded(ethereum), Person().address
    transaction = sent(chain, person, recipient, 1000)
    ethereum.mine(1)

    chain.broadcast(transaction.raw)

    _, other = signed(chain, person, recipient, 999, sequence=0)
    with pytest.raises(Rejected) as refused:
        chain.broadcast(other.raw)
    assert refused.value.reason == "nonce_too_low"


def test_what_a_node_refuses_for_good_is_told_apart(held: EvmNode) -> None:
    held.set_automine(True)
    chain, person = chain_at(held), funded(held)
    pauper = Person()
    draft, first = signed(chain, person, Person().address, 1000)
    poor = dataclasses.replace(draft, intent=intent(pauper, Person().address, 1000))
    with pytest.raises(Rejected, match="insufficient_funds"):
        chain.broadcast(chain.sign(poor, pauper, sequence=0).raw)
    cheap = dataclasses.replace(
        draft, terms={**draft.terms, "max_fee_per_gas": 1, "max_priority_fee_per_gas": 1}
    )
    with pytest.raises(Rejected, match="fee_too_low"):
        chain.broadcast(chain.sign(cheap, person, sequence=0).raw)
    held.set_automine(False)
    chain.broadcast(first.raw)
    same_price = dataclasses.replace(draft, intent=intent(person, Person().address, 2000))
    with pytest.raises(Rejected, match="replacement_underpriced"):
        chain.broadcast(chain.sign(same_price, person, sequence=first.sequence).raw)


def test_the_bytes_of_another_chain_are_refused(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    draft = chain.draft(intent(person, Person().address, 1))
    with EvmNode("base") as base:
        elsewhere = chain_at(base).sign(draft, person, sequence=0)

    with pytest.raises(Rejected):
        chain.broadcast(elsewhere.raw)


def test_rebroadcasting_many_takes_few_requests_and_minds_no_single_refusal(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    draft, first = signed(chain, person, recipient, 1)
    signings = [first] + [chain.sign(draft, person, sequence=number) for number in range(1, 150)]
    with proxy(ethereum.url) as front:
        front.after = refuse("eth_sendRawTransaction", "internal error", only=[3])

        chain_at(ethereum, front.url).rebroadcast([b"\x02junk"] + [each.raw for each in signings])

        assert len(front.requests) == 2
    ethereum.mine(1)
    fates = chain.outcomes([watch(person, each, key=each.tx_hash) for each in signings]).values()
    assert {each.fate for each in fates} == {Fate.SUCCEEDED}
