"""The rules of spending, pure: controls, calendar windows and one decision. No database, no framework.

Every amount is in nano-dollars; a limit of 0 means unlimited, an empty allowlist allows all (decisions 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum

from app.core import clock, money
from app.core.chains import Family

_EVM_PREFIX = "0x"


class Rule(StrEnum):
    """The rules, in the order in which they are checked."""

    FROZEN = "frozen"
    ADDRESS = "allowed_addresses"
    DOMAIN = "allowed_domains"
    PRICE = "price"
    PER_TX = "per_tx_limit_usd"
    DAILY = "daily_limit_usd"
    WEEKLY = "weekly_limit_usd"
    MONTHLY = "monthly_limit_usd"


@dataclass(frozen=True, slots=True)
class Controls:
    """A wallet's controls. Addresses are canonical, domains lower-case host names."""

    daily_limit_nanos: int = 0
    weekly_limit_nanos: int = 0
    monthly_limit_nanos: int = 0
    per_tx_limit_nanos: int = 0
    allowed_addresses: tuple[str, ...] = ()
    allowed_domains: tuple[str, ...] = ()
    locked: bool = False

    @property
    def limited(self) -> bool:
        """Tell whether any limit in dollars is in force, so that a value must be known."""
        return any(_limits(self))


DEFAULT = Controls(
    daily_limit_nanos=100 * money.NANOS_PER_USD,
    weekly_limit_nanos=500 * money.NANOS_PER_USD,
    monthly_limit_nanos=1000 * money.NANOS_PER_USD,
    per_tx_limit_nanos=50 * money.NANOS_PER_USD,
)
"""The controls of a new agent's first wallet."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a wallet has held or spent in the current windows, in nano-dollars."""

    day: int = 0
    week: int = 0
    month: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A calendar window in UTC: its first day and the instant at which the next one starts."""

    start: date
    resets_at: datetime


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a day."""

    day: Window
    week: Window
    month: Window


@dataclass(frozen=True, slots=True)
class Movement:
    """What is to be decided: a value in nano-dollars (None: no price known), to whom, at which host.

    A movement without a recipient or without a domain is not held against that allowlist.
    """

    value_nanos: int | None
    recipient: str | None = None
    family: Family | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    rule: Rule
    period: str
    limit_nanos: int
    spent_nanos: int
    window: Window | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a movement may not be made, with a sentence for the caller and figures to act on."""

    rule: Rule
    message: str
    details: Mapping[str, str | Decimal | None]


def windows(on: date) -> Windows:
    """Return the windows that contain a UTC day: the day, the week from Monday, the month from the 1st."""
    monday = on - timedelta(days=on.weekday())
    first = on.replace(day=1)
    # The 1st plus 31 days is always in the next month.
    next_first = (first + timedelta(days=31)).replace(day=1)
    return Windows(
        day=Window(on, _midnight(on + timedelta(days=1))),
        week=Window(monday, _midnight(monday + timedelta(days=7))),
        month=Window(first, _midnight(next_first)),
    )


def carry(spent: Spent, counted_on: date, today: date) -> Spent:
    """Return what still counts today of what was counted on an earlier day: ended windows count nothing."""
    then, current = windows(counted_on), windows(today)
    return Spent(
        day=spent.day if then.day.start == current.day.start else 0,
        week=spent.week if then.week.start == current.week.start else 0,
        month=spent.month if then.month.start == current.month.start else 0,
    )


def add(spent: Spent, value_nanos: int) -> Spent:
    """Return the sums with a value added to all three windows."""
    return Spent(spent.day + value_nanos, spent.week + value_nanos, spent.month + value_nanos)


def decide(
    controls: Controls | None, spent: Spent, movement: Movement, *, frozen: bool, today: date
) -> Refusal | None:
    """Return why a movement may not be made on a UTC day, or None when it may.

    Order: frozen, address, domain, price (a limit is in force and no value known), per transaction, daily,
    weekly, monthly. `spent` is what counts in the windows of `today`.
    """
    if frozen:
        return Refusal(
            Rule.FROZEN, "This agent is frozen by its owner or the platform; no new movement is possible.", {}
        )
    if controls is None:
        return None
    return (
        _decide_address(controls, movement.recipient, movement.family)
        or _decide_domain(controls, movement.domain)
        or _decide_amount(controls, spent, movement.value_nanos, today)
    )


def loosens(old: Controls, new: Controls) -> bool:
    """Tell whether new controls allow anything that the old ones refuse."""
    return (
        any(
            before and (not after or after > before)
            for before, after in zip(_limits(old), _limits(new), strict=True)
        )
        or _widens(old.allowed_addresses, new.allowed_addresses, _address_covered)
        or _widens(old.allowed_domains, new.allowed_domains, domain_allowed)
    )


def address_allowed(recipient: str, family: Family, allowed: tuple[str, ...]) -> bool:
    """Tell whether a recipient is on a list that is not empty.

    EVM addresses compare case-insensitively, Solana's exactly; an entry never matches the other family.
    """
    if family is Family.SOLANA:
        return recipient in allowed
    return recipient.lower() in {entry.lower() for entry in allowed if entry.startswith(_EVM_PREFIX)}


def domain_allowed(domain: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a host is on a list that is not empty: an entry covers the host and its subdomains."""
    host = domain.lower().rstrip(".")
    return any(
        host == entry or host.endswith("." + entry) for entry in (e.lower().rstrip(".") for e in allowed)
    )


