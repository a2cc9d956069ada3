"""The rules by which payments wait for an owner's approval, as pure functions. No database, no framework.

Also what other controls would have decided about payments that were made.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import StrEnum

from app.core.chains import Family
from app.errors import ServiceError
from app.spending import policy
from app.spending.policy import Controls, SpendingRequest, WindowTotals


class ApprovalReason(StrEnum):
    """The controls that make a payment wait for its owner; a foreign token does whatever they are."""

    THRESHOLD = "approval_threshold_usd"
    NEW_RECIPIENT = "approve_new_recipients"
    NEW_DOMAIN = "approve_new_domains"
    FOREIGN_TOKEN = "foreign_token"  # noqa: S105 - a rule


@dataclass(frozen=True, slots=True)
class PayeePermission:
    """What may be paid per week to a recipient or a domain without asking its owner again, and what was."""

    week_nanos: int = 0
    counted_nanos: int = 0


def payees_of(request: SpendingRequest) -> tuple[str, ...]:
    """Return the recipient and the domain of a request, as far as there are any, as approved payees are compared."""
    return tuple(map(payee_key, filter(None, (request.recipient, request.domain))))


def approval_reasons(
    controls: Controls | None, request: SpendingRequest, known: Mapping[str, PayeePermission]
) -> list[ApprovalReason]:
    """Return all reasons why a request that the limits allow waits for its owner.

    `known` has the payees that the owner approved before. A value of 0 moves nothing, and is never asked for. An
    allowlist is the owner's: what is on it is not new.
    """
    if request.is_foreign and not _is_approved(request):
        return [ApprovalReason.FOREIGN_TOKEN]
    if controls is None or not controls.asks or request.value_nanos == 0:
        return []
    if request.is_network_fee or _is_approved(request):
        return []

    def is_new(payee: str | None, allowed: tuple[str, ...]) -> bool:
        return payee is not None and not allowed and payee_key(payee) not in known

    threshold = controls.approval_threshold_nanos
    is_above = bool(threshold) and (request.value_nanos or 0) > threshold
    applies = {
        ApprovalReason.NEW_RECIPIENT: controls.approve_new_recipients
        and is_new(request.recipient, controls.allowed_addresses),
        ApprovalReason.NEW_DOMAIN: controls.approve_new_domains and is_new(request.domain, controls.allowed_domains),
        ApprovalReason.THRESHOLD: is_above and permitting_payee(request, known) is None,
    }
    return [reason for reason, does_apply in applies.items() if does_apply]


def payee_key(payee: str) -> str:
    """Return an address or a domain as approved payees are compared: only a Solana address has a case."""
    is_solana = "." not in payee and policy.family_of(payee) is Family.SOLANA
    return payee if is_solana else payee.lower().rstrip(".")


def permitting_payee(request: SpendingRequest, known: Mapping[str, PayeePermission]) -> str | None:
    """Return the payee whose weekly permission covers a request, or None."""
    value_nanos = request.value_nanos or 0
    for payee in payees_of(request):
        permission = known.get(payee, PayeePermission())
        if permission.counted_nanos + value_nanos <= permission.week_nanos:
            return payee
    return None


def used_permission(
    controls: Controls | None, request: SpendingRequest, known: Mapping[str, PayeePermission]
) -> str | None:
    """Return the payee whose weekly permission a request uses that waits for no approval, or None if it needs none."""
    without = {payee: PayeePermission() for payee in known}
    return permitting_payee(request, known) if approval_reasons(controls, request, without) else None


def _is_approved(request: SpendingRequest) -> bool:
    approved = request.approved
    return (
        approved is not None
        and request.value_nanos is not None
        and request.value_nanos <= approved.max_nanos
        and (request.recipient, request.domain) == (approved.recipient, approved.domain)
    )


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
        value, payees = each.request.value_nanos or 0, payees_of(each.request)
        spent = spent.plus(WindowTotals(value, value, value))
        week = policy.windows(each.made_on).week.start
        this_week = {
            payee: replace(permissions[payee], counted_nanos=used[payee, week])
            for payee in payees
            if payee in permissions
        }
        if approval_reasons(controls, each.request, this_week):
            permissions |= {payee: PayeePermission() for payee in payees if payee not in permissions}
            yield Verdict.WAITS
            continue
        used[used_permission(controls, each.request, this_week), week] += value
        yield Verdict.PAID
