"""The spending rules as pure functions: controls, calendar windows and the decision. No database, no framework.

Every amount is in nano-dollars; a limit of 0 means unlimited, an empty allowlist allows everything (decision 0006).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from operator import add
from typing import NamedTuple

from app import errors
from app.core import clock, money
from app.core.chains import Family
from app.errors import ServiceError

_EVM_PREFIX = "0x"
_PRICE = {"rule": "price"}


_LIMITS: Sequence[tuple[str, str, type[ServiceError]]] = (
    ("per_tx_limit_usd", "per-transaction", errors.PerTxLimitExceeded),
    ("daily_limit_usd", "daily", errors.DailyLimitExceeded),
    ("weekly_limit_usd", "weekly", errors.WeeklyLimitExceeded),
    ("monthly_limit_usd", "monthly", errors.MonthlyLimitExceeded),
)
"""The limits in the order in which they are checked: the rule, its name in a message, and the error."""


@dataclass(frozen=True, slots=True)
class Controls:
    """A wallet's controls. Addresses are canonical, domains lower-case host names.

    The owner is asked above the threshold, 0 for none, and before the first payment to a recipient or at a domain.
    """

    daily_limit_nanos: int = 0
    weekly_limit_nanos: int = 0
    monthly_limit_nanos: int = 0
    per_tx_limit_nanos: int = 0
    allowed_addresses: tuple[str, ...] = ()
    allowed_domains: tuple[str, ...] = ()
    locked: bool = False
    approval_threshold_nanos: int = 0
    approve_new_recipients: bool = False
    approve_new_domains: bool = False
    updated_at: datetime | None = field(default=None, compare=False)
    """When they were stored."""

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """Return the limits per transaction, day, week and month."""
        return self.per_tx_limit_nanos, self.daily_limit_nanos, self.weekly_limit_nanos, self.monthly_limit_nanos

    @property
    def limited(self) -> bool:
        """Return whether any dollar limit applies, so that the value must be known."""
        return any(self.limits)

    @property
    def asks(self) -> bool:
        """Return whether some payments wait for the owner's approval."""
        return bool(self.approval_threshold_nanos) or self.approve_new_recipients or self.approve_new_domains


DEFAULT = Controls(
    daily_limit_nanos=100 * money.NANOS_PER_USD,
    weekly_limit_nanos=500 * money.NANOS_PER_USD,
    monthly_limit_nanos=1000 * money.NANOS_PER_USD,
    per_tx_limit_nanos=50 * money.NANOS_PER_USD,
)
"""The controls of a new agent's first wallet."""


class WindowTotals(NamedTuple):
    """The held and spent amounts of a wallet in the current windows, in nano-dollars."""

    day: int = 0
    week: int = 0
    month: int = 0

    def plus(self, other: WindowTotals) -> WindowTotals:
        return WindowTotals(*map(add, self, other))


@dataclass(frozen=True, slots=True)
class Window:
    """A calendar window in UTC: its first day and the instant at which the next one starts."""

    start: date
    resets_at: datetime


class Windows(NamedTuple):
    day: Window
    week: Window
    month: Window


@dataclass(frozen=True, slots=True)
class ApprovedPayment:
    """What an owner approved: the hold since it was requested, the most that it may count, and to whom it goes."""

    reference: str
    max_nanos: int
    recipient: str | None
    domain: str | None


@dataclass(frozen=True, slots=True)
class SpendingRequest:
    """A value in nano-dollars, its recipient and its domain.

    A value of None means that no price is known: it counts 0, and is refused if a dollar limit applies. Without a
    recipient or a domain, that allowlist does not apply. `session_id` names a session that narrows the limits;
    `approved` is what its owner approved; a network fee in USDC needs no approval, like one in the native token. What
    buys credits counts in no shared budget, because the calls that they pay for do. A foreign token has no value, so
    that limits cannot hold it back: its owner is always asked.
    """

    value_nanos: int | None
    recipient: str | None = None
    family: Family | None = None
    domain: str | None = None
    session_id: str | None = None
    approved: ApprovedPayment | None = None
    is_network_fee: bool = False
    buys_credits: bool = False
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """A session: the most that may count against it, what does, until when, and at which domains; none are all."""

    max_nanos: int
    counted_nanos: int
    expires_at: datetime
    domains: tuple[str, ...] = ()


