"""Calls that an application makes for an agent: the budget that counts them, and tokens that must not be forwarded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Flask

from tests.support.agents import Agent
from tests.support.gateway import CHAT, KEYS, QUESTION, gateway_stage
from tests.support.market import market
from tests.support.oauth import Application
from tests.support.owners import Owner, person
from tests.support.upstreams import Asked, chat_answer


def claimed(app: Flask, agent: Agent) -> tuple[Owner, dict[str, Any]]:
    """Return the owner of an agent, and the agent as its registration is answered."""
    code = agent.post("/v1/agents/claim-code", {}).get_json()["claimCode"]
    owner = person(app)
    owner.claim({"claimCode": code})
    return owner, {"agentId": agent.id, "wallet": {"id": agent.wallet_id}}


def seen(asked: list[Asked]) -> str:
    return " ".join(f"{each.target} {each.headers} {each.body!r}" for each in asked)


def test_a_token_is_not_forwarded_to_a_provider(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        application = Application(stage.app)
        application.connect(*claimed(stage.app, stage.agent))
        token = application.tokens["access_token"]
        client = stage.agent.client
        for path, headers in (
            (CHAT, {"Authorization": f"Bearer {token}"}),
            (CHAT, {"X-API-Key": token, "X-Goog-Api-Key": token, "X-Anything": f"key {token}"}),
            (f"{CHAT}?key={token}", {}),
        ):
            assert client.post(path, json={**QUESTION, "user": "u1"}, headers=headers).status_code == 200
        called = application.call_tool(
            "call_service", service="openai", path="chat/completions", method="POST", body=json.dumps(QUESTION)
        )
        assert called.get_json()["result"]["structuredContent"]["status"] == 200, called.text
        assert len(stage.upstream.asked) == 4
        assert token not in seen(stage.upstream.asked)
        assert {each.header("Authorization") for each in stage.upstream.asked} == {f"Bearer {KEYS['openai']}"}
        logs = application.get("/v1/usage").get_json()["logs"]
        assert len(logs) == 4


def test_calls_of_the_catalog_count_against_the_budget_and_sellers_see_no_token(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with market(build_app, sqlite_url) as stage:
        application = Application(stage.app)
        application.connect(*claimed(stage.app, stage.buyer), budget_usd="0.60")
        token = application.tokens["access_token"]
        assert stage.call(headers={"X-API-Key": token}).status_code == 200
        called = application.call_tool("call_service", service=stage.id, path="weather/Berlin", method="GET")
        assert called.get_json()["result"]["structuredContent"]["status"] == 200, called.text
        refused = stage.call(headers={"X-API-Key": token})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "SESSION_LIMIT_EXCEEDED")
        # Here Authorization is the seller's: a token in it is refused, and not forwarded.
        misplaced = stage.call(headers={"X-API-Key": "", "Authorization": f"Bearer {token}"})
        assert misplaced.status_code == 401
        assert token not in seen(stage.upstream.asked)
        stage.assert_charged(2)
        [session] = stage.buyer.get(f"{stage.buyer.wallet_url}/sessions").get_json()["sessions"]
        assert (session["max_usd"], session["spent_usd"]) == (0.6, 0.5)
