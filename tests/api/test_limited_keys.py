"""Further keys of an agent: what they may spend, on what, and what they may not do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, update

from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.identity import budget_counters
from app.identity.models import ApiKey, BudgetCounter, KeyLimit
from app.identity.principal import KeyLimits
from app.platform.shared_budgets import service as shared_budgets
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from tests.support.agents import register
from tests.support.gateway import CHAT, QUESTION, Stage, gateway_stage
from tests.support.ledger import statements
from tests.support.operators import entries, operator
from tests.support.upstreams import Exchange, chat_answer

CHAT_USD = 0.00625
WEDNESDAY = datetime(2030, 1, 30, 12, tzinfo=UTC)
USD = 10**9


@pytest.fixture
def stage(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, each_database_url, exa_api_key="") as made:
        made.behave(lambda exchange: exchange.json(chat_answer()))
        yield made


def issue(stage: Stage, **limits: Any) -> tuple[str, dict[str, str]]:
    made = stage.agent.post("/v1/keys", limits)
    assert made.status_code == 201, made.get_json()
    body = made.get_json()
    assert body["limits"]["key"] != body["api_key"]
    return body["id"], {"X-API-Key": body["api_key"]}


def used(stage: Stage, key_id: str) -> float:
    found: float = stage.agent.get(f"/v1/keys/{key_id}").get_json()["used_usd"]
    return found


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


def test_a_budget_ends_where_it_says_and_the_agent_pays(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=0.02, window="day", name="research", tags=["a"])
    answers = [stage.chat(headers=headers, max_tokens=500) for _ in range(5)]
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    assert answers[0].headers["X-Budget-Remaining-Usd"] == "0.01375"
    assert answers[2].headers["X-Credits-Remaining"] == answers[2].headers["X-Budget-Remaining-Usd"] == "0.00125"
    assert refusal(answers[4]) == (402, "BUDGET_EXCEEDED")
    details = answers[4].get_json()["details"]
    assert details["credits_usd"] == 0.00125
    assert details["resets_at"] > clock.isoformat(clock.now())
    assert stage.chat().status_code == 200
    shown = stage.agent.get(f"/v1/keys/{key_id}").get_json()
    assert (shown["used_usd"], shown["remaining_usd"], shown["name"]) == (0.01875, 0.00125, "research")
    stage.assert_all_agree()


def test_a_budget_of_zero_allows_not_even_a_free_call(stage: Stage) -> None:
    _, headers = issue(stage, limit_usd=0)
    assert refusal(stage.chat(headers=headers)) == (402, "BUDGET_EXCEEDED")
    assert refusal(stage.search(headers=headers)) == (402, "BUDGET_EXCEEDED")
    assert stage.upstream.asked == []


def test_a_call_that_failed_costs_no_budget(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=1)
    stage.behave(lambda exchange: exchange.json({"error": {"message": "no"}}, 500))
    assert stage.chat(headers=headers).status_code == 500
    assert stage.search(headers=headers).status_code == 500
    assert used(stage, key_id) == 0
    stage.behave(lambda exchange: exchange.json({"web": {"results": []}}))
    cost = float(stage.search(headers=headers).headers["X-Cost-Usd"])
    assert used(stage, key_id) == cost


@pytest.mark.parametrize(
    ("period", "next_window"),
    [
        ("day", datetime(2030, 1, 31, tzinfo=UTC)),
        ("week", datetime(2030, 2, 4, tzinfo=UTC)),
        ("month", datetime(2030, 2, 1, tzinfo=UTC)),
    ],
)
def test_a_budget_begins_anew_with_its_period_and_not_earlier(stage: Stage, period: str, next_window: datetime) -> None:
    with time_machine.travel(WEDNESDAY, tick=True) as travel:
        key_id, headers = issue(stage, limit_usd=0.007, window=period)
        assert stage.chat(headers=headers, max_tokens=500).status_code == 200
        assert stage.agent.get(f"/v1/keys/{key_id}").get_json()["resets_at"] == clock.isoformat(next_window)
        travel.move_to(next_window - timedelta(minutes=1))
        assert refusal(stage.chat(headers=headers)) == (402, "BUDGET_EXCEEDED")
        travel.move_to(next_window + timedelta(seconds=1))
        assert stage.chat(headers=headers, max_tokens=500).status_code == 200
        assert used(stage, key_id) == CHAT_USD
        assert refusal(stage.chat(headers=headers)) == (402, "BUDGET_EXCEEDED")


def test_what_is_returned_after_the_window_ended_does_not_widen_the_next_one(stage: Stage) -> None:
    key_id, _ = issue(stage, limit_usd=1, window="day")
    call, estimate = UsageCall(key_id, "openai", "gpt-5", has_budgets=True), MeteredUsage(1000)
    with time_machine.travel(WEDNESDAY.replace(hour=23, minute=59), tick=False) as travel:
        held, later = identifiers.new_id(), identifiers.new_id()
        options = {"nanos": USD // 2, "estimate": estimate, "lease": timedelta(minutes=9)}
        with unit_of_work() as session:
            usage.begin(session, stage.agent.id, call, hold_id=held, **options)
        travel.shift(120)
        with unit_of_work() as session:
            usage.begin(session, stage.agent.id, call, hold_id=later, **options)
        with unit_of_work() as session:
            usage.settle(session, held, MeteredUsage(1))
        assert used(stage, key_id) == 0.5
        with unit_of_work() as session:
            usage.cancel(session, later)
        assert used(stage, key_id) == 0


def test_a_cost_beyond_the_hold_is_charged_up_to_the_budget_only(stage: Stage) -> None:
    estimate = MeteredUsage(3 * USD)
    for ends_by_lease in (False, True):
        key_id, _ = issue(stage, limit_usd=1)
        hold_id, call = identifiers.new_id(), UsageCall(key_id, "openai", "gpt-5", has_budgets=True)
        with unit_of_work() as session:
            usage.begin(
                session, stage.agent.id, call, hold_id=hold_id, nanos=USD // 4, estimate=estimate,
                lease=timedelta(minutes=1),
            )  # fmt: skip
        if ends_by_lease:
            with time_machine.travel(clock.now() + timedelta(minutes=2)):
                assert usage.charge_lapsed() == 1
        with unit_of_work() as session:
            outcome = usage.settle(session, hold_id, MeteredUsage(5 * USD))
        assert used(stage, key_id) == 1
        assert outcome.budget_nanos == 0


def test_only_the_models_and_providers_of_the_list_are_called(stage: Stage) -> None:
    _, headers = issue(stage, models=["openai/gpt-4*", "brave"])
    refused = stage.chat(headers=headers)
    assert refusal(refused) == (403, "MODEL_NOT_ALLOWED")
    assert refused.get_json()["details"]["models"] == ["openai/gpt-4*", "brave"]
    assert stage.chat(headers=headers, model="gpt-4o").status_code == 200
    assert stage.search(headers=headers).status_code == 200
    body = {**QUESTION, "model": "openai/gpt-5"}
    assert refusal(stage.call("/v1/chat/completions", "POST", json=body, headers=headers)) == (403, "MODEL_NOT_ALLOWED")
    body["models"] = ["openai/gpt-4o"]
    served = stage.call("/v1/chat/completions", "POST", json=body, headers=headers)
    assert served.headers["X-Gateway-Model"] == "openai/gpt-4o"


def test_requests_and_tokens_of_a_minute_have_limits_of_the_key_alone(stage: Stage) -> None:
    _, headers = issue(stage, rpm=2)
    assert [stage.chat(headers=headers).status_code for _ in range(3)] == [200, 200, 429]
    _, headers = issue(stage, tpm=3_000)
    statuses = [stage.chat(headers=headers, max_tokens=1_000).status_code for _ in range(9)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert stage.chat().status_code == 200


def test_a_change_and_a_revocation_apply_at_once(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=5)
    change = {"path": f"/v1/keys/{key_id}", "headers": stage.agent.headers()}
    assert stage.chat(headers=headers).status_code == 200
    assert stage.agent.client.patch(json={"limit_usd": 0.001}, **change).get_json()["remaining_usd"] == 0
    assert refusal(stage.chat(headers=headers)) == (402, "BUDGET_EXCEEDED")
    assert stage.agent.client.patch(json={"limit_usd": None}, **change).get_json()["remaining_usd"] is None
    assert stage.chat(headers=headers).status_code == 200
    stage.agent.client.patch(json={"models": ["brave"]}, **change)
    assert refusal(stage.chat(headers=headers)) == (403, "MODEL_NOT_ALLOWED")
    stage.agent.client.patch(json={"models": []}, **change)
    assert stage.agent.delete(f"/v1/keys/{key_id}").get_json()["revoked_at"] is not None
    assert refusal(stage.chat(headers=headers)) == (401, "UNAUTHORIZED")
    assert refusal(stage.search(headers=headers)) == (401, "UNAUTHORIZED")


def test_an_emergency_rotation_and_a_deletion_end_all_keys(stage: Stage) -> None:
    ops = operator(stage.app.test_client())
    _, headers = issue(stage, limit_usd=5, tpm=9_000)
    assert stage.search(headers=headers).status_code == 200
    assert ops.post(f"/agents/{stage.agent.id}/rotate-key", {"grace_seconds": 600}).status_code == 200
    assert stage.chat(headers=headers).status_code == 200
    ops.post(f"/agents/{stage.agent.id}/rotate-key", {"grace_seconds": 0})
    assert refusal(stage.chat(headers=headers)) == (401, "UNAUTHORIZED")
    other = register(stage.app.test_client())
    headers = {"X-API-Key": other.post("/v1/keys", {}).get_json()["api_key"]}
    assert stage.chat(headers=headers).status_code == 200
    assert ops.delete(f"/agents/{other.id}").status_code == 200
    assert refusal(stage.chat(headers=headers)) == (401, "UNAUTHORIZED")


def test_a_key_expires(stage: Stage) -> None:
    later = clock.now() + timedelta(hours=1)
    _, headers = issue(stage, expires_at=clock.isoformat(later))
    assert stage.chat(headers=headers).status_code == 200
    with time_machine.travel(later + timedelta(seconds=1)):
        assert refusal(stage.chat(headers=headers)) == (401, "UNAUTHORIZED")


def test_a_key_with_limits_reaches_nothing_else_of_the_agent(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=1)
    stage.chat()
    for method, path in (
        ("GET", "/v1/wallets"), ("POST", "/v1/wallets"), ("GET", "/v1/keys"),
        ("PATCH", f"/v1/keys/{key_id}"), ("DELETE", f"/v1/keys/{key_id}"), ("POST", "/v1/credits/topup"),
        ("GET", "/v1/events"), ("GET", "/v1/approvals"), ("POST", "/v1/services"), ("POST", "/v1/agents/claim-code"),
        ("GET", "/v1/subscriptions"),
    ):  # fmt: skip
        answer = stage.call(path, method, json={}, headers=headers)
        assert answer.status_code in (401, 403), (method, path, answer.get_json())
    assert stage.call("/v1/usage", headers=headers).get_json()["logs"] == []
    assert stage.call(f"/v1/usage?api_key_id={stage.agent.id}", headers=headers).get_json()["logs"] == []
    stage.chat(headers=headers)
    usage_of_key = stage.call("/v1/usage", headers=headers).get_json()
    assert [each["api_key_id"] for each in usage_of_key["logs"]] == [key_id]
    assert usage_of_key["summary"]["by_provider"]["openai"]["calls"] == 1
    balance = stage.call("/v1/balance", headers=headers).get_json()
    assert balance == {"credits_usd": 1 - CHAT_USD, "total_spent": CHAT_USD, "owed_usd": 0.0}
    of_key = stage.agent.get("/v1/usage", api_key_id=key_id).get_json()["logs"]
    assert len(of_key) == 1
    assert len(stage.agent.get("/v1/usage").get_json()["logs"]) == 2


def test_another_agent_finds_none_of_the_keys(stage: Stage) -> None:
    key_id, _ = issue(stage)
    other = register(stage.app.test_client())
    assert other.get("/v1/keys").get_json()["keys"] == []
    for answer in (
        other.get(f"/v1/keys/{key_id}"),
        other.delete(f"/v1/keys/{key_id}"),
        other.client.patch(f"/v1/keys/{key_id}", json={"limit_usd": 9}, headers=other.headers()),
        other.get("/v1/keys/x"),
    ):
        assert refusal(answer) == (404, "NOT_FOUND")


def test_limits_that_are_none_are_refused(stage: Stage) -> None:
    for body in (
        {"limit_usd": -1}, {"limit_usd": "5"}, {"window": "year"}, {"models": "openai"}, {"models": ["a b"]},
        {"models": ["x"] * 101}, {"rpm": 0}, {"tpm": 1.5}, {"tags": [""]},
        {"expires_at": "2020-01-01T00:00:00Z"}, {"expires_at": "soon"}, {"email": "a"},
    ):  # fmt: skip
        assert refusal(stage.agent.post("/v1/keys", body)) == (400, "INVALID_INPUT"), body
    assert stage.agent.get("/v1/keys").get_json()["keys"] == []
    anonymous = stage.agent.client.post("/v1/keys", json={"limit_usd": 1})
    assert refusal(anonymous) == (400, "INVALID_INPUT")
    assert refusal(stage.agent.client.post("/v1/keys", headers={"X-API-Key": "ak_wrong"})) == (401, "UNAUTHORIZED")


def test_a_repeated_request_returns_the_same_key(stage: Stage) -> None:
    first, again = (stage.agent.post("/v1/keys", {"limit_usd": 1}, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.get_json() == again.get_json()
    assert len(stage.agent.get("/v1/keys").get_json()["keys"]) == 1


def test_a_row_that_raises_its_own_limit_gives_no_access(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=1)
    with unit_of_work() as session:
        session.execute(update(KeyLimit).where(KeyLimit.id == key_id).values(limit_nanos=10**15))
    assert refusal(stage.chat(headers=headers)) == (401, "UNAUTHORIZED")


def test_keys_are_shown_and_revoked_although_a_counter_has_another_limit(stage: Stage) -> None:
    key_id, _ = issue(stage, limit_usd=1)
    other_id, _ = issue(stage, limit_usd=2)
    with unit_of_work() as session:
        session.execute(update(BudgetCounter).where(BudgetCounter.id == key_id).values(limit_nanos=10**15))
    listed = stage.agent.get("/v1/keys").get_json()["keys"]
    assert [(each["id"], each["limit_usd"]) for each in listed] == [(key_id, 1), (other_id, 2)]
    assert stage.agent.get(f"/v1/keys/{key_id}").get_json()["remaining_usd"] == 1
    assert stage.agent.delete(f"/v1/keys/{key_id}").status_code == 200


def test_keys_are_shown_with_what_they_used_in_two_statements_more(stage: Stage) -> None:
    key_id, _ = issue(stage, limit_usd=1)
    for path in ("/v1/keys", f"/v1/keys/{key_id}"):
        with statements() as seen:
            assert stage.agent.get(path).status_code == 200
        about = [each for each in seen if "budget" in each]
        assert len(about) == 2, about
        assert not [each for each in about if " budgets" in each]


def test_the_audit_log_has_the_limits_of_a_key_and_not_the_address_of_its_holder(stage: Stage) -> None:
    key_id, _ = issue(stage, limit_usd=1, name="research", email="holder@example.com")
    with read_only_unit() as session:
        assert session.get_one(ApiKey, key_id).email == "holder@example.com"
    [added] = entries(action="agent.key_added")
    assert added.after is not None
    assert (added.after["key_id"], added.after["name"]) == (key_id, "research")
    assert "holder" not in str(added.after)


def test_thresholds_are_announced_once_for_each_window(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=0.0125, name="research")
    issue(stage, limit_usd=5)
    stage.chat(headers=headers, max_tokens=500)
    for _ in range(2):
        shared_budgets.announce()
        with time_machine.travel(clock.now() + timedelta(minutes=5)):
            shared_budgets.announce()
    stage.chat(headers=headers, max_tokens=500)
    with time_machine.travel(clock.now() + timedelta(minutes=10)):
        shared_budgets.announce()
    events = stage.agent.get("/v1/events", types="budget.threshold_reached").get_json()["events"]
    assert [(each["object_id"], each["data"]["percent"]) for each in events] == [(key_id, 50), (key_id, 100)]
    assert events[0]["data"]["spent_usd"] == "0.00625"


def test_the_start_of_each_period() -> None:
    starts = {period: budget_counters.start_of(period, WEDNESDAY) for period in ("day", "week", "month", "total")}
    assert starts == {
        "day": datetime(2030, 1, 30, tzinfo=UTC), "week": datetime(2030, 1, 28, tzinfo=UTC),
        "month": datetime(2030, 1, 1, tzinfo=UTC), "total": None,
    }  # fmt: skip
    assert CHAT.startswith("/v1/gateway/")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_rotation_while_the_body_is_read_leaves_no_key_to_the_thief(stage: Stage, method: str) -> None:
    ops = operator(stage.app.test_client())

    class Withheld(io.BytesIO):
        """A body that a client sends after its agent's key was replaced."""

        def readinto(self, buffer: Any) -> int:
            assert ops.post(f"/agents/{stage.agent.id}/rotate-key", {"grace_seconds": 0}).status_code == 200
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> bytes:
            assert ops.post(f"/agents/{stage.agent.id}/rotate-key", {"grace_seconds": 0}).status_code == 200
            return super().read(size)

    key_id, _ = issue(stage)
    path = "/v1/keys" if method == "POST" else f"/v1/keys/{key_id}"
    answer = stage.agent.client.open(
        path, method=method, headers=stage.agent.headers(), content_type="application/json",
        input_stream=Withheld(b'{"limit_usd": 9}'), content_length=16,
    )  # fmt: skip
    assert refusal(answer) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize(
    ("models", "path", "body"),
    [
        ("openrouter/openai/gpt-4o-mini", "openrouter/chat/completions", {"models": ["anthropic/claude-opus-4"]}),
        ("anthropic/claude-haiku-4-5*", "anthropic/v1/messages", {"fallbacks": [{"model": "claude-opus-4-1"}]}),
        (
            "anthropic/claude-haiku-4-5*",
            "anthropic/v1/messages",
            {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-1"}]},
        ),
        (
            "openai/gpt-5-mini",
            "openai/responses",
            {"tools": [{"type": "image_generation", "model": "gpt-image-1", "output_format": "png"}]},
        ),
    ],
)
def test_models_that_a_request_names_elsewhere_are_on_the_list_too(
    stage: Stage, models: str, path: str, body: dict[str, Any]
) -> None:
    _, headers = issue(stage, models=[models])
    question = {"input": "hi", "max_output_tokens": 50} if path == "openai/responses" else QUESTION
    model = models.partition("/")[2].rstrip("*")
    sent = {**question, **body, "model": model}
    refused = stage.call(f"/v1/gateway/{path}", "POST", json=sent, headers=headers)
    assert refusal(refused) == (403, "MODEL_NOT_ALLOWED")
    provider = models.partition("/")[0]
    if provider == "anthropic":
        sent["model"] = f"{provider}/{model}"
        assert refusal(stage.call("/v1/messages", "POST", json=sent, headers=headers)) == (403, "MODEL_NOT_ALLOWED")
    assert stage.upstream.asked == []


@pytest.mark.parametrize(
    ("listed", "provider", "model", "is_allowed"),
    [
        ("openai", "openai", "gpt-5", True),
        ("openai/gpt-5*", "openai", "gpt-5-mini", True),
        ("openai/gpt-5", "openai", "gpt-5-mini", False),
        ("openrouter/openai/*", "openrouter", "openai/gpt-5", True),
        ("*/gpt-5", "openai", "gpt-5", True),
        ("*/gpt-5", "service:1", "gpt-5", False),
        ("*", "service:1", "/x", False),
        ("service:1", "service:1", "/x", True),
        ("open*", "openrouter", "m", True),
    ],
)
def test_a_pattern_of_providers_includes_no_service(
    listed: str, provider: str, model: str, *, is_allowed: bool
) -> None:
    assert KeyLimits(models=(listed,)).allow(provider, model) is is_allowed


def test_the_largest_budget_stops_no_event(stage: Stage) -> None:
    issue(stage, limit_usd=10**9)
    _, headers = issue(stage, limit_usd=0.0125)
    stage.chat(headers=headers, max_tokens=500)
    shared_budgets.announce()
    assert len(stage.agent.get("/v1/events", types="budget.threshold_reached").get_json()["events"]) == 1


def test_what_a_key_is_refused_does_not_use_up_the_agents_requests(
    sqlite_url: str, build_app: Callable[..., Flask]
) -> None:
    with gateway_stage(build_app, sqlite_url, rate_limit_per_key="5 per minute") as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        _, headers = issue(stage, rpm=1)
        assert [stage.chat(headers=headers).status_code for _ in range(8)] == [200, *[429] * 7]
        assert stage.agent.get("/v1/keys").status_code == 200


def test_a_version_that_knows_no_limits_does_not_find_the_key(stage: Stage) -> None:
    _, headers = issue(stage)
    with read_only_unit() as session:
        digests = session.scalars(select(ApiKey.digest)).all()
    assert identifiers.digest(headers["X-API-Key"]) not in digests


def test_a_cost_beyond_a_hold_of_yesterday_counts_today(stage: Stage) -> None:
    key_id, _ = issue(stage, limit_usd=1, window="day")
    call, estimate = UsageCall(key_id, "openai", "gpt-5", has_budgets=True), MeteredUsage(1)
    with time_machine.travel(WEDNESDAY.replace(hour=23, minute=59), tick=False) as travel:
        ids, charged = [identifiers.new_id() for _ in range(4)], 0
        options = {"nanos": USD // 4, "estimate": estimate, "lease": timedelta(minutes=9)}
        for each in ids:
            with unit_of_work() as session:
                usage.begin(session, stage.agent.id, call, hold_id=each, **options)
        travel.shift(120)
        for each in ids:
            with unit_of_work() as session:
                charged += usage.settle(session, each, MeteredUsage(USD + USD // 4)).charged_nanos
        assert charged == 2 * USD
        assert used(stage, key_id) == 1


def test_a_hold_of_a_host_with_an_earlier_clock_returns_its_rest(stage: Stage) -> None:
    with time_machine.travel(WEDNESDAY, tick=False) as travel:
        key_id, _ = issue(stage, limit_usd=1)
        travel.shift(-0.5)
        call, hold_id = UsageCall(key_id, "openai", "gpt-5", has_budgets=True), identifiers.new_id()
        with unit_of_work() as session:
            usage.begin(
                session, stage.agent.id, call, hold_id=hold_id, nanos=USD, estimate=MeteredUsage(1),
                lease=timedelta(minutes=9),
            )  # fmt: skip
        travel.shift(60)
        with unit_of_work() as session:
            usage.settle(session, hold_id, MeteredUsage(1))
        assert used(stage, key_id) == 10**-9


def test_a_part_is_refunded_even_if_the_budget_shrank_meanwhile(stage: Stage) -> None:
    key_id, headers = issue(stage, limit_usd=1)

    def answer(exchange: Exchange) -> None:
        stage.agent.client.patch(f"/v1/keys/{key_id}", json={"limit_usd": 0}, headers=stage.agent.headers())
        limited = {"jsonrpc": "2.0", "id": 2, "error": {"code": 429, "message": "rate limit"}}
        exchange.json([{"jsonrpc": "2.0", "id": 1, "result": "0x1"}, limited])

    stage.behave(answer)
    batch = [{"jsonrpc": "2.0", "id": each, "method": "eth_blockNumber", "params": []} for each in (1, 2)]
    paths = stage.app.test_client().get("/v1/providers").get_json()["providers"]
    [chain] = [each["chains"][0] for each in paths if each["slug"] == "alchemy"]
    served = stage.call(f"/v1/gateway/alchemy/{chain}", "POST", json=batch, headers=headers)
    assert served.headers["X-Cost-Usd"] == "0.0001"
    assert used(stage, key_id) == 0.0001


def test_the_idempotency_key_of_another_key_is_another_one_at_the_upstream(stage: Stage) -> None:
    _, headers = issue(stage)
    for sent in ({}, headers):
        stage.chat(headers={**sent, "Idempotency-Key": "order-1"})
    first, second = ({name.lower(): value for name, value in each.headers} for each in stage.upstream.asked)
    assert first["idempotency-key"] != second["idempotency-key"]


def test_a_revoked_key_and_a_new_day_are_not_announced(stage: Stage) -> None:
    with time_machine.travel(WEDNESDAY, tick=True) as travel:
        gone, headers = issue(stage, limit_usd=0.0125)
        stage.chat(headers=headers, max_tokens=500)
        stage.agent.delete(f"/v1/keys/{gone}")
        key_id, headers = issue(stage, limit_usd=0.0125, window="day")
        stage.chat(headers=headers, max_tokens=500)
        shared_budgets.announce()
        travel.shift(timedelta(days=1))
        stage.agent.client.patch(f"/v1/keys/{key_id}", json={"limit_usd": 0.01}, headers=stage.agent.headers())
        shared_budgets.announce()
        events = stage.agent.get("/v1/events", types="budget.threshold_reached").get_json()["events"]
        assert [(each["object_id"], each["data"]["percent"]) for each in events] == [(key_id, 50)]


def test_tokens_of_cache_and_reasoning_are_in_the_log_and_the_sums(stage: Stage) -> None:
    reported = {**chat_answer()}
    reported["usage"] = {
        **reported["usage"],
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 400},
    }
    stage.behave(lambda exchange: exchange.json(reported))
    _, headers = issue(stage, limit_usd=1)
    for caller in (headers, stage.agent.headers()):
        assert stage.chat(headers=caller).status_code == 200
    logged = stage.agent.get("/v1/usage").get_json()["logs"]
    assert [(each["cached_tokens"], each["reasoning_tokens"]) for each in logged] == [(900, 400)] * 2
    (summed,) = stage.agent.get("/v1/usage/sums").get_json()["sums"]
    assert (summed["cached_tokens"], summed["reasoning_tokens"], summed["calls"]) == (1800, 800, 2)
