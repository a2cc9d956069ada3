"""`flask doctor --live` reads each answer as the service does: what it cannot use differs, and no key is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from sandbox.bridges.server import BridgeFaults
from sandbox.evm import EvmNode
from tests.support.gateway import KEYS
from tests.support.live_systems import World, application, live, rows, running_world
from tests.support.loopback_http import unused_url
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain

CANARY = "canary-of-an-rpc-endpoint"


@pytest.fixture(scope="module")
def _world(ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[World]:
    with running_world(ethereum_node, base_node) as running:
        yield running


@pytest.fixture
def world(_world: World) -> World:
    """The stand-ins without faults."""
    _world.reset()
    return _world


@pytest.fixture
def build(build_app: Callable[..., Flask], sqlite_url: str, world: World) -> Callable[..., Flask]:
    """Build an application with the real adapters for the world's settings and changes to them."""

    def make(**changed: str) -> Flask:
        return application(build_app, sqlite_url, world.settings | changed)

    return make


def test_everything_works_against_the_stand_ins(build: Callable[..., Flask], world: World) -> None:
    result = live(build(), "--spend-up-to", "0.05")
    printed = [line for line in result.output.splitlines() if not line.startswith("{")]
    assert [line for line in printed if not line.startswith("works  ")] == []
    assert result.exit_code == 0
    systems = {line.split()[1] for line in printed}
    assert systems == {
        *KEYS,
        "ethereum",
        "base",
        "solana",
        "uniswap",
        "jupiter",
        "cctp",
        "portal",
        "relay",
        "lifi",
        "hyperliquid",
    }
    assert world.bridges.requests


def test_nothing_that_is_billed_is_asked_without_a_budget(build: Callable[..., Flask], world: World) -> None:
    names = ("openai", "anthropic", "gemini", "groq", "openrouter", "brave", "exa", "tavily")
    only = [argument for name in names for argument in ("--only", name)]
    app = build()
    found = rows(app, *only)
    assert {result for result, _ in found.values()} == {"works", "not run"}
    assert not any(asked.method == "POST" or "search" in asked.target for asked in world.upstream.asked)
    # The first search fits into this budget, the others do not.
    found = rows(app, "--only", "brave", "--only", "exa", "--spend-up-to", "0.006")
    assert [result for result, _ in found.values()] == ["works", "not run"]
    assert live(app, "--only", "brave").exit_code == 0


def test_the_service_reads_every_answer_itself(build: Callable[..., Flask], world: World) -> None:
    def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda document: {key: value for key, value in document.items() if key != name}

    app = build()
    world.jupiter.faults.change = without("outAmount")
    assert rows(app, "--only", "jupiter") == {
        ("jupiter", "swap on solana"): ("differs", "quote_unavailable: there is no outAmount")
    }
    world.jupiter.faults.change = lambda document: document | {"tipInstruction": document["swapInstruction"]}
    (found,) = rows(app, "--only", "jupiter").values()
    assert found == ("differs", "unsafe_instructions")

    world.bridges.faults = BridgeFaults(change=lambda _path, _document: {"steps": []})
    found = rows(app, "--only", "relay", "--only", "lifi", "--only", "cctp")
    assert {result for result, _ in found.values()} == {"differs"}
    assert found["lifi", "ETH from base to ethereum"][1] == "quote_unavailable: there is no transactionRequest"

    world.upstream.behave = lambda exchange: exchange.json({"object": "chat.completion", "model": "m"})
    found = rows(app, "--only", "groq", "--only", "coingecko", "--only", "alchemy", "--spend-up-to", "1")
    assert found["groq", "chat of one token"] == (
        "differs",
        "it reports no usage, so that the charge would be an estimate",
    )
    assert found["coingecko", "prices"] == ("differs", "no usable price of ETH, SOL")
    assert found["alchemy", "block number"][0] == found["groq", "model list"][0] == "differs"
    assert live(app, "--only", "groq").exit_code == 1


def test_a_charge_above_what_is_held_differs(build: Callable[..., Flask], world: World) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 900, "total_tokens": 908}
    world.upstream.behave = lambda exchange: exchange.json({"data": [], "model": "gpt-4.1-nano", "usage": usage})
    result, remark = rows(build(), "--only", "openai", "--spend-up-to", "1")["openai", "chat of one token"]
    assert result == "differs"
    assert "more than the maximum" in remark


def test_endpoints_are_asked_one_by_one(
    build: Callable[..., Flask], base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    dead = unused_url()
    found = rows(build(base_rpc_url=f"{base_node.url},{ethereum_node.url},{dead}"), "--only", "base")
    assert {result for (system, _), (result, _) in found.items() if system == "base 1"} == {"works"}
    assert {each for (system, _), each in found.items() if system == "base 2"} == {
        ("differs", "chain_unreachable: wrong_chain")
    }
    assert found["base 3", "chain id"] == ("fails", "chain_unreachable: not_sent")


def test_the_error_of_an_endpoint_is_quoted(build: Callable[..., Flask], world: World) -> None:
    error = {"code": -32601, "message": "the method is not available on your plan"}
    world.upstream.behave = lambda exchange: exchange.json({"jsonrpc": "2.0", "id": 0, "error": error})
    found = rows(build(solana_rpc_url=world.upstream.url), "--only", "solana")
    assert found["solana 1", "genesis hash"] == (
        "fails",
        "chain_unreachable: rpc_error (-32601 the method is not available on your plan)",
    )


@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_refusal_fails_and_shows_no_key_that_it_quotes(
    build: Callable[..., Flask], world: World, status: int
) -> None:
    def quote_request(exchange: Exchange) -> None:
        exchange.json({"error": {"code": 1, "message": f"{exchange.asked.target} {exchange.asked.headers}"}}, status)

    world.upstream.behave = quote_request
    app = build(base_rpc_url=f"{world.upstream.url}/v2/{CANARY}")
    only = [argument for name in (*KEYS, "base") for argument in ("--only", name)]
    result = live(app, *only, "--spend-up-to", "1")
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if "base 1" not in line or "chain id" in line]
    assert not [line for line in lines if not line.startswith("fails  ")]
    assert f"http_{status} (answer" in result.stdout
    assert not [key for key in (*KEYS.values(), CANARY) if key in result.output]


def test_a_probe_without_an_answer_is_abandoned_and_the_next_runs(build: Callable[..., Flask], world: World) -> None:
    world.upstream.behave = lambda exchange: exchange.wait_for("the end")
    found = rows(build(), "--only", "coingecko", "--only", "hyperliquid", "--timeout", "1")
    world.upstream.open_all()
    assert found["coingecko", "ping"] == ("fails", "no answer in 1 seconds")
    assert found["hyperliquid", "mids"][0] == "works"


def test_what_is_not_configured_is_named_with_its_setting(build: Callable[..., Flask], world: World) -> None:
    app = build(**{f"{name}_api_key": "" for name in KEYS if name != "alchemy"})
    result = live(app, "--only", "openai", "--only", "coingecko")
    assert {line.split("  ")[0] for line in result.stdout.splitlines()} == {"not configured"}
    assert "set OPENAI_API_KEY" in result.stdout
    assert result.exit_code == 0
    assert world.upstream.asked == []


def test_an_unknown_system_is_refused_with_the_known_ones(build: Callable[..., Flask]) -> None:
    result = live(build(), "--only", "alchemyy")
    assert result.exit_code == 2
    assert "There is no system 'alchemyy'; there are ethereum, base, solana" in result.output
    assert live(build(), "--spend-up-to", "-1").exit_code == 2
