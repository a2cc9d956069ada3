"""Outcomes of payments that a seller's fee payer completes: found by our signature, void only with all evidence."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from structlog.testing import capture_logs

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.x402.payments import SolanaPaymentSigner
from app.core.chains import USDC
from app.ports.chain import TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.facilitator import AuthorizedPayment, PaymentIntent
from solana_node import SolanaNode
from tests.support.ed25519 import other_signature
from tests.support.evm import After, Calls, asks, proxy, spoil
from tests.support.loopback_http import Reply
from tests.support.solana_people import FINALIZED_SLOTS, SolanaPerson, chain_at, funded

pytestmark = pytest.mark.chain
WAITING, VOID = TransactionStatus.WAITING, TransactionStatus.VOID
SUCCEEDED = TransactionStatus.SUCCEEDED
VALID_BLOCKS, LATE_INDEX_SLOTS = 150, 1_500


@dataclass(frozen=True, slots=True)
class Sale:
    """A payer with USDC and no lamports, a seller's fee payer, and signed payments between them."""

    node: SolanaNode
    payer: SolanaPerson
    sponsor: Keypair
    payee: str

    def sign(self) -> AuthorizedPayment:
        signer = SolanaPaymentSigner(chain_at(self.node.url))
        extra = {"feePayer": str(self.sponsor.pubkey())}
        intent = PaymentIntent(self.payer.address, self.payee, 10_000, 60, extra, (), 0)
        return signer.authorize(intent, signer.prepare(intent), self.payer, now=0)

    def complete(self, payment: AuthorizedPayment) -> str:
        """Add the fee payer's signature, send, and return the hash."""
        partial = VersionedTransaction.from_bytes(base64.b64decode(payment.payload["transaction"]))
        return self._send(partial, self.sponsor.sign_message(to_bytes_versioned(partial.message)))

    def _send(self, partial: VersionedTransaction, first: Signature) -> str:
        whole = VersionedTransaction.populate(partial.message, [first, *partial.signatures[1:]])
        raw = base64.b64encode(bytes(whole)).decode()
        return str(self.node.call("sendTransaction", raw, {"encoding": "base64", "skipPreflight": True}))

    def complete_differently(self, payment: AuthorizedPayment) -> str:
        """Sign the same message once more, with a signature that is as valid: Ed25519 has many."""
        partial = VersionedTransaction.from_bytes(base64.b64decode(payment.payload["transaction"]))
        message = to_bytes_versioned(partial.message)
        return self._send(partial, other_signature(self.sponsor, message))

    def outcomes(self, chain: SolanaChain, *payments: AuthorizedPayment) -> list[TransactionOutcome]:
        queries = [
            TransactionQuery(each.reference, self.payer.address, None, (each.reference,), terms=each.terms)
            for each in payments
        ]
        found = chain.outcomes(queries)
        return [found[each.reference] for each in payments]

    def status(self, payment: AuthorizedPayment, *urls: str) -> TransactionStatus:
        [found] = self.outcomes(chain_at(*(urls or (self.node.url,))), payment)
        return found.status


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture
def sale(node: SolanaNode) -> Sale:
    sponsor = funded(node)
    payee = funded(node, lamports=0, usdc_units=1)
    payer = funded(node, lamports=0, usdc_units=1_000_000)
    return Sale(node, payer, sponsor.keys, payee.address)


def test_each_payment_is_found_by_its_own_signature(sale: Sale) -> None:
    chain = chain_at(sale.node.url)
    first, second, third = sale.sign(), sale.sign(), sale.sign()
    hashes = [sale.complete(first), sale.complete(second)]
    sale.node.airdrop(sale.payer.address, 10**9)
    sale.node.advance(1)
    one, two, open_ = sale.outcomes(chain, first, second, third)
    assert [one.tx_hash, two.tx_hash] == hashes
    assert (one.status, one.fee_units, one.confirmations) == (SUCCEEDED, 0, 1)
    assert open_ == TransactionOutcome(WAITING)


