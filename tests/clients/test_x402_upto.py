"""Published x402 clients that pay what a call cost (the scheme `upto`), on a chain with the real one's identifiers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from x402 import x402ClientSync
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm.signers import EthAccountSignerWithRPC
from x402.mechanisms.evm.upto import UptoEvmClientScheme

from app.core.chains import USDC, ChainName
from app.payments import treasury
from sandbox.evm import EvmNode
from tests.support import compatibility
from tests.support.applications import make_app, settings_for
from tests.support.chains import evm_chain
from tests.support.gateway import CHAT, QUESTION, provider_settings
from tests.support.payments import EvmPayer
from tests.support.published import run_node
from tests.support.services import WebService, web_service
from tests.support.upstreams import Exchange, MisbehavingUpstream, chat_answer, chat_chunks, misbehaving_upstream
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]
COST = 63
"""Units of USDC that ten tokens of input and five of output cost, rounded up."""


@dataclass(frozen=True, slots=True)
class Scene:
    service: WebService
    upstream: MisbehavingUpstream
    base: EvmNode
    database_url: str
    recipient: str

    def units_by_usage(self) -> int:
        """Return what the usage log says that calls cost, each rounded up to units of USDC."""
        with create_engine(self.database_url).connect() as connection:
            costs = connection.scalars(text("SELECT cost_nanos FROM usage_logs"))
            return sum(-(-cost // 1_000) for cost in costs)

    def received(self) -> int:
        return evm_chain(self.base).balances(self.recipient).of(USDC).units


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Any) -> Iterator[Scene]:
    path = tmp_path_factory.mktemp("upto") / "service.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    url = f"sqlite:///{path}"
    with EvmNode("base", network_ids="mainnet", block_time=1) as base, misbehaving_upstream() as upstream:
        settings = {
            "network": "mainnet", "base_rpc_url": base.url, "ethereum_rpc_url": "http://127.0.0.1:1",
            "solana_rpc_url": "http://127.0.0.1:1", **provider_settings(upstream.url),
        }  # fmt: skip
        app = make_app(settings_for(url, network="mainnet"))
        with app.app_context():
            base.fund_eth(treasury.settler(ChainName.BASE), 10**18)
            recipient = treasury.recipient(ChainName.BASE)
        with web_service(url, settings, workers=1, threads=20) as service:
            yield Scene(service, upstream, base, url, recipient)


def answer(exchange: Exchange) -> None:
    """Answer as the request asks: at once, or as a stream."""
    if not exchange.asked.json().get("stream"):
        exchange.json(chat_answer(tokens_in=10, tokens_out=5))
        return
    exchange.start_stream()
    for frame in chat_chunks("Hel", "lo", tokens_in=10, tokens_out=5):
        exchange.chunk(frame)
    exchange.end_stream()


def test_requests_pays_what_a_call_cost(scene: Scene) -> None:
    payer = EvmPayer(scene.base)
    scene.upstream.behave = answer
    before = scene.received()
    client = x402ClientSync()
    client.register("eip155:8453", UptoEvmClientScheme(EthAccountSignerWithRPC(payer.account, scene.base.url)))
    with x402_requests(client) as session:
        plain = session.post(scene.service.url + CHAT, json=QUESTION, timeout=60)
        assert plain.status_code == 200, plain.text
        settled = json.loads(base64.b64decode(plain.headers["PAYMENT-RESPONSE"]))
        assert (settled["success"], settled["network"], settled["amount"]) == (True, "eip155:8453", str(COST))
        streamed = session.post(scene.service.url + CHAT, json={**QUESTION, "stream": True}, timeout=60)
        assert (streamed.status_code, "[DONE]" in streamed.text) == (200, True), streamed.text
    wait_until(lambda: scene.received() == before + 2 * COST, what="the payment of the stream")
    assert scene.received() == scene.units_by_usage()
    compatibility.check(
        "PyPI", "x402[evm,requests] with upto", version("x402"), ["pay what a call cost", "pay for a stream"]
    )


def test_fetch_pays_what_a_call_cost(scene: Scene) -> None:
    scene.upstream.behave = answer
    before, key = scene.received(), "0x" + EvmPayer(scene.base).account.key.hex()
    plain, streamed = (
        run_node("upto_x402.mjs", scene.service.url + CHAT, json.dumps({**QUESTION, **more}), key, scene.base.url)
        for more in ({}, {"stream": True})
    )
    assert plain["status"] == 200, plain
    assert (plain["settled"]["success"], plain["settled"]["amount"]) == (True, str(COST))
    assert (streamed["status"], "[DONE]" in streamed["text"]) == (200, True), streamed
    wait_until(lambda: scene.received() == before + 2 * COST, what="the payment of the stream")
    assert scene.received() == scene.units_by_usage()
    compatibility.check("npm", "@x402/fetch with upto", plain["version"], ["pay what a call cost", "pay for a stream"])
