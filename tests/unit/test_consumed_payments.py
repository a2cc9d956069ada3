"""Payments after a database restore: none that was open pays for a call."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import claimed_payments, jobs
from app.payments.claimed_payments import PaymentStatus
from app.payments.models import Payment, PaymentClaim, PaymentRestoreCutoff

SETTLING, PAID, CLOSED, VOID = (
    PaymentStatus.SETTLING, PaymentStatus.PAID, PaymentStatus.CLOSED, PaymentStatus.VOID,
)  # fmt: skip
_NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def added(status: PaymentStatus, **different: str) -> str:
    values = {"rail": "signed", "chain": "base", "fingerprint": "f", **different}
    payment = Payment(
        id=new_id(), payer="0x", units=1, required_units=1, provider="brave", signed=True, recipient="0x", terms={},
        **values,
    )  # fmt: skip
    with unit_of_work() as session:
        claimed_payments.claim(session, [f"tx:{payment.id}"], payment.id)
        claimed_payments.add_payment(session, payment, status=status)
    return payment.id


def land(payment_id: str) -> None:
    with unit_of_work() as session:
        claimed_payments.mark_landed(session, claimed_payments.get(session, payment_id), tx_hash="0x")


def status_of(payment_id: str) -> str:
    with read_only_unit() as session:
        return session.get_one(Payment, payment_id).status


def can_be_served(payment_id: str) -> bool:
    with unit_of_work() as session:
        is_usable = claimed_payments.can_be_served(session.get_one(Payment, payment_id))
        assert claimed_payments.start_attempt(session, payment_id) == is_usable
        return is_usable


def test_open_payments_are_closed_by_a_restore(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    app = build_app(each_database_url)
    with app.app_context():
        paid, landing, void = added(PAID), added(SETTLING), added(SETTLING)
        served = added(PAID)
        assert can_be_served(served)
        with unit_of_work() as session:
            claimed_payments.mark_served(session, served)
            assert claimed_payments.set_restore_cutoff(session, clock.now()) == 3
        land(landing)
        with unit_of_work() as session:
            claimed_payments.void(session, void)
        later = added(SETTLING)
        land(later)
        found = [status_of(each) for each in (paid, landing, void, served, later)]
        assert found == [CLOSED, CLOSED, VOID, PaymentStatus.SERVED, PAID]
        assert [can_be_served(each) for each in (paid, landing, void, served, later)] == [False] * 4 + [True]
        # What never landed may be presented again; what landed has been used.
        with unit_of_work() as session:
            assert not claimed_payments.is_claimed(session, [f"tx:{void}"])
            assert claimed_payments.is_claimed(session, [f"tx:{landing}"])
            assert claimed_payments.mark_reversed(session, landing)
            for table in (PaymentClaim, Payment, PaymentRestoreCutoff):
                session.execute(delete(table))


@pytest.mark.parametrize("age", [timedelta(hours=25), timedelta(hours=23)])
def test_a_payment_allows_attempts_for_a_day(app: Flask, age: timedelta) -> None:
    with app.app_context():
        paid = added(PAID)
        with unit_of_work() as session:
            session.get_one(Payment, paid).paid_at = clock.now() - age
        assert can_be_served(paid) == (age < claimed_payments.RETRY_WINDOW)


def test_a_payment_that_the_session_has_loaded_changes_with_its_row(app: Flask) -> None:
    with app.app_context():
        paid = added(PAID)
        with unit_of_work() as session:
            payment = session.get_one(Payment, paid)
            assert claimed_payments.start_attempt(session, paid)
            assert (payment.status, payment.tries) == (PaymentStatus.SERVING, 1)
            assert not claimed_payments.start_attempt(session, paid)
        assert status_of(paid) == PaymentStatus.SERVING


def test_only_completed_signed_payments_are_looked_for_in_failed_transactions(app: Flask) -> None:
    with app.app_context(), time_machine.travel(_NOON, tick=False) as clock_of_test:
        paid = added(PAID, tx_hash="0xa")
        closed = added(PAID, tx_hash="0xb")
        added(PAID, tx_hash="0xc")
        added(PAID, tx_hash="0xa", rail="hash")
        added(SETTLING, tx_hash="0xa")
        void, reversed_ = added(SETTLING, tx_hash="0xa"), added(PAID, tx_hash="0xa")
        with unit_of_work() as session:
            claimed_payments.void(session, void)
            assert claimed_payments.mark_reversed(session, reversed_)
            assert not claimed_payments.mark_reversed(session, reversed_)
            assert claimed_payments.reversed_by_chain(session) == {"base": 1}
        clock_of_test.shift(1)
        later = added(PAID, tx_hash="0xb")

        def found(since: datetime) -> set[str]:
            with read_only_unit() as session:
                payments = claimed_payments.find_by_transactions(session, ["0xa", "0xb"], since=since)
                return {payment.id for payment in payments}

        assert found(_NOON) == {paid, closed, later}
        assert found(_NOON + timedelta(seconds=1)) == {later}


def test_the_payments_of_one_chain_are_settled_in_their_order(app: Flask) -> None:
    with app.app_context(), time_machine.travel(_NOON, tick=False) as clock_of_test:
        added(PAID)
        added(SETTLING, chain="solana")
        clock_of_test.shift(2)
        last = added(SETTLING)
        clock_of_test.shift(-1)
        first = added(SETTLING)
        with unit_of_work() as session:
            assert claimed_payments.find_settling(session, ChainName.BASE, 9, PaymentStatus.SETTLING) == [first, last]
            assert claimed_payments.find_settling(session, ChainName.BASE, 1, PaymentStatus.SETTLING) == [first]
            claimed_payments.void(session, first)
            assert claimed_payments.find_settling(session, ChainName.BASE, 9, PaymentStatus.SETTLING) == [last]


def test_a_payment_allows_four_attempts_and_no_two_that_overlap(app: Flask) -> None:
    with app.app_context():
        paid, other = added(PAID), added(PAID)
        for _ in range(claimed_payments.MAX_ATTEMPTS):
            assert can_be_served(paid)
            assert not can_be_served(paid)
            with unit_of_work() as session:
                claimed_payments.release_attempt(session, paid)
        assert not can_be_served(paid)
        assert can_be_served(other)


def test_a_payment_is_recognised_under_a_former_secret_key_but_not_for_another_request(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    former, present = "f" * 32, "p" * 32
    with build_app(sqlite_url, settings={"secret_key": former}).app_context():
        [mac] = claimed_payments.fingerprint_macs("request")
    with build_app(sqlite_url, settings={"secret_key": present, "secret_key_fallbacks": former}).app_context():
        assert claimed_payments.fingerprint_macs("request")[1] == mac
        payment = Payment(fingerprint=mac)
        assert claimed_payments.matches_fingerprint(payment, "request")
        assert not claimed_payments.matches_fingerprint(payment, "another request")


def test_a_restore_closes_payments_up_to_its_instant_and_counts_those_that_were_usable(app: Flask) -> None:
    with app.app_context(), time_machine.travel(_NOON, tick=False) as clock_of_test:
        landing, exhausted, usable = added(SETTLING), added(PAID), added(PAID)
        with unit_of_work() as session:
            session.get_one(Payment, exhausted).tries = claimed_payments.MAX_ATTEMPTS
        with unit_of_work() as session:
            assert claimed_payments.set_restore_cutoff(session, clock.now()) == 2
            assert claimed_payments.restore_cutoff(session) == _NOON
        land(landing)
        clock_of_test.shift(1)
        later = added(SETTLING)
        land(later)
        assert [status_of(each) for each in (landing, exhausted, usable, later)] == [CLOSED, PAID, CLOSED, PAID]
        with unit_of_work() as session:
            # The database may be restored again.
            assert claimed_payments.set_restore_cutoff(session, clock.now()) == 1
            assert claimed_payments.restore_cutoff(session) == _NOON + timedelta(seconds=1)


def test_the_audit_reports_a_payment_without_a_claim_unless_it_was_voided(app: Flask) -> None:
    with app.app_context():
        void, lost, claimed = added(SETTLING), added(PAID), added(PAID)
        with unit_of_work() as session:
            claimed_payments.void(session, void)
            assert jobs.check(session) == []
            session.execute(delete(PaymentClaim).where(PaymentClaim.holder_id == lost))
            assert jobs.check(session) == [f"payment {lost} has no claim"]
            claimed_payments.claim(session, ["tx:again"], lost)
            claimed_payments.relink_transaction(session, lost, tx_hash="0xbb")
        with read_only_unit() as session:
            assert jobs.check(session) == []
            hashes = [session.get_one(Payment, each).tx_hash for each in (lost, claimed)]
    assert hashes == ["0xbb", None]
