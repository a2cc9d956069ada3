"""Broadcasting and outcomes on Solana: never refused, void or succeeded without the evidence."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from solders.keypair import Keypair
from structlog.testing import capture_logs

from app.adapters.solana.chain import SolanaChain
from app.core.chains import SOL, USDC
from app.ports.chain import BlockRef, SignedTransaction, TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from solana_node import SolanaNode
from tests.support.evm import After, Calls, asks, json_reply, proxy, refuse, spoil
from tests.support.loopback_http import Reply, unused_url
from tests.support.solana_people import (
    FINALIZED_SLOTS,
    WHOLE_SOL,
    SolanaPerson,
    chain_at,
    funded,
    outcome,
    signed,
    watch,
)

pytestmark = pytest.mark.chain

_BLOCKHASH_SLOTS = 150


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture
def sender(node: SolanaNode) -> SolanaPerson:
    return funded(node)


def _paying(chain: SolanaChain, sender: SolanaPerson) -> tuple[str, SignedTransaction]:
    to = str(Keypair().pubkey())
    return to, signed(chain, sender, to, WHOLE_SOL // 10)[1]


def _held(chain: SolanaChain, address: str) -> int:
    return chain.balances(address).of(SOL).units


def _expire(node: SolanaNode) -> None:
    node.advance(_BLOCKHASH_SLOTS + FINALIZED_SLOTS + 2)


def _behind(slots: int) -> After:
    """A lagging node: every slot and height is from this many slots ago."""

    def after(_calls: Calls, replies: Calls) -> Calls:
        for reply in replies:
            result = reply.get("result")
            if isinstance(result, dict) and "context" in result:
                result["context"]["slot"] -= slots
            if isinstance(result, dict) and "absoluteSlot" in result:
                result["absoluteSlot"] -= slots
                result["blockHeight"] -= slots
        return replies

    return after


@pytest.mark.parametrize("status", [503, 500, 0])
def test_a_lost_response_is_not_a_failure_and_the_payment_is_found(
    node: SolanaNode, sender: SolanaPerson, status: int
) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(http_after={"sendTransaction": [status, status]})

    with pytest.raises(OutcomeUnknown):
        chain.broadcast(transaction.raw)
    node.advance(1)

    assert outcome(chain, sender, transaction).status is TransactionStatus.SUCCEEDED
    assert _held(chain, to) == WHOLE_SOL // 10


def test_certainly_unsent_is_distinguished_from_possibly_sent(node: SolanaNode, sender: SolanaPerson) -> None:
    _, transaction = _paying(chain_at(node.url), sender)
    with pytest.raises(Unreachable):
        chain_at(unused_url()).broadcast(transaction.raw)
    node.faults(http={"sendTransaction": [429]})
    with pytest.raises(Unreachable):
        chain_at(node.url).broadcast(transaction.raw)
    node.faults(http={"sendTransaction": [503]})
    with pytest.raises(OutcomeUnknown):
        chain_at(unused_url(), node.url).broadcast(transaction.raw)
    node.faults(sleep_ms={"sendTransaction": 600})
    with pytest.raises(OutcomeUnknown):
        chain_at(node.url, read_seconds=0.3).broadcast(transaction.raw)


def test_a_second_endpoint_accepts_what_the_first_did_not(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as broken:
        broken.before = lambda calls: json_reply({}, 503) if asks(calls, "sendTransaction") else None
        chain = chain_at(broken.url, node.url)
        to, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
    node.advance(1)
    assert _held(chain_at(node.url), to) == WHOLE_SOL // 10


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("Transaction simulation failed: This transaction has already been processed", None),
        ("failed to deserialize solana_transaction: io error", Rejected),
        ("failed to sanitize transaction: index out of bounds", Rejected),
        ("Transaction signature verification failure", Rejected),
        ("Node is behind by 92 slots", OutcomeUnknown),
        ("an unknown error message", OutcomeUnknown),
    ],
)
def test_node_errors_are_mapped_by_the_table_only(
    node: SolanaNode, sender: SolanaPerson, message: str, failure: type[Exception] | None
) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        between.after = refuse("sendTransaction", message)
        if failure is None:
            chain.broadcast(transaction.raw)
            return
        with pytest.raises(failure):
            chain.broadcast(transaction.raw)


def test_a_refusal_after_another_endpoints_lost_response_is_not_certain(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as loses, proxy(node.url) as refuses:
        _, transaction = _paying(chain_at(node.url), sender)
        loses.before = lambda calls: json_reply({}, 502) if asks(calls, "sendTransaction") else None
        refuses.after = refuse("sendTransaction", "failed to deserialize it")
        with pytest.raises(OutcomeUnknown):
            chain_at(loses.url, refuses.url).broadcast(transaction.raw)
        with pytest.raises(Rejected, match="invalid_transaction"):
            chain_at(refuses.url).broadcast(transaction.raw)


def test_a_response_with_another_signature_is_malformed(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as liar:
        chain = chain_at(liar.url)
        _, transaction = _paying(chain, sender)
        liar.after = spoil("sendTransaction", "5" * 88)
        with pytest.raises(OutcomeUnknown):
            chain.broadcast(transaction.raw)


def test_retry_after_is_respected(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as busy:
        chain = chain_at(busy.url)
        chain.head()
        busy.before = lambda _calls: Reply(b"", status=429, headers={"Retry-After": "30"})
        with capture_logs():
            for _ in range(5):
                with pytest.raises(Unreachable):
                    chain.balances(sender.address)
    assert len(busy.requests) == 2, "the first request and the refused one"


def test_preflight_and_node_retries_are_disabled(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        chain.rebroadcast([transaction.raw] * 60)
        sent = [call for calls in between.requests for call in calls if call["method"] == "sendTransaction"]
    assert len(sent) == 61
    assert {(call["params"][1]["skipPreflight"], call["params"][1]["maxRetries"]) for call in sent} == {(True, 0)}
    assert len([calls for calls in between.requests if asks(calls, "sendTransaction")]) == 3


def test_rebroadcasting_a_dropped_payment_pays_once(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(drop=2)
    chain.broadcast(transaction.raw)
    chain.rebroadcast([transaction.raw])
    node.advance(2)
    assert outcome(chain, sender, transaction) == TransactionOutcome(TransactionStatus.WAITING)

    threads = [threading.Thread(target=chain.rebroadcast, args=([transaction.raw],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node.advance(1)

    assert outcome(chain, sender, transaction).status is TransactionStatus.SUCCEEDED
    assert _held(chain, to) == WHOLE_SOL // 10


def test_a_late_payment_is_awaited_until_it_expires(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(delay_slots=_BLOCKHASH_SLOTS - 2)
    chain.broadcast(transaction.raw)
    seen = []
    for _ in range(_BLOCKHASH_SLOTS + FINALIZED_SLOTS):
        node.advance(1)
        seen.append(outcome(chain, sender, transaction).status)
    assert set(seen) == {TransactionStatus.WAITING, TransactionStatus.SUCCEEDED}
    assert _held(chain, to) == WHOLE_SOL // 10


def test_a_payment_is_void_only_after_the_finalized_height(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    assert transaction.expires_at_height is not None
    statuses = []
    for _ in range(_BLOCKHASH_SLOTS + FINALIZED_SLOTS + 5):
        height = node.call("getBlockHeight", {"commitment": "finalized"})
        statuses.append((height, outcome(chain, sender, transaction).status))
        node.advance(1)
    assert {status for height, status in statuses if height <= transaction.expires_at_height} == {
        TransactionStatus.WAITING
    }
    assert {status for height, status in statuses if height > transaction.expires_at_height} == {TransactionStatus.VOID}
    chain.rebroadcast([transaction.raw])
    node.advance(FINALIZED_SLOTS)
    assert outcome(chain, sender, transaction) == TransactionOutcome(TransactionStatus.VOID)


def test_a_lagging_node_never_makes_a_landed_payment_void(node: SolanaNode, sender: SolanaPerson) -> None:
    """One call of a pool is answered by a current node, the next by one that has not seen the payment."""
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    _expire(node)
    with proxy(node.url) as pool:

        def laggard(calls: Calls, replies: Calls) -> Calls:
            for call, reply in zip(calls, replies, strict=True):
                if call["method"] == "getSignatureStatuses":
                    reply["result"]["context"]["slot"] -= 500
                    reply["result"]["value"] = [None]
            return replies

        pool.after = laggard
        assert outcome(chain_at(pool.url), sender, transaction) == TransactionOutcome(TransactionStatus.WAITING)
        pool.after = spoil("getSignatureStatuses", {"context": {"slot": 2**40}, "value": [None]})
        assert outcome(chain_at(pool.url), sender, transaction).status is TransactionStatus.VOID, (
            "one false response of a node is accepted"
        )
        found = outcome(chain_at(pool.url, node.url), sender, transaction)
        assert found.status is TransactionStatus.SUCCEEDED, "but not where another endpoint has newer data"
        # By the height of this node the bytes could still land, so that no history is searched.
        pool.after = _behind(_BLOCKHASH_SLOTS + 100)
        assert outcome(chain_at(pool.url), sender, transaction).status is TransactionStatus.WAITING


def test_a_node_with_pruned_history_makes_nothing_void(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    _expire(node)
    node.prune_before(node.call("getSlot") - 100)

    assert outcome(chain, sender, transaction) == TransactionOutcome(TransactionStatus.WAITING)


@pytest.mark.parametrize(
    ("keeps", "status"), [("just enough", TransactionStatus.VOID), ("one slot less", TransactionStatus.WAITING)]
)
def test_void_requires_node_history_since_the_blockhash_only(
    node: SolanaNode, sender: SolanaPerson, keeps: str, status: TransactionStatus
) -> None:
    chain = chain_at(node.url)
    slot = node.call("getLatestBlockhash", {"commitment": "confirmed"})["context"]["slot"]
    _, transaction = _paying(chain, sender)
    node.advance(3_000)
    node.prune_before(slot if keeps == "just enough" else slot + 1)
    with capture_logs() as logs:
        assert outcome(chain, sender, transaction).status is status
    logged = [(entry["event"], entry["needs_history_since_slot"]) for entry in logs]
    assert logged == ([] if status is TransactionStatus.VOID else [("expiry_unverifiable", slot)])


def test_old_transactions_are_found_in_the_history(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    node.advance(1_000)
    assert outcome(chain, sender, transaction).status is TransactionStatus.SUCCEEDED


def test_a_landed_failure_is_reverted_with_its_fee(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    to = str(Keypair().pubkey())
    payments = [signed(chain, sender, to, WHOLE_SOL * 6 // 10)[1] for _ in range(2)]
    for transaction in payments:
        chain.broadcast(transaction.raw)
    node.advance(1)

    outcomes = [outcome(chain, sender, transaction) for transaction in payments]

    assert [entry.status for entry in outcomes] == [TransactionStatus.SUCCEEDED, TransactionStatus.REVERTED]
    assert outcomes[1].fee_units == outcomes[0].fee_units
    assert _held(chain, sender.address) == WHOLE_SOL * 4 // 10 - 2 * (outcomes[0].fee_units or 0)
    assert _held(chain, to) == WHOLE_SOL * 6 // 10


def test_finalized_is_awaited_if_configured(node: SolanaNode, sender: SolanaPerson) -> None:
    quick, careful = chain_at(node.url), chain_at(node.url, commitment="finalized")
    _, transaction = _paying(quick, sender)
    quick.broadcast(transaction.raw)
    statuses = []
    for slots in (0, 1, FINALIZED_SLOTS - 2, 1):
        node.advance(slots)
        statuses.append([outcome(chain, sender, transaction).status.name for chain in (quick, careful)])
    assert statuses == [
        ["WAITING", "WAITING"],
        ["SUCCEEDED", "WAITING"],
        ["SUCCEEDED", "WAITING"],
        ["SUCCEEDED", "SUCCEEDED"],
    ]


def test_a_thousand_pending_movements_take_few_requests(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        payments = [_paying(chain, sender)[1] for _ in range(3)]
        chain.broadcast(payments[2].raw)
        node.advance(1)
        many = [
            TransactionQuery(
                f"n{number}", sender.address, None, (str(Keypair().sign_message(bytes([number % 251]))),), 2**50
            )
            for number in range(997)
        ]
        between.requests.clear()
        outcomes = chain.outcomes([*many, *(watch(sender, p, key=p.tx_hash) for p in payments)])

    assert len(outcomes) == 1_000
    assert outcomes[payments[2].tx_hash].status is TransactionStatus.SUCCEEDED
    assert sum(entry.status is TransactionStatus.WAITING for entry in outcomes.values()) == 999
    assert len(between.requests) == 2
    statuses = [call for calls in between.requests for call in calls if call["method"] == "getSignatureStatuses"]
    assert max(len(call["params"][0]) for call in statuses) == 256


@pytest.mark.parametrize("shown", [None, {"slot": 1, "transaction": ["AA==", "base64"], "meta": None}])
def test_an_unknown_fee_is_none_and_not_zero(node: SolanaNode, sender: SolanaPerson, shown: object) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        node.advance(1)
        between.after = spoil("getTransaction", shown)
        found = outcome(chain, sender, transaction)
    assert (found.status, found.fee_units) == (TransactionStatus.SUCCEEDED, None)
    assert outcome(chain_at(node.url), sender, transaction).fee_units == 5_001


def test_a_swaps_output_is_awaited_within_a_limit(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        between.after = spoil("getTransaction", None)
        statuses = []
        for slots in (1, 1_500, FINALIZED_SLOTS + 1):
            node.advance(slots)
            found = chain.outcomes([watch(sender, transaction, receives=USDC)])["it"]
            statuses.append(found.status)
    assert statuses == [TransactionStatus.WAITING, TransactionStatus.WAITING, TransactionStatus.SUCCEEDED]
    assert found.received_units is None


def test_large_blocks_are_requested_in_smaller_portions(node: SolanaNode, sender: SolanaPerson) -> None:
    _, transaction = _paying(chain_at(node.url), sender)
    first = node.call("getSlot", {"commitment": "confirmed"})
    node.advance(FINALIZED_SLOTS + 10)
    seen = [BlockRef(first + place, transaction.tx_hash) for place in range(10)]
    with proxy(node.url) as between:

        def pad(calls: Calls, replies: Calls) -> Calls:
            for call, reply in zip(calls, replies, strict=True):
                if call["method"] == "getBlock":
                    reply["result"]["padding"] = "x" * 1_300_000
            return replies

        between.after = pad
        assert chain_at(between.url).orphaned_blocks(seen)[0] == frozenset(seen)


def test_a_landed_transaction_is_not_orphaned(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    node.advance(1)
    block = outcome(chain, sender, transaction).block
    assert block is not None

    gone, safe = chain.orphaned_blocks([block])
    assert (gone, safe < block.number) == (frozenset(), True)
    node.advance(FINALIZED_SLOTS)
    gone, safe = chain.orphaned_blocks([block])
    assert (gone, safe >= block.number) == (frozenset(), True)
    node.advance(1_000)
    node.prune_before(node.call("getSlot"))
    assert chain.orphaned_blocks([block])[0] == frozenset(), (
        "a transaction that a node has pruned is still on the chain"
    )


def test_a_rate_limit_with_the_code_of_a_skipped_slot_reverses_nothing(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    node.advance(FINALIZED_SLOTS + 10)
    block = outcome(chain, sender, transaction).block
    assert block is not None
    limit = refuse("getBlock", "50/second request limit reached - reduce calls per second", code=-32007)
    unknown = spoil("getSignatureStatuses", {"context": {"slot": node.call("getSlot")}, "value": [None]})
    with proxy(node.url) as between:
        between.after = lambda calls, replies: limit(calls, list(unknown(calls, replies)))  # type: ignore[arg-type]
        with capture_logs(), pytest.raises(Unreachable):
            chain_at(between.url).orphaned_blocks([block])


def test_a_vanished_payment_is_reversed_only_by_finalized_proof(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    slot = node.call("getSlot", {"commitment": "confirmed"}) + 5
    seen = BlockRef(slot, transaction.tx_hash)
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        assert chain.orphaned_blocks([seen])[0] == frozenset(), "the slot is not final yet"
        node.advance(FINALIZED_SLOTS + 10)
        for unproven in (refuse("getBlock", "Block not available", code=-32004), spoil("getBlock", None)):
            between.after = unproven
            gone, safe = chain.orphaned_blocks([seen])
            assert (gone, safe) == (frozenset(), slot - 1), "without proof it is not final either"
            gone, safe = chain_at(between.url, node.url).orphaned_blocks([seen])
            assert (gone, safe >= slot) == (frozenset({seen}), True), "unless another endpoint has the proof"
        between.after = lambda _calls, replies: replies
        assert chain.orphaned_blocks([seen])[0] == frozenset({seen})


def test_a_payment_that_landed_in_another_slot_is_polled_again(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    seen = BlockRef(node.call("getSlot", {"commitment": "processed"}), transaction.tx_hash)
    node.advance(5)
    chain.broadcast(transaction.raw)
    node.advance(FINALIZED_SLOTS + 1)
    assert chain.orphaned_blocks([seen])[0] == frozenset({seen})
    found = outcome(chain, sender, transaction)
    assert found.block is not None
    assert found.block.number == seen.number + 5


def test_arbitrary_bytes_are_not_a_transaction(node: SolanaNode) -> None:
    with pytest.raises(ValueError, match="not a signed"):
        chain_at(node.url).broadcast(b"\x00")


def test_history_is_searched_only_for_what_may_be_older_than_recent_slots(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    # Providers charge ten times as much for it.
    with proxy(node.url) as front:
        chain = chain_at(front.url)
        _, transaction = _paying(chain, sender)

        def searches() -> list[bool]:
            asked = [call for calls in front.requests for call in calls if call["method"] == "getSignatureStatuses"]
            front.requests.clear()
            return ["searchTransactionHistory': True" in str(call) for call in asked]

        assert outcome(chain, sender, transaction).status is TransactionStatus.WAITING
        chain.broadcast(transaction.raw)
        node.advance(2)
        found = outcome(chain, sender, transaction)
        assert found.status is TransactionStatus.SUCCEEDED
        assert found.block is not None
        assert chain.orphaned_blocks([found.block])[0] == frozenset()
        assert searches() == [False] * 3
        _expire(node)
        assert outcome(chain, sender, transaction).status is TransactionStatus.SUCCEEDED
        assert chain.orphaned_blocks([found.block])[0] == frozenset()
        assert True in searches()
