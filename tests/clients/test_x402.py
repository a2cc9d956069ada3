"""The x402 package as it is published, on networks that pass for the real ones: it pays by itself and is served."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from x402 import x402Client, x402ClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

from app.core.chains import ChainName
from app.payments import treasury
from sandbox.evm import EvmNode
from sandbox.solana import SolanaNode
from tests.support.applications import make_app, settings_for
from tests.support.coroutines import run_apart
from tests.support.gateway import provider_settings
from tests.support.payments import EvmPayer, SolanaPayer
from tests.support.published import run_node, run_python
from tests.support.services import WebService, web_service
from tests.support.solana import fund_solana
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream

_SEARCH = "/v1/gateway/brave/web/search?q=agents"
_MAINNET_GENESIS = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"

# On a machine that has never seen them, the clients' own environments are made first, by one test while others wait.
pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A service on chains that pass for the real ones, and somebody with USDC there."""

    service: WebService
    upstream: MisbehavingUpstream
    base: EvmNode
    solana: SolanaNode

    @property
    def search(self) -> str:
        return self.service.url + _SEARCH

    def payer(self) -> EvmPayer:
        return EvmPayer(self.base)


@pytest.fixture(scope="module")
def mainnet(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Any) -> Iterator[Scene]:
    path = tmp_path_factory.mktemp("mainnet") / "service.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    url = f"sqlite:///{path}"
    with (
        EvmNode("base", network_ids="mainnet") as base,
        SolanaNode(slot_ms=50, genesis_hash=_MAINNET_GENESIS) as solana,
        misbehaving_upstream() as upstream,
    ):
        upstream.behave = lambda exchange: exchange.json({"results": []})
        settings = {
            "network": "mainnet",
            "base_rpc_url": base.url,
            "ethereum_rpc_url": "http://127.0.0.1:1",
            "solana_rpc_url": solana.url,
            **provider_settings(upstream.url),
        }
        app = make_app(settings_for(url, network="mainnet"))
        with app.app_context():
            base.fund_eth(treasury.settler(ChainName.BASE), 10**18)
            fund_solana(solana, treasury.settler(ChainName.SOLANA), sol=1)
            fund_solana(solana, treasury.recipient(ChainName.SOLANA), dollars=1)
        with web_service(url, settings, workers=1, threads=20) as service:
            yield Scene(service, upstream, base, solana)


def test_requests_pays_and_is_served(mainnet: Scene) -> None:
    client = x402ClientSync()
    register_exact_evm_client(client, EthAccountSigner(mainnet.payer().account))
    with x402_requests(client) as session:
        answer = session.get(mainnet.search, timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"results": []})
    settled = json.loads(base64.b64decode(answer.headers["PAYMENT-RESPONSE"]))
    assert (settled["success"], settled["network"]) == (True, "eip155:8453")


def test_httpx_pays_and_is_served(mainnet: Scene) -> None:
    async def call() -> int:
        client = x402Client()
        register_exact_evm_client(client, EthAccountSigner(mainnet.payer().account))
        async with x402HttpxClient(client, timeout=60) as session:
            answer = await session.get(mainnet.search)
            return int(answer.status_code)

    assert run_apart(call()) == 200


def test_the_legacy_python_client_pays_and_is_served(mainnet: Scene) -> None:
    key = mainnet.payer().account.key.hex()
    paid = run_python("legacy_x402.py", mainnet.search, key, requirements="x402-legacy.txt")
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["network"]) == (True, "base")


def test_x402_fetch_pays_and_is_served(mainnet: Scene) -> None:
    paid = run_node("fetch_x402.mjs", mainnet.search, "0x" + mainnet.payer().account.key.hex())
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["network"]) == (True, "base")


def test_the_python_client_pays_on_solana_and_is_served(mainnet: Scene) -> None:
    payer = SolanaPayer(mainnet.solana)
    paid = run_python(
        "solana_x402.py", mainnet.search, str(payer.keys), mainnet.solana.url, requirements="x402-solana.txt"
    )
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["payer"]) == (True, payer.address)


def test_version_1_is_told_in_the_body_and_taken(mainnet: Scene) -> None:
    told = requests.get(mainnet.search, timeout=60)
    body = told.json()
    assert body["x402Version"] == 1
    assert [(each["network"], each["scheme"]) for each in body["accepts"]] == [("base", "exact")]
    terms = body["accepts"][0]
    payload = mainnet.payer().authorize({**terms, "amount": terms["maxAmountRequired"]})
    paid = {"x402Version": 1, "scheme": "exact", "network": "base", "payload": payload}
    header = base64.b64encode(json.dumps(paid).encode()).decode()
    answer = requests.get(mainnet.search, headers={"X-PAYMENT": header}, timeout=60)
    assert answer.status_code == 200, answer.text
    settled = json.loads(base64.b64decode(answer.headers["X-PAYMENT-RESPONSE"]))
    assert (settled["success"], settled["network"]) == (True, "base")


def test_somebody_with_a_wallet_and_no_library_pays_by_hash(mainnet: Scene) -> None:
    told = requests.get(mainnet.search, timeout=60).json()["payment"]
    assert (told["amount"], told["network"]) == ("0.01", "eip155:8453")
    tx_hash = mainnet.base.fund_usdc(told["recipient"], 10_000)
    mainnet.base.mine(6)
    headers = {"X-Payment": tx_hash, "X-Payment-Chain": told["chain"]}
    assert requests.get(mainnet.search, headers=headers, timeout=60).status_code == 200
    again = requests.get(mainnet.search, headers=headers, timeout=60)
    assert (again.status_code, again.json()["code"]) == (402, "PAYMENT_ALREADY_USED")
