"""Outcomes of EVM transactions: never void too early, never a wrong fee, few requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from app.core.chains import USDC
from app.ports.chain import BlockRef, TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from sandbox.evm.artifacts import Artifacts
from sandbox.evm.builder import Builder
from sandbox.evm.optimism import L1Fees, set_l1_fees
from tests.support.evm import (
    ETHER,
    Calls,
    Person,
    asks,
    attempt,
    chain_at,
    funded,
    holdings,
    landed,
    outcome,
    proxy,
    refuse,
    sent,
    signed,
    spoil,
    watch,
)
from tests.support.loopback_http import Reply

pytestmark = pytest.mark.chain

SAFE_LAG = 4
"""How many blocks `safe` is behind the newest block on these nodes."""


@pytest.fixture(scope="module")
def ethereum() -> Iterator[EvmNode]:
    with EvmNode("ethereum", slots_in_an_epoch=SAFE_LAG) as running:
        yield running


@pytest.fixture(scope="module", params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> Iterator[EvmNode]:
    with EvmNode(request.param, slots_in_an_epoch=SAFE_LAG) as running:
        yield running


def without_safe_tag(calls: Calls, replies: Calls) -> Calls:
    """Refuse calls at the block `safe`, as some nodes do."""
    refused = {call["id"] for call in calls if "safe" in str(call["params"])}
    error = {"code": -32602, "message": "invalid block tag"}
    return [
        {"jsonrpc": "2.0", "id": reply["id"], "error": error} if reply["id"] in refused else reply for reply in replies
    ]


def test_a_movement_is_void_only_when_another_used_its_nonce_at_safe_depth(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    draft, never_sent = signed(chain, person, Person().address, 1000)
    rival = chain.sign(
        dataclasses.replace(draft, intent=dataclasses.replace(draft.intent, recipient=Person().address)),
        person,
        sequence=0,
    )
    chain.broadcast(rival.raw)

    for _ in range(SAFE_LAG):
        assert outcome(chain, person, never_sent) == TransactionOutcome(TransactionStatus.WAITING)
        ethereum.mine(1)

    assert outcome(chain, person, never_sent) == TransactionOutcome(TransactionStatus.VOID)
    assert landed(chain, person, never_sent, rival).status is TransactionStatus.SUCCEEDED


def test_movements_in_no_block_cost_one_count_for_each_sender(ethereum: EvmNode) -> None:
    # Providers bill each call of a batch.
    person = funded(ethereum)
    with proxy(ethereum.url) as front:
        chain = chain_at(ethereum, front.url)
        unsent = [signed(chain, person, Person().address, 1000, sequence=number)[1] for number in range(3)]
        front.requests.clear()
        found = chain.outcomes([watch(person, each, key=each.tx_hash) for each in unsent])
        assert {each.status for each in found.values()} == {TransactionStatus.WAITING}
        assert front.methods() == ["eth_getTransactionCount"]

        front.requests.clear()
        chain.outcomes([watch(person, unsent[0])], landed_only=True)
        assert front.methods() == ["eth_getTransactionReceipt", "eth_blockNumber"]


def test_a_movement_is_not_void_while_its_receipt_is_unreadable(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    transaction = sent(chain, person, Person().address, 1000)
    ethereum.mine(SAFE_LAG + 2)
    with proxy(ethereum.url) as front:
        front.after = refuse("eth_getTransactionReceipt", "transaction indexing is in progress")

        assert outcome(chain_at(ethereum, front.url), person, transaction).status is TransactionStatus.WAITING


def test_a_receipt_that_appears_between_two_reads_prevents_void(ethereum: EvmNode) -> None:
    # The first read is from before the block, the count from after it.
    chain, person = chain_at(ethereum), funded(ethereum)
    transaction = sent(chain, person, Person().address, 1000)
    ethereum.mine(SAFE_LAG + 2)
    with proxy(ethereum.url) as front:
        late = spoil("eth_getTransactionReceipt", None)
        readings = 0

        def blind_at_first(calls: Calls, replies: Calls) -> Reply | Calls:
            nonlocal readings
            readings += any(call["method"] == "eth_getTransactionReceipt" for call in calls)
            return late(calls, replies) if readings == 1 else replies

        front.after = blind_at_first
        found = outcome(chain_at(ethereum, front.url), person, transaction)

    assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, transaction.tx_hash)
    assert found.confirmations >= SAFE_LAG


def test_evidence_of_different_endpoints_never_makes_a_movement_void(ethereum: EvmNode) -> None:
    # The first endpoint reports the nonce as used, shows no receipt and fails; the second lags behind the block.
    chain, person = chain_at(ethereum), funded(ethereum)
    transaction = sent(chain, person, Person().address, 1000)
    ethereum.mine(SAFE_LAG + 2)
    with proxy(ethereum.url) as dying, proxy(ethereum.url) as lagging:
        no_receipt = spoil("eth_getTransactionReceipt", None)
        no_count = spoil("eth_getTransactionCount", "0x0")
        dying.after = no_receipt
        dying.before = lambda calls: Reply(b"", status=503) if has_reported() and asks_safe(calls) else None
        lagging.after = lambda calls, replies: no_receipt(calls, list(no_count(calls, replies)))  # type: ignore[arg-type]

        def asks_safe(calls: Calls) -> bool:
            return any("safe" in str(call["params"]) for call in calls)

        def has_reported() -> bool:
            return any(asks(calls, "eth_getTransactionCount") for calls in dying.requests[:-1])

        found = outcome(chain_at(ethereum, dying.url, lagging.url), person, transaction)

        assert has_reported(), "the first endpoint returned its count before it failed"
        assert asks(lagging.requests[-1], "eth_getTransactionReceipt"), "the second one was asked"
    assert found == TransactionOutcome(TransactionStatus.WAITING)


@pytest.mark.parametrize("has_safe_tag", [True, False])
def test_many_movements_whose_nonces_others_used_cost_few_requests_with_their_evidence_in_one(
    ethereum: EvmNode, *, has_safe_tag: bool
) -> None:
    # After a restore, and behind a pool of nodes of which one lags, there are many at once.
    chain, person = chain_at(ethereum), funded(ethereum)
    sent(chain, person, Person().address, 1000)
    ethereum.mine(SAFE_LAG + 70)
    queries = [
        TransactionQuery(str(number), person.address, 0, tuple(f"0x{number:060x}{fee:04x}" for fee in range(3)))
        for number in range(60)
    ]
    with proxy(ethereum.url) as front:
        if not has_safe_tag:
            front.after = without_safe_tag
        found = chain_at(ethereum, front.url).outcomes(queries)
    assert {each.status for each in found.values()} == {TransactionStatus.VOID}
    final = [calls for calls in front.requests if asks(calls, "eth_getTransactionCount")][1:]
    assert len(final) == (3 if has_safe_tag else 6)
    for calls in final:
        assert (calls[0]["method"], calls[-1]["method"]) == ("eth_getTransactionCount", "eth_blockNumber")
        assert asks(calls, "eth_getTransactionReceipt"), "a count alone proves nothing"


def test_without_the_safe_tag_void_requires_sixty_four_blocks() -> None:
    with EvmNode("ethereum", slots_in_an_epoch=1) as node, proxy(node.url) as front:
        front.after = without_safe_tag
        chain, person = chain_at(node, front.url), funded(node)
        draft, never_sent = signed(chain, person, Person().address, 1000)
        nothing = chain.draft_cancellation(attempt(draft, never_sent))
        assert nothing is not None
        chain.broadcast(chain.sign(nothing, person, sequence=0).raw)
        node.mine(63)
        assert outcome(chain, person, never_sent).status is TransactionStatus.WAITING
        assert chain.orphaned_blocks([])[1] == chain.head().number - 64
        node.mine(1)
        assert outcome(chain, person, never_sent).status is TransactionStatus.VOID


def test_a_reverted_movement_reports_its_fee(node: EvmNode) -> None:
    # Two transfers drafted on the same tokens: the second one reverts when it is mined.
    chain = chain_at(node)
    person = funded(node, usdc_units=1000)
    node.mine(1)
    _, first = signed(chain, person, Person().address, 1000, token=USDC, sequence=0)
    _, second = signed(chain, person, Person().address, 1000, token=USDC, sequence=1)
    chain.broadcast(first.raw)
    landed(chain, person, first)
    before = holdings(chain, person.address)[0]
    chain.broadcast(second.raw)

    found = landed(chain, person, second)

    assert (found.status, found.tx_hash) == (TransactionStatus.REVERTED, second.tx_hash)
    assert found.fee_units == before - holdings(chain, person.address)[0]


def test_a_transaction_removed_by_a_reorg_is_pending_again_and_lands_again(ethereum: EvmNode) -> None:
    chain, person, recipient = chain_at(ethereum), funded(ethereum), Person().address
    ethereum.mine(SAFE_LAG)
    transaction = sent(chain, person, recipient, 1000)
    ethereum.mine(1)
    first = landed(chain, person, transaction)
    assert first.block is not None
    assert first.confirmations == 2
    deep = chain.head()
    standing, _ = chain.orphaned_blocks([first.block])
    assert standing == frozenset()

    ethereum.reorg(3)

    gone, safe = chain.orphaned_blocks([first.block, deep, BlockRef(deep.number + 50, deep.hash)])
    assert gone == {first.block, deep}, "a block that the node does not have yet is not called orphaned"
    assert safe == chain.head().number - SAFE_LAG
    assert outcome(chain, person, transaction) == TransactionOutcome(TransactionStatus.WAITING)
    chain.broadcast(transaction.raw)
    assert landed(chain, person, transaction).status is TransactionStatus.SUCCEEDED
    assert holdings(chain, recipient)[0] == 1000


def test_a_lagging_head_gives_no_negative_confirmations(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    transaction = sent(chain, person, Person().address, 1000)
    with proxy(ethereum.url) as front:
        front.after = spoil("eth_blockNumber", "0x5")

        found = outcome(chain_at(ethereum, front.url), person, transaction)

    assert found.status is TransactionStatus.SUCCEEDED
    assert found.confirmations == 0


def test_the_l1_fee_of_a_receipt_is_used() -> None:
    with EvmNode("base") as base, proxy(base.url) as front:
        chain, person = chain_at(base), funded(base)
        transaction = sent(chain, person, Person().address, 1000)
        asked = landed(chain, person, transaction)
        receipt = base.rpc("eth_getTransactionReceipt", transaction.tx_hash)
        front.after = spoil("eth_getTransactionReceipt", {**receipt, "l1Fee": "0x7b"})

        reported = outcome(chain_at(base, front.url), person, transaction)

        l2_fee = int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)
        assert reported.fee_units == l2_fee + 123
        assert asked.fee_units == ETHER - 1000 - holdings(chain, person.address)[0]


def test_a_receipt_without_its_l1_fee_leaves_the_fee_unknown() -> None:
    with EvmNode("base") as base, proxy(base.url) as front:
        chain, person = chain_at(base), funded(base)
        transaction = sent(chain, person, Person().address, 1000)
        landed(chain, person, transaction)
        receipt = base.rpc("eth_getTransactionReceipt", transaction.tx_hash)
        front.after = spoil("eth_getTransactionReceipt", {**receipt, "l1Fee": None})

        incomplete = outcome(chain_at(base, front.url), person, transaction)

        assert (incomplete.status, incomplete.fee_units) == (TransactionStatus.SUCCEEDED, None)


def test_the_l1_fee_stays_exact_when_l1_prices_rise_afterwards() -> None:
    with EvmNode("base") as base:
        chain, person = chain_at(base), funded(base)
        transaction = sent(chain, person, Person().address, 1000)
        accounts = tuple(base.rpc("eth_accounts"))
        builder = Builder(base._connected(), Artifacts(base._cache), deployment=base.deployment, accounts=accounts)
        set_l1_fees(builder, L1Fees(l1_base_fee_wei=80 * 10**9))

        found = landed(chain, person, transaction)

        assert found.fee_units == ETHER - 1000 - holdings(chain, person.address)[0]


@pytest.mark.parametrize(
    "lie",
    [
        {"status": "0x2"},
        {"transactionHash": "0x" + "11" * 32},
        {"gasUsed": "-0x5"},
        {"gasUsed": "21000"},
        {"blockHash": "0x1234"},
        {"effectiveGasPrice": None},
        {"effectiveGasPrice": hex(2**128)},
        {"gasUsed": hex(2**63)},
        {"blockNumber": hex(2**63)},
    ],
    ids=str,
)
def test_a_forged_receipt_is_not_an_outcome(ethereum: EvmNode, lie: dict[str, object]) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    transaction = sent(chain, person, Person().address, 1000)
    receipt = ethereum.rpc("eth_getTransactionReceipt", transaction.tx_hash)
    with proxy(ethereum.url) as front:
        front.after = spoil("eth_getTransactionReceipt", {**receipt, **lie})
        with pytest.raises(Unreachable):
            outcome(chain_at(ethereum, front.url), person, transaction)
        honest = landed(chain_at(ethereum, front.url, ethereum.url), person, transaction)

    assert honest.status is TransactionStatus.SUCCEEDED


def test_a_failed_call_in_a_batch_leaves_the_others_intact(ethereum: EvmNode) -> None:
    chain, person = chain_at(ethereum), funded(ethereum)
    transactions = [sent(chain, person, Person().address, 1) for _ in range(3)]
    with proxy(ethereum.url) as front:
        front.after = refuse("eth_getTransactionReceipt", "header not found", only=[1])
        found = chain_at(ethereum, front.url).outcomes(
            [watch(person, each, key=str(number)) for number, each in enumerate(transactions)]
        )

    fates = [found[str(number)].status for number in range(3)]
    assert fates == [TransactionStatus.SUCCEEDED, TransactionStatus.WAITING, TransactionStatus.SUCCEEDED]


@pytest.mark.parametrize("mined", [0, 500, 1000])
def test_a_thousand_movements_cost_at_most_twenty_requests(node: EvmNode, mined: int) -> None:
    chain = chain_at(node)
    rich = funded(node)
    draft, first = signed(chain, rich, Person().address, 1)
    assert first.sequence == 0
    landing = [first] + [chain.sign(draft, rich, sequence=number) for number in range(1, mined)]
    if mined:
        node.set_automine(False)
        chain.rebroadcast([each.raw for each in landing])
        node.mine(1)
        node.set_automine(True)
    watches = [watch(rich, each, key=each.tx_hash) for each in landing[:mined]]
    # The others are from a wallet each, the most expensive case: one nonce query per movement.
    for number in range(mined, 1000):
        other = Person()
        watches.append(
            dataclasses.replace(watch(other, first), key=str(number), tx_hashes=(f"0x{number + 1:064x}",), sequence=0)
        )
    with proxy(node.url) as front:
        proxied = chain_at(node, front.url)
        proxied.head()  # each process verifies the chain of each endpoint once
        front.requests.clear()
        found = proxied.outcomes(watches)
        requests = len(front.requests)

    fates = [found[each.key].status for each in watches]
    assert fates == [TransactionStatus.SUCCEEDED] * mined + [TransactionStatus.WAITING] * (1000 - mined)
    assert all(found[each.key].fee_units for each in watches[:mined])
    assert requests <= 20
    assert max(len(calls) for calls in front.requests) <= 100


def test_a_node_that_lags_or_refuses_does_not_hide_what_was_sent(base_node: EvmNode) -> None:
    person = funded(base_node)
    sent(chain_at(base_node), person, Person().address, 1)
    with proxy(base_node.url) as lagging:
        lagging.after = spoil("eth_getTransactionCount", "0x0")
        for urls in ((lagging.url, base_node.url), (base_node.url, lagging.url)):
            assert chain_at(base_node, *urls).transaction_counts([person.address]) == {person.address: 1}
        lagging.after = refuse("eth_getTransactionCount", "header not found")
        with pytest.raises(Unreachable):
            chain_at(base_node, lagging.url).transaction_counts([person.address])
