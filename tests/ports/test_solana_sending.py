"""Sending on Solana and finding out: never called refused, void or done without the evidence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from solders.keypair import Keypair
from structlog.testing import capture_logs

from app.adapters.solana.chain import SolanaChain
from app.core.chains import SOL, USDC
from app.ports.chain import BlockRef, Fate, Outcome, Signed, Watch
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from sandbox.solana import SolanaNode
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


def _paying(chain: SolanaChain, sender: SolanaPerson) -> tuple[str, Signed]:
    to = str(Keypair().pubkey())
    return to, signed(chain, sender, to, WHOLE_SOL // 10)[1]


def _held(chain: SolanaChain, address: str) -> int:
    return chain.balances(address).of(SOL).units


def _expire(node: SolanaNode) -> None:
    node.advance(_BLOCKHASH_SLOTS + FINALIZED_SLOTS + 2)


def _behind(slots: int) -> After:
    """A laggard: everything that tells a slot or a height is from so many slots ago."""

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
def test_a_lost_answer_is_not_called_a_failure_and_the_payment_is_found(
    node: SolanaNode, sender: SolanaPerson, status: int
) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(http_after={"sendTransaction": [status, status]})

    with pytest.raises(OutcomeUnknown):
        chain.broadcast(transaction.raw)
    node.advance(1)

    assert outcome(chain, sender, transaction).fate is Fate.SUCCEEDED
    assert _held(chain, to) == WHOLE_SOL // 10


def test_what_certainly_was_not_sent_is_told_apart_from_what_may_have_been(
    node: SolanaNode, sender: SolanaPerson
) -> None:
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


def test_another_endpoint_takes_what_the_first_one_did_not(node: SolanaNode, sender: SolanaPerson) -> None:
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
        ("words that no table has", OutcomeUnknown),
    ],
)
def test_what_a_node_says_to_a_transaction_is_read_from_the_table_only(
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


def test_a_refusal_by_one_endpoint_after_a_lost_answer_of_another_is_not_certain(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    with proxy(node.url) as loses, proxy(node.url) as refuses:
        _, transaction = _paying(chain_at(node.url), sender)
        loses.before = lambda calls: json_reply({}, 502) if asks(calls, "sendTransaction") else None
        refuses.after = refuse("sendTransaction", "failed to deserialize it")
        with pytest.raises(OutcomeUnknown):
            chain_at(loses.url, refuses.url).broadcast(transaction.raw)
        with pytest.raises(Rejected, match="invalid_transaction"):
            chain_at(refuses.url).broadcast(transaction.raw)


def test_an_answer_that_names_another_transaction_is_no_answer(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    with proxy(node.url) as liar:
        chain = chain_at(liar.url)
        _, transaction = _paying(chain, sender)
        liar.after = spoil("sendTransaction", "5" * 88)
        with pytest.raises(OutcomeUnknown):
            chain.broadcast(transaction.raw)


def test_an_endpoint_that_asks_for_a_pause_gets_it(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as busy:
        chain = chain_at(busy.url)
        chain.verify_identity()
        busy.before = lambda _calls: Reply(b"", status=429, headers={"Retry-After": "30"})
        with capture_logs():
            for _ in range(5):
                with pytest.raises(Unreachable):
                    chain.balances(sender.address)
    assert len(busy.requests) == 2, "the first question and the one that was refused"


def test_nodes_are_not_asked_for_their_opinion_nor_to_try_by_themselves(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        chain.rebroadcast([transaction.raw] * 60)
        sent = [call for calls in between.requests for call in calls if call["method"] == "sendTransaction"]
    assert len(sent) == 61
    assert {(call["params"][1]["skipPreflight"], call["params"][1]["maxRetries"]) for call in sent} == {
        (True, 0)
    }
    assert len([calls for calls in between.requests if asks(calls, "sendTransaction")]) == 3


def test_a_dropped_payment_is_brought_in_by_the_same_bytes_and_pays_once(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(drop=2)
    chain.broadcast(transaction.raw)
    chain.rebroadcast([transaction.raw])
    node.advance(2)
    assert outcome(chain, sender, transaction) == Outcome(Fate.WAITING)

    threads = [threading.Thread(target=chain.rebroadcast, args=([transaction.raw],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node.advance(1)

    assert outcome(chain, sender, transaction).fate is Fate.SUCCEEDED
    assert _held(chain, to) == WHOLE_SOL // 10


def test_a_late_payment_is_waited_for_as_long_as_it_may_land(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    to, transaction = _paying(chain, sender)
    node.faults(delay_slots=_BLOCKHASH_SLOTS - 2)
    chain.broadcast(transaction.raw)
    seen = []
    for _ in range(_BLOCKHASH_SLOTS + FINALIZED_SLOTS):
        node.advance(1)
        seen.append(outcome(chain, sender, transaction).fate)
    assert set(seen) == {Fate.WAITING, Fate.SUCCEEDED}
    assert _held(chain, to) == WHOLE_SOL // 10


def test_a_payment_is_void_only_when_the_finalized_height_is_past(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    assert transaction.expires_at_height is not None
    fates = []
    for _ in range(_BLOCKHASH_SLOTS + FINALIZED_SLOTS + 5):
        height = node.call("getBlockHeight", {"commitment": "finalized"})
        fates.append((height, outcome(chain, sender, transaction).fate))
        node.advance(1)
    assert {fate for height, fate in fates if height <= transaction.expires_at_height} == {Fate.WAITING}
    assert {fate for height, fate in fates if height > transaction.expires_at_height} == {Fate.VOID}
    chain.rebroadcast([transaction.raw])
    node.advance(FINALIZED_SLOTS)
    assert outcome(chain, sender, transaction) == Outcome(Fate.VOID)


def test_a_node_that_lags_never_declares_a_landed_payment_void(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    """One call of a pool is answered by a node that is up to date, the next by one that has not seen the payment."""
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
        assert outcome(chain_at(pool.url), sender, transaction) == Outcome(Fate.WAITING)
        pool.after = spoil("getSignatureStatuses", {"context": {"slot": 2**40}, "value": [None]})
        assert outcome(chain_at(pool.url), sender, transaction).fate is Fate.VOID, (
            "one node that lies is believed"
        )
        told = outcome(chain_at(pool.url, node.url), sender, transaction)
        assert told.fate is Fate.SUCCEEDED, "but not where another endpoint knows better"
        pool.after = _behind(_BLOCKHASH_SLOTS + 100)
        assert outcome(chain_at(pool.url), sender, transaction).fate is Fate.SUCCEEDED


def test_a_node_that_has_forgotten_its_history_declares_nothing_void(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    _expire(node)
    node.forget_before(node.call("getSlot") - 100)

    assert outcome(chain, sender, transaction) == Outcome(Fate.WAITING)


@pytest.mark.parametrize(("keeps", "fate"), [("just enough", Fate.VOID), ("one slot less", Fate.WAITING)])
def test_after_an_outage_of_ours_a_node_needs_history_since_the_blockhash_and_no_more(
    node: SolanaNode, sender: SolanaPerson, keeps: str, fate: Fate
) -> None:
    chain = chain_at(node.url)
    slot = node.call("getLatestBlockhash", {"commitment": "confirmed"})["context"]["slot"]
    _, transaction = _paying(chain, sender)
    node.advance(3_000)
    node.forget_before(slot if keeps == "just enough" else slot + 1)
    with capture_logs() as logs:
        assert outcome(chain, sender, transaction).fate is fate
    told = [(entry["event"], entry["needs_history_since_slot"]) for entry in logs]
    assert told == ([] if fate is Fate.VOID else [("void_unprovable", slot)])


def test_history_is_searched_for_what_landed_long_ago(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    node.advance(1_000)
    assert outcome(chain, sender, transaction).fate is Fate.SUCCEEDED


def test_a_landed_failure_is_reverted_with_its_fee_and_never_taken_for_a_success(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    to = str(Keypair().pubkey())
    payments = [signed(chain, sender, to, WHOLE_SOL * 6 // 10)[1] for _ in range(2)]
    for transaction in payments:
        chain.broadcast(transaction.raw)
    node.advance(1)

    told = [outcome(chain, sender, transaction) for transaction in payments]

    assert [entry.fate for entry in told] == [Fate.SUCCEEDED, Fate.REVERTED]
    assert told[1].fee_units == told[0].fee_units
    assert _held(chain, sender.address) == WHOLE_SOL * 4 // 10 - 2 * (told[0].fee_units or 0)
    assert _held(chain, to) == WHOLE_SOL * 6 // 10


def test_finalized_is_waited_for_where_the_operator_wants_it(node: SolanaNode, sender: SolanaPerson) -> None:
    quick, careful = chain_at(node.url), chain_at(node.url, commitment="finalized")
    _, transaction = _paying(quick, sender)
    quick.broadcast(transaction.raw)
    fates = []
    for slots in (0, 1, FINALIZED_SLOTS - 2, 1):
        node.advance(slots)
        fates.append([outcome(chain, sender, transaction).fate.name for chain in (quick, careful)])
    assert fates == [
        ["WAITING", "WAITING"],
        ["SUCCEEDED", "WAITING"],
        ["SUCCEEDED", "WAITING"],
        ["SUCCEEDED", "SUCCEEDED"],
    ]


def test_a_thousand_pending_movements_are_asked_about_in_few_requests(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        payments = [_paying(chain, sender)[1] for _ in range(3)]
        chain.broadcast(payments[2].raw)
        node.advance(1)
        many = [
            Watch(
                f"n{number}",
                sender.address,
                None,
                (str(Keypair().sign_message(bytes([number % 251]))),),
                2**50,
            )
            for number in range(997)
        ]
        between.requests.clear()
        told = chain.outcomes([*many, *(watch(sender, p, key=p.tx_hash) for p in payments)])

    assert len(told) == 1_000
    assert told[payments[2].tx_hash].fate is Fate.SUCCEEDED
    assert sum(entry.fate is Fate.WAITING for entry in told.values()) == 999
    assert len(between.requests) == 2
    statuses = [
        call for calls in between.requests for call in calls if call["method"] == "getSignatureStatuses"
    ]
    assert max(len(call["params"][0]) for call in statuses) == 256


@pytest.mark.parametrize("shown", [None, {"slot": 1, "transaction": ["AA==", "base64"], "meta": None}])
def test_a_fee_that_the_node_cannot_tell_yet_is_none_and_not_zero(
    node: SolanaNode, sender: SolanaPerson, shown: object
) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        node.advance(1)
        between.after = spoil("getTransaction", shown)
        told = outcome(chain, sender, transaction)
    assert (told.fate, told.fee_units) == (Fate.SUCCEEDED, None)
    assert outcome(chain_at(node.url), sender, transaction).fee_units == 5_001


def test_what_a_swap_brought_is_waited_for_and_not_for_ever(node: SolanaNode, sender: SolanaPerson) -> None:
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        _, transaction = _paying(chain, sender)
        chain.broadcast(transaction.raw)
        between.after = spoil("getTransaction", None)
        fates = []
        for slots in (1, 1_500, FINALIZED_SLOTS + 1):
            node.advance(slots)
            told = chain.outcomes([watch(sender, transaction, receives=USDC)])["it"]
            fates.append(told.fate)
    assert fates == [Fate.WAITING, Fate.WAITING, Fate.SUCCEEDED]
    assert told.received_units is None


def test_blocks_that_are_too_large_together_are_asked_for_in_smaller_portions(
    node: SolanaNode, sender: SolanaPerson
) -> None:
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
        assert chain_at(between.url).orphaned(seen)[0] == frozenset(seen)


def test_what_stands_where_it_landed_is_not_orphaned(node: SolanaNode, sender: SolanaPerson) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    chain.broadcast(transaction.raw)
    node.advance(1)
    block = outcome(chain, sender, transaction).block
    assert block is not None

    gone, safe = chain.orphaned([block])
    assert (gone, safe < block.number) == (frozenset(), True)
    node.advance(FINALIZED_SLOTS)
    gone, safe = chain.orphaned([block])
    assert (gone, safe >= block.number) == (frozenset(), True)
    node.advance(1_000)
    node.forget_before(node.call("getSlot"))
    assert chain.orphaned([block])[0] == frozenset(), "what a node has forgotten is not gone from the chain"


@pytest.mark.parametrize("proof", ["another block", "skipped slot"])
def test_a_payment_that_vanished_from_a_confirmed_slot_comes_back_only_by_a_final_proof(
    node: SolanaNode, sender: SolanaPerson, proof: str
) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    slot = node.call("getSlot", {"commitment": "confirmed"}) + 5
    seen = BlockRef(slot, transaction.tx_hash)
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        assert chain.orphaned([seen])[0] == frozenset(), "the slot is not final yet"
        node.advance(FINALIZED_SLOTS + 10)
        for cannot_say in (refuse("getBlock", "Block not available", code=-32004), spoil("getBlock", None)):
            between.after = cannot_say
            gone, safe = chain.orphaned([seen])
            assert (gone, safe) == (frozenset(), slot - 1), "nobody can say, so it is not safe either"
            gone, safe = chain_at(between.url, node.url).orphaned([seen])
            assert (gone, safe >= slot) == (frozenset({seen}), True), "unless another endpoint can"
        skipped: Any = refuse("getBlock", "Slot was skipped", code=-32007)
        between.after = skipped if proof == "skipped slot" else (lambda _calls, replies: replies)
        assert chain.orphaned([seen])[0] == frozenset({seen})


def test_a_payment_that_landed_in_another_slot_than_was_seen_is_looked_at_again(
    node: SolanaNode, sender: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    _, transaction = _paying(chain, sender)
    seen = BlockRef(node.call("getSlot", {"commitment": "processed"}), transaction.tx_hash)
    node.advance(5)
    chain.broadcast(transaction.raw)
    node.advance(FINALIZED_SLOTS + 1)
    assert chain.orphaned([seen])[0] == frozenset({seen})
    told = outcome(chain, sender, transaction)
    assert told.block is not None
    assert told.block.number == seen.number + 5


def test_a_stranger_s_bytes_are_no_transaction(node: SolanaNode) -> None:
    with pytest.raises(ValueError, match="not a signed"):
        chain_at(node.url).broadcast(b"\x00")
