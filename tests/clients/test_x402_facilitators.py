"""Published facilitators of sellers, which verify and settle what a wallet here pays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask

from app.adapters.solana.chain import SolanaChain
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import ChainName
from solana_node import SolanaNode
from tests.support import compatibility
from tests.support.agents import register
from tests.support.published import answering_python
from tests.support.sellers import CENT, ScriptedSeller
from tests.support.solana import CappedClock, fund_solana
from tests.support.solana_sellers import MAINNET, SolanaSeller, solana_seller
from tests.support.upstreams import Exchange

pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]
# The facilitator's process may start slower than a blockhash expires.
_SLOT_MS, _MOST_SECONDS = 400, 3.2


@pytest.fixture(scope="module")
def facilitator() -> Iterator[Callable[..., Any]]:
    with answering_python("solana_facilitator.py", requirements="x402-solana.txt") as ask:
        yield ask


@pytest.mark.parametrize(("version", "memo"), [(2, None), (2, "order 5"), (1, None)])
def test_the_python_facilitator_settles_a_payment_on_solana(
    build_app: Callable[..., Flask], sqlite_url: str, facilitator: Callable[..., Any], version: int, memo: str | None
) -> None:
    results: list[Mapping[str, Any]] = []

    def settle(shop: ScriptedSeller, exchange: Exchange, _payment: Mapping[str, Any]) -> None:
        assert isinstance(shop, SolanaSeller)
        arguments = (str(shop.sponsor), shop.cluster.url, shop.headers[-1], json.dumps(shop.offer()))
        results.append(facilitator(*arguments))
        exchange.json({"report": "sunny"})

    with (
        SolanaNode(slot_ms=_SLOT_MS, genesis_hash=MAINNET.genesis_hash, now=CappedClock(_MOST_SECONDS)) as node,
        solana_seller(node, network=f"solana:{(MAINNET.genesis_hash or '')[:32]}") as seller,
    ):
        node.advance(100)
        app = build_app(
            sqlite_url,
            settings={"allow_private_upstreams": True},
            chains={ChainName.SOLANA: SolanaChain(MAINNET, rpc_urls=[node.url], read_seconds=60)},
            public_upstream=HttpUpstream(connect_seconds=5, read_seconds=300),
        )
        seller.behave = settle
        if memo is not None:
            seller.offer()["extra"]["memo"] = memo
        if version == 1:
            offer = seller.offer()
            offer |= {"network": "solana", "maxAmountRequired": offer.pop("amount"), "resource": seller.url}
            seller.terms, seller.in_body = {"x402Version": 1, "accepts": [offer]}, True
        with app.app_context():
            agent = register(app.test_client())
            fund_solana(node, agent.solana_address, sol=0, dollars=1)
            body = {"url": seller.url + "/report", "max_amount_usd": 0.05}
            found = agent.post(f"{agent.wallet_url}/x402/fetch", body).get_json()
    [result] = results
    assert (result["verified"], result["settled"]) == (True, True), result
    assert (found["status"], found["payment"]["state"]) == (200, "paid"), found
    assert found["payment"]["protocol"] == f"x402/{version}"
    assert (found["payment"]["tx_hash"], found["payment"]["amount"]) == (result["transaction"], f"{CENT / 10**6}")
    compatibility.check("PyPI", "x402[svm]", result["version"], ["settle on Solana", "settle on Solana (version 1)"])
