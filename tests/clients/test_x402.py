"""Published x402 clients, on test networks with the identifiers of the real ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account.messages import encode_typed_data
from flask import Flask
from x402 import x402Client, x402ClientSync
from x402.extensions.bazaar.facilitator_client import ListDiscoveryResourcesParams, with_bazaar
from x402.http import FacilitatorConfig, HTTPFacilitatorClientSync
from x402.http.clients.httpx import x402HttpxClient
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

from app.adapters.evm.signatures import digest_of
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import USDC, ChainName
from app.payments import treasury
from purser import ReceiptVerificationError, verify_receipt
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support import compatibility, typescript_package
from tests.support.agents import register
from tests.support.applications import key_of, make_app, settings_for
from tests.support.chains import evm_chain, fund
from tests.support.coroutines import run_apart
from tests.support.gateway import provider_settings
from tests.support.payments import EvmPayer, SolanaPayer
from tests.support.published import run_node, run_package, run_python
from tests.support.services import WebService, web_service
from tests.support.smart_wallets import SafePayer
from tests.support.solana import fund_solana
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream

_SEARCH = "/v1/gateway/brave/web/search?q=agents"
_MAINNET_GENESIS = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"

# The clients' environments are created first where they are missing, by one test while others wait.
pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A service on chains with the identifiers of the real ones, and payers with USDC there."""

    service: WebService
    upstream: MisbehavingUpstream
    base: EvmNode
    solana: SolanaNode

    @property
    def search(self) -> str:
        return self.service.url + _SEARCH

    def payer(self) -> EvmPayer:
        return EvmPayer(self.base)

    def recipient(self) -> str:
        terms = requests.get(self.search, timeout=60).json()["payment"]
        return str(terms["recipient"])


@pytest.fixture(scope="module")
def mainnet(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Any) -> Iterator[Scene]:
    path = tmp_path_factory.mktemp("mainnet") / "service.sqlite"
    path.write_bytes(_sqlite_template.read_bytes())
    url = f"sqlite:///{path}"
    with (
        # Blocks follow the clock: a client signs "valid since a minute ago", and may be installed only then.
        EvmNode("base", network_ids="mainnet", block_time=1) as base,
        SolanaNode(slot_ms=50, genesis_hash=_MAINNET_GENESIS) as solana,
        misbehaving_upstream() as upstream,
    ):
        upstream.behave = lambda exchange: exchange.json({"results": []})
        settings = {
            "network": "mainnet",
            "receipt_signing_keys": key_of("r1"),
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
    compatibility.check("PyPI", "x402[evm,requests]", version("x402"), ["pay on Base"])


def test_a_resource_that_the_discovery_client_found_is_paid_for(mainnet: Scene) -> None:
    with HTTPFacilitatorClientSync(FacilitatorConfig(url=mainnet.service.url)) as client:
        found_by = with_bazaar(client).extensions.bazaar
        listed = found_by.list_resources(ListDiscoveryResourcesParams(type="http", limit=100))
    found = next(each for each in listed.items if mainnet.search.startswith(each.resource + "?"))
    payer = x402ClientSync()
    register_exact_evm_client(payer, EthAccountSigner(mainnet.payer().account))
    with x402_requests(payer) as session:
        answer = session.get(found.resource, params={"q": "agents"}, timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"results": []})
    settled = json.loads(base64.b64decode(answer.headers["PAYMENT-RESPONSE"]))
    assert settled["network"] in {each["network"] for each in found.accepts}
    compatibility.check("PyPI", "x402[extensions]", version("x402"), ["list resources (bazaar)", "pay for one of them"])


def test_a_resource_that_npm_s_discovery_client_found_is_paid_for(mainnet: Scene) -> None:
    payer = mainnet.payer()
    end, query = _SEARCH.split("?")
    paid = run_node("bazaar.mjs", mainnet.service.url, end, f"?{query}", "0x" + payer.account.key.hex())
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    accepted = next(each for each in paid["found"]["accepts"] if each["network"] == "eip155:8453")
    assert (paid["settled"]["network"], paid["settled"]["payer"]) == (accepted["network"], payer.address)
    assert evm_chain(mainnet.base).balances(payer.address).of(USDC).units == 1_000_000 - int(accepted["amount"])
    listed = paid["listed"]
    assert (listed["items"], listed["others"]) == (min(100, listed["total"]), 0)
    examples = ["list resources by network and scheme (bazaar)", "pay for one of them"]
    compatibility.check("npm", "@x402/extensions with @x402/fetch", paid["version"], examples)