def _decide_address(controls: Controls, recipient: str | None, family: Family | None) -> Refusal | None:
    if recipient is None or not controls.allowed_addresses:
        return None
    if address_allowed(recipient, family or _family(recipient), controls.allowed_addresses):
        return None
    return Refusal(
        Rule.ADDRESS,
        f"The recipient {recipient} is not on this wallet's allowlist of addresses.",
        {"rule": Rule.ADDRESS.value, "address": recipient},
    )


def _decide_domain(controls: Controls, domain: str | None) -> Refusal | None:
    if domain is None or not controls.allowed_domains or domain_allowed(domain, controls.allowed_domains):
        return None
    return Refusal(
        Rule.DOMAIN,
        f"The domain {domain} is not on this wallet's allowlist of domains.",
        {"rule": Rule.DOMAIN.value, "domain": domain},
    )


def _decide_amount(controls: Controls, spent: Spent, value_nanos: int | None, today: date) -> Refusal | None:
    if not controls.limited:
        return None
    if value_nanos is None:
        return Refusal(
            Rule.PRICE,
            "No current price is known for this token, so the limits cannot be checked; try again shortly.",
            {"rule": Rule.PRICE.value},
        )
    current = windows(today)
    checks = (
        _Check(Rule.PER_TX, "per transaction", controls.per_tx_limit_nanos, 0, None),
        _Check(Rule.DAILY, "per day", controls.daily_limit_nanos, spent.day, current.day),
        _Check(Rule.WEEKLY, "per week", controls.weekly_limit_nanos, spent.week, current.week),
        _Check(Rule.MONTHLY, "per month", controls.monthly_limit_nanos, spent.month, current.month),
    )
    for check in checks:
        if check.limit_nanos and check.spent_nanos + value_nanos > check.limit_nanos:
            return _over(check, value_nanos)
    return None


def _over(check: _Check, value_nanos: int) -> Refusal:
    limit, requested = money.usd_from_nanos(check.limit_nanos), money.usd_from_nanos(value_nanos)
    remaining = money.usd_from_nanos(max(0, check.limit_nanos - check.spent_nanos))
    resets_at = None if check.window is None else clock.isoformat(check.window.resets_at)
    message = f"This movement of {requested:f} USD passes the wallet's limit of {limit:f} USD {check.period}"
    if resets_at is not None:
        message += f"; {remaining:f} USD remain until {resets_at}"
    return Refusal(
        check.rule,
        message + ".",
        {
            "rule": check.rule.value,
            "limit_usd": limit,
            "spent_usd": money.usd_from_nanos(check.spent_nanos),
            "requested_usd": requested,
            "remaining_usd": remaining,
            "resets_at": resets_at,
        },
    )


def _widens(
    old: tuple[str, ...], new: tuple[str, ...], covered: Callable[[str, tuple[str, ...]], bool]
) -> bool:
    return bool(old) and (not new or not all(covered(entry, old) for entry in new))


def _address_covered(entry: str, old: tuple[str, ...]) -> bool:
    return address_allowed(entry, _family(entry), old)


def _family(entry: str) -> Family:
    # No base58 text starts like this: 0 is not one of its digits.
    return Family.EVM if entry.startswith(_EVM_PREFIX) else Family.SOLANA


def _limits(controls: Controls) -> tuple[int, int, int, int]:
    return (
        controls.per_tx_limit_nanos,
        controls.daily_limit_nanos,
        controls.weekly_limit_nanos,
        controls.monthly_limit_nanos,
    )


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
