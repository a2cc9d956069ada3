"""A client that writes its retry anew pays once: keys compare what a request asks for, not its bytes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from werkzeug.test import TestResponse

from app.core import clock
from app.db.unit_of_work import unit_of_work
from app.idempotency.service import IdempotencyKey
from tests.support.agents import Agent
from tests.support.chains import RECIPIENT
from tests.support.mcp import call

pytestmark = pytest.mark.chain
_ORDER = {"chain": "base", "to": RECIPIENT, "amount": "1.5", "currency": "USDC"}


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


def post_text(agent: Agent, path: str, text: str, key: str = "k") -> TestResponse:
    headers = agent.headers(Idempotency_Key=key)
    return agent.client.post(path, data=text.encode(), headers=headers, content_type="application/json")


def filled(text: str, agent: Agent) -> str:
    return text.replace("{id}", agent.wallet_id).replace("{year}", str(clock.now().year + 1))


def transfers(agent: Agent) -> int:
    found: int = agent.get(f"{agent.wallet_url}/transactions", type="transfer").get_json()["pagination"]["total"]
    return found


def test_a_retry_that_is_written_anew_gets_the_first_answer_and_moves_nothing(agent: Agent) -> None:
    path = f"{agent.wallet_url}/transfer"
    spellings = [
        json.dumps(_ORDER),
        json.dumps(_ORDER, separators=(",", ":")),
        json.dumps(dict(reversed(_ORDER.items())), indent=2),
        json.dumps({**_ORDER, "amount": "1.50"}),
        json.dumps({**_ORDER, "amount": 1.5, "dry_run": False, "session_id": None, "gas": "auto"}),
        json.dumps({**_ORDER, "chain": "BASE", "currency": "usdc", "to": RECIPIENT.lower(), "dryRun": False}),
        json.dumps({**_ORDER, "comment": "unknown members are ignored"}),
    ]
    answers = [post_text(agent, path, each) for each in spellings]
    assert [each.status_code for each in answers] == [200] * len(answers), answers[-1].get_json()
    assert len({each.get_json()["transaction_id"] for each in answers}) == 1
    assert transfers(agent) == 1
    for changed in ({"amount": "1.51"}, {"currency": "ETH"}, {"approval_note": "again"}, {"gas": "own"}):
        answer = post_text(agent, path, json.dumps({**_ORDER, **changed}))
        assert (answer.status_code, answer.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT"), changed
    assert post_text(agent, path, "{not json").status_code == 400
    assert transfers(agent) == 1


def test_a_tool_without_a_request_id_pays_once_for_all_spellings_of_its_arguments(agent: Agent) -> None:
    order = {**_ORDER, "wallet_id": agent.wallet_id}
    results = [
        call(agent.client, "transfer", agent.key, **{**order, **changed})
        for changed in (
            {}, {"amount": "1.50"}, {"dry_run": False}, {"amount": 1.5, "dry_run": False}, {"currency": "usdc"},
            {"session_id": None},
        )
    ]  # fmt: skip
    assert [each["isError"] for each in results] == [False] * len(results), results[-1]
    assert len({each["structuredContent"]["transaction_id"] for each in results}) == 1
    assert transfers(agent) == 1
    other = call(agent.client, "transfer", agent.key, **{**order, "amount": "1.51"})
    assert other["isError"] is False
    assert transfers(agent) == 2


@pytest.mark.parametrize(
    ("path", "first", "again", "other"),
    [
        ("/v1/wallets", '{"name":"a"}', '{ "x": 1, "name": " a " }', '{"name":"b"}'),
        ("{wallet}/fund", '{"chain":"base","amount":"5","currency":"USDC"}',
         '{"currency":"usdc","amount":5.00,"chain":"Base"}', '{"chain":"base","amount":"5","currency":"ETH"}'),
        ("{wallet}/sessions", '{"max_usd":5,"expires_at":"{year}-01-01T00:00:00Z"}',
         '{"expiresAt":"{year}-01-01T01:00:00+01:00","maxUsd":5.0,"domains":[]}',
         '{"max_usd":5,"expires_at":"{year}-01-01T00:00:01Z"}'),
        ("/v1/webhooks", '{"url":"https://a.example/hook","types":["transaction.*"]}',
         '{"types":["transaction.*"],"url":"https://a.example/hook","description":""}',
         '{"url":"https://a.example/hook","types":["approval.*"]}'),
        ("/v1/services",
         ('{"name":"s","description":"d","base_url":"https://a.example","price_per_call_usd":0.1,"category":"data",'
         '"pricing_model":"per_call"}'),
         ('{"pricing_model":"per_call","category":"data","price_per_call_usd":0.10,"base_url":"https://a.example",'
         '"description":"d","name":"s","openapi_spec":null}'),
         ('{"name":"s","description":"d","base_url":"https://a.example","price_per_call_usd":0.2,"category":"data",'
         '"pricing_model":"per_call"}')),
        ("/v1/agents/claim-code", "", '{"anything":1}', None),
        ("/v1/credits/topup", '{"wallet_id":"{id}","amount":"2","chain":"base"}',
         '{"chain":"BASE","amount":2.0,"wallet_id":"{id}","approval_note":null}',
         '{"wallet_id":"{id}","amount":"3","chain":"base"}'),
    ],
)  # fmt: skip
def test_every_route_with_keys_compares_what_is_asked_for(
    path: str, first: str, again: str, other: str | None, agent: Agent
) -> None:
    path = path.format(wallet=agent.wallet_url)
    texts = [filled(text, agent) for text in (first, again)]
    answers = [post_text(agent, path, text) for text in texts]
    assert answers[0].status_code in (200, 201), answers[0].get_json()
    assert answers[1].get_json() == answers[0].get_json()
    assert answers[1].headers["Idempotent-Replayed"] == "true"
    if other is not None:
        conflict = post_text(agent, path, filled(other, agent))
        assert (conflict.status_code, conflict.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")


def test_the_conflict_of_a_running_request_says_when_it_can_be_decided(agent: Agent) -> None:
    post_text(agent, "/v1/wallets", "{}")
    unanswered: dict[str, Any] = {"answer_status": None, "answer_sealed": None}
    with unit_of_work() as session:
        session.execute(update(IdempotencyKey).values(lease_until=clock.now() + timedelta(seconds=42), **unanswered))
    answer = post_text(agent, "/v1/wallets", "{}")
    assert (answer.status_code, answer.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert 40 <= int(answer.headers["Retry-After"]) <= 42
