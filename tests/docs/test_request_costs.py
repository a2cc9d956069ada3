"""What each kind of request exchanges with the database, Redis and outside servers, compared with the documented table.

`UPDATE_DOCS=1 ./test tests/docs/test_request_costs.py` replaces the table by that of this run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from sqlalchemy import event
from sqlalchemy.engine import make_url
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.x402.facilitator import EvmFacilitator
from app.adapters.redis_stores import RqQueue
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core.chains import ChainName
from app.extensions import db
from app.payments import treasury
from app.state import Application
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import CONFIRMATIONS, ether, fund
from tests.support.exchange_counts import PostgresAnswers, count_exchanges, count_sqlite, relay
from tests.support.gateway import CHAT, QUESTION, SEARCH, provider_settings
from tests.support.market import sell
from tests.support.payments import EvmPayer
from tests.support.servers import free_port, redis_server
from tests.support.upstreams import Exchange, chat_answer, chat_chunks, misbehaving_upstream

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.chain]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
_REPETITIONS = 3
_FEWEST_REQUESTS_TO_NODE = {"Call paid by x402": 3, "Transfer, confirmed": 2}
_LIMIT_PER_KEY = 60
"""So small that requests are counted one by one."""
_COLUMNS = {
    "statements": "Statements",
    "commits": "Transactions",
    "round trips": "Round trips",
    "SQLite statements": "SQLite statements",
    "SQLite commits": "SQLite transactions",
    "redis": "Redis round trips",
    "upstream": "Upstream requests",
    "node": "Requests to the node",
}
_Request = tuple[int, Callable[[], TestResponse]]


def test_each_request_costs_what_the_document_says(
    postgres_url: str, sqlite_url: str, build_app: Callable[..., Application], base_node: EvmNode
) -> None:
    measured = _measured(postgres_url, sqlite_url, build_app, base_node)
    if _table(measured) not in DOCUMENT.read_text():
        # What a busy moment adds, and what a price that is still remembered saves, is absent from one of two
        # measurements.
        again = _measured(postgres_url, sqlite_url, build_app, base_node)
        known = set(DOCUMENT.read_text().splitlines())
        for name, found in measured.items():
            either = (found, again[name], found & again[name])
            measured[name] = next((each for each in either if _row(name, each) in known), either[-1])
    text = DOCUMENT.read_text()
    present = text.partition("| Request |")[0] + _table(measured)
    if os.environ.get("UPDATE_DOCS"):
        DOCUMENT.write_text(present)
    assert text.splitlines() == present.splitlines(), (
        "if it is meant: UPDATE_DOCS=1 ./test tests/docs/test_request_costs.py"
    )


def _measured(
    postgres_url: str, sqlite_url: str, build_app: Callable[..., Application], base_node: EvmNode
) -> dict[str, Counter[str]]:
    measured: dict[str, Counter[str]] = {}
    for url in (postgres_url, sqlite_url):
        with _service(build_app, url, base_node) as (app, counts):
            for name, request in _requests(app, base_node).items():
                measured[name] = measured.get(name, Counter()) | _typical(counts, request)
    # A slow machine asks once more for the outcome of a transaction.
    for name, fewest in _FEWEST_REQUESTS_TO_NODE.items():
        measured[name]["node"] = min(measured[name]["node"], fewest)
    return measured


def _row(name: str, found: Counter[str]) -> str:
    return f"| {name} | {' | '.join(str(found[key]) for key in _COLUMNS)} |"


def _table(measured: dict[str, Counter[str]]) -> str:
    rows = [_row(name, found) for name, found in measured.items()]
    head = [f"| Request | {' | '.join(_COLUMNS.values())} |", f"|---{'|---:' * len(_COLUMNS)}|"]
    return "\n".join([*head, *rows]) + "\n"


def _typical(counts: Counter[str], request: _Request) -> Counter[str]:
    """Return the lowest counts of a repeated request, after a first one that fills caches and opens connections.

    Slowness only adds: a connection that idled is checked, a cached value has expired.
    """
    status, send = request
    samples = []
    for _ in range(1 + _REPETITIONS):
        before = counts.copy()
        answer = send()
        assert answer.status_code == status, answer.get_data(as_text=True)
        answer.get_data()
        answer.close()
        samples.append(counts - before)
    return Counter({key: min(each[key] for each in samples[1:]) for key in counts})


@contextmanager
def _service(
    build_app: Callable[..., Application], database_url: str, node: EvmNode
) -> Iterator[tuple[Application, Counter[str]]]:
    """Run the service with counting relays in front of PostgreSQL, Redis and the node, or a trace of SQLite."""
    counts: Counter[str] = Counter()

    with ExitStack() as stack:
        on_sqlite = database_url.startswith("sqlite")
        url = make_url(database_url)
        if not on_sqlite:
            port = stack.enter_context(relay(database_url, received=lambda: PostgresAnswers(counts)))
            options = {"sslmode": "disable", "gssencmode": "disable"}
            url = url.set(host="127.0.0.1", port=port).update_query_dict(options)
        redis = stack.enter_context(redis_server(port=free_port()))
        redis_port = stack.enter_context(relay(redis, sent=count_exchanges(counts, "redis")))
        # How often a receipt is polled depends on the time.
        requests = count_exchanges(counts, "node", start=b"POST", unless=b"eth_getTransactionReceipt")
        node_port = stack.enter_context(relay(node.url, sent=requests))
        upstream = stack.enter_context(misbehaving_upstream(partial(_answer, counts)))
        chain = EvmChain(
            ChainName.BASE, node.deployment, rpc_urls=[f"http://127.0.0.1:{node_port}"],
            deposit_confirmations=CONFIRMATIONS[ChainName.BASE], connect_seconds=20, read_seconds=60,
        )  # fmt: skip
        redis_url = f"redis://127.0.0.1:{redis_port}/0"
        limits = {"registration_rate_limit": "60 per minute", "keyless_rate_limit": "60 per minute"}
        app = build_app(
            url.render_as_string(hide_password=False),
            settings=provider_settings(
                upstream.url, redis_url=redis_url, rate_limit_per_key=f"{_LIMIT_PER_KEY} per hour", **limits
            ),
            chains={ChainName.BASE: chain},
            facilitators={ChainName.BASE: EvmFacilitator(chain, confirmations=CONFIRMATIONS[ChainName.BASE])},
            public_upstream=HttpUpstream(connect_seconds=Decimal(20), read_seconds=Decimal(60)),
            queue=RqQueue(redis_url),
            reused=False,
        )
        with app.app_context():
            if on_sqlite:
                trace = partial(count_sqlite, counts)
                event.listen(db.engine, "connect", lambda made, _record: made.set_trace_callback(trace))
            yield app, counts


def _answer(counts: Counter[str], exchange: Exchange) -> None:
    counts["upstream"] += 1
    if exchange.asked.method == "GET":
        exchange.json({"results": []})
    elif exchange.asked.json().get("stream"):
        exchange.start_stream()
        for frame in chat_chunks("Hello", " there"):
            exchange.chunk(frame)
        exchange.end_stream()
    else:
        exchange.json(chat_answer())


def _requests(app: Application, node: EvmNode) -> dict[str, _Request]:
    """Return the kinds of requests, in the order of the table, with the status of their answers."""
    client: FlaskClient = app.test_client()
    agent, seller, eager = (register(client) for _ in range(3))
    service = sell(seller, base_url=f"{app.state.settings.upstreams.openai_base_url}/x")
    fund(node, agent.address, eth=1, dollars=5)
    agent.unlimited()
    node.fund_eth(treasury.settler(ChainName.BASE), ether(1))
    payer = EvmPayer(node)
    terms = client.get(SEARCH)
    payments = [payer.pays(terms) for _ in range(1 + _REPETITIONS)]
    while eager.get("/v1/balance").status_code != 429:
        pass
    transfer = partial(agent.move, "0.01", "USDC")
    return {
        "Chat": (200, lambda: agent.post(CHAT, QUESTION)),
        "Chat, streamed": (200, lambda: agent.post(CHAT, {**QUESTION, "stream": True})),
        "Call with a fixed price": (200, lambda: client.get(SEARCH, headers=agent.headers())),
        "Call of a registered service": (200, lambda: agent.get(f"/v1/proxy/{service['id']}/x")),
        "Call paid by x402": (200, lambda: client.get(SEARCH, headers=payments.pop())),
        "Balance": (200, lambda: agent.get("/v1/balance")),
        "Wallet": (200, lambda: agent.get(agent.wallet_url)),
        "Ten transactions": (200, lambda: agent.get(f"{agent.wallet_url}/transactions", limit=10)),
        "Controls": (200, lambda: agent.get(f"{agent.wallet_url}/controls")),
        "Health": (200, lambda: client.get("/v1/health")),
        "Registration": (201, lambda: client.post("/v1/agents/register", json={})),
        "Transfer, answered immediately": (200, lambda: transfer(Prefer="respond-async")),
        "Transfer, confirmed": (200, transfer),
        "Chat with an unknown key: 401": (
            401,
            lambda: client.post(CHAT, json=QUESTION, headers={"X-API-Key": f"ak_{'x' * 43}"}),
        ),
        "Chat without a key: 402": (402, lambda: client.post(CHAT, json=QUESTION)),
        "Chat beyond the rate limit: 429": (429, lambda: eager.post(CHAT, QUESTION)),
    }
