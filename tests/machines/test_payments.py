"""State machine test of payments and top-ups: claimed, settled, served, retried, or submitted by a third party."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule
from sqlalchemy import func, select

from app.agents import service as agents
from app.core import clock
from app.core.chains import ETH, USDC
from app.credits import accounts as credit_accounts
from app.credits import audit as credits_audit
from app.db.unit_of_work import read_only_unit
from app.errors import PaymentAlreadyUsed, PaymentInvalid, PaymentPending
from app.idempotency.service import Claim
from app.payments import claimed_payments, topups, treasury
from app.payments import jobs as payment_jobs
from app.payments import jobs as payments_audit
from app.payments.claimed_payments import MAX_ATTEMPTS, RETRY_WINDOW, PaymentStatus
from app.payments.models import Payment, PaymentClaim, TopUp
from app.payments.presented import PaymentHeaders, PaymentPrice
from app.payments.treasury import WalletRole
from app.payments.x402 import gate
from app.payments.x402.gate import PaymentGrant
from app.spending import audit as spending_audit
from app.wallets.maintenance import audit as wallets_audit
from app.wallets.transactions import confirmation, relayed
from app.wallets.views import history
from tests.support.machines import Ground, Machine, Walk
from tests.support.simulated_chain import DEPOSIT_DEPTH

UNIT = 10**6
PRICE_UNITS = 10_000
NO_WAIT = Decimal(0)
INITIAL_NANOS = 10 * 10**9
_HOUR = 3600
_REQUESTS = ("one request", "another request")


@dataclass
class Paid:
    """A payment in the model, listed under each of its claims."""

    request: str
    signed: str | None
    status: PaymentStatus
    submission: str | None = None
    tries: int = 0
    paid_at: float = 0.0


@dataclass(frozen=True)
class Offered:
    """What a payer can present: a hash, or a signed payment."""

    tx_hash: str | None
    claim: str | None
    payer: str


class Payments(Machine):
    """Payers, third parties and one agent that tops up. The model maps each claim to its payment."""

    audits = (payments_audit.check, credits_audit.check, spending_audit.check, wallets_audit.check)

    reaches = frozenset({"payment: served", "payment: paid", "payment: void", "payment: settling", "granted"})

    offered = Bundle("offered")
    grants = Bundle("grants")

    def begin(self) -> None:
        made = agents.register(name=None, email=None)
        self.agent_id, self.wallet = made.agent_id, made.wallet
        chain = self.ground.chain
        address = self.wallet.address_on(chain.name)
        chain.give(address, USDC, 10**6 * UNIT)
        chain.give(address, ETH, 10**18)
        self.recipient = treasury.recipient(chain.name)
        chain.give(treasury.settler(chain.name), ETH, 10**18)
        assert treasury.wallet(WalletRole.SETTLEMENT, chain.name).address_on(chain.name) == treasury.settler(chain.name)
        self.claimed: dict[str, Paid | None] = {}
        self.granted: dict[str, int] = {}
        self.topups: dict[str, int] = {}
        self.ended: set[str] = set()
        self.failed: set[str] = set()
        self.signatures = 0

    def price(self, request: str, headers: PaymentHeaders) -> PaymentPrice:
        return PaymentPrice(
            nanos=PRICE_UNITS * 1000,
            fingerprint=request,
            provider="brave",
            resource="http://x",
            description="d",
            headers=headers,
        )

    @rule(target=offered, units=st.sampled_from((PRICE_UNITS - 1, PRICE_UNITS, PRICE_UNITS, 2 * PRICE_UNITS)))
    def pay_by_hash(self, units: int) -> Offered:
        return Offered(self.ground.chain.pay(self.recipient, USDC, units), None, "0x")

    @rule(target=offered)
    def sign_payment(self) -> Offered:
        self.signatures += 1
        payer = f"0x{self.signatures:040x}"
        self.ground.chain.give(payer, USDC, PRICE_UNITS)
        return Offered(None, f"auth:{self.signatures}", payer)

    @rule(target=offered, offer=offered)
    def submit_as_third_party(self, offer: Offered) -> object:
        if offer.claim is None:
            return multiple()
        facilitator = self.ground.facilitator
        return Offered(
            facilitator.submit_externally(offer.claim, offer.payer, self.recipient, PRICE_UNITS), None, offer.payer
        )

    @rule(blocks=st.integers(1, 3), reverting=st.sampled_from((False, False, False, True)))
    def mine_blocks(self, blocks: int, reverting: bool) -> None:
        self.ground.chain.mine(blocks, reverting=reverting)

    @rule(hours=st.sampled_from((1, 1, 2, 23, 25)))
    def advance_time(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @rule(dollars=st.integers(1, 9))
    def top_up(self, dollars: int) -> None:
        self.let_pass(hours=24)
        view = topups.send(
            self.wallet, topups.TopUpOrder("base", str(dollars)), wait_seconds=NO_WAIT, claim=Claim.none()
        )
        self.topups[view.id] = dollars
        self.claimed[self.key(view.tx_hash or "")] = None

    @rule()
    def run_workers(self) -> None:
        self.let_pass(seconds=61)
        confirmation.confirm(self.ground.chain.name)
        for paid in self.payments():
            self.resolve(paid)
        payment_jobs.resume_settlements(self.ground.chain.name)
        for transaction_id, dollars in self.topups.items():
            if transaction_id in self.ended:
                continue
            view = history.current_view(transaction_id)
            with read_only_unit() as session:
                is_final = relayed.final_decision(session, transaction_id) is not None
            if is_final:
                self.ended.add(transaction_id)
                self.granted[transaction_id] = dollars if view.status == "confirmed" else 0
                if view.status == "confirmed":
                    self.claimed[self.key(view.tx_hash or "")] = None

    def payments(self) -> list[Paid]:
        return list({id(paid): paid for paid in self.claimed.values() if paid is not None}.values())

    def key(self, tx_hash: str) -> str:
        return claimed_payments.transaction_claim_key(self.ground.chain.name, tx_hash)

    def resolve(self, paid: Paid) -> None:
        """Apply the outcome of a submission to its payment in the model."""
        if paid.status is not PaymentStatus.SETTLING or paid.submission is None:
            return
        status = history.current_view(paid.submission).status
        if status == "pending":
            return
        used = self.ground.chain.was_used(paid.signed or "")
        if used is not None:
            paid.status, paid.paid_at = PaymentStatus.PAID, clock.now().timestamp()
            return
        with read_only_unit() as session:
            is_final = relayed.final_decision(session, paid.submission) is not None
        if is_final:
            paid.status = PaymentStatus.VOID
            with read_only_unit() as session:
                final = relayed.final_decision(session, paid.submission)
            if final is not None and final.is_reverted:
                self.failed.add(paid.signed or "")
            self.claimed = {key: each for key, each in self.claimed.items() if each is not paid}

    @rule(target=grants, offer=offered, request=st.sampled_from(_REQUESTS))
    def present(self, offer: Offered, request: str) -> object:
        expected, known = self.expect(offer, request)
        if offer.tx_hash is not None:
            headers = {"X-Payment": offer.tx_hash}
        else:
            payload = {"claim": offer.claim, "payer": offer.payer, "units": PRICE_UNITS}
            document = {"x402Version": 1, "scheme": "exact", "network": "simulated", "payload": payload}
            headers = {"X-Payment": base64.b64encode(json.dumps(document).encode()).decode()}
        price = self.price(request, PaymentHeaders(plain=headers["X-Payment"]))
        with self.ground.app.app_context():
            if expected is not PaymentGrant:
                with pytest.raises(expected):
                    gate.accept_payment(price, payer=None)
                self.note_submission(offer, request)
                return multiple()
            grant = gate.accept_payment(price, payer=None)
        if known is None:
            known = Paid(request, None, PaymentStatus.PAID, paid_at=clock.now().timestamp())
            found = self.ground.chain.landed(offer.tx_hash or "")
            assert found is not None
            self.claimed[self.key(offer.tx_hash or "")] = known
            if found[1].tx.auth is not None:
                self.claimed[found[1].tx.auth] = known
        return (grant, known)

    def expect(self, offer: Offered, request: str) -> tuple[type, Paid | None]:
        """Return the expected outcome of a presentation, and its payment if it was claimed before."""
        key = offer.claim or self.key(offer.tx_hash or "")
        if key in self.claimed:
            known = self.claimed[key]
            if known is None or known.request != request:
                return PaymentAlreadyUsed, known
            if offer.claim is None and known.signed is not None:
                return PaymentAlreadyUsed, known  # the payer is not proven
            self.resolve(known)
            if known.status is PaymentStatus.SETTLING:
                return PaymentPending, known
            is_recent = clock.now().timestamp() <= known.paid_at + RETRY_WINDOW.total_seconds()
            is_usable = known.status is PaymentStatus.PAID and known.tries < MAX_ATTEMPTS and is_recent
            return (PaymentGrant if is_usable else PaymentAlreadyUsed), known
        if offer.claim is not None:
            used = self.ground.chain.was_used(offer.claim) is not None
            if offer.claim in self.failed:
                return PaymentInvalid, None
            return (PaymentAlreadyUsed if used else PaymentPending), None
        found = self.ground.chain.landed(offer.tx_hash or "")
        if found is None or not found[1].succeeded or found[1].tx.units < PRICE_UNITS:
            return PaymentInvalid, None
        block, entry = found
        if clock.now().timestamp() - block.at > _HOUR:
            return PaymentInvalid, None
        if entry.tx.auth is not None and entry.tx.auth in self.claimed:
            return PaymentAlreadyUsed, None
        is_confirmed = self.ground.chain.blocks[-1].number - block.number + 1 >= DEPOSIT_DEPTH
        return (PaymentGrant if is_confirmed else PaymentInvalid), None

    def note_submission(self, offer: Offered, request: str) -> None:
        """Record in the model that a signed payment was claimed and submitted, if it was."""
        if offer.claim is None or offer.claim in self.claimed or offer.claim in self.failed:
            return
        with read_only_unit() as session:
            row = session.scalar(
                select(Payment)
                .join(PaymentClaim, PaymentClaim.holder_id == Payment.id)
                .where(PaymentClaim.key == offer.claim)
            )
        used = self.ground.chain.was_used(offer.claim) is not None
        assert (row is None) == used
        if row is not None:
            paid = Paid(request, offer.claim, PaymentStatus.SETTLING, row.transaction_id)
            self.claimed[offer.claim] = self.claimed[self.key(row.tx_hash or "")] = paid

    @rule(target=grants, request=st.sampled_from(_REQUESTS), signs=st.booleans(), served=st.booleans())
    def complete_one(self, request: str, signs: bool, served: bool) -> object:
        """Complete one payment: most other steps of a random walk have no effect."""
        offer = self.sign_payment() if signs else self.pay_by_hash(PRICE_UNITS)
        if signs:
            self.present(offer, request)
        self.mine_blocks(2, reverting=False)
        self.run_workers()
        held = self.present(offer, request)
        if isinstance(held, tuple):
            self.start_call(held)
            (self.serve_call if served else self.fail_call)(held)
        return held

    @rule(held=grants)
    def start_call(self, held: tuple[PaymentGrant, Paid]) -> None:
        grant, paid = held
        is_recent = clock.now().timestamp() < paid.paid_at + RETRY_WINDOW.total_seconds()
        if paid.status is PaymentStatus.PAID and paid.tries < MAX_ATTEMPTS and is_recent:
            grant.start_attempt()
            paid.status, paid.tries = PaymentStatus.SERVING, paid.tries + 1
            return
        with self.ground.app.app_context(), pytest.raises(PaymentAlreadyUsed):
            grant.start_attempt()

    @rule(held=grants)
    def serve_call(self, held: tuple[PaymentGrant, Paid]) -> None:
        held[0].mark_served()
        if held[1].status is PaymentStatus.SERVING:
            held[1].status = PaymentStatus.SERVED

    @rule(held=grants)
    def fail_call(self, held: tuple[PaymentGrant, Paid]) -> None:
        held[0].release()
        if held[1].status is PaymentStatus.SERVING:
            held[1].status = PaymentStatus.PAID

    @invariant()
    def payments_match_the_model(self) -> None:
        with read_only_unit() as session:
            held = dict(session.execute(select(PaymentClaim.key, PaymentClaim.holder_id)).all())
            rows = {row.id: row for row in session.scalars(select(Payment))}
        mine = {key: paid for key, paid in self.claimed.items() if paid is not None}
        for key, paid in mine.items():
            row = rows[held[key]]
            assert (row.status, row.tries) == (paid.status, paid.tries)
        assert set(self.claimed) <= set(held)
        standing = [row for row in rows.values() if row.status != PaymentStatus.VOID]
        assert len(standing) == len(self.payments())

    @invariant()
    def no_payment_is_used_twice(self) -> None:
        """Each paid call has units of its own on the chain."""
        paid = [each for each in self.payments() if each.status not in (PaymentStatus.SETTLING, PaymentStatus.VOID)]
        topped = sum(
            dollars for each, dollars in self.topups.items() if history.current_view(each).status == "confirmed"
        )
        received = self.ground.chain.owned(self.recipient, USDC)
        assert len(paid) * PRICE_UNITS + topped * UNIT <= received

    @invariant()
    def top_ups_are_granted_once(self) -> None:
        with read_only_unit() as session:
            balance = credit_accounts.balance(session, self.agent_id)
            rows = {row.transaction_id: row for row in session.scalars(select(TopUp))}
        recorded = sum((row.granted_nanos or 0) + row.owed_nanos for row in rows.values())
        assert balance.granted_nanos == INITIAL_NANOS + recorded
        for each, dollars in self.topups.items():
            expected = {self.granted[each] * 10**9} if each in self.granted else {None, dollars * 10**9}
            assert rows[each].granted_nanos in expected
        assert all(row.owed_nanos == 0 or row.granted_nanos == 0 for row in rows.values())

    def reached(self) -> Counter[str]:
        with read_only_unit() as session:
            found = session.execute(select(Payment.status, func.count()).group_by(Payment.status)).all()
        statuses = Counter({f"payment: {status}": times for status, times in found})
        return super().reached() + statuses + Counter({"granted": sum(self.granted.values())})

    def script(self) -> Iterator[None]:
        request, _ = _REQUESTS
        for signs, served in ((False, True), (True, True), (True, False)):
            self.complete_one(request, signs, served)
            yield
        # One that a third party submits first, and one that reverts.
        offer = self.sign_payment()
        self.present(offer, request)
        self.submit_as_third_party(offer)
        self.mine_blocks(2, reverting=False)
        self.run_workers()
        yield
        self.present(offer, request)
        offer = self.sign_payment()
        self.present(offer, request)
        self.mine_blocks(1, reverting=True)
        for _ in range(3):
            self.mine_blocks(3, reverting=False)
            self.run_workers()
            yield
        self.present(offer, request)
        self.top_up(2)
        for _ in range(3):
            self.mine_blocks(3, reverting=False)
            self.run_workers()
            yield
        self.present(self.sign_payment(), request)
        yield


def test_each_payment_is_consumed_at_most_once(each_ground: Ground, walk: Walk) -> None:
    walk(Payments, each_ground, walks=10, steps=35)
