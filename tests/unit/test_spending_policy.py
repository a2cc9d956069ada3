"""The spending rules, pure: windows, order, allowlists, and that no sequence of movements passes a limit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.chains import Family
from app.spending import policy
from app.spending.policy import DEFAULT, Controls, Movement, Refusal, Rule, Spent

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
    Movement,
    value_nanos=st.none() | st.integers(0, 60),
    recipient=st.sampled_from((None, EVM, OTHER_EVM.lower(), SOLANA)),
    family=st.none(),
    domain=st.none() | hosts,
)


def decide(
    rules: Controls | None,
    movement: Movement,
    *,
    spent: Spent | None = None,
    frozen: bool = False,
    today: date = TODAY,
) -> Refusal | None:
    return policy.decide(rules, spent or Spent(), movement, frozen=frozen, today=today)


def rule_of(refusal: Refusal | None) -> Rule | None:
    return None if refusal is None else refusal.rule


@given(
    rules=controls, wishes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40), start=days
)
def test_no_sequence_of_movements_passes_a_limit_and_none_is_refused_without_need(
    rules: Controls, wishes: list[tuple[int, int]], start: date
) -> None:
    rules = replace(rules, allowed_addresses=(), allowed_domains=())
    made: list[tuple[date, int]] = []
    today, spent = start, Spent()
    for days_later, value in wishes:
        yesterday, today = today, today + timedelta(days=days_later)
        spent = policy.carry(spent, yesterday, today)
        # Counted anew from the list of movements, with another notion of the calendar than the policy's.
        same_day = sum(v for d, v in made if d == today)
        same_week = sum(v for d, v in made if d.isocalendar()[:2] == today.isocalendar()[:2])
        same_month = sum(v for d, v in made if (d.year, d.month) == (today.year, today.month))
        assert spent == Spent(same_day, same_week, same_month)
        fits = all(
            not limit or total + value <= limit
            for limit, total in (
                (rules.per_tx_limit_nanos, 0),
                (rules.daily_limit_nanos, same_day),
                (rules.weekly_limit_nanos, same_week),
                (rules.monthly_limit_nanos, same_month),
            )
        )
        refusal = decide(rules, Movement(value), spent=spent, today=today)
        assert (refusal is None) == fits
        if refusal is None:
            made.append((today, value))
            spent = policy.add(spent, value)


@given(broken=st.sets(st.sampled_from(list(Rule))))
def test_of_several_broken_rules_the_first_in_order_is_named(broken: set[Rule]) -> None:
    rules = Controls(
        allowed_addresses=(OTHER_EVM if Rule.ADDRESS in broken else EVM,),
        allowed_domains=("other.example" if Rule.DOMAIN in broken else "shop.example",),
        per_tx_limit_nanos=1 if Rule.PER_TX in broken else 100,
        daily_limit_nanos=1 if Rule.DAILY in broken else 100,
        weekly_limit_nanos=1 if Rule.WEEKLY in broken else 100,
        monthly_limit_nanos=1 if Rule.MONTHLY in broken else 100,
    )
    value = None if Rule.PRICE in broken else 2
    refusal = decide(
        rules,
        Movement(value, EVM, Family.EVM, "shop.example"),
        frozen=Rule.FROZEN in broken,
        spent=Spent(0, 0, 0),
    )
    assert rule_of(refusal) == next((rule for rule in Rule if rule in broken), None)


@given(today=days)
def test_a_window_holds_its_day_and_ends_at_the_first_instant_that_is_not_in_it(today: date) -> None:
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
        ("2026-11-20", "2026-11-20", Spent(7, 7, 7)),
        ("2026-11-21", "2026-11-22", Spent(0, 7, 7)),  # Saturday to Sunday
        ("2026-11-22", "2026-11-23", Spent(0, 0, 7)),  # Sunday to Monday
        ("2026-11-30", "2026-12-01", Spent(0, 7, 0)),  # Monday to Tuesday across the month's end
        ("2027-01-31", "2027-02-01", Spent(0, 0, 0)),  # Sunday to Monday across the month's end
        ("2028-02-28", "2028-02-29", Spent(0, 7, 7)),  # the leap day is one more day of February
        ("2028-02-29", "2028-03-01", Spent(0, 7, 0)),
        ("2026-12-31", "2027-01-01", Spent(0, 7, 0)),  # a week does not end with the year
        ("2025-11-20", "2026-11-20", Spent(0, 0, 0)),  # the same day of another year is another day
    ],
)
def test_spending_is_forgotten_exactly_when_its_window_ends(before: str, after: str, kept: Spent) -> None:
    assert policy.carry(Spent(7, 7, 7), date.fromisoformat(before), date.fromisoformat(after)) == kept


@given(old=controls, new=controls, movement=movements, spent=st.builds(Spent, *(st.integers(0, 50),) * 3))
def test_controls_that_do_not_loosen_let_nothing_pass_that_was_refused_before(
    old: Controls, new: Controls, movement: Movement, spent: Spent
) -> None:
    if not policy.loosens(old, new) and decide(new, movement, spent=spent) is None:
        assert decide(old, movement, spent=spent) is None


@given(rules=controls)
def test_the_same_controls_loosen_nothing(rules: Controls) -> None:
    assert not policy.loosens(rules, rules)


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
    assert policy.loosens(old, replace(old, **changes)) is loosens


def test_a_first_allowlist_tightens() -> None:
    assert not policy.loosens(
        DEFAULT, replace(DEFAULT, allowed_addresses=(EVM,), allowed_domains=("x.example",))
    )


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
        (None, None, (EVM,), True),
    ],
)
def test_an_allowlist_of_one_chain_family_denies_the_other(
    recipient: str | None,
    family: Family | None,
    allowed: tuple[str, ...],
    passes: bool,  # noqa: FBT001
) -> None:
    refusal = decide(Controls(allowed_addresses=allowed), Movement(1, recipient, family))
    assert rule_of(refusal) == (None if passes else Rule.ADDRESS)


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
def test_a_domain_entry_covers_its_host_and_subdomains_and_no_look_alikes(host: str, passes: bool) -> None:  # noqa: FBT001
    refusal = decide(Controls(allowed_domains=("shop.example",)), Movement(1, domain=host))
    assert rule_of(refusal) == (None if passes else Rule.DOMAIN)


def test_a_refusal_tells_what_is_left_and_until_when() -> None:
    refusal = decide(DEFAULT, Movement(30 * USD + 1), spent=Spent(70 * USD, 70 * USD, 70 * USD))
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
    assert decide(DEFAULT, Movement(30 * USD), spent=Spent(70 * USD, 70 * USD, 70 * USD)) is None


def test_a_lowered_limit_leaves_nothing_and_never_less() -> None:
    refusal = decide(Controls(daily_limit_nanos=10), Movement(1), spent=Spent(50, 50, 50))
    assert refusal is not None
    assert refusal.details["remaining_usd"] == 0


def test_without_a_price_only_wallets_without_limits_move() -> None:
    unknown = Movement(None, EVM, Family.EVM)
    assert decide(None, unknown) is None
    assert decide(Controls(allowed_addresses=(EVM,)), unknown) is None
    assert rule_of(decide(Controls(monthly_limit_nanos=1), unknown)) == Rule.PRICE


def test_a_frozen_wallet_without_controls_is_still_frozen() -> None:
    assert rule_of(decide(None, Movement(0), frozen=True)) == Rule.FROZEN
