"""The walk of README.md by tools of MCP alone, made by a scripted model that repeats calls at random."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest
import requests

from tests.support.started import StartedService
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chain, pytest.mark.redis, pytest.mark.timeout(420)]

AMOUNTS = ("12.5", "1.25", "0.5")
_MOVING = {"fund", "transfer"}
ToolCall = tuple[str, dict[str, Any]]
Walk = Generator[ToolCall, dict[str, Any], None]


def walk() -> Walk:
    """The calls of README.md, and two more transfers; one of them without a request_id."""
    wallet = (yield "register", {"name": "first agent"})["wallet"]["id"]
    for currency, amount in (("ETH", "0.01"), ("USDC", "25")):
        yield "fund", {"wallet_id": wallet, "chain": "base", "currency": currency, "amount": amount}
    yield "get_transactions", {"wallet_id": wallet, "status": "pending"}
    to = (yield "register", {"name": "second agent"})["wallet"]["addresses"]["base"]
    order = {"wallet_id": wallet, "chain": "base", "currency": "USDC", "to": to}
    yield "transfer", {**order, "amount": AMOUNTS[0], "dry_run": True}
    for number, amount in enumerate(AMOUNTS):
        named = {"request_id": f"invoice-{number}"} if number else {}
        done = yield "transfer", {**order, "amount": amount, **named}
        assert done["amount"] == amount, done
    yield "get_transactions", {"wallet_id": wallet, "status": "pending"}
    yield "get_balances", {"wallet_id": wallet}


class ScriptedModel:
    """Answers like a provider's API, with the next call of a walk, or the last one again."""

    def __init__(self, seed: int) -> None:
        self._choices = random.Random(seed)
        self._walk = walk()
        self._last: ToolCall | None = next(self._walk)
        self._is_first = True

    def __call__(self, exchange: Exchange) -> None:
        body = exchange.asked.json()
        found = self._next(body["messages"][-1]) if not self._is_first else self._last
        self._is_first = False
        is_openai = exchange.asked.target.endswith("/chat/completions")
        exchange.json(_openai_answer(found) if is_openai else _anthropic_answer(found))

    def _next(self, message: dict[str, Any]) -> ToolCall | None:
        content = message["content"]
        text = content if isinstance(content, str) else content[0]["content"]
        assert self._last is not None
        if self._last[0] in _MOVING and self._choices.random() < 0.5:
            # As a model does that lost the result of its call.
            return self._last
        try:
            self._last = self._walk.send(json.loads(text))
        except StopIteration:
            self._last = None
        return self._last


def _openai_answer(call: ToolCall | None) -> dict[str, Any]:
    function = call and {"name": call[0], "arguments": json.dumps(call[1])}
    calls = [{"id": "call_1", "type": "function", "function": function}] if call else None
    message = {"role": "assistant", "content": None if call else "Done.", "tool_calls": calls}
    reason = "tool_calls" if call else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}


def _anthropic_answer(call: ToolCall | None) -> dict[str, Any]:
    used = [{"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}] if call else []
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": used or [{"type": "text", "text": "Done."}],
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


@dataclass
class McpAgent:
    """What connects a model to the tools: it stores the first key, and sends some messages twice."""

    url: str
    choices: random.Random
    keys: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    def send(self, method: str, **params: object) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.keys[0]}"} if self.keys else {}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = requests.post(f"{self.url}/mcp", json=message, headers=headers, timeout=60)
        result: dict[str, Any] = answer.json()["result"]
        return result

    def tools(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.send("tools/list")["tools"]
        return listed

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool for the model and return the text of the result."""
        self.calls.append((name, arguments))
        if name in _MOVING and self.choices.random() < 0.5:
            self.send("tools/call", name=name, arguments=arguments)
        result = self.send("tools/call", name=name, arguments=arguments)
        if arguments.get("status") == "pending":
            wait_until(
                lambda: (
                    not self.send("tools/call", name=name, arguments=arguments)["structuredContent"]["transactions"]
                ),
                60,
                interval=0.3,
                what="the end of all pending transactions",
            )
        assert result["isError"] is False, (name, arguments, result)
        if name == "register":
            self.keys.append(result["structuredContent"]["apiKey"])
        self.results.append(result["structuredContent"])
        text: str = result["content"][0]["text"]
        return text


def work_with_openai(model: MisbehavingUpstream, agent: McpAgent) -> None:
    client = openai.OpenAI(base_url=f"{model.url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {
            "type": "function",
            "function": {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]},
        }
        for tool in agent.tools()
    ]
    messages: list[Any] = [{"role": "user", "content": "Do the walk of the README."}]
    while True:
        answer = client.chat.completions.create(model="scripted", messages=messages, tools=tools)
        message = answer.choices[0].message
        if not message.tool_calls:
            return
        [call] = message.tool_calls
        assert call.type == "function"
        text = agent.call(call.function.name, json.loads(call.function.arguments))
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": text}]


def work_with_anthropic(model: MisbehavingUpstream, agent: McpAgent) -> None:
    client = anthropic.Anthropic(base_url=model.url, api_key="none", max_retries=0)
    tools: Any = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]}
        for tool in agent.tools()
    ]
    messages: list[Any] = [{"role": "user", "content": "Do the walk of the README."}]
    while True:
        answer = client.messages.create(model="scripted", max_tokens=1000, messages=messages, tools=tools)
        [block] = answer.content
        if block.type != "tool_use":
            return
        text = agent.call(block.name, dict(block.input))
        result = {"type": "tool_result", "tool_use_id": block.id, "content": text}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]


def usdc_of(balances: dict[str, Any]) -> Decimal:
    return sum((Decimal(each["balance"]) for each in balances["balances"] if each["token"] == "USDC"), Decimal(0))


def test_a_model_that_repeats_calls_at_random_moves_each_amount_once(started: StartedService) -> None:
    for seed, work in enumerate((work_with_openai, work_with_anthropic)):
        agent = McpAgent(started.url, random.Random(seed))
        with misbehaving_upstream(ScriptedModel(seed)) as model:
            work(model, agent)
        transfers = [call for call in agent.calls if call[0] == "transfer" and "dry_run" not in call[1]]
        assert len(transfers) > len(AMOUNTS)
        assert usdc_of(agent.results[-1]) == Decimal("10.75")
        second = agent.keys[1]
        agent.keys[0] = second
        wallet = agent.send("tools/call", name="get_balances", arguments={})["structuredContent"]["wallets"]
        arguments = {"wallet_id": wallet[0]["id"]}
        received = agent.send("tools/call", name="get_balances", arguments=arguments)["structuredContent"]
        assert usdc_of(received) == Decimal("14.25")