def test_a_payment_that_is_completed_twice_is_paid_once(sale: Sale) -> None:
    payment = sale.sign()
    first, second = sale.complete(payment), sale.complete_differently(payment)
    sale.node.advance(1)
    assert first != second
    chain = chain_at(sale.node.url)
    assert sale.outcomes(chain, payment)[0].tx_hash == first
    assert chain.balances(sale.payer.address).of(USDC).units == 1_000_000 - 10_000


def test_what_was_learned_of_a_hash_is_not_asked_again(sale: Sale) -> None:
    payment = sale.sign()
    sale.node.airdrop(sale.payer.address, 10**9)
    sale.node.advance(1)
    with proxy(sale.node.url) as between:
        chain = chain_at(between.url)
        assert [sale.outcomes(chain, payment)[0].status for _ in range(3)] == [WAITING] * 3
        assert len([calls for calls in between.requests if asks(calls, "getTransaction")]) == 1


def test_a_payment_is_void_only_when_late_indexes_would_show_it(sale: Sale) -> None:
    payment = sale.sign()
    signed_at = payment.terms["payment_blockhash_slot"]
    assert isinstance(signed_at, int)
    seen = []
    for _ in range(8):
        finalized = sale.node.call("getSlot", {"commitment": "finalized"})
        seen.append((finalized - signed_at, sale.status(payment)))
        sale.node.advance(250)
    assert {status for age, status in seen if age < LATE_INDEX_SLOTS} == {WAITING}
    assert {status for age, status in seen if age >= LATE_INDEX_SLOTS} == {VOID}
    sale.complete(payment)
    sale.node.advance(FINALIZED_SLOTS)
    assert sale.status(payment) is VOID


def test_a_payment_is_not_void_while_blocks_are_missing_behind_its_blockhash(sale: Sale) -> None:
    """Slots without blocks pass, and the blockhash stays valid."""
    payment = sale.sign()
    sale.node.advance(LATE_INDEX_SLOTS + 100)
    with proxy(sale.node.url) as between:

        def at_the_last_height(_calls: Calls, replies: Calls) -> Calls:
            for reply in replies:
                if isinstance(reply.get("result"), dict) and "blockHeight" in reply["result"]:
                    reply["result"]["blockHeight"] = payment.terms["payment_last_height"]
            return replies

        between.after = at_the_last_height
        assert sale.status(payment, between.url) is WAITING
    assert sale.status(payment) is VOID


def test_a_landed_payment_that_the_first_endpoint_does_not_list_is_found_at_another(sale: Sale) -> None:
    payment = sale.sign()
    sale.complete(payment)
    sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS)
    with proxy(sale.node.url) as forgets:
        forgets.after = spoil("getSignaturesForAddress", [])
        assert sale.status(payment, forgets.url, sale.node.url) is SUCCEEDED
        assert sale.status(payment, forgets.url) is VOID, "one false response of a node is accepted"


def test_an_endpoint_without_the_period_or_with_a_transaction_that_it_cannot_show_proves_nothing(sale: Sale) -> None:
    payment = sale.sign()
    sale.node.airdrop(sale.payer.address, 10**9)
    sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS)
    with proxy(sale.node.url) as between:
        for method, answer in (("getTransaction", None), ("getFirstAvailableBlock", 10**12)):
            between.after = spoil(method, answer)
            with capture_logs() as logs:
                assert sale.status(payment, between.url) is WAITING
            assert [each["event"] for each in logs] == ["expiry_unverifiable"]
        assert sale.status(payment, between.url, sale.node.url) is VOID


def test_a_transaction_of_another_version_in_the_history_does_not_keep_a_payment_open(sale: Sale) -> None:
    payment = sale.sign()
    sale.node.airdrop(sale.payer.address, 10**9)
    sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS)
    with proxy(sale.node.url) as between:

        def unsupported(calls: Calls, replies: Calls) -> Calls:
            error = {"code": -32015, "message": "Transaction version (1) is not supported"}
            for call, reply in zip(calls, replies, strict=True):
                if call["method"] == "getTransaction":
                    reply.pop("result", None)
                    reply["error"] = error
            return replies

        between.after = unsupported
        assert sale.status(payment, between.url) is VOID


