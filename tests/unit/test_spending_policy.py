"""The spending policy: windows, order, allowlists, and that no sequence of movements exceeds a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import errors
from app.core.chains import Family
from app.errors import ServiceError, SessionLimitExceeded
from app.spending import policy
from app.spending.policy import DEFAULT, Controls, SessionBudget, SpendingRequest, WindowTotals

USD = 10**9
EVM = "0x52908400098527886E0F7030069857D2E4169EE7"
OTHER_EVM = "0x8617E340B3D01FA5F11F306F4090FD50E238070D"
SOLANA = "4Nd1mBQtrMJVYVfKf2PJy9NZUZdTAsp7D4xWLs4gDB4T"
TODAY = date(2026, 11, 18)

days = st.dates(date(2023, 12, 1), date(2028, 4, 1))
limits = st.sampled_from((0, 1, 5, 10, 50))
hosts = st.sampled_from(("shop.example", "a.shop.example", "other.example", "badshop.example", "example"))
controls = st.builds(
    Controls,
    daily_limit_nanos=limits,
    weekly_limit_nanos=limits,
    monthly_limit_nanos=limits,
    per_tx_limit_nanos=limits,
    allowed_addresses=st.lists(st.sampled_from((EVM, OTHER_EVM, SOLANA)), max_size=2).map(tuple),
    allowed_domains=st.lists(hosts, max_size=2).map(tuple),
    locked=st.booleans(),
)
movements = st.builds(
    SpendingRequest,
    value_nanos=st.none() | st.integers(0, 60),
    recipient=st.sampled_from((None, EVM, OTHER_EVM.lower(), SOLANA)),
    family=st.none(),
    domain=st.none() | hosts,
)


IN_ORDER: list[type[ServiceError]] = [
    errors.WalletFrozen, errors.AddressNotAllowed, errors.DomainNotAllowed, errors.PriceUnavailable,
    errors.PerTxLimitExceeded, errors.DailyLimitExceeded, errors.WeeklyLimitExceeded, errors.MonthlyLimitExceeded,
]  # fmt: skip


def refusal_of(check: Callable[..., None], *arguments: object, **options: object) -> ServiceError | None:
    try:
        check(*arguments, **options)
    except ServiceError as refusal:
        return refusal
    return None


def decide(
    rules: Controls | None,
    movement: SpendingRequest,
    *,
    spent: WindowTotals | None = None,
    frozen: bool = False,
    today: date = TODAY,
) -> ServiceError | None:
    return refusal_of(policy.assert_allowed, rules, spent or WindowTotals(), movement, frozen=frozen, today=today)


def rule_of(refusal: ServiceError | None) -> type[ServiceError] | None:
    return None if refusal is None else type(refusal)


@given(rules=controls, wishes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40), start=days)
def test_no_sequence_of_movements_exceeds_a_limit_and_none_is_refused_needlessly(
    rules: Controls, wishes: list[tuple[int, int]], start: date
) -> None:
    rules = replace(rules, allowed_addresses=(), allowed_domains=())
    made: list[tuple[date, int]] = []
    today, spent = start, WindowTotals()
    for days_later, value in wishes:
        yesterday, today = today, today + timedelta(days=days_later)
        spent = policy.roll_over(spent, yesterday, today)
        # Recounted from the list of movements, with an independent implementation of the calendar.
        same_day = sum(v for d, v in made if d == today)
        same_week = sum(v for d, v in made if d.isocalendar()[:2] == today.isocalendar()[:2])
        same_month = sum(v for d, v in made if (d.year, d.month) == (today.year, today.month))
        assert spent == WindowTotals(same_day, same_week, same_month)
        fits = all(
            not limit or total + value <= limit
            for limit, total in (
                (rules.per_tx_limit_nanos, 0),
                (rules.daily_limit_nanos, same_day),
                (rules.weekly_limit_nanos, same_week),
                (rules.monthly_limit_nanos, same_month),
            )
        )
        refusal = decide(rules, SpendingRequest(value), spent=spent, today=today)
        assert (refusal is None) == fits
        if refusal is None:
            made.append((today, value))
            spent = spent.plus(WindowTotals(value, value, value))


@given(broken=st.sets(st.sampled_from(IN_ORDER)))
def test_of_several_violated_rules_the_first_in_order_is_reported(broken: set[type[ServiceError]]) -> None:
    rules = Controls(
        allowed_addresses=(OTHER_EVM if errors.AddressNotAllowed in broken else EVM,),
        allowed_domains=("other.example" if errors.DomainNotAllowed in broken else "shop.example",),
        per_tx_limit_nanos=1 if errors.PerTxLimitExceeded in broken else 100,
        daily_limit_nanos=1 if errors.DailyLimitExceeded in broken else 100,
        weekly_limit_nanos=1 if errors.WeeklyLimitExceeded in broken else 100,
        monthly_limit_nanos=1 if errors.MonthlyLimitExceeded in broken else 100,
    )
    value = None if errors.PriceUnavailable in broken else 2
    refusal = decide(
        rules,
        SpendingRequest(value, EVM, Family.EVM, "shop.example"),
        frozen=errors.WalletFrozen in broken,
        spent=WindowTotals(0, 0, 0),
    )
    assert rule_of(refusal) == next((rule for rule in IN_ORDER if rule in broken), None)


@given(today=days)
def test_a_window_contains_its_day_and_ends_at_the_first_instant_after_it(today: date) -> None:
    windows = policy.windows(today)
    for window, name in (
        (windows.day, lambda d: d),
        (windows.week, lambda d: d.isocalendar()[:2]),
        (windows.month, lambda d: (d.year, d.month)),
    ):
        last = window.resets_at.date() - timedelta(days=1)
        assert window.start <= today <= last
        assert window.resets_at.timetz() == datetime(2000, 1, 1, tzinfo=UTC).timetz()
        assert name(window.start) == name(today) == name(last)
        assert name(window.start - timedelta(days=1)) != name(today)
        assert name(window.resets_at.date()) != name(today)


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("2026-11-20", "2026-11-20", WindowTotals(7, 7, 7)),
        ("2026-11-21", "2026-11-22", WindowTotals(0, 7, 7)),  # Saturday to Sunday
        ("2026-11-22", "2026-11-23", WindowTotals(0, 0, 7)),  # Sunday to Monday
        ("2026-11-30", "2026-12-01", WindowTotals(0, 7, 0)),  # Monday to Tuesday across the month's end
        ("2027-01-31", "2027-02-01", WindowTotals(0, 0, 0)),  # Sunday to Monday across the month's end
        ("2028-02-28", "2028-02-29", WindowTotals(0, 7, 7)),  # the leap day is one more day of February
        ("2028-02-29", "2028-03-01", WindowTotals(0, 7, 0)),
        ("2026-12-31", "2027-01-01", WindowTotals(0, 7, 0)),  # a week does not end with the year
        ("2025-11-20", "2026-11-20", WindowTotals(0, 0, 0)),  # the same day of another year is another day
    ],
)
def test_spending_stops_counting_exactly_when_its_window_ends(before: str, after: str, kept: WindowTotals) -> None:
    assert policy.roll_over(WindowTotals(7, 7, 7), date.fromisoformat(before), date.fromisoformat(after)) == kept


@given(old=controls, new=controls, movement=movements, spent=st.builds(WindowTotals, *(st.integers(0, 50),) * 3))
def test_controls_that_do_not_loosen_allow_nothing_that_was_refused_before(
    old: Controls, new: Controls, movement: SpendingRequest, spent: WindowTotals
) -> None:
    if not policy.is_looser(old, new) and decide(new, movement, spent=spent) is None:
        assert decide(old, movement, spent=spent) is None


@given(rules=controls)
def test_the_same_controls_loosen_nothing(rules: Controls) -> None:
    assert not policy.is_looser(rules, rules)


@pytest.mark.parametrize(
    ("changes", "loosens"),
    [
        ({"daily_limit_nanos": 100 * USD}, False),
        ({"daily_limit_nanos": 100 * USD + 1}, True),
        ({"daily_limit_nanos": 0}, True),
        ({"per_tx_limit_nanos": 49 * USD}, False),
        ({"weekly_limit_nanos": 501 * USD}, True),
        ({"monthly_limit_nanos": 0}, True),
        ({"allowed_addresses": ()}, True),
        ({"allowed_addresses": (EVM, OTHER_EVM)}, True),
        ({"allowed_addresses": (EVM.lower(),)}, False),
        ({"allowed_domains": ()}, True),
        ({"allowed_domains": ("a.shop.example",)}, False),
        ({"allowed_domains": ("example",)}, True),
    ],
)
def test_a_locked_wallet_s_key_may_tighten_and_not_loosen(changes: dict[str, Any], loosens: bool) -> None:  # noqa: FBT001
    old = replace(DEFAULT, allowed_addresses=(EVM,), allowed_domains=("shop.example",))
    assert policy.is_looser(old, replace(old, **changes)) is loosens


def test_a_first_allowlist_tightens() -> None:
    assert not policy.is_looser(DEFAULT, replace(DEFAULT, allowed_addresses=(EVM,), allowed_domains=("x.example",)))


@pytest.mark.parametrize(
    ("recipient", "family", "allowed", "passes"),
    [
        (EVM, Family.EVM, (EVM,), True),
        (EVM.lower(), Family.EVM, (EVM,), True),
        (EVM, Family.EVM, (EVM.lower(),), True),
        (OTHER_EVM, Family.EVM, (EVM,), False),
        (SOLANA, Family.SOLANA, (SOLANA,), True),
        (SOLANA.lower(), Family.SOLANA, (SOLANA,), False),
        (SOLANA, Family.SOLANA, (EVM,), False),
        (EVM, Family.EVM, (SOLANA,), False),
        (EVM, Family.EVM, (SOLANA, EVM), True),
        (EVM, Family.EVM, (), True),
        (SOLANA, None, (SOLANA,), True),
        (SOLANA.lower(), None, (SOLANA,), False),
        (EVM.lower(), None, (EVM,), True),
        (None, None, (EVM,), True),
    ],
)
def test_an_allowlist_of_one_chain_family_denies_the_other(
    recipient: str | None,
    family: Family | None,
    allowed: tuple[str, ...],
    passes: bool,  # noqa: FBT001
) -> None:
    refusal = decide(Controls(allowed_addresses=allowed), SpendingRequest(1, recipient, family))
    assert rule_of(refusal) == (None if passes else errors.AddressNotAllowed)


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("shop.example", True),
        ("SHOP.example", True),
        ("shop.example.", True),
        ("a.b.shop.example", True),
        ("badshop.example", False),
        ("shop.example.evil.test", False),
        ("example", False),
        ("", False),
    ],
)
def test_a_domain_entry_covers_its_host_and_subdomains_but_no_lookalikes(host: str, passes: bool) -> None:  # noqa: FBT001
    refusal = decide(Controls(allowed_domains=("shop.example",)), SpendingRequest(1, domain=host))
    assert rule_of(refusal) == (None if passes else errors.DomainNotAllowed)


def test_a_refusal_reports_the_remainder_and_the_reset_time() -> None:
    refusal = decide(DEFAULT, SpendingRequest(30 * USD + 1), spent=WindowTotals(70 * USD, 70 * USD, 70 * USD))
    assert refusal is not None
    assert refusal.details == {
        "rule": "daily_limit_usd",
        "limit_usd": Decimal(100),
        "spent_usd": Decimal(70),
        "requested_usd": Decimal("30.000000001"),
        "remaining_usd": Decimal(30),
        "resets_at": "2026-11-19T00:00:00.000Z",
    }
    assert "30 USD remain until 2026-11-19T00:00:00.000Z" in refusal.message
    assert decide(DEFAULT, SpendingRequest(30 * USD), spent=WindowTotals(70 * USD, 70 * USD, 70 * USD)) is None


def test_a_lowered_limit_leaves_zero_and_never_less() -> None:
    refusal = decide(Controls(daily_limit_nanos=10), SpendingRequest(1), spent=WindowTotals(50, 50, 50))
    assert refusal is not None
    assert refusal.details["remaining_usd"] == 0


def test_without_a_price_only_wallets_without_limits_can_spend() -> None:
    unknown = SpendingRequest(None, EVM, Family.EVM)
    assert decide(None, unknown) is None
    assert decide(Controls(allowed_addresses=(EVM,)), unknown) is None
    assert rule_of(decide(Controls(monthly_limit_nanos=1), unknown)) == errors.PriceUnavailable


def test_a_frozen_wallet_without_controls_is_still_frozen() -> None:
    assert rule_of(decide(None, SpendingRequest(0), frozen=True)) == errors.WalletFrozen


NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SESSION = SessionBudget(max_nanos=10, counted_nanos=4, expires_at=NOON)


@pytest.mark.parametrize(
    ("budget", "request_", "seconds", "rule"),
    [
        (SESSION, SpendingRequest(6), -1, None),
        (SESSION, SpendingRequest(7), -1, SessionLimitExceeded),
        (SESSION, SpendingRequest(0), 0, SessionLimitExceeded),
        (SESSION, SpendingRequest(None), -1, errors.PriceUnavailable),
        (replace(SESSION, counted_nanos=11), SpendingRequest(0), -1, None),
        (replace(SESSION, counted_nanos=11), SpendingRequest(1), -1, SessionLimitExceeded),
        (replace(SESSION, domains=("a.example",)), SpendingRequest(1, domain="b.a.example"), -1, None),
        (replace(SESSION, domains=("a.example",)), SpendingRequest(1, domain="b.example"), -1, SessionLimitExceeded),
        (replace(SESSION, domains=("a.example",)), SpendingRequest(1), -1, SessionLimitExceeded),
    ],
)
def test_a_session_allows_what_its_budget_time_and_domains_do(
    budget: SessionBudget, request_: SpendingRequest, seconds: int, rule: type[ServiceError] | None
) -> None:
    refusal = refusal_of(policy.assert_within_session, budget, request_, NOON + timedelta(seconds=seconds))
    assert rule_of(refusal) == rule
