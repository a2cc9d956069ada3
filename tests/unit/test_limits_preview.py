"""What other limits would have decided about payments that were made."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pytest

from app.core.money import NANOS_PER_USD
from app.spending.approval_rules import PastPayment, PayeePermission, replay
from app.spending.policy import Controls, SpendingRequest

MONDAY = date(2026, 11, 23)
ALICE, BOB = "0x" + "a" * 40, "0x" + "b" * 40


def paid(*payments: tuple[int, int, str | None]) -> list[PastPayment]:
    """Return payments of a day of the week, dollars and a recipient."""
    days = [(MONDAY + timedelta(days=day), dollars, recipient) for day, dollars, recipient in payments]
    return [
        PastPayment(datetime.combine(day, time(12), UTC), day, SpendingRequest(dollars * NANOS_PER_USD, recipient))
        for day, dollars, recipient in days
    ]


def verdicts(controls: Controls | None, payments: list[PastPayment], **known: int) -> str:
    names = {"alice": ALICE}
    permissions = {names[name]: PayeePermission(dollars * NANOS_PER_USD, 0) for name, dollars in known.items()}
    return "".join(each.value[0] for each in replay(controls, payments, permissions))


def dollars(**limits: int) -> Controls:
    return Controls(**{f"{name}_nanos": value * NANOS_PER_USD for name, value in limits.items()})


@pytest.mark.parametrize(
    ("controls", "expected"),
    [
        (None, "pppp"),
        (Controls(), "pppp"),
        # What is stopped leaves room for the next.
        (dollars(daily_limit=10), "pspp"),
        (dollars(weekly_limit=15), "ppsp"),
        (dollars(per_tx_limit=8), "pssp"),
        (dollars(approval_threshold=8), "pwwp"),
        (dollars(daily_limit=10, approval_threshold=8), "pswp"),
        (Controls(allowed_addresses=(ALICE,)), "pspp"),
        # Once approved, a recipient is not new.
        (Controls(approve_new_recipients=True), "wwpp"),
    ],
)
def test_each_payment_is_decided_after_those_before_it(controls: Controls | None, expected: str) -> None:
    payments = paid((0, 5, ALICE), (0, 9, BOB), (1, 10, ALICE), (2, 1, ALICE))
    assert verdicts(controls, payments) == expected


def test_windows_end_between_payments() -> None:
    payments = paid((0, 10, None), (6, 10, None), (7, 10, None))
    assert verdicts(dollars(weekly_limit=10), payments) == "psp"
    assert verdicts(dollars(daily_limit=10), payments) == "ppp"


def test_a_weekly_permission_covers_no_more_than_its_amount() -> None:
    payments = paid((0, 6, ALICE), (1, 6, ALICE), (7, 6, ALICE))
    assert verdicts(dollars(approval_threshold=5), payments, alice=10) == "pwp"
    assert verdicts(Controls(approve_new_recipients=True), payments, alice=0) == "ppp"


def test_what_is_permitted_is_not_counted_against_a_permission_that_was_not_needed() -> None:
    payments = paid((0, 4, ALICE), (1, 6, ALICE))
    assert verdicts(dollars(approval_threshold=5), payments, alice=8) == "pp"
