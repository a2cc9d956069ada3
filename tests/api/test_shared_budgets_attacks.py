"""Attacks on shared budgets: by a member, by a stranger, and by bad luck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import event, select, text, update

from app.core import identifiers
from app.core.money import NANOS_PER_USD
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import BudgetLimitExceeded, ServiceError
from app.extensions import db
from app.identity import budget_counters
from app.identity import budgets as shared
from app.identity.models import BudgetCounter, BudgetReturn
from app.platform.shared_budgets import service as platform_budgets
from app.spending import holds as payments
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from tests.api.test_model_endpoints import LLAMA, LLAMA_NANOS, ROUTED, behave, status
from tests.api.test_shared_budgets import CHAT_USD, assert_audited, budget, further_key, hold_payment, used
from tests.support.agents import register
from tests.support.gateway import Stage, gateway_stage
from tests.support.ledger import race, statements
from tests.support.operators import Operator, operator
from tests.support.upstreams import chat_answer
from tests.support.waiting import wait_until

_LONG_WAITS = text("SELECT 1 FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '400 ms'")


@pytest.fixture
def stage(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, each_database_url, exa_api_key="") as made:
        made.behave(lambda exchange: exchange.json(chat_answer()))
        yield made


@pytest.fixture
def ops(stage: Stage) -> Operator:
    return operator(stage.app.test_client())


def test_a_call_that_a_second_model_answers_returns_what_it_held(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    body = {"model": ROUTED, "models": [LLAMA], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1000}
    behave(stage, openrouter=status(500))
    for _ in range(2):
        assert stage.call("/v1/chat/completions", "POST", json=body).status_code == 200
    assert stage.spent_nanos() == 2 * LLAMA_NANOS
    assert used(ops, budget_id) == pytest.approx(2 * LLAMA_NANOS / NANOS_PER_USD)
    behave(stage, openrouter=status(500), groq=status(500))
    assert stage.call("/v1/chat/completions", "POST", json=body).status_code >= 500
    assert used(ops, budget_id) == pytest.approx(2 * LLAMA_NANOS / NANOS_PER_USD)
    assert_audited()


def test_a_batch_of_which_a_part_failed_counts_the_rest(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    calls = [{"jsonrpc": "2.0", "id": each, "method": "eth_blockNumber", "params": []} for each in range(3)]
    limited = {"code": 429, "message": "Your app has exceeded its compute units per second capacity."}
    stage.behave(lambda exchange: exchange.json([{"result": "0x1"}, {"error": limited}, {"result": "0x2"}]))
    assert stage.call("/v1/gateway/alchemy/base", "POST", json=calls).status_code == 200
    assert stage.spent_nanos() == 200_000
    assert used(ops, budget_id) == 0.0002
    assert_audited()


def test_a_payment_found_on_the_chain_counts_although_nothing_else_was_spent(stage: Stage, ops: Operator) -> None:
    start = datetime(2030, 1, 30, 12, tzinfo=UTC)
    with time_machine.travel(start, tick=False) as clock:
        budget_id = budget(ops, limit_usd=10, window="day", members={"agents": [stage.agent.id]})
        hold_payment(stage.agent, 1)
        clock.shift(timedelta(days=1))
        with unit_of_work() as session:
            payments.record_without_limits(session, stage.agent.wallet_id, reference="x", value_nanos=8 * NANOS_PER_USD)
        assert used(ops, budget_id) == 8
        assert_audited()
        # By a call or a payment, whichever comes first.
        assert stage.chat(max_tokens=500).status_code == 200
        assert used(ops, budget_id) == 8 + CHAT_USD
        assert_audited()
        clock.shift(timedelta(days=1))
        with unit_of_work() as session:
            payments.record_without_limits(session, stage.agent.wallet_id, reference="y", value_nanos=8 * NANOS_PER_USD)
        with pytest.raises(BudgetLimitExceeded):
            hold_payment(stage.agent, 3)
        hold_payment(stage.agent, 2)
        assert used(ops, budget_id) == 10
        with unit_of_work() as session:
            payments.release(session, "y")
        assert used(ops, budget_id) == 2
        assert_audited()


def test_a_model_with_the_name_of_a_budget_is_no_false_alarm(stage: Stage, ops: Operator) -> None:
    stranger = register(stage.app.test_client())
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    names = [budget_id, f'","budgets":["{budget_id}"],"x":"', "\\u0000 \\", "\ud83d\ude00{}", "\x00\x1f'; --"]
    for agent in (stranger, stage.agent):
        for name in names:
            call = UsageCall(identifiers.new_id(), "openai", name)
            with unit_of_work() as session:
                usage.charge(session, agent.id, call, charge_id=identifiers.new_id(), metered=MeteredUsage(1000))
    assert used(ops, budget_id) == 0.000005
    assert_audited()


def test_a_threshold_reached_in_a_window_that_has_ended_is_announced_with_what_was_spent(
    stage: Stage, ops: Operator
) -> None:
    with time_machine.travel(datetime(2030, 1, 30, 23, 59, 58, tzinfo=UTC), tick=False) as clock:
        budget_id = budget(ops, limit_usd=0.01, window="day", members={"agents": [stage.agent.id]})
        assert stage.chat(max_tokens=500).status_code == 200
        clock.shift(timedelta(seconds=4))
        with unit_of_work() as session:
            reached = shared.mark_announced(session, budget_id)
        assert reached is not None
        assert (reached[0].used_nanos, reached[1]) == (CHAT_USD * NANOS_PER_USD, 50)


@pytest.mark.parametrize("is_locked", ["budget", "key"])
def test_a_row_that_another_unit_locks_lets_nobody_spend_more(stage: Stage, ops: Operator, is_locked: str) -> None:
    key_id, key = further_key(stage.agent, limit_usd=0.02)
    budget_id = budget(ops, limit_usd=0.03, members={"agents": [stage.agent.id]})
    callers: list[dict[str, str]] = [key, stage.agent.headers()] * 4

    def call(headers: dict[str, str]) -> int:
        code: int = stage.chat(headers=headers, max_tokens=500).status_code
        return code

    with ThreadPoolExecutor(8) as pool:
        if stage.app.config["SQLALCHEMY_DATABASE_URI"].startswith("sqlite"):
            statuses = list(pool.map(call, callers))
        else:
            with unit_of_work() as session:
                locked = select(BudgetCounter.id)
                locked = locked.where(BudgetCounter.id == (key_id if is_locked == "key" else budget_id))
                session.execute(locked.with_for_update(key_share=True))
                started = [pool.submit(call, each) for each in callers]
                # Longer than a group of steps waits: then it leaves out what is locked.
                wait_until(lambda: session.execute(_LONG_WAITS).first(), what="a step that waits alone")
            statuses = [each.result() for each in started]
    assert set(statuses) <= {200, 402}
    assert used(ops, budget_id) == pytest.approx(stage.spent_nanos() / NANOS_PER_USD)
    assert used(ops, budget_id) <= 0.03
    stage.assert_nothing_held()
    assert_audited()


def test_calls_payments_and_changes_together_do_not_deadlock_and_keep_the_limit(stage: Stage, ops: Operator) -> None:
    agents = [stage.agent, register(stage.app.test_client()), register(stage.app.test_client())]
    key_id, key = further_key(stage.agent, limit_usd=1, tags=["a"])
    top = budget(ops, limit_usd=5)
    low = budget(
        ops, limit_usd=5, parent_id=top,
        members={"agents": [each.id for each in agents], "tags": [{"agent_id": stage.agent.id, "tag": "a"}]},
    )  # fmt: skip

    def chat(number: int) -> Any:
        headers = key if number % 2 else agents[number % 3].headers()
        return stage.chat(headers=headers, max_tokens=500).status_code

    def pay(number: int) -> Any:
        reference = hold_payment(agents[number % 3], 1)
        if number % 2:
            with unit_of_work() as session:
                payments.release(session, reference)
        return 200

    def retag(number: int) -> Any:
        client = stage.app.test_client()
        tags = {"tags": ["a", str(number)]}
        return client.patch(f"/v1/keys/{key_id}", json=tags, headers=stage.agent.headers()).status_code

    def change(number: int) -> Any:
        del number
        return operator(stage.app.test_client()).ask("PATCH", f"/budgets/{low}", {"limit_usd": 5}).status_code

    kinds = [chat, chat, pay, retag, change]
    made = race(stage.app, [partial(kinds[number % 5], number) for number in range(30)])
    assert {each for each in made if not isinstance(each, ServiceError)} <= {200, 402}, made
    assert all(isinstance(each, int | BudgetLimitExceeded) for each in made), made
    assert used(ops, low) == used(ops, top) <= 5
    stage.assert_nothing_held()
    assert_audited()


def begin(account_id: str, nanos: int) -> str:
    """Begin a call that holds so much, and return its id."""
    call, hold_id = UsageCall(identifiers.new_id(), "openai", "gpt-5"), identifiers.new_id()
    with unit_of_work() as session:
        usage.begin(
            session, account_id, call, hold_id=hold_id, nanos=nanos, estimate=MeteredUsage(10**6),
            lease=timedelta(seconds=60),
        )  # fmt: skip
    return hold_id


def charge(account_id: str, nanos: int) -> None:
    call = UsageCall(identifiers.new_id(), "openai", "gpt-5")
    with unit_of_work() as session:
        usage.charge(session, account_id, call, charge_id=identifiers.new_id(), metered=MeteredUsage(nanos))


def test_a_budget_deleted_or_lowered_between_hold_and_settlement(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    first, second = begin(stage.agent.id, 10**8), begin(stage.agent.id, 10**8)
    assert ops.ask("PATCH", f"/budgets/{budget_id}", {"limit_usd": 0.05}).status_code == 200
    with unit_of_work() as session:
        ended = usage.settle(session, first, MeteredUsage(2 * 10**8))
    assert (ended.charged_nanos, ended.unpaid_nanos) == (10**8, 10**8)
    assert ops.ask("DELETE", f"/budgets/{budget_id}").status_code == 200
    with unit_of_work() as session:
        usage.settle(session, second, MeteredUsage(10**7))
    stage.assert_nothing_held()
    platform_budgets.announce()
    with read_only_unit() as session:
        assert session.query(BudgetReturn).count() == 0


def test_a_counter_that_somebody_added_silences_no_budget(stage: Stage, ops: Operator) -> None:
    added, begun = identifiers.new_id(), datetime(2020, 1, 1, tzinfo=UTC)
    with unit_of_work() as session:
        session.add(BudgetCounter(id=added, limit_nanos=9, period="total", used_nanos=9, window_start=begun))
    budget_id = budget(ops, limit_usd=0.01, members={"agents": [stage.agent.id]})
    stage.chat()
    platform_budgets.announce()
    events = ops.get("/events?types=budget.threshold_reached").get_json()["events"]
    assert [each["object_id"] for each in events] == [budget_id]
    with unit_of_work() as session:
        budget_counters.remove(session, added)


def test_the_audit_reads_the_calls_once_for_all_budgets_and_finds_what_one_lacks(stage: Stage, ops: Operator) -> None:
    members = {"agents": [stage.agent.id]}
    with time_machine.travel(datetime(2030, 1, 30, 12, tzinfo=UTC), tick=False) as clock:
        ids = [budget(ops, limit_usd=1, members=members, window=window) for window in ("day", "month", "total")]
        for _ in range(2):
            assert stage.chat().status_code == 200
            clock.shift(timedelta(days=1))
        assert_audited()
        clock.shift(timedelta(days=-1))
        with unit_of_work() as session:
            session.execute(
                update(BudgetCounter).where(BudgetCounter.id != ids[1]).values(used_nanos=BudgetCounter.used_nanos - 1)
            )
        with read_only_unit() as session, statements() as seen:
            assert len(platform_budgets.check(session)) == 2
        assert sum("credit_holds" in each for each in seen) == 1


def test_a_counter_with_a_limit_of_its_own_is_found_by_the_audit_and_refused_by_functions(
    stage: Stage, ops: Operator
) -> None:
    key_id, key = further_key(stage.agent, limit_usd=0.02)
    budget_id = budget(ops, limit_usd=0.03, members={"agents": [stage.agent.id]})
    with read_only_unit() as session:
        assert platform_budgets.check(session) == []
    with unit_of_work() as session:
        session.execute(update(BudgetCounter).values(limit_nanos=10**15))
    with read_only_unit() as session:
        assert sorted(each.split()[1] for each in platform_budgets.check(session)) == sorted(
            [f"{key_id}:", f"{budget_id}:"]
        )
    assert ops.ask("GET", f"/budgets/{budget_id}").status_code == 500
    assert stage.app.test_client().get("/v1/balance", headers=key).status_code == 500


def test_a_limit_changed_between_any_two_statements_of_a_reader_is_no_alarm(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    limits, seen, change_before = iter(range(2, 100)), [0], [0]

    def change() -> None:
        with stage.app.app_context(), unit_of_work() as session:
            shared.change_budget(session, budget_id, {"limit_nanos": next(limits) * NANOS_PER_USD})

    def before_statement(*_arguments: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            seen[0] += 1
            if seen[0] == change_before[0]:
                changer = threading.Thread(target=change)
                changer.start()
                changer.join()

    readers: list[Callable[[Any], object]] = [
        lambda session: shared.get(session, budget_id),
        lambda session: shared.read(session, [budget_id]),
        lambda session: shared.list_budgets(session, PageRequest(10, 0, None)),
    ]
    event.listen(db.engine, "before_cursor_execute", before_statement)
    try:
        for read in readers:
            change_before[0], seen[0] = 1, 1
            while seen[0] >= change_before[0]:
                change_before[0], seen[0] = change_before[0] + 1, 0
                with read_only_unit() as session:
                    assert read(session)
            assert change_before[0] > 2
    finally:
        event.remove(db.engine, "before_cursor_execute", before_statement)


def test_a_budget_is_deleted_while_another_unit_takes_back_what_was_returned(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    running = begin(stage.agent.id, 10**8)
    with unit_of_work() as session:
        usage.cancel(session, running)

    def delete() -> int:
        code: int = ops.ask("DELETE", f"/budgets/{budget_id}").status_code
        return code

    with ThreadPoolExecutor(1) as pool:
        if stage.app.config["SQLALCHEMY_DATABASE_URI"].startswith("sqlite"):
            assert pool.submit(delete).result() == 200
            return
        with unit_of_work() as session:
            session.execute(select(BudgetCounter.id).with_for_update(key_share=True))
            deleted = pool.submit(delete)
            waits = text("SELECT 1 FROM pg_locks WHERE NOT granted")
            wait_until(lambda: session.execute(waits).first(), what="the deletion, which waits for the counter")
            budget_counters.lock(session, [budget_id])
        assert deleted.result() == 200


def test_a_budget_a_little_below_a_threshold_is_not_looked_at_each_minute(stage: Stage, ops: Operator) -> None:
    budget_id = budget(ops, limit_usd=1, members={"agents": [stage.agent.id]})
    charge(stage.agent.id, 200_000)
    for limit_nanos, is_due in ((400_000, True), (400_001, False), (400_099, False), (2**63 - 1, False)):
        with unit_of_work() as session:
            shared.change_budget(session, budget_id, {"limit_nanos": limit_nanos})
            assert (budget_id in budget_counters.due_for_announcement(session)) is is_due
            assert (shared.mark_announced(session, budget_id) is not None) is is_due