@lru_cache(maxsize=128)
def windows(on: date) -> Windows:
    """Return the windows that contain a UTC day: the day, the week from Monday, the month from the 1st."""
    monday, first = on - timedelta(days=on.weekday()), on.replace(day=1)
    # The 1st plus 31 days is always in the next month.
    next_first = (first + timedelta(days=31)).replace(day=1)
    return Windows(
        day=Window(on, _midnight(on + timedelta(days=1))),
        week=Window(monday, _midnight(monday + timedelta(days=7))),
        month=Window(first, _midnight(next_first)),
    )


def roll_over(spent: WindowTotals, counted_on: date, today: date) -> WindowTotals:
    """Return the sums of an earlier day as they stand today; those of windows that ended are 0."""
    rows = zip(spent, windows(counted_on), windows(today), strict=True)
    return WindowTotals(*(nanos if earlier.start == current.start else 0 for nanos, earlier, current in rows))


def in_windows(value_nanos: int, made_on: date, today: date) -> WindowTotals:
    """Return what a value of an earlier day counts in the windows of today."""
    return roll_over(WindowTotals(value_nanos, value_nanos, value_nanos), made_on, today)


def assert_allowed(
    controls: Controls | None, spent: WindowTotals, request: SpendingRequest, *, frozen: bool, today: date
) -> None:
    """Raise the error of a request that is refused on a UTC day.

    Order: frozen, address, domain, price (a limit applies but the value is unknown), per transaction, daily,
    weekly, monthly. `spent` is what counts in the windows of `today`.
    """
    if frozen:
        raise errors.WalletFrozen
    if controls is not None:
        _assert_address_allowed(controls, request.recipient, request.family)
        assert_domain_allowed(controls, request.domain)
        _assert_within_limits(controls, spent, request.value_nanos, today)


def assert_within_session(budget: SessionBudget, request: SpendingRequest, now: datetime) -> None:
    """Raise the error of a request that a session refuses; the wallet's own limits apply as well.

    A session for some domains allows nothing that is at none of them.
    """
    if request.value_nanos is None:
        raise errors.PriceUnavailable(details=_PRICE)
    expires_at = clock.isoformat(budget.expires_at)
    remaining_nanos = max(0, budget.max_nanos - budget.counted_nanos)
    limit, requested = money.usd_from_nanos(budget.max_nanos), money.usd_from_nanos(request.value_nanos)
    remaining = money.usd_from_nanos(remaining_nanos)
    if now >= budget.expires_at:
        message = f"This session expired at {expires_at}."
    elif budget.domains and not (request.domain and domain_allowed(request.domain, budget.domains)):
        message = f"This session is for payments at {', '.join(budget.domains)} only."
    elif request.value_nanos > remaining_nanos:
        message = (
            f"This transaction of {requested:f} USD exceeds the session's budget of {limit:f} USD; {remaining:f} USD "
            f"remain until {expires_at}."
        )
    else:
        return
    details = {
        "rule": "session_id", "limit_usd": limit, "spent_usd": money.usd_from_nanos(budget.counted_nanos),
        "requested_usd": requested, "remaining_usd": remaining, "expires_at": expires_at,
    }  # fmt: skip
    raise errors.SessionLimitExceeded(message, details=details)


