"""Web services that sell for x402: a published middleware with its facilitator, and scripted ones that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from eth_account import Account
from flask import Flask
from werkzeug.serving import make_server
from x402 import x402FacilitatorSync, x402ResourceServerSync
from x402.extensions.eip2612_gas_sponsoring import EIP2612_GAS_SPONSORING, declare_eip2612_gas_sponsoring_extension
from x402.http.middleware.flask import PaymentMiddleware
from x402.http.types import PaymentOption, RouteConfig
from x402.mechanisms.evm import FacilitatorWeb3Signer
from x402.mechanisms.evm.exact import ExactEvmFacilitatorScheme, ExactEvmServerScheme

from app.adapters.evm.contracts.calls import AUTHORIZATION_USED_EVENT
from app.adapters.evm.x402.payments import SignedAuthorization
from sandbox.evm import EvmNode
from tests.support.chains import fund
from tests.support.evm import await_mined
from tests.support.payments import decoded, encoded
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream

PAYEE = "0x00000000000000000000000000000000BEEF0001"
OTHER_PAYEE = "0x00000000000000000000000000000000beef0002"
CENT = 10_000


@dataclass(slots=True)
class PublishedSeller:
    """The Flask middleware of the `x402` package: `/report` for a cent."""

    url: str
    served: list[str] = field(default_factory=list)


@contextmanager
def published_seller(node: EvmNode, *, price: int = CENT, by_permit2: bool = False) -> Iterator[PublishedSeller]:
    """Run a Flask application behind the unmodified middleware, which settles on the node by itself.

    By Permit2, its facilitator also submits the payer's allowance.
    """
    network = f"eip155:{node.chain_id}"
    settler = Account.create()
    fund(node, settler.address, eth=1)
    facilitator = x402FacilitatorSync()
    signer = FacilitatorWeb3Signer(settler.key.hex(), node.url)
    facilitator.register([network], ExactEvmFacilitatorScheme(signer))
    facilitator.register_extension(EIP2612_GAS_SPONSORING)
    server = x402ResourceServerSync(facilitator)
    server.register(network, ExactEvmServerScheme())
    shop = Flask("shop")

    @shop.get("/report")
    def report() -> dict[str, str]:
        seller.served.append("report")
        return {"report": "sunny"}

    @shop.get("/free")
    def free() -> dict[str, str]:
        return {"report": "free"}

    domain = {"name": node.deployment.usdc_domain_name, "version": "2"}
    method = {"assetTransferMethod": "permit2"} if by_permit2 else {}
    asset = {"amount": str(price), "asset": node.deployment.usdc, "extra": {**domain, **method}}
    option = PaymentOption(scheme="exact", pay_to=PAYEE, price=asset, network=network)
    extensions = declare_eip2612_gas_sponsoring_extension() if by_permit2 else None
    route = RouteConfig(accepts=option, extensions=extensions)
    PaymentMiddleware(shop, {"GET /report": route}, server)
    with served(shop) as url:
        seller = PublishedSeller(url)
        yield seller


@contextmanager
def served(app: Flask, *, port: int = 0) -> Iterator[str]:
    """Serve an application on a port of loopback, any by default, and yield its URL."""
    web = make_server("127.0.0.1", port, app, threaded=True)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{web.server_port}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


Behaviour = Callable[["ScriptedSeller", Exchange, Mapping[str, Any]], None]


def serve(seller: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
    """Settle and answer, as an honest seller does."""
    tx_hash = seller.settle(payment)
    receipt = {"success": True, "transaction": tx_hash, "network": seller.network}
    exchange.json({"report": "sunny"}, 200, ("PAYMENT-RESPONSE", encoded(receipt)))


@dataclass(slots=True)
class ScriptedSeller:
    """A seller of which every answer can be changed; `headers` are the payments that it received."""

    node: EvmNode
    upstream: MisbehavingUpstream
    terms: dict[str, Any]
    behave: Behaviour = serve
    headers: list[str] = field(default_factory=list)
    in_body: bool = False
    sending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.upstream.url

    @property
    def network(self) -> str:
        return f"eip155:{self.node.chain_id}"

    def offer(self) -> dict[str, Any]:
        """Return the only offer, to be changed."""
        found: dict[str, Any] = self.terms["accepts"][0]
        return found

    def ask_payment(self, exchange: Exchange) -> None:
        if self.in_body:
            exchange.json(self.terms, 402)
        else:
            exchange.json({}, 402, ("PAYMENT-REQUIRED", encoded(self.terms)))

    def settle(self, payment: Mapping[str, Any]) -> str:
        """Submit a payment on the chain."""
        call = SignedAuthorization.of_payload(payment["payload"]).call()
        rich = self.node.rpc("eth_accounts")[1]
        sent = {"from": rich, "to": self.node.deployment.usdc, "data": "0x" + call.hex(), "gas": hex(200_000)}
        with self.sending:  # the node gives two that arrive together one nonce
            tx_hash = str(self.node.rpc("eth_sendTransaction", sent))
        await_mined(self.node, tx_hash)
        return tx_hash

    def answer(self, exchange: Exchange) -> None:
        header = exchange.asked.header("payment-signature") or exchange.asked.header("x-payment")
        if header is None:
            self.ask_payment(exchange)
        else:
            self.headers.append(header)
            self.behave(self, exchange, decoded(header))


@contextmanager
def scripted_seller(node: EvmNode, *, price: int = CENT) -> Iterator[ScriptedSeller]:
    """Run a seller that asks for a price on a node's chain, in version 2."""
    offer = {
        "scheme": "exact",
        "network": f"eip155:{node.chain_id}",
        "amount": str(price),
        "asset": node.deployment.usdc,
        "payTo": PAYEE,
        "maxTimeoutSeconds": 60,
        "extra": {"name": node.deployment.usdc_domain_name, "version": "2"},
    }
    with misbehaving_upstream() as upstream:
        terms = {"x402Version": 2, "resource": {"url": upstream.url + "/report"}, "accepts": [offer]}
        seller = ScriptedSeller(node, upstream, terms)
        upstream.behave = seller.answer
        yield seller


def uses_of(node: EvmNode, payer: str) -> int:
    """Return how many authorizations of a payer were used."""
    query = {
        "address": node.deployment.usdc,
        "topics": AUTHORIZATION_USED_EVENT.topics(payer),
        "fromBlock": "0x0",
        "toBlock": "latest",
    }
    return len(node.rpc("eth_getLogs", query))