def test_a_longer_history_than_is_read_proves_nothing(sale: Sale) -> None:
    payment = sale.sign()
    sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS)
    with proxy(sale.node.url) as endless:
        entry = {"signature": sale.complete(sale.sign()), "slot": 10**12, "err": None, "memo": None, "blockTime": 0}
        endless.after = spoil("getSignaturesForAddress", [entry] * 1_000)
        assert sale.status(payment, endless.url) is WAITING


def _followed_by(strangers: int, sale: Sale, slot: int) -> After:
    """Return an alteration: later transactions of strangers name the payer, too."""
    entry = {"slot": slot, "err": None, "memo": None, "blockTime": 0}
    listed = [{"signature": str(Signature(each.to_bytes(64, "big"))), **entry} for each in range(1, strangers + 1)]
    listed += sale.node.call("getSignaturesForAddress", sale.payer.address, {"commitment": "finalized"})
    following = {each["signature"]: number for number, each in enumerate(listed, start=1)}

    def after(calls: Calls, replies: Calls) -> Calls:
        pages = {
            call["id"]: listed[following.get(call["params"][1].get("before"), 0) :][:1_000]
            for call in calls
            if call["method"] == "getSignaturesForAddress"
        }
        return [
            {"jsonrpc": "2.0", "id": reply["id"], "result": pages[reply["id"]]} if reply["id"] in pages else reply
            for reply in replies
        ]

    return after


@pytest.mark.parametrize("lands", [True, False])
def test_later_transactions_of_strangers_do_not_hide_the_outcome(sale: Sale, *, lands: bool) -> None:
    payment = sale.sign()
    landed = sale.complete(payment) if lands else None
    slot = sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS + FINALIZED_SLOTS) - FINALIZED_SLOTS
    with proxy(sale.node.url) as flooded:
        flooded.after = _followed_by(25_000, sale, slot)
        chain = chain_at(flooded.url)
        outcomes = [sale.outcomes(chain, payment)[0] for _ in range(3)]
    assert (outcomes[0].status, outcomes[0].tx_hash) == (WAITING, None)
    assert (outcomes[-1].status, outcomes[-1].tx_hash) == ((SUCCEEDED, landed) if lands else (VOID, None))


def test_a_node_that_does_not_know_where_a_history_continues_proves_nothing(sale: Sale) -> None:
    payment = sale.sign()
    landed = sale.complete(payment)
    slot = sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS + FINALIZED_SLOTS) - FINALIZED_SLOTS
    with proxy(sale.node.url) as flooded:
        follow = _followed_by(25_000, sale, slot)
        is_forgetful = False

        def after(calls: Calls, replies: Calls) -> Calls:
            if not is_forgetful:
                return follow(calls, replies)
            listing = {call["id"] for call in calls if call["method"] == "getSignaturesForAddress"}
            return [{**reply, "result": []} if reply["id"] in listing else reply for reply in replies]

        flooded.after = after
        chain = chain_at(flooded.url)
        assert sale.outcomes(chain, payment)[0].status is WAITING
        is_forgetful = True
        assert sale.outcomes(chain, payment)[0].status is WAITING
        is_forgetful = False
        outcomes = [sale.outcomes(chain, payment)[0] for _ in range(3)]
    assert (outcomes[-1].status, outcomes[-1].tx_hash) == (SUCCEEDED, landed)


def test_an_unreachable_endpoint_is_no_evidence(sale: Sale) -> None:
    payment = sale.sign()
    sale.node.advance(LATE_INDEX_SLOTS + VALID_BLOCKS)
    with proxy(sale.node.url) as broken:
        broken.before = lambda calls: Reply(b"", status=503) if asks(calls, "getFirstAvailableBlock") else None
        assert sale.status(payment, broken.url) is WAITING
