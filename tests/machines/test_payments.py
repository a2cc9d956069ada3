"""Payments for calls and top-ups: claimed, settled, served, retried, submitted by strangers, presented everywhere."""

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
from app.core.unit_of_work import reading
from app.credits import audit as credits_audit
from app.credits import service as credits_service
from app.errors import PaymentAlreadyUsed, PaymentInvalid
from app.payments import audit as payments_audit
from app.payments import claims, desk, topups, treasury, upkeep
from app.payments.claims import MOST_TRIES, RETRY_WITHIN, Status
from app.payments.desk import Ticket
from app.payments.models import Payment, PaymentClaim
from app.payments.terms import Price
from app.payments.treasury import Role
from app.spending import audit as spending_audit
from app.wallets import audit as wallets_audit
from app.wallets import history, submissions, tracking
from tests.support.machines import Ground, Machine, walk
from tests.support.simulated_chain import DEPOSIT_DEPTH

UNIT = 10**6
PRICE_UNITS = 10_000
NO_WAIT = Decimal(0)
INITIAL_NANOS = 10 * 10**9
_HOUR = 3600
_REQUESTS = ("one request", "another request")


@dataclass
class Paid:
    """A payment as the model knows it, under each of its claims."""

    request: str
    signed: str | None
    status: Status
    submission: str | None = None
    tries: int = 0
    paid_at: float = 0.0


@dataclass(frozen=True)
class Offered:
    """What a payer has in hand: a hash, or a payment that they have signed."""

    tx_hash: str | None
    claim: str | None
    payer: str