def test_requests_pays_once_though_its_payment_is_settled_late(mainnet: Scene) -> None:
    payer, chain = mainnet.payer(), evm_chain(mainnet.base)
    recipient = mainnet.recipient()
    paid_before, owned = (chain.balances(recipient).of(USDC).units, chain.balances(payer.address).of(USDC).units)
    client = x402ClientSync()
    register_exact_evm_client(client, EthAccountSigner(payer.account))
    with x402_requests(client) as session:
        # No block is made meanwhile, by the node itself or for it.
        mainnet.base.set_automine(on=False)
        try:
            with mainnet.base.mining_lock:
                first = session.get(mainnet.search, timeout=60)
        finally:
            mainnet.base.set_automine(on=True)
            mainnet.base.mine(1)
        assert (first.status_code, first.json()["code"]) == (503, "PAYMENT_PENDING"), first.text
        # It cannot present bytes again: this signs a second authorization.
        second = session.get(mainnet.search, timeout=60)
    assert (second.status_code, second.json()) == (200, {"results": []})
    settled = json.loads(base64.b64decode(second.headers["PAYMENT-RESPONSE"]))
    assert settled["transaction"] == first.json()["details"]["tx_hash"]
    price = owned - chain.balances(payer.address).of(USDC).units
    assert 0 < price == chain.balances(recipient).of(USDC).units - paid_before
    assert price == 10_000


class SafeSigner:
    """x402's `ClientEvmSigner` for a Safe with one owner."""

    def __init__(self, payer: SafePayer) -> None:
        self.address = payer.address
        self._payer = payer

    def sign_typed_data(self, domain: Any, types: dict[str, Any], primary_type: str, message: dict[str, Any]) -> bytes:
        fields = {name: [{"name": each.name, "type": each.type} for each in types[name]] for name in types}
        names = {"name": domain.name, "version": domain.version, "chainId": domain.chain_id}
        encoded = encode_typed_data(
            {**names, "verifyingContract": domain.verifying_contract}, {primary_type: fields[primary_type]}, message
        )
        return bytes.fromhex(self._payer.signature(digest_of(encoded))[2:])


# Its price exceeds the cost of deploying a wallet.
_CHAT = {"model": "gpt-5", "max_completion_tokens": 20_000, "messages": [{"role": "user", "content": "Hi"}]}
_CHATS = "/v1/gateway/openai/chat/completions"


def test_requests_pays_with_a_smart_wallet_and_is_served(mainnet: Scene) -> None:
    for is_deployed in (True, False):
        payer = SafePayer(mainnet.base, is_deployed=is_deployed)
        client = x402ClientSync()
        register_exact_evm_client(client, SafeSigner(payer))
        with x402_requests(client) as session:
            answer = session.post(mainnet.service.url + _CHATS, json=_CHAT, timeout=60)
        assert answer.status_code == 200, answer.text
        settled = json.loads(base64.b64decode(answer.headers["PAYMENT-RESPONSE"]))
        assert (settled["success"], settled["payer"]) == (True, payer.address)
    compatibility.check(
        "PyPI", "x402[evm,requests] with a Safe", version("x402"), ["pay on Base", "pay before it is deployed"]
    )


def test_httpx_pays_and_is_served(mainnet: Scene) -> None:
    async def call() -> int:
        client = x402Client()
        register_exact_evm_client(client, EthAccountSigner(mainnet.payer().account))
        async with x402HttpxClient(client, timeout=60) as session:
            answer = await session.get(mainnet.search)
            return int(answer.status_code)

    assert run_apart(call()) == 200
    compatibility.check("PyPI", "x402[evm,httpx]", version("x402"), ["pay on Base"])


def test_the_legacy_python_client_pays_and_is_served(mainnet: Scene) -> None:
    key = mainnet.payer().account.key.hex()
    paid = run_python("legacy_x402.py", mainnet.search, key, requirements="x402-legacy.txt")
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["network"]) == (True, "base")
    compatibility.check("PyPI", "x402", paid["version"], ["pay on Base (version 1)"])


def test_a_tool_of_mcp_is_paid_for_without_an_account(mainnet: Scene) -> None:
    key = "0x" + mainnet.payer().account.key.hex()
    paid = run_python("mcp_x402.py", mainnet.service.url, key, requirements="mcp-x402.txt")
    assert (paid["is_error"], paid["payment_made"]) == (False, True)
    assert paid["result"]["body"] == '{"results": []}'
    assert (paid["settled"]["success"], paid["settled"]["network"]) == (True, "eip155:8453")
    compatibility.check("PyPI", "x402[evm,mcp]", paid["version"], ["pay for a tool of MCP on Base"])


