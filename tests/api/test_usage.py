"""`GET /v1/balance` and `GET /v1/usage`."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask.testing import FlaskClient

from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.usage import service
from app.usage.service import MeteredUsage, UsageCall
from tests.support.operators import operator

Register = Callable[..., dict[str, Any]]

USD = 10**9


def _account_of(registered: dict[str, Any]) -> str:
    account: str = registered["agentId"]
    return account


def _key(registered: dict[str, Any]) -> dict[str, str]:
    return {"X-API-Key": registered["apiKey"]}


def _call(account: str, provider: str, cost_nanos: int, *, tokens: int = 0, model: str = "some-model") -> str:
    call_id = new_id()
    with unit_of_work() as session:
        service.charge(
            session,
            account,
            UsageCall(new_id(), provider, model),
            charge_id=call_id,
            metered=MeteredUsage(cost_nanos, tokens, tokens * 2),
        )
    return call_id


def test_a_new_agent_has_initial_credits_and_has_used_nothing(client: FlaskClient, register: Register) -> None:
    headers = _key(register())
    assert client.get("/v1/balance", headers=headers).get_json() == {
        "credits_usd": 10.0,
        "total_spent": 0.0,
        "owed_usd": 0.0,
    }
    answer = client.get("/v1/usage", headers=headers)
    assert answer.status_code == 200
    assert answer.get_json() == {
        "logs": [],
        "summary": {"by_provider": {}},
        "pagination": {"total": 0, "limit": 100, "offset": 0, "has_more": False},
    }


def test_charges_are_in_balance_log_and_summary_to_the_last_digit(client: FlaskClient, register: Register) -> None:
    registered = register()
    account, headers = _account_of(registered), _key(registered)
    _call(account, "openai", 1_234_567_891, tokens=7)
    _call(account, "coingecko", 2 * USD)
    last = _call(account, "openai", 1, tokens=1)
    assert client.get("/v1/balance", headers=headers).get_json() == {
        "credits_usd": 6.765432108,
        "total_spent": 3.234567892,
        "owed_usd": 0.0,
    }
    body = client.get("/v1/usage?limit=1", headers=headers).get_json()
    assert body["pagination"] == {"total": 3, "limit": 1, "offset": 0, "has_more": True}
    (entry,) = body["logs"]
    assert set(entry) == {
        "id", "api_key_id", "provider", "model", "tokens_in", "tokens_out", "cached_tokens", "reasoning_tokens",
        "cost_usd", "created_at",
    }  # fmt: skip
    assert (entry["id"], entry["provider"], entry["model"]) == (last, "openai", "some-model")
    assert (entry["tokens_in"], entry["tokens_out"], entry["cost_usd"]) == (1, 2, 1e-09)
    assert body["summary"]["by_provider"]["openai"] == {
        "calls": 2,
        "total_cost": 1.234567892,
        "total_tokens_in": 8,
        "total_tokens_out": 16,
    }
    assert len(body["summary"]["by_provider"]) == 2


def test_credits_held_by_an_open_call_still_count_as_the_balance(client: FlaskClient, register: Register) -> None:
    registered = register()
    with unit_of_work() as session:
        service.begin(
            session,
            _account_of(registered),
            UsageCall(new_id(), "openai", "m"),
            hold_id=new_id(),
            nanos=4 * USD,
            estimate=MeteredUsage(USD),
            lease=timedelta(minutes=1),
        )
    balance = client.get("/v1/balance", headers=_key(registered)).get_json()
    assert balance == {"credits_usd": 10.0, "total_spent": 0.0, "owed_usd": 0.0}


def test_usage_of_another_account_is_not_visible(client: FlaskClient, register: Register) -> None:
    one, other = register(), register()
    _call(_account_of(one), "openai", USD)
    body = client.get("/v1/usage", headers=_key(other)).get_json()
    assert (body["logs"], body["summary"]["by_provider"], body["pagination"]["total"]) == ([], {}, 0)
    assert client.get("/v1/balance", headers=_key(other)).get_json()["credits_usd"] == 10.0


def test_a_gateway_only_key_has_an_account_of_its_own(client: FlaskClient) -> None:
    made = client.post("/v1/keys").get_json()
    _call(made["id"], "brave", USD // 2)
    headers = {"X-API-Key": made["api_key"]}
    assert client.get("/v1/balance", headers=headers).get_json() == {
        "credits_usd": 9.5,
        "total_spent": 0.5,
        "owed_usd": 0.0,
    }
    assert client.get("/v1/usage", headers=headers).get_json()["pagination"]["total"] == 1


def test_pages_follow_each_other_and_a_limit_above_the_maximum_is_clamped(
    client: FlaskClient, register: Register
) -> None:
    registered = register()
    ids = [_call(_account_of(registered), "openai", 1) for _ in range(5)]
    headers = _key(registered)
    pages = [client.get(f"/v1/usage?limit=2&offset={offset}", headers=headers).get_json() for offset in (0, 2, 4)]
    assert [entry["id"] for page in pages for entry in page["logs"]] == ids[::-1]
    assert [page["pagination"]["has_more"] for page in pages] == [True, True, False]
    _call(_account_of(registered), "openai", 1)
    after = client.get(f"/v1/usage?limit=2&after={pages[0]['logs'][-1]['id']}", headers=headers).get_json()
    assert after["logs"] == pages[1]["logs"]
    assert after["pagination"] == {"total": 6, "limit": 2, "offset": 3, "has_more": True}
    assert client.get("/v1/usage?limit=501", headers=headers).get_json()["pagination"]["limit"] == 500


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "offset=-1", "limit=ten", "offset=1.5", "limit="])
def test_an_invalid_page_parameter_is_named(client: FlaskClient, register: Register, query: str) -> None:
    answer = client.get(f"/v1/usage?{query}", headers=_key(register()))
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == [query.partition("=")[0]]


def test_an_empty_key_is_refused_before_the_query(client: FlaskClient) -> None:
    answer = client.get("/v1/usage?limit=0", headers={"X-API-Key": ""})
    assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")


def test_filters_and_a_period_narrow_the_log_its_total_and_its_pages(client: FlaskClient, register: Register) -> None:
    registered, other = register(), register()
    start = datetime(2026, 11, 1, 12, tzinfo=UTC)
    made: dict[tuple[str, str, int], str] = {}
    for day in range(3):
        with time_machine.travel(start + timedelta(days=day), tick=False):
            for provider in ("openai", "brave"):
                for model in ("small", "large"):
                    made[provider, model, day] = _call(_account_of(registered), provider, 1, model=model)
            _call(_account_of(other), "openai", 1, model="small")
    assert len(made) == 12
    second, third = "2026-11-02T12:00:00Z", "2026-11-03T13:00:00+01:00"
    for query, wanted in (
        ({"provider": "openai"}, {each for each in made if each[0] == "openai"}),
        ({"model": "large", "provider": "brave"}, {each for each in made if each[:2] == ("brave", "large")}),
        ({"created_after": second}, {each for each in made if each[2] >= 1}),
        ({"created_before": third, "created_after": second}, {each for each in made if each[2] == 1}),
        ({"created_before": second, "model": "small"}, {each for each in made if each[1:] == ("small", 0)}),
        ({"provider": "unknown"}, set()),
    ):
        body = client.get("/v1/usage", headers=_key(registered), query_string=query).get_json()
        assert {entry["id"] for entry in body["logs"]} == {made[each] for each in wanted}, query
        assert body["pagination"]["total"] == len(wanted)
        assert body["summary"]["by_provider"]["openai"]["calls"] == 6
    first = client.get("/v1/usage?limit=4&provider=openai", headers=_key(registered)).get_json()["logs"]
    after = client.get(f"/v1/usage?provider=openai&after={first[-1]['id']}", headers=_key(registered)).get_json()
    assert {entry["created_at"] for entry in after["logs"]} == {"2026-11-01T12:00:00.000Z"}
    assert after["pagination"] == {"total": 6, "limit": 100, "offset": 4, "has_more": False}


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-01T12:00:00", "2026-11-01", ""])
def test_an_instant_without_an_offset_is_refused(client: FlaskClient, register: Register, moment: str) -> None:
    answer = client.get("/v1/usage", headers=_key(register()), query_string={"created_after": moment})
    assert (answer.status_code, list(answer.get_json()["details"]["fields"])) == (400, ["created_after"])


def test_a_spreadsheet_gets_the_page_as_csv_without_formulas(client: FlaskClient, register: Register) -> None:
    registered = register()
    _call(_account_of(registered), "openai", 1, model='=HYPERLINK("https://evil.example","x")')
    _call(_account_of(registered), "openai", USD, tokens=5, model='gpt, "large"')
    answer = client.get("/v1/usage?limit=2", headers={**_key(registered), "Accept": "text/csv"})
    assert (answer.status_code, answer.content_type) == (200, "text/csv; charset=utf-8")
    header, *lines = answer.text.split("\r\n")
    assert header == (
        "id,api_key_id,provider,model,tokens_in,tokens_out,cached_tokens,reasoning_tokens,cost_usd,created_at"
    )
    rows = list(csv.reader(lines[:2]))
    assert [row[2:9] for row in rows] == [
        ["openai", 'gpt, "large"', "5", "10", "0", "0", "1.0"],
        ["openai", '\'=HYPERLINK("https://evil.example","x")', "0", "0", "0", "0", "1e-09"],
    ]
    assert lines[2:] == [""]
    for accepted in ("*/*", "application/json, text/csv", "text/html"):
        assert client.get("/v1/usage", headers={**_key(registered), "Accept": accepted}).is_json
    refused = client.get("/v1/usage?limit=0", headers={**_key(registered), "Accept": "text/csv"})
    assert (refused.status_code, refused.get_json()["code"]) == (400, "INVALID_INPUT")


def _key_with_tags(client: FlaskClient, registered: dict[str, Any], *tags: str) -> tuple[str, dict[str, str]]:
    made = client.post("/v1/keys", json={"tags": tags}, headers=_key(registered)).get_json()
    return made["id"], {"X-API-Key": made["api_key"]}


def _call_at(account: str, key: str, provider: str, model: str, metered: MeteredUsage, *, at: datetime) -> None:
    with time_machine.travel(at, tick=False), unit_of_work() as session:
        call = UsageCall(key, provider, model)
        service.charge(session, account, call, charge_id=new_id(), metered=metered)


DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)


def test_sums_add_up_by_each_group_and_by_several(client: FlaskClient, register: Register) -> None:
    registered, other = register(), register()
    account = _account_of(registered)
    both, _ = _key_with_tags(client, registered, "a", "b")
    one, one_headers = _key_with_tags(client, registered, "b")
    plain = new_id()
    for day, key, provider, model, metered in (
        (0, both, "openai", "gpt-5", MeteredUsage(5, 1_000_000, 500_000, None, 900_000, 400_000)),
        (0, one, "openai", "gpt-5", MeteredUsage(7, 10, 0, None, 4)),
        (1, plain, "brave", "search", MeteredUsage(2 * USD)),
    ):
        _call_at(account, key, provider, model, metered, at=DAY + timedelta(days=day))
    _call(_account_of(other), "openai", USD, model="gpt-5")

    def sums(headers: dict[str, str] | None = None, **query: str) -> list[dict[str, Any]]:
        answer = client.get("/v1/usage/sums", headers=headers or _key(registered), query_string=query)
        assert answer.status_code == 200, answer.get_json()
        found: list[dict[str, Any]] = answer.get_json()["sums"]
        return found

    search, chat = sums()
    assert search == {
        "model": "search", "calls": 1, "cost_usd": 2.0, "tokens_in": 0, "tokens_out": 0, "cached_tokens": 0,
        "reasoning_tokens": 0, "cost_per_call_usd": 2.0, "cost_per_million_tokens_usd": None,
    }  # fmt: skip
    assert chat == {
        "model": "gpt-5", "calls": 2, "cost_usd": 12e-9, "tokens_in": 1_000_010, "tokens_out": 500_000,
        "cached_tokens": 900_004, "reasoning_tokens": 400_000, "cost_per_call_usd": 6e-9,
        "cost_per_million_tokens_usd": 7e-9,
    }  # fmt: skip
    assert [(each["day"], each["provider"], each["calls"]) for each in sums(group_by="day,provider")] == [
        ("2026-11-02", "brave", 1), ("2026-11-01", "openai", 2),
    ]  # fmt: skip
    assert [(each["tag"], each["calls"]) for each in sums(group_by="tag")] == [(None, 1), ("b", 2), ("a", 1)]
    assert [each["api_key_id"] for each in sums(group_by="api_key_id")] == [plain, one, both]
    assert [each["agent_id"] for each in sums(group_by="agent_id")] == [account]
    for query, calls in (
        ({"tag": "a"}, 1), ({"tag": "b"}, 2), ({"tag": "none"}, 0), ({"provider": "brave"}, 1),
        ({"created_before": "2026-11-02T00:00:00Z"}, 2), ({"api_key_id": one}, 1),
    ):  # fmt: skip
        assert sum(each["calls"] for each in sums(**query)) == calls, query
        logged = client.get("/v1/usage", headers=_key(registered), query_string=query).get_json()
        assert logged["pagination"]["total"] == calls, query
    # A key with limits reads its own calls, whatever it asks for.
    assert [each["calls"] for each in sums(one_headers, group_by="provider")] == [1]
    assert sums(one_headers, api_key_id=both) == []
    rows = list(csv.DictReader(
        client.get("/v1/usage/sums", headers={**_key(registered), "Accept": "text/csv"}).text.splitlines()
    ))  # fmt: skip
    assert [(row["model"], row["calls"], row["day"]) for row in rows] == [("search", "1", ""), ("gpt-5", "2", "")]


def test_a_page_of_sums_and_unknown_groups(client: FlaskClient, register: Register) -> None:
    registered = register()
    for cost in range(1, 6):
        _call(_account_of(registered), "openai", cost, model=f"m{cost}")
    page = client.get("/v1/usage/sums?limit=2&offset=1", headers=_key(registered)).get_json()
    assert [each["model"] for each in page["sums"]] == ["m4", "m3"]
    assert page["pagination"] == {"total": 5, "limit": 2, "offset": 1, "has_more": True}
    for wrong in ("", "cost", "model,cost_nanos", "model;drop"):
        refused = client.get("/v1/usage/sums", headers=_key(registered), query_string={"group_by": wrong})
        assert (refused.status_code, list(refused.get_json()["details"]["fields"])) == (400, ["group_by"])


def test_costs_are_exported_for_finance_as_focus(client: FlaskClient, register: Register) -> None:
    registered = register()
    key, _ = _key_with_tags(client, registered, "team, a")
    account, december = _account_of(registered), datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    _call_at(account, key, "openai", '=cmd|"x"', MeteredUsage(3, 10, 5), at=december)
    _call_at(account, key, "openai", '=cmd|"x"', MeteredUsage(4, 10, 5), at=december)
    _call_at(account, new_id(), "brave", "search", MeteredUsage(USD), at=DAY)
    answer = client.get("/v1/usage/focus", headers=_key(registered))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="usage-focus.csv"'
    search, chat = csv.DictReader(answer.text.splitlines())
    assert (search["BilledCost"], search["PricingQuantity"], search["PricingUnit"]) == ("1", "1", "Requests")
    assert (search["ChargePeriodStart"], search["ChargePeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z")
    assert (chat["BilledCost"], chat["ConsumedQuantity"], chat["ConsumedUnit"]) == ("0.000000007", "30", "Tokens")
    assert (chat["BillingPeriodStart"], chat["BillingPeriodEnd"]) == ("2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z")
    assert (chat["BillingAccountId"], chat["SubAccountId"]) == (account, key)
    assert (chat["Tags"], chat["ServiceCategory"]) == ('{"team, a": true}', "AI and Machine Learning")
    assert {chat[name] for name in ("ListCost", "ContractedCost", "EffectiveCost")} == {chat["BilledCost"]}
    required = {"BillingCurrency", "ChargeCategory", "ChargeDescription", "InvoiceIssuerName", "ProviderName",
                "PublisherName", "ServiceName"}  # fmt: skip
    assert all(search[name] for name in required)
    assert (search["ChargeClass"], search["BillingAccountName"]) == ("", "")
    empty = client.get("/v1/usage/focus?provider=none", headers=_key(registered)).text
    assert empty == answer.text.split("\r\n")[0] + "\r\n"


def test_an_operator_reads_the_sums_of_all_agents_and_of_one(client: FlaskClient, register: Register) -> None:
    one, other = _account_of(register()), _account_of(register())
    _call(one, "openai", 2 * USD)
    _call(other, "openai", USD)
    admin = operator(client)
    found = admin.get("/usage/sums?group_by=agent_id").get_json()["sums"]
    assert [(each["agent_id"], each["cost_usd"]) for each in found] == [(one, 2.0), (other, 1.0)]
    of_one = admin.get(f"/usage/sums?agent_id={other}").get_json()["sums"]
    assert [each["cost_usd"] for each in of_one] == [1.0]
    lines = admin.get(f"/usage/focus?agent_id={one}").text.splitlines()
    assert [line["BillingAccountId"] for line in csv.DictReader(lines)] == [one]
