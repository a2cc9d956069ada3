"""Payments of the scheme `upto` where they are not accepted, next to a key, by MCP, and beside a running stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ETH, SOL, ChainName
from app.db.unit_of_work import read_only_unit
from app.events.models import Event
from app.payments import treasury
from app.usage import retention as usage_retention
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.api.test_payments_metered import BASE, BODY, COST, PRICE, answers, chat, open_shop, states, work, work_until
from tests.api.test_payments_signed import fund_settlement, reason, received
from tests.api.test_upto_attacks import assert_all_agree
from tests.support import mcp
from tests.support.agents import register
from tests.support.chains import ether
from tests.support.evm import chain_at, proxy, refuse
from tests.support.gateway import CHAT
from tests.support.payments import Shop, UptoPayer, decoded, shop
from tests.support.solana import fund_solana, solana_chain
from tests.support.upstreams import Exchange, chat_chunks

__all__ = ["open_shop"]
pytestmark = pytest.mark.chain
MAX_HEADER = 8_000
"""Bytes: below the limits of usual clients and proxies for one header."""


def test_next_to_a_key_it_pays_only_for_what_its_credits_do_not(open_shop: Shop, base_node: EvmNode) -> None:
    agent = register(open_shop.app.test_client())
    headers = UptoPayer(base_node).metered(chat(open_shop)) | {"X-API-Key": agent.key}
    answer = chat(open_shop, headers)
    assert (answer.status_code, "PAYMENT-RESPONSE" in answer.headers) == (200, False)
    assert (agent.get("/v1/balance").get_json()["total_spent"] > 0, received(open_shop, BASE)) == (True, 0)
    assert open_shop.claims() == set()
    spent = agent.get("/v1/balance").get_json()
    answer = chat(open_shop, headers | {"X-API-Key": "no key"})
    assert decoded(answer.headers["PAYMENT-RESPONSE"])["amount"] == str(COST)
    assert (agent.get("/v1/balance").get_json(), received(open_shop, BASE)) == (spent, COST)
    assert_all_agree()


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses", "embeddings"])
def test_model_endpoints_ask_for_a_key_and_use_no_payment(open_shop: Shop, base_node: EvmNode, path: str) -> None:
    headers = UptoPayer(base_node).metered(chat(open_shop))
    body = {**BODY, "model": "openai/gpt-5"}
    answer = open_shop.app.test_client().post(f"/v1/{path}", json=body, headers=headers)
    assert (answer.status_code, open_shop.claims(), open_shop.served()) == (401, set(), 0)


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_other_methods_of_a_route_use_no_payment(open_shop: Shop, base_node: EvmNode, method: str) -> None:
    headers = UptoPayer(base_node).metered(chat(open_shop))
    answer = open_shop.app.test_client().open(CHAT, method=method, headers=headers)
    assert 400 <= answer.status_code < 500
    assert (open_shop.claims(), open_shop.served(), open_shop.payments()) == (set(), 0, [])


def test_the_tool_of_mcp_is_paid_for_what_it_cost(open_shop: Shop, base_node: EvmNode) -> None:
    client = open_shop.app.test_client()
    wanted: dict[str, Any] = {
        "service": "openai",
        "path": "chat/completions",
        "method": "POST",
        "body": json.dumps(BODY),
    }
    required = mcp.call(client, "call_service", **wanted)
    [terms] = [each for each in required["structuredContent"]["accepts"] if each["scheme"] == "upto"]
    headers = UptoPayer(base_node).maximum(terms, with_allowance=True, units=int(terms["amount"]))
    payment = {"x402/payment": decoded(headers["PAYMENT-SIGNATURE"])}
    paid = mcp.call(client, "call_service", meta=payment, **wanted)
    assert paid["isError"] is False, paid
    settled = paid["_meta"]["x402/payment-response"]
    assert (settled["success"], settled["amount"]) == (True, str(COST))
    again = mcp.call(client, "call_service", meta=payment, **wanted)
    assert again["structuredContent"]["code"] == "PAYMENT_ALREADY_USED"
    search: dict[str, Any] = {"service": "brave", "path": "web/search?q=agents"}
    other = mcp.call(client, "call_service", meta=payment, **search)
    assert (other["isError"], open_shop.served()) == (True, 1)
    assert received(open_shop, BASE) == COST


def test_the_terms_fit_in_a_header_also_with_signed_offers_on_all_chains(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode,
    base_node: EvmNode, solana_node: SolanaNode,
) -> None:  # fmt: skip
    everywhere: dict[ChainName, Any] = {**chains, ChainName.SOLANA: solana_chain(solana_node)}
    prices = {ETH: 30 * 10**9, SOL: 10**9}
    with shop(build_app, sqlite_url, everywhere, prices=prices, x402_upto_usd_per_payer=1_000) as made:
        fund_solana(solana_node, made.settler(ChainName.SOLANA), sol=1)
        fund_solana(solana_node, treasury.recipient(ChainName.SOLANA), sol=0, dollars=0.000001)
        ethereum_node.fund_eth(made.settler(ChainName.ETHEREUM), ether(1))
        fund_settlement(made, base_node)
        path = f"/v1/gateway/gemini/v1beta/models/{'g' * 400}:generateContent"
        wanted = {"contents": [{"parts": [{"text": "Hi"}]}]}
        found = [chat(made, max_tokens=100_000), made.app.test_client().post(path, json=wanted)]
        headers = [answer.headers["PAYMENT-REQUIRED"] for answer in found]
        assert [len(decoded(each)["accepts"]) for each in headers] == [5, 5]
        assert ["offer-receipt" in decoded(each)["extensions"] for each in headers] == [True, False]
        assert max(map(len, headers)) < MAX_HEADER


def test_workers_leave_a_stream_alone_until_it_has_ended(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.start_stream()
        first, *others = chat_chunks("Hel", "lo", tokens_in=10, tokens_out=5)
        exchange.chunk(first)
        exchange.wait_for("end")
        for frame in others:
            exchange.chunk(frame)
        exchange.end_stream()

    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        made.upstream.behave = behave
        headers = UptoPayer(base_node).metered(chat(made, stream=True))

        def stream() -> bytes:
            with made.app.app_context():
                return chat(made, headers, stream=True).get_data()

        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(stream)
            made.upstream.await_asked()
            for seconds in (0, 61):
                work(after=seconds)
                assert states(made) == [("authorized", PRICE)]
            assert reason(chat(made, headers, stream=True))[0] == "PAYMENT_ALREADY_USED"
            made.upstream.open("end")
            assert b"Hel" in call.result()
        work_until(made, "served", COST)
        assert (received(made, BASE), made.served()) == (COST, 1)
        assert_all_agree()


def test_a_submission_that_the_network_did_not_take_is_never_reported_as_paid(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    waits: dict[str, Any] = {"confirmation_wait_seconds": "0.5"}
    with (
        proxy(base_node.url) as front,
        shop(build_app, sqlite_url, {BASE: chain_at(base_node, front.url)}, **waits) as made,
    ):
        fund_settlement(made, base_node)
        headers = UptoPayer(base_node).metered(chat(made))

        def behave(exchange: Exchange) -> None:
            front.after = refuse("eth_sendRawTransaction", "internal error")
            answers(exchange)

        made.upstream.behave = behave
        answer = chat(made, headers)
        settled = decoded(answer.headers["PAYMENT-RESPONSE"])
        assert answer.status_code == 200
        assert settled["success"] == (received(made, BASE) == COST)
        front.after = lambda _calls, replies: replies
        work_until(made, "served", COST)
        assert received(made, BASE) == COST


def test_what_old_payments_leave_adds_up_and_tells_operators_only_of_what_was_paid(
    open_shop: Shop, base_node: EvmNode
) -> None:
    headers = UptoPayer(base_node).metered(chat(open_shop))
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": {"message": "no"}}, 400)
    for _ in range(3):
        assert chat(open_shop, headers).status_code == 400
    open_shop.upstream.behave = answers
    assert chat(open_shop, headers).status_code == 200
    assert usage_retention.prune(clock.now() + timedelta(days=1)) > 0
    assert_all_agree()
    assert sorted(states(open_shop)) == [("served", COST), *[("void", PRICE)] * 3]
    with read_only_unit() as session:
        events = session.scalars(select(Event.type).where(Event.type.startswith("payment."))).all()
    assert events == ["payment.received"]
