"""Stand-ins of all systems that `flask doctor --live` asks, and applications that use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from click.testing import Result
from flask import Flask

from app import wiring
from app.core import clock
from sandbox.bridges import BridgeServer
from sandbox.bridges.server import BridgeFaults
from sandbox.evm import EvmNode
from sandbox.jupiter import JupiterFaults, JupiterServer
from sandbox.perpdex import ExchangeServer
from solana_node import SolanaNode
from tests.support.applications import settings_for
from tests.support.bridges import running_bridges
from tests.support.exchange import running_exchange
from tests.support.gateway import provider_settings
from tests.support.solana import fund_solana, running_solana, solana_address
from tests.support.stand_ins import StandIns
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream

PORTS = ("chains", "swap_exchanges", "bridges", "perpdex", "probes", "upstream")


@dataclass(frozen=True, slots=True)
class World:
    """Stand-ins of all systems, and the settings that point to them."""

    solana: SolanaNode
    jupiter: JupiterServer
    bridges: BridgeServer
    exchange: ExchangeServer
    upstream: MisbehavingUpstream
    settings: dict[str, Any]

    def reset(self) -> None:
        """Remove all faults, and forget what was asked."""
        self.jupiter.faults, self.bridges.faults = JupiterFaults(), BridgeFaults()
        self.upstream.behave = answer
        self.upstream.asked.clear()


def answer(exchange: Exchange) -> None:
    """Answer as the provider does; paths of searches, prices and RPC calls are unique, the others are models'."""
    path, _, query = exchange.asked.target.partition("?")
    if path.endswith("/simple/price"):
        entry = {"usd": 3000.5, "last_updated_at": int(clock.now().timestamp())}
        exchange.json({"ethereum": entry, "solana": entry})
    elif path.endswith("/ping"):
        exchange.json({"gecko_says": "(V3) To the Moon!"})
    elif path.startswith("/v2/"):
        exchange.json({"jsonrpc": "2.0", "id": 1, "result": "0x10"})
    elif path == "/res/v1/web/search":
        assert query == "q=x402&count=1"
        exchange.json({"type": "search", "web": {"results": []}})
    elif path == "/search":
        cost = {"usage": {"credits": 1}} if exchange.asked.header("authorization") else {}
        exchange.json({"results": [], **(cost or {"costDollars": {"total": 0.005}})})
    elif path.endswith("/chat/completions"):
        usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
        exchange.json({"object": "chat.completion", "model": exchange.asked.json()["model"], "usage": usage})
    elif path == "/v1/messages":
        usage = {"input_tokens": 8, "output_tokens": 1}
        exchange.json({"type": "message", "model": exchange.asked.json()["model"], "usage": usage})
    elif path.endswith(":generateContent"):
        exchange.json({"usageMetadata": {"promptTokenCount": 2, "candidatesTokenCount": 1, "totalTokenCount": 3}})
    else:
        StandIns()(exchange)


@contextmanager
def running_world(ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[World]:
    """Run stand-ins of all systems that the service uses."""
    with ExitStack() as stack:
        solana = stack.enter_context(running_solana(slot_ms=20))
        fund_solana(solana, solana_address(), dollars=1)
        exchange = stack.enter_context(running_exchange())
        urls = {"ethereum": ethereum_node.url, "base": base_node.url, "solana": solana.url}
        bridges = stack.enter_context(running_bridges(**urls))
        upstream = stack.enter_context(misbehaving_upstream())
        jupiter = JupiterServer(solana.url)
        jupiter.start()
        stack.callback(jupiter.stop)
        settings = provider_settings(
            upstream.url,
            ethereum_rpc_url=ethereum_node.url,
            base_rpc_url=base_node.url,
            solana_rpc_url=solana.url,
            jupiter_base_url=jupiter.url,
            perpdex_base_url=exchange.url,
            cctp_attestation_url=bridges.url,
            relay_base_url=bridges.url,
            lifi_base_url=f"{bridges.url}/v1",
        )
        yield World(solana, jupiter, bridges, exchange, upstream, settings)


def application(build_app: Callable[..., Flask], database_url: str, settings: dict[str, Any]) -> Flask:
    """Build an application with the real adapters for these settings."""
    ports = wiring.build(settings_for(database_url, **settings))
    return build_app(database_url, settings=settings, **{name: getattr(ports, name) for name in PORTS})


def live(app: Flask, *arguments: str) -> Result:
    return app.test_cli_runner().invoke(args=["doctor", "--live", *arguments])


def rows(app: Flask, *arguments: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return result and remark of each probe."""
    printed = json.loads(live(app, "--json", *arguments).stdout)
    return {(row["system"], row["capability"]): (row["result"], row["remark"]) for row in printed}
