"""Metering: the log always adds up to what was spent, and the sums to the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.core.identifiers import new_id
from app.core.pagination import PageRequest
from app.credits import accounts as credit_accounts
from app.credits import holds as credit_holds
from app.credits.holds import CreditHoldState
from app.credits.models import CreditHold
from app.errors import InsufficientCredits
from app.usage import service
from app.usage.models import UsageByProvider
from app.usage.service import MeteredUsage, ProviderTotals, UsageCall
from tests.support.ledger import clear, ledger_app, read, unit, violations

APP = ledger_app("sqlite://")
KEY = new_id()
CALL = UsageCall(KEY, "openai", "small-model")
ESTIMATE = MeteredUsage(3, tokens_in=30, price_version="v1")


@pytest.fixture
def account() -> Iterator[str]:
    with APP.app_context():
        clear()
        yield _open(100)


def _open(nanos: int) -> str:
    owner = new_id()
    unit(credit_accounts.open_account, owner)
    unit(credit_accounts.grant, owner, nanos, reference=owner)
    return owner


def _begin(account: str, worst: int = 20, *, lease: timedelta = timedelta(0), call: UsageCall = CALL) -> str:
    hold_id = new_id()
    unit(service.begin, account, call, hold_id=hold_id, nanos=worst, estimate=ESTIMATE, lease=lease)
    return hold_id


def _settled(hold_id: str, metered: MeteredUsage) -> tuple[int, int]:
    """Settle a call; return the charged and unpaid amounts, after checking the returned credits."""
    receipt = unit(service.settle, hold_id, metered)
    assert receipt.credits_nanos == read(credit_accounts.balance, _account_of(hold_id)).credits_nanos
    return receipt.charged_nanos, receipt.unpaid_nanos


def _account_of(hold_id: str) -> str:
    def ask(session: Session) -> str:
        found = session.scalar(select(CreditHold.account_id).where(CreditHold.id == hold_id))
        assert found is not None
        return found

    return read(ask)


def _log(account: str) -> list[tuple[str, int, int, int]]:
    page = read(service.history, account, PageRequest(100, 0), {})
    assert page.total == len(page.items)
    return [(entry.id, entry.cost_nanos, entry.tokens_in, entry.tokens_out) for entry in page.items]


_verbs = st.sampled_from(("begin", "charge", "record", "record_more", "cancel", "refund", "renew", "lapse"))
_steps = st.lists(st.tuples(st.integers(0, 4), _verbs, st.integers(0, 60)), max_size=25)


@settings(max_examples=40)
@given(steps=_steps)
def test_any_sequence_of_calls_leaves_the_log_equal_to_what_was_spent(steps: list[tuple[int, str, int]]) -> None:
    with APP.app_context():
        clear()
        owner = _open(100)
        ids = [new_id() for _ in range(5)]
        begun: set[str] = set()
        for number, verb, nanos in steps:
            call_id, call = ids[number], UsageCall(KEY, f"provider{number % 2}", "m")
            if call_id not in begun and verb in {"begin", "charge"}:
                try:
                    if verb == "begin":
                        unit(
                            service.begin, owner, call, hold_id=call_id, nanos=nanos,
                            estimate=MeteredUsage(nanos // 2, 5, 0), lease=timedelta(0), minimum_nanos=1,
                        )  # fmt: skip
                    else:
                        unit(service.charge, owner, call, charge_id=call_id, metered=MeteredUsage(nanos))
                except InsufficientCredits:
                    continue
                begun.add(call_id)
            elif call_id in begun:
                _act(verb, call_id, nanos)
            assert violations() == []
        balance = read(credit_accounts.balance, owner)
        assert balance.spent_nanos == sum(cost for _, cost, _, _ in _log(owner))
        assert balance.credits_nanos == 100 - balance.spent_nanos


def _act(verb: str, call_id: str, nanos: int) -> None:
    match verb:
        case "record" | "record_more":
            metered = MeteredUsage(nanos * (3 if verb == "record_more" else 1), tokens_in=nanos, tokens_out=1)
            first = unit(service.settle, call_id, metered)
            again = unit(service.settle, call_id, MeteredUsage(1))
            assert again == first._replace(previous_state=first.state, set_aside_nanos=0, held_at=None)
        case "cancel":
            unit(service.cancel, call_id)
        case "refund":
            unit(service.refund, call_id)
            assert unit(service.refund, call_id).previous_state is not CreditHoldState.SETTLED
        case "renew":
            unit(credit_holds.renew, call_id, lease=timedelta(0))
        case "lapse":
            service.charge_lapsed()


def test_a_call_is_charged_its_cost_and_logged_once(account: str) -> None:
    hold_id = _begin(account)
    metered = MeteredUsage(7, tokens_in=70, tokens_out=9, price_version="v1")
    assert _settled(hold_id, metered) == (7, 0)
    assert _settled(hold_id, MeteredUsage(19)) == (7, 0)
    assert _log(account) == [(hold_id, 7, 70, 9)]
    assert read(service.by_provider, account) == {"openai": ProviderTotals(1, 7, 70, 9)}
    assert read(credit_accounts.balance, account).credits_nanos == 93


def test_an_unsettled_stream_is_charged_its_estimate_until_the_actual_cost_replaces_it(account: str) -> None:
    hold_id = _begin(account)
    assert service.charge_lapsed() == 1
    assert service.charge_lapsed() == 0
    assert _log(account) == [(hold_id, 3, 30, 0)]
    assert _settled(hold_id, MeteredUsage(12, 30, 40)) == (12, 0)
    assert _log(account) == [(hold_id, 12, 30, 40)]
    assert violations() == []
    assert read(credit_accounts.balance, account).credits_nanos == 88


def test_a_lapsed_call_without_a_response_is_released(account: str) -> None:
    hold_id = _begin(account)
    service.charge_lapsed()
    unit(service.cancel, hold_id)
    assert _log(account) == []
    assert read(service.by_provider, account) == {}
    assert read(credit_accounts.balance, account).credits_nanos == 100
    assert violations() == []


def test_a_stream_that_renews_its_lease_is_not_charged_an_estimate(account: str) -> None:
    hold_id = _begin(account)
    assert unit(credit_holds.renew, hold_id, lease=timedelta(minutes=1))
    assert service.charge_lapsed() == 0
    assert _log(account) == []
    assert _settled(hold_id, MeteredUsage(5)) == (5, 0)
    assert unit(credit_holds.renew, hold_id, lease=timedelta(minutes=1)) is False


def test_renewing_a_call_leaves_the_lease_of_another_call_expired(account: str) -> None:
    renewed, other = _begin(account), _begin(account)
    assert unit(credit_holds.renew, renewed, lease=timedelta(minutes=1))
    assert service.charge_lapsed() == 1
    assert [hold_id for hold_id, *_ in _log(account)] == [other]
    assert violations() == []


def test_a_cost_that_exceeds_the_account_is_logged_as_far_as_it_was_paid(account: str) -> None:
    hold_id = _begin(account, 100)
    assert _settled(hold_id, MeteredUsage(130, 1, 1)) == (100, 30)
    assert _log(account) == [(hold_id, 100, 1, 1)]
    assert violations() == []


def test_a_price_that_is_known_is_charged_once_and_refunded_once(account: str) -> None:
    charge_id = new_id()
    for _ in range(2):
        unit(service.charge, account, CALL, charge_id=charge_id, metered=MeteredUsage(60))
    assert read(credit_accounts.balance, account).credits_nanos == 40
    with pytest.raises(InsufficientCredits):
        unit(service.charge, account, CALL, charge_id=new_id(), metered=MeteredUsage(41))
    assert unit(service.refund, charge_id).previous_state is CreditHoldState.SETTLED
    assert unit(service.refund, charge_id).repeated
    assert _log(account) == []
    assert read(credit_accounts.balance, account).credits_nanos == 100
    assert violations() == []


def test_a_free_call_is_logged_too(account: str) -> None:
    hold_id = _begin(account)
    unit(service.settle, hold_id, MeteredUsage(0, 5, 5))
    assert _log(account) == [(hold_id, 0, 5, 5)]


def test_an_unstorable_model_name_does_not_prevent_settlement(account: str) -> None:
    hold_id = _begin(account, call=UsageCall(KEY, "openai", "x\x00\ud800" + "long" * 1000))
    unit(service.settle, hold_id, MeteredUsage(1))
    entry = read(service.history, account, PageRequest(1, 0), {}).items[0]
    assert entry.model == ("x" + "long" * 1000)[:200]


def test_one_invalid_hold_does_not_block_the_others(account: str) -> None:
    unit(credit_holds.hold, account, 1, hold_id=new_id(), lease=timedelta(0), memo={"odd": 1})
    _begin(account)
    assert service.charge_lapsed() == 1


def test_pages_are_newest_first_and_miss_nothing(account: str) -> None:
    ids = [_begin(account, 1) for _ in range(7)]
    for hold_id in ids:
        unit(service.settle, hold_id, MeteredUsage(1))
    pages = [read(service.history, account, PageRequest(3, offset), {}) for offset in (0, 3, 6)]
    seen = [entry.id for page in pages for entry in page.items]
    assert seen == ids[::-1]
    assert [page.has_more for page in pages] == [True, True, False]
    assert {page.total for page in pages} == {7}
    assert all(uuid.UUID(entry.api_key_id) for page in pages for entry in page.items)


def test_the_audit_finds_a_sum_that_differs_from_the_log(account: str) -> None:
    unit(service.settle, _begin(account), MeteredUsage(5, 1, 1))
    assert violations() == []
    unit(lambda session: session.execute(update(UsageByProvider).values(tokens_in=2)))
    assert any(account in sentence for sentence in violations())
