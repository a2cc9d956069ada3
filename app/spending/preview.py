"""Decisions of other controls about payments that were made, as a pure function. No database."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import StrEnum

from app.errors import ServiceError
from app.spending import approval_rules, policy
from app.spending.approval_rules import PayeePermission
from app.spending.policy import Controls, SpendingRequest, WindowTotals


class Verdict(StrEnum):
    PAID = "paid"
    WAITS = "waits"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PastPayment:
    at: datetime
    made_on: date
    request: SpendingRequest


def replay(
    controls: Controls | None, payments: Iterable[PastPayment], known: Mapping[str, PayeePermission]
) -> Iterator[Verdict]:
    """Yield what controls would have decided about each of some payments, oldest first.

    One that is stopped counts nothing. The owner is taken to approve what waits, so that its payees are no longer new.
    `known` has the payees that the owner approved.
    """
    spent, counted_on = WindowTotals(), date.min
    permissions, used = dict(known), Counter[tuple[str | None, date]]()
    for each in payments:
        spent, counted_on = policy.roll_over(spent, counted_on, each.made_on), each.made_on
        try:
            policy.assert_allowed(controls, spent, each.request, frozen=False, today=each.made_on)
        except ServiceError:
            yield Verdict.STOPPED
            continue
        value, payees = each.request.value_nanos or 0, approval_rules.payees_of(each.request)
        spent = spent.plus(WindowTotals(value, value, value))
        week = policy.windows(each.made_on).week.start
        this_week = {
            payee: replace(permissions[payee], counted_nanos=used[payee, week])
            for payee in payees
            if payee in permissions
        }
        if approval_rules.approval_reasons(controls, each.request, this_week):
            permissions |= {payee: PayeePermission() for payee in payees if payee not in permissions}
            yield Verdict.WAITS
            continue
        used[approval_rules.used_permission(controls, each.request, this_week), week] += value
        yield Verdict.PAID