def test_x402_fetch_pays_and_is_served(mainnet: Scene) -> None:
    paid = run_node("fetch_x402.mjs", mainnet.search, "0x" + mainnet.payer().account.key.hex())
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["network"]) == (True, "base")
    compatibility.check("npm", "x402-fetch", paid["version"], ["pay on Base (version 1)"])


def test_pympp_answers_a_challenge_and_is_served(mainnet: Scene) -> None:
    paid = run_python("mpp_pays.py", mainnet.search, "0x" + mainnet.payer().account.key.hex(), requirements="mpp.txt")
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["method"], paid["settled"]["status"]) == ("evm", "success")
    compatibility.check("PyPI", "pympp[evm]", paid["version"], ["pay on Base (MPP)"])


def test_mppx_answers_a_challenge_and_is_served(mainnet: Scene) -> None:
    paid = run_node("mpp_pays.mjs", mainnet.search, "0x" + mainnet.payer().account.key.hex())
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["method"], paid["settled"]["status"]) == ("evm", "success")
    found = validated(mainnet.service.url, "GET:" + _SEARCH)
    failed = [each for each in found if each["severity"] not in ("pass", "skip")]
    assert (failed, len(found) > 12) == ([], True), found
    compatibility.check("npm", "mppx", paid["version"], ["pay on Base (MPP)", "validate"])


def validated(url: str, endpoint: str) -> list[dict[str, str]]:
    """Return the checks of `mppx validate`, except that nothing is paid: it has no wallet on this chain."""
    report = json.loads(run_package("mppx", "validate", url, "--endpoint", endpoint, "--output-json"))
    [tested] = report["endpoints"]
    return [*report["discovery"]["checks"], *tested["challenge"], *tested["errorHandling"], *tested["payment"]]


def test_fetch_pays_with_a_smart_wallet_and_is_served(mainnet: Scene) -> None:
    for is_deployed in (True, False):
        payer = SafePayer(mainnet.base, is_deployed=is_deployed)
        made_by = [] if is_deployed else [payer.factory, "0x" + payer.deployment.hex()]
        owner = "0x" + payer.account.key.hex()
        paid = run_node(
            "fetch_safe.mjs", mainnet.service.url + _CHATS, json.dumps(_CHAT), owner, payer.address, *made_by
        )
        assert paid["status"] == 200, paid
        assert (paid["settled"]["success"], paid["settled"]["payer"]) == (True, payer.address)
    compatibility.check("npm", "@x402/fetch with a Safe", paid["version"], ["pay on Base", "pay before it is deployed"])


def test_the_python_client_pays_on_solana_and_is_served(mainnet: Scene) -> None:
    payer = SolanaPayer(mainnet.solana)
    paid = run_python(
        "solana_x402.py", mainnet.search, str(payer.keys), mainnet.solana.url, requirements="x402-solana.txt"
    )
    assert (paid["status"], paid["body"]) == (200, {"results": []})
    assert (paid["settled"]["success"], paid["settled"]["payer"]) == (True, payer.address)
    compatibility.check("PyPI", "x402[svm,requests]", paid["version"], ["pay on Solana"])


def test_terms_of_version_1_in_the_body_can_be_paid(mainnet: Scene) -> None:
    body = requests.get(mainnet.search, timeout=60).json()
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


def test_a_client_without_a_library_pays_by_hash(mainnet: Scene) -> None:
    terms = requests.get(mainnet.search, timeout=60).json()["payment"]
    assert (terms["amount"], terms["network"]) == ("0.01", "eip155:8453")
    tx_hash = mainnet.base.fund_usdc(terms["recipient"], 10_000)
    mainnet.base.mine(6)
    headers = {"X-Payment": tx_hash, "X-Payment-Chain": terms["chain"]}
    assert requests.get(mainnet.search, headers=headers, timeout=60).status_code == 200
    again = requests.get(mainnet.search, headers=headers, timeout=60)
    assert (again.status_code, again.json()["code"]) == (402, "PAYMENT_ALREADY_USED")


