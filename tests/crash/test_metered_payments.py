"""Kills of the web process between the end of a stream and the settlement of its payment: workers settle it, once."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.core import clock
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import treasury
from app.payments.models import Payment
from app.usage import service as usage
from app.usage.models import UsageLog
from sandbox.evm import EvmNode
from tests.support.chains import evm_chain
from tests.support.evm import Calls, asks, proxy
from tests.support.gateway import CHAT, QUESTION, provider_settings
from tests.support.payments import UptoPayer, decoded, facilitator_of
from tests.support.services import WebService, web_service
from tests.support.upstreams import Exchange, chat_chunks, misbehaving_upstream
from tests.support.waiting import wait_until
from workers import confirmations, sweeps

pytestmark = [pytest.mark.chain, pytest.mark.timeout(600)]
BASE = ChainName.BASE
BODY = {**QUESTION, "stream": True}
COST = 63
"""Units of USDC that ten tokens of input and five of output cost, rounded up."""


@pytest.fixture(scope="module")
def node() -> Iterator[EvmNode]:
    with EvmNode("base", network_ids="mainnet", block_time=1) as made:
        yield made


def read_to_the_end(service: WebService, headers: dict[str, str], on_end: Callable[[], object]) -> None:
    """Read a stream to its last event, as a client that gets all that it asked for."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=90)
    connection.request("POST", CHAT, json.dumps(BODY), {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    while b"[DONE]" not in answer.readline():
        pass
    on_end()
    with suppress(OSError, http.client.HTTPException):
        answer.read()
    connection.close()


def work(app: Flask, seconds: float) -> None:
    with app.app_context(), time_machine.travel(clock.now() + timedelta(seconds=seconds), tick=True):
        usage.charge_lapsed()
        confirmations.confirm(BASE.value)


def stream_until_killed(database_url: str, node: EvmNode, killed_before: str) -> None:
    """Pay for a stream of a web process that is killed at a point between its last event and its payment."""
    payer, ended = UptoPayer(node), [False]
    with proxy(node.url) as front, misbehaving_upstream() as upstream:
        urls = {"ethereum_rpc_url": "http://127.0.0.1:1", "solana_rpc_url": "http://127.0.0.1:1"}
        settings = {"network": "mainnet", "base_rpc_url": front.url, **urls, **provider_settings(upstream.url)}
        with web_service(database_url, settings, workers=1, threads=20) as service:

            def kill(calls: Calls, answer: Any, *, method: str) -> Any:
                if ended[0] and asks(calls, method) and service.process.poll() is None:
                    service.kill()
                return answer

            def behave(exchange: Exchange) -> None:
                exchange.start_stream()
                for frame in chat_chunks("Hel", "lo", tokens_in=10, tokens_out=5):
                    exchange.chunk(frame)
                exchange.wait_for("read")
                if killed_before == "end of the stream":
                    service.kill()
                ended[0] = True
                exchange.end_stream()

            upstream.behave = behave
            if killed_before == "its answer":
                front.after = partial(kill, method="eth_sendRawTransaction")
            else:
                front.before = lambda calls: kill(calls, None, method=killed_before)
            status, head, _ = service.ask("POST", CHAT, BODY)
            assert status == 402
            accepts = decoded(head["PAYMENT-REQUIRED"])["accepts"]
            [terms] = [each for each in accepts if each["scheme"] == "upto"]
            headers = payer.maximum(terms, with_allowance=True, units=int(terms["amount"]))
            read_to_the_end(service, headers, lambda: upstream.open("read"))
            wait_until(lambda: service.process.poll() is not None, what="the end of the killed process")
            assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("database_url", "killed_before"),
    [("postgres", point) for point in ("end of the stream", "eth_sendRawTransaction", "its answer")],
    indirect=["database_url"],
)
def test_a_stream_of_a_killed_process_is_paid_for_once(
    database_url: str, build_app: Callable[..., Flask], node: EvmNode, killed_before: str
) -> None:
    chain = evm_chain(node)
    parts = {"chains": {BASE: chain}, "facilitators": {BASE: facilitator_of(chain)}}
    app = build_app(database_url, settings={"network": "mainnet"}, **parts)
    with app.app_context():
        node.fund_eth(treasury.settler(BASE), 10**18)
        recipient = treasury.recipient(BASE)
    stream_until_killed(database_url, node, killed_before)

    def is_paid() -> bool:
        for seconds in (1_200, 1_300, 1_400):
            work(app, seconds)
        with app.app_context(), read_only_unit() as session:
            return list(session.scalars(select(Payment.status))) == ["served"]

    wait_until(is_paid, interval=1, what="the payment of the stream")
    with app.app_context(), read_only_unit() as session:
        [nanos] = session.scalars(select(UsageLog.cost_nanos))
    taken = chain.balances(recipient).of(USDC).units
    assert taken == -(-nanos // 1_000)
    assert (taken == COST) == (killed_before != "end of the stream")
    with app.app_context():
        assert sweeps.audit() == []