def is_looser(old: Controls, new: Controls) -> bool:
    """Return whether new controls allow anything that the old ones refuse."""
    limits = zip((*old.limits, old.approval_threshold_nanos), (*new.limits, new.approval_threshold_nanos), strict=True)
    return (
        any(before and (not after or after > before) for before, after in limits)
        or _widens(old.allowed_addresses, new.allowed_addresses, _address_covered)
        or _widens(old.allowed_domains, new.allowed_domains, domain_allowed)
        or (old.approve_new_recipients and not new.approve_new_recipients)
        or (old.approve_new_domains and not new.approve_new_domains)
        # What is on an allowlist is not new: adding an entry approves it.
        or (old.approve_new_recipients and not _covers(old.allowed_addresses, new.allowed_addresses, _address_covered))
        or (old.approve_new_domains and not _covers(old.allowed_domains, new.allowed_domains, domain_allowed))
    )


def address_allowed(recipient: str, family: Family, allowed: tuple[str, ...]) -> bool:
    """Return whether a recipient is on a list that is not empty.

    EVM addresses compare case-insensitively, Solana's exactly; an entry never matches the other family.
    """
    if family is Family.SOLANA:
        return recipient in allowed
    return recipient.lower() in {entry.lower() for entry in allowed if entry.startswith(_EVM_PREFIX)}


def domain_allowed(domain: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a host is on a list that is not empty: an entry covers the host and its subdomains."""
    host = domain.lower().rstrip(".")
    return any(host == entry or host.endswith("." + entry) for entry in (e.lower().rstrip(".") for e in allowed))


def _assert_address_allowed(controls: Controls, recipient: str | None, family: Family | None) -> None:
    allowed = controls.allowed_addresses
    if recipient is None or not allowed or address_allowed(recipient, family or family_of(recipient), allowed):
        return
    message = f"The recipient {recipient} is not on this wallet's allowlist of addresses."
    raise errors.AddressNotAllowed(message, details={"rule": "allowed_addresses", "address": recipient})


def assert_domain_allowed(controls: Controls, domain: str | None) -> None:
    """Check that a wallet's controls allow a domain. Raises: DomainNotAllowed."""
    if domain is None or not controls.allowed_domains or domain_allowed(domain, controls.allowed_domains):
        return
    message = f"The domain {domain} is not on this wallet's allowlist of domains."
    raise errors.DomainNotAllowed(message, details={"rule": "allowed_domains", "domain": domain})


def _assert_within_limits(controls: Controls, spent: WindowTotals, value_nanos: int | None, today: date) -> None:
    if not controls.limited and not controls.asks:
        return
    if value_nanos is None:
        raise errors.PriceUnavailable(details=_PRICE)
    amounts = zip(_LIMITS, controls.limits, (0, *spent), (None, *windows(today)), strict=True)
    for (rule, period, error), limit_nanos, spent_nanos, window in amounts:
        if not limit_nanos or spent_nanos + value_nanos <= limit_nanos:
            continue
        limit, requested = money.usd_from_nanos(limit_nanos), money.usd_from_nanos(value_nanos)
        remaining = money.usd_from_nanos(max(0, limit_nanos - spent_nanos))
        resets_at = None if window is None else clock.isoformat(window.resets_at)
        message = f"This transaction of {requested:f} USD exceeds the wallet's {period} limit of {limit:f} USD"
        message += "." if window is None else f"; {remaining:f} USD remain until {resets_at}."
        details = {
            "rule": rule, "limit_usd": limit, "spent_usd": money.usd_from_nanos(spent_nanos),
            "requested_usd": requested, "remaining_usd": remaining, "resets_at": resets_at,
        }  # fmt: skip
        raise error(message, details=details)


def _widens(old: tuple[str, ...], new: tuple[str, ...], covered: Callable[[str, tuple[str, ...]], bool]) -> bool:
    return bool(old) and (not new or not _covers(old, new, covered))


def _covers(old: tuple[str, ...], new: tuple[str, ...], covered: Callable[[str, tuple[str, ...]], bool]) -> bool:
    return all(covered(entry, old) for entry in new)


def _address_covered(entry: str, old: tuple[str, ...]) -> bool:
    return address_allowed(entry, family_of(entry), old)


def family_of(entry: str) -> Family:
    # Base58 has no digit 0.
    return Family.EVM if entry.startswith(_EVM_PREFIX) else Family.SOLANA


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