@pytest.mark.parametrize(("chain", "network"), [("base", "eip155:8453"), ("solana", f"solana:{_MAINNET_GENESIS[:32]}")])
def test_another_instance_of_this_service_pays_and_is_served(
    mainnet: Scene, build_app: Callable[..., Flask], sqlite_url: str, chain: str, network: str
) -> None:
    solana = SolanaChain(SOLANA_DEPLOYMENTS["mainnet"], rpc_urls=[mainnet.solana.url], read_seconds=60)
    app = build_app(
        sqlite_url,
        settings={"allow_private_upstreams": True},
        chains={ChainName.BASE: evm_chain(mainnet.base), ChainName.SOLANA: solana},
        public_upstream=HttpUpstream(connect_seconds=5, read_seconds=60),
    )
    with app.app_context():
        agent = register(app.test_client())
        fund(mainnet.base, agent.address, eth=0, dollars=1)
        fund_solana(mainnet.solana, agent.solana_address, sol=0, dollars=1)
        body = {"url": mainnet.search, "max_amount_usd": 0.05, "networks": [chain]}
        answer = agent.post(f"{agent.wallet_url}/x402/fetch", body)
        found = answer.get_json()
    assert (answer.status_code, found["status"], found["body"]) == (200, 200, '{"results": []}'), found
    assert (found["payment"]["state"], found["payment"]["network"]) == ("paid", network)


@dataclass(frozen=True, slots=True)
class Bought:
    """A paid call: the headers with its terms and with its receipt, and the service's keys, as JSON."""

    payer: str
    required: str
    settled: str
    keys: str


@pytest.fixture(scope="module")
def bought(mainnet: Scene) -> Bought:
    client, payer = x402ClientSync(), mainnet.payer()
    register_exact_evm_client(client, EthAccountSigner(payer.account))
    required = requests.get(mainnet.search, timeout=60).headers["PAYMENT-REQUIRED"]
    with x402_requests(client) as session:
        paid = session.get(mainnet.search, timeout=60)
    keys = requests.get(f"{mainnet.service.url}/.well-known/jwks.json", timeout=60).text
    return Bought(payer.address, required, paid.headers["PAYMENT-RESPONSE"], keys)


def test_the_extension_for_receipts_verifies_offers_and_receipts_and_refuses_forged_ones(bought: Bought) -> None:
    found = run_node("receipts.mjs", bought.required, bought.settled, bought.keys)
    assert found["accepted"] == json.loads(base64.b64decode(bought.required))["accepts"][0]
    assert (found["offered"]["amount"], found["offered"]["resourceUrl"]) == ("10000", found["paid"]["resourceUrl"])
    assert (found["paid"]["payer"], found["matches"], found["forged"]) == (bought.payer, True, "refused")
    assert found["type"] == "x402-receipt+jws"
    compatibility.check("npm", "@x402/extensions", found["version"], ["verify an offer", "verify a receipt"])


_VERIFYING = """
import { verifyReceipt } from "purser-sdk";
const [url, keys, ...receipts] = process.argv.slice(1);
const found = receipts.map((each) => verifyReceipt(each, JSON.parse(keys), url).catch(({ code }) => code));
console.log(JSON.stringify(await Promise.all(found)));
"""


def test_both_packages_of_this_service_verify_offers_and_receipts_of_x402(
    mainnet: Scene, bought: Bought, tmp_path: Path
) -> None:
    required, settled = (json.loads(base64.b64decode(each)) for each in (bought.required, bought.settled))
    offer = required["extensions"]["offer-receipt"]["info"]["offers"][0]["signature"]
    receipt = settled["extensions"]["offer-receipt"]["info"]["receipt"]["signature"]
    forged = ".".join([*receipt.split(".")[:2], offer.split(".")[2]])
    url, folder = mainnet.service.url, typescript_package.install(tmp_path / "user")
    ran = typescript_package.run(
        folder, "node", "--input-type=module", "--eval", _VERIFYING, "--", url, bought.keys, offer, receipt, forged
    )
    in_python = [verify_receipt(each, json.loads(bought.keys), url) for each in (offer, receipt)]
    assert json.loads(ran) == [*(each._asdict() for each in in_python), "RECEIPT_INVALID"]
    with pytest.raises(ReceiptVerificationError):
        verify_receipt(forged, json.loads(bought.keys), url)
    terms, paid = (each.statement for each in in_python)
    assert (terms["amount"], terms["resourceUrl"]) == ("10000", paid["resourceUrl"])
    assert (paid["payer"], paid["transaction"]) == (bought.payer, settled["transaction"])
