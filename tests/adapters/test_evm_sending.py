"""Replacing and broadcasting on EVM chains, with nodes that fail at the worst moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from app.adapters.evm.chain import EvmChain
from app.core.chains import USDC, ChainName
from app.ports.chain import TransactionStatus
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from sandbox.evm import EvmNode
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
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain


@pytest.fixture(scope="module")
def ethereum() -> Iterator[EvmNode]:
    with EvmNode("ethereum") as running:
        yield running


@pytest.fixture
def held(ethereum: EvmNode) -> Iterator[EvmNode]:
    """A node that keeps transactions in its pool when the test says so."""
    yield ethereum
    ethereum.set_automine(True)
    ethereum.mine(1)


def test_a_replacement_is_accepted_by_the_node_and_pays_once(held: EvmNode) -> None:
    chain, recipient = chain_at(held), Person().address
    person = funded(held)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, 1000)
    chain.broadcast(first.raw)

    dearer = chain.draft_replacement(attempt(draft, first))
    assert dearer is not None
    second = chain.sign(dearer, person, sequence=first.sequence)
    chain.broadcast(second.raw)
    held.mine(1)

    for name in ("max_fee_per_gas", "max_priority_fee_per_gas"):
        assert int(dearer.terms[name] or 0) * 8 > int(draft.terms[name] or 0) * 9
    assert dearer.terms["gas"] == draft.terms["gas"]
    found = landed(chain, person, first, second)
    assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, second.tx_hash)
    assert holdings(chain, recipient)[0] == 1000


def test_the_replaced_transaction_may_still_land(held: EvmNode) -> None:
    chain, recipient = chain_at(held), Person().address
    person = funded(held)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, 1000)
    dearer = chain.draft_replacement(attempt(draft, first))
    assert dearer is not None
    second = chain.sign(dearer, person, sequence=first.sequence)

    chain.broadcast(first.raw)
    held.mine(1)
    with pytest.raises(Rejected, match="nonce_too_low"):
        chain.broadcast(second.raw)

    found = landed(chain, person, first, second)
    assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, first.tx_hash)
    assert holdings(chain, recipient)[0] == 1000


def test_a_replacement_pays_the_market_price_if_higher(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    draft, first = signed(chain, person, Person().address, 1000)
    cheap = dataclasses.replace(
        attempt(draft, first), terms={**draft.terms, "max_fee_per_gas": 100, "max_priority_fee_per_gas": 10}
    )

    dearer = chain.draft_replacement(cheap)

    assert dearer is not None
    assert int(dearer.terms["max_priority_fee_per_gas"] or 0) >= 10**6, "the market's tip on anvil"
    assert int(dearer.terms["max_fee_per_gas"] or 0) > int(dearer.terms["max_priority_fee_per_gas"] or 0)


def test_a_replacement_that_cannot_be_paid_is_refused(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    fee = chain.draft(intent(person, Person().address, 1)).fee_units
    draft, first = signed(chain, person, Person().address, ETHER - fee)

    with pytest.raises(Rejected, match="insufficient_funds"):
        chain.draft_replacement(attempt(draft, first))


def test_a_cancellation_consumes_the_nonce_and_moves_nothing(held: EvmNode) -> None:
    chain, recipient = chain_at(held), Person().address
    person = funded(held, usdc_units=DOLLAR)
    held.set_automine(False)
    draft, first = signed(chain, person, recipient, DOLLAR, token=USDC)
    chain.broadcast(first.raw)

    nothing = chain.draft_cancellation(attempt(draft, first))
    assert nothing is not None
    assert (nothing.intent.recipient, nothing.intent.amount.units) == (person.address, 0)
    second = chain.sign(nothing, person, sequence=first.sequence)
    chain.broadcast(second.raw)
    held.mine(1)

    found = landed(chain, person, first, second)
    assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, second.tx_hash)
    assert holdings(chain, recipient) == (0, 0)
    assert holdings(chain, person.address) == (ETHER - (found.fee_units or 0), DOLLAR)


def test_a_future_nonce_waits_in_the_pool_until_the_gap_is_filled(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    later = sent(chain, person, recipient, 2000, sequence=1)
    assert outcome(chain, person, later).status is TransactionStatus.WAITING

    first = sent(chain, person, recipient, 1000, sequence=0)
    ethereum.mine(1)

    assert landed(chain, person, first).status is TransactionStatus.SUCCEEDED
    assert landed(chain, person, later).status is TransactionStatus.SUCCEEDED
    assert holdings(chain, recipient)[0] == 3000


@pytest.mark.parametrize(
    "spoiled",
    [Reply(b"", status=503), Reply(None), Reply(b"<html>bad gateway", status=502), Reply(b'{"result":')],
    ids=["503", "hang up", "502", "torn"],
)
def test_a_lost_response_is_never_a_refusal(ethereum: EvmNode, spoiled: Reply) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    _, transaction = signed(chain, person, recipient, 1000)
    with proxy(ethereum.url) as front:

        def lose(calls: Calls, replies: Calls) -> Reply | Calls:
            return spoiled if asks(calls, "eth_sendRawTransaction") else replies

        front.after = lose
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)

    assert landed(chain, person, transaction).status is TransactionStatus.SUCCEEDED, "the node had accepted it"
    chain.broadcast(transaction.raw)
    assert holdings(chain, recipient)[0] == 1000


def test_a_response_lost_by_one_endpoint_is_resolved_by_the_next(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    _, transaction = signed(chain, person, recipient, 1000)
    with proxy(ethereum.url) as front:
        front.after = lambda _calls, _replies: Reply(b"", status=503)

        chain_at(ethereum, front.url, ethereum.url).broadcast(transaction.raw)

    landed(chain, person, transaction)
    assert holdings(chain, recipient)[0] == 1000


def test_a_refusal_after_a_lost_response_is_not_certain(ethereum: EvmNode) -> None:
    # The first endpoint may have propagated the transaction; a refusal by the second proves nothing.
    chain, person = chain_at(ethereum), funded(ethereum)
    _, transaction = signed(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as lossy, proxy(ethereum.url) as stern:
        lossy.before = lambda calls: Reply(b"", status=504) if asks(calls, "eth_sendRawTransaction") else None
        stern.after = refuse("eth_sendRawTransaction", "insufficient funds for gas * price + value")
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, lossy.url, stern.url).broadcast(transaction.raw)


def test_unreachable_nodes_and_rate_limits_certainly_sent_nothing(ethereum: EvmNode) -> None:
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

    assert outcome(chain, person, transaction).status is TransactionStatus.WAITING


def test_a_silent_node_leaves_the_outcome_unknown(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    _, transaction = signed(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as front:
        front.after = spoil("eth_sendRawTransaction", "0x" + "00" * 32)
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)
        front.after = refuse("eth_sendRawTransaction", "an unknown error message")
        with pytest.raises(OutcomeUnknown):
            chain_at(ethereum, front.url).broadcast(transaction.raw)


def test_broadcasting_mined_bytes_succeeds(ethereum: EvmNode) -> None:
    # Nodes answer "nonce too low" then, with the same message as for another transaction with that nonce.
    chain, person, recipient = chain_at(ethereum), funded(ethereum), Person().address
    transaction = sent(chain, person, recipient, 1000)
    ethereum.mine(1)

    chain.broadcast(transaction.raw)

    _, other = signed(chain, person, recipient, 999, sequence=0)
    with pytest.raises(Rejected) as refused:
        chain.broadcast(other.raw)
    assert refused.value.reason == "nonce_too_low"


def test_permanent_refusals_have_distinct_reasons(held: EvmNode) -> None:
    chain, person = chain_at(held), funded(held)
    pauper = Person()
    draft, first = signed(chain, person, Person().address, 1000)
    poor = dataclasses.replace(draft, intent=intent(pauper, Person().address, 1000))
    with pytest.raises(Rejected, match="insufficient_funds"):
        chain.broadcast(chain.sign(poor, pauper, sequence=0).raw)
    cheap = dataclasses.replace(draft, terms={**draft.terms, "max_fee_per_gas": 1, "max_priority_fee_per_gas": 1})
    with pytest.raises(Rejected, match="fee_too_low"):
        chain.broadcast(chain.sign(cheap, person, sequence=0).raw)
    held.set_automine(False)
    chain.broadcast(first.raw)
    same_price = dataclasses.replace(draft, intent=intent(person, Person().address, 2000))
    with pytest.raises(Rejected, match="replacement_underpriced"):
        chain.broadcast(chain.sign(same_price, person, sequence=first.sequence).raw)


def test_transactions_of_another_chain_are_refused(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    draft = chain.draft(intent(person, Person().address, 1))
    with EvmNode("base") as base:
        elsewhere = chain_at(base).sign(draft, person, sequence=0)

    with pytest.raises(Rejected):
        chain.broadcast(elsewhere.raw)


def test_rebroadcasting_takes_few_requests_and_ignores_single_refusals(ethereum: EvmNode) -> None:
    chain, recipient = chain_at(ethereum), Person().address
    person = funded(ethereum)
    draft, first = signed(chain, person, recipient, 1)
    signings = [first] + [chain.sign(draft, person, sequence=number) for number in range(1, 150)]
    with proxy(ethereum.url) as front:
        front.after = refuse("eth_sendRawTransaction", "internal error", only=[3])

        proxied = chain_at(ethereum, front.url)
        proxied.head()  # each process verifies the chain of each endpoint once
        front.requests.clear()

        proxied.rebroadcast([b"\x02junk"] + [each.raw for each in signings])

        assert len(front.requests) == 2

    def all_landed() -> bool:
        ethereum.mine(1)  # a busy node puts them in several blocks, and starts none for those that it left over
        fates = chain.outcomes([watch(person, each, key=each.tx_hash) for each in signings]).values()
        return {each.status for each in fates} == {TransactionStatus.SUCCEEDED}

    wait_until(all_landed, what="every transaction in a block")


def test_transactions_are_sent_to_the_private_endpoint_only_until_they_are_published(held: EvmNode) -> None:
    person = funded(held)
    held.set_automine(False)
    with proxy(held.url) as public, proxy(held.url) as private:
        chain = EvmChain(
            ChainName.ETHEREUM,
            held.deployment,
            rpc_urls=[public.url],
            private_rpc_urls=[private.url],
            deposit_confirmations=2,
            read_seconds=60,
        )
        _, transaction = signed(chain, person, Person().address, 1000)
        # It returns the hash and forgets the transaction.
        swallowed = [{"jsonrpc": "2.0", "id": 0, "result": transaction.tx_hash}]
        private.before = lambda calls: json_reply(swallowed[0]) if asks(calls, "eth_sendRawTransaction") else None
        chain.broadcast(transaction.raw)
        chain.rebroadcast([transaction.raw], publicly=False)
        assert private.methods() == ["eth_chainId", "eth_sendRawTransaction", "eth_sendRawTransaction"]
        assert "eth_sendRawTransaction" not in public.methods()
        held.mine(1)
        assert outcome(chain, person, transaction).status is TransactionStatus.WAITING

        chain.rebroadcast([transaction.raw], publicly=True)
        held.mine(1)
        assert landed(chain, person, transaction).status is TransactionStatus.SUCCEEDED
        # The nonce is used now, by these very bytes, as only the other endpoints show.
        private.before = lambda _calls: None
        chain.broadcast(transaction.raw)
        assert set(private.methods()) == {"eth_chainId", "eth_sendRawTransaction"}