class Payments(Machine):
    """Payers, strangers and one agent that tops up. The model is what each claim was taken for."""

    audits = (payments_audit.check, credits_audit.check, spending_audit.check, wallets_audit.check)

    reaches = frozenset({"payment: served", "payment: paid", "payment: void", "payment: settling", "granted"})

    offered = Bundle("offered")
    tickets = Bundle("tickets")

    def begin(self) -> None:
        made = agents.register(name=None, email=None)
        self.agent_id, self.wallet = made.agent_id, made.wallet
        chain = self.ground.chain
        address = self.wallet.address_on(chain.name)
        chain.give(address, USDC, 10**6 * UNIT)
        chain.give(address, ETH, 10**18)
        self.recipient = treasury.recipient(chain.name)
        chain.give(treasury.settler(chain.name), ETH, 10**18)
        assert treasury.wallet(Role.SETTLEMENT, chain.name).address_on(chain.name) == treasury.settler(
            chain.name
        )
        self.taken: dict[str, Paid | None] = {}
        self.granted = 0
        self.topups: dict[str, int] = {}
        self.ended: set[str] = set()
        self.signatures = 0

    def price(self, request: str) -> Price:
        return Price(
            nanos=PRICE_UNITS * 1000,
            fingerprint=request,
            provider="brave",
            resource="http://x",
            description="d",
        )

    @rule(target=offered, units=st.sampled_from((PRICE_UNITS - 1, PRICE_UNITS, PRICE_UNITS, 2 * PRICE_UNITS)))
    def somebody_pays(self, units: int) -> Offered:
        return Offered(self.ground.chain.pay(self.recipient, USDC, units), None, "0x")

    @rule(target=offered)
    def somebody_signs(self) -> Offered:
        self.signatures += 1
        payer = f"0x{self.signatures:040x}"
        self.ground.chain.give(payer, USDC, PRICE_UNITS)
        return Offered(None, f"auth:{self.signatures}", payer)

    @rule(target=offered, offer=offered)
    def a_stranger_submits_it(self, offer: Offered) -> object:
        if offer.claim is None:
            return multiple()
        till = self.ground.till
        return Offered(
            till.submit_as_stranger(offer.claim, offer.payer, self.recipient, PRICE_UNITS), None, offer.payer
        )

    @rule(blocks=st.integers(1, 3), reverting=st.sampled_from((False, False, False, True)))
    def blocks_come(self, blocks: int, reverting: bool) -> None:
        self.ground.chain.mine(blocks, reverting=reverting)

    @rule(hours=st.sampled_from((1, 1, 2, 23, 25)))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @rule(dollars=st.integers(1, 9))
    def the_agent_tops_up(self, dollars: int) -> None:
        self.let_pass(hours=24)
        view = topups.make(
            self.wallet, self.agent_id, chain="base", amount=str(dollars), wait_seconds=NO_WAIT
        )
        self.topups[view.id] = dollars
        self.taken[self.key(view.tx_hash or "")] = None

    @rule()
    def workers_look(self) -> None:
        self.let_pass(seconds=61)
        tracking.confirm(self.ground.chain.name)
        for paid in self.payments():
            self.resolve(paid)
        upkeep.carry_on(self.ground.chain.name)
        for transaction_id, dollars in self.topups.items():
            if transaction_id in self.ended:
                continue
            view = history.movement(transaction_id)
            with reading():
                beyond = submissions.is_beyond_change(transaction_id)
            if beyond:
                self.ended.add(transaction_id)
                self.granted += dollars if view.status == "confirmed" else 0
                if view.status == "confirmed":
                    self.taken[self.key(view.tx_hash or "")] = None

    def payments(self) -> list[Paid]:
        return list({id(paid): paid for paid in self.taken.values() if paid is not None}.values())

    def key(self, tx_hash: str) -> str:
        return claims.key_of_hash(self.ground.chain.name, tx_hash)

    def resolve(self, paid: Paid) -> None:
        """Let the model carry the outcome of a submission into its payment."""
        if paid.status is not Status.SETTLING or paid.submission is None:
            return
        status = history.movement(paid.submission).status
        if status == "pending":
            return
        used = self.ground.chain.was_used(paid.signed or "")
        if used is not None:
            paid.status, paid.paid_at = Status.PAID, clock.now().timestamp()
            return
        with reading():
            beyond = submissions.is_beyond_change(paid.submission)
        if beyond:
            paid.status = Status.VOID
            self.taken = {key: each for key, each in self.taken.items() if each is not paid}

    @rule(target=tickets, offer=offered, request=st.sampled_from(_REQUESTS))
    def it_is_presented(self, offer: Offered, request: str) -> object:
        expected, known = self.expect(offer, request)
        if offer.tx_hash is not None:
            headers = {"X-Payment": offer.tx_hash}
        else:
            payload = {"claim": offer.claim, "payer": offer.payer, "units": PRICE_UNITS}
            document = {"x402Version": 1, "scheme": "exact", "network": "simulated", "payload": payload}
            headers = {"X-Payment": base64.b64encode(json.dumps(document).encode()).decode()}
        with self.ground.app.test_request_context(headers=headers):
            if expected is not Ticket:
                with pytest.raises(expected):
                    desk.accept(self.price(request), agent_id=None)
                self.note_submission(offer, request)
                return multiple()
            ticket = desk.accept(self.price(request), agent_id=None)
        if known is None:
            known = Paid(request, None, Status.PAID, paid_at=clock.now().timestamp())
            found = self.ground.chain.landed(offer.tx_hash or "")
            assert found is not None
            self.taken[self.key(offer.tx_hash or "")] = known
            if found[1].tx.auth is not None:
                self.taken[found[1].tx.auth] = known
        return (ticket, known)

    def expect(self, offer: Offered, request: str) -> tuple[type, Paid | None]:
        """Return what must become of a presentation, and the payment that it is, if it was taken before."""
        key = offer.claim or self.key(offer.tx_hash or "")
        if key in self.taken:
            known = self.taken[key]
            if known is None or known.request != request:
                return PaymentAlreadyUsed, known
            if offer.claim is None and known.signed is not None:
                return PaymentAlreadyUsed, known  # of its payer nothing is proven
            self.resolve(known)
            if known.status in (Status.SETTLING, Status.VOID):
                return PaymentInvalid, known
            fresh = clock.now().timestamp() <= known.paid_at + RETRY_WITHIN.total_seconds()
            good = known.status is Status.PAID and known.tries < MOST_TRIES and fresh
            return (Ticket if good else PaymentAlreadyUsed), known
        if offer.claim is not None:
            used = self.ground.chain.was_used(offer.claim) is not None
            return (PaymentAlreadyUsed if used else PaymentInvalid), None
        found = self.ground.chain.landed(offer.tx_hash or "")
        if found is None or not found[1].succeeded or found[1].tx.units < PRICE_UNITS:
            return PaymentInvalid, None
        block, entry = found
        if clock.now().timestamp() - block.at > _HOUR:
            return PaymentInvalid, None
        if entry.tx.auth is not None and entry.tx.auth in self.taken:
            return PaymentAlreadyUsed, None
        deep = self.ground.chain.blocks[-1].number - block.number + 1 >= DEPOSIT_DEPTH
        return (Ticket if deep else PaymentInvalid), None

    def note_submission(self, offer: Offered, request: str) -> None:
        """Note in the model that a signed payment was claimed and submitted, if it was."""
        if offer.claim is None or offer.claim in self.taken:
            return
        with reading() as session:
            row = session.scalar(
                select(Payment)
                .join(PaymentClaim, PaymentClaim.holder_id == Payment.id)
                .where(PaymentClaim.key == offer.claim)
            )
        used = self.ground.chain.was_used(offer.claim) is not None
        assert (row is None) == used
        if row is not None:
            paid = Paid(request, offer.claim, Status.SETTLING, row.transaction_id)
            self.taken[offer.claim] = self.taken[self.key(row.tx_hash or "")] = paid

    @rule(target=tickets, request=st.sampled_from(_REQUESTS), signs=st.booleans(), served=st.booleans())
    def one_goes_its_usual_way(self, request: str, signs: bool, served: bool) -> object:
        """Most steps of a random walk come to nothing; this one is what most callers do."""
        offer = self.somebody_signs() if signs else self.somebody_pays(PRICE_UNITS)
        if signs:
            self.it_is_presented(offer, request)
        self.blocks_come(2, reverting=False)
        self.workers_look()
        held = self.it_is_presented(offer, request)
        if isinstance(held, tuple):
            self.its_call_begins(held)
            (self.its_call_is_served if served else self.its_call_certainly_failed)(held)
        return held

    @rule(held=tickets)
    def its_call_begins(self, held: tuple[Ticket, Paid]) -> None:
        ticket, paid = held
        fresh = clock.now().timestamp() < paid.paid_at + RETRY_WITHIN.total_seconds()
        if paid.status is Status.PAID and paid.tries < MOST_TRIES and fresh:
            ticket.begin()
            paid.status, paid.tries = Status.SERVING, paid.tries + 1
            return
        with self.ground.app.test_request_context(), pytest.raises(PaymentAlreadyUsed):
            ticket.begin()

    @rule(held=tickets)
    def its_call_is_served(self, held: tuple[Ticket, Paid]) -> None:
        held[0].finish()
        if held[1].status is Status.SERVING:
            held[1].status = Status.SERVED

    @rule(held=tickets)
    def its_call_certainly_failed(self, held: tuple[Ticket, Paid]) -> None:
        held[0].give_back()
        if held[1].status is Status.SERVING:
            held[1].status = Status.PAID

    @invariant()
    def each_payment_stands_where_the_model_says(self) -> None:
        with reading() as session:
            held = dict(session.execute(select(PaymentClaim.key, PaymentClaim.holder_id)).all())
            rows = {row.id: row for row in session.scalars(select(Payment))}
        mine = {key: paid for key, paid in self.taken.items() if paid is not None}
        for key, paid in mine.items():
            row = rows[held[key]]
            assert (row.status, row.tries) == (paid.status, paid.tries)
        assert set(self.taken) <= set(held)
        standing = [row for row in rows.values() if row.status != Status.VOID]
        assert len(standing) == len(self.payments())

    @invariant()
    def no_money_pays_twice(self) -> None:
        """Each call that is paid for has units of its own on the chain."""
        paid = [each for each in self.payments() if each.status not in (Status.SETTLING, Status.VOID)]
        topped = sum(
            dollars for each, dollars in self.topups.items() if history.movement(each).status == "confirmed"
        )
        received = self.ground.chain.owned(self.recipient, USDC)
        assert len(paid) * PRICE_UNITS + topped * UNIT <= received

    @invariant()
    def credits_are_granted_once_for_what_arrived(self) -> None:
        with reading():
            balance = credits_service.balance(self.agent_id)
        assert balance.granted_nanos == INITIAL_NANOS + self.granted * 10**9

    def reached(self) -> Counter[str]:
        with reading() as session:
            found = session.execute(select(Payment.status, func.count()).group_by(Payment.status)).all()
        statuses = Counter({f"payment: {status}": times for status, times in found})
        return super().reached() + statuses + Counter({"granted": self.granted})

    def script(self) -> Iterator[None]:
        request, _ = _REQUESTS
        for signs, served in ((False, True), (True, True), (True, False)):
            self.one_goes_its_usual_way(request, signs, served)
            yield
        # One that a stranger submits first, and one that reverts.
        offer = self.somebody_signs()
        self.it_is_presented(offer, request)
        self.a_stranger_submits_it(offer)
        self.blocks_come(2, reverting=False)
        self.workers_look()
        yield
        self.it_is_presented(offer, request)
        offer = self.somebody_signs()
        self.it_is_presented(offer, request)
        self.blocks_come(1, reverting=True)
        for _ in range(3):
            self.blocks_come(3, reverting=False)
            self.workers_look()
            yield
        self.it_is_presented(offer, request)
        self.the_agent_tops_up(2)
        for _ in range(3):
            self.blocks_come(3, reverting=False)
            self.workers_look()
            yield
        self.it_is_presented(self.somebody_signs(), request)
        yield


def test_whatever_is_presented_each_payment_counts_once(each_ground: Ground) -> None:
    walk(Payments, each_ground, walks=10, steps=35)
