"""How many requests to a node, and how long, it takes to look after many pending movements at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from flask import Flask

from app.config import Settings
from app.core.chains import ChainName
from app.extensions import db
from app.factory import create_app
from app.wallets import tracking
from benchmarks import figures, proxy, stack
from benchmarks.figures import Promise
from benchmarks.proxy import Count
from benchmarks.stack import Parts
from sandbox.evm import EvmNode

_MOST_REQUESTS = 20
_PER_WALLET = 10
_RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}
_BLOCKS_BETWEEN = 3


def measure(made: Parts, *, pending: int) -> list[Promise]:
    """Carry movements from pending to beyond reorganisation in single passes, and count each pass's requests."""
    promises: list[Promise] = []
    for name in (ChainName.ETHEREUM, ChainName.BASE):
        # A node of its own, whose blocks come only when they are asked for.
        with EvmNode(name.value) as node, proxy.counting(node.url) as (url, count):
            settings = {f"{name.name}_RPC_URL": url, "LOG_LEVEL": "ERROR"}
            environment = made.migrated(f"pending_{name.value}", **settings)
            app = create_app(Settings(**stack.settings_of(environment)))
            with app.app_context():
                promises += _of_chain(made, app, node, count, pending=pending)
                db.engine.dispose()
    return promises


def _of_chain(made: Parts, app: Flask, node: EvmNode, count: Count, *, pending: int) -> list[Promise]:
    name = ChainName(node.name)
    figures.heading(f"{pending} pending movements of {-(-pending // _PER_WALLET)} wallets on {name}")
    figures.note(f"{'':44} {'requests':>8} {'calls':>6} {'seconds':>8}  settled")
    keys = _funded_wallets(app, node, -(-pending // _PER_WALLET))
    node.set_automine(False)
    try:
        _send_all(app, name, keys, pending)
        most = _pass(made, name, count, "first look, nothing mined: all are sent again")
        most = max(most, _pass(made, name, count, "second look, nothing mined"))
    finally:
        node.set_automine(True)
    node.mine(_BLOCKS_BETWEEN)
    most = max(most, _pass(made, name, count, "all mined: all are settled"))
    most = max(most, _pass(made, name, count, "settled: do their blocks still stand?"))
    return [figures.at_most(f"requests per pass over {pending} pending on {name}", most, _MOST_REQUESTS, "")]


def _pass(made: Parts, name: ChainName, count: Count, what: str) -> int:
    with made.database.connect(f"pending_{name.value}") as connection:
        connection.execute("UPDATE transactions SET next_check_at = now() WHERE next_check_at IS NOT NULL")
        # The first look repeats what was sent three seconds before; here the movements are a moment old.
        connection.execute("UPDATE signed_attempts SET sent_at = sent_at - interval '4 seconds' "
                           "WHERE seen_at_block IS NULL")  # fmt: skip
    count.reset()
    started = time.perf_counter()
    done = tracking.confirm(name)
    seconds = time.perf_counter() - started
    figures.note(f"{what:44} {count.requests:8} {count.calls.total():6} {seconds:8.2f}  {done.settled}")
    return count.requests


def _funded_wallets(app: Flask, node: EvmNode, wallets: int) -> list[tuple[str, str]]:
    """Return keys and wallet ids of agents without limits."""

    def make(_number: int) -> tuple[str, str]:
        client = app.test_client()
        made = client.post("/v1/agents/register", json={}).get_json()
        key, wallet = made["apiKey"], made["wallet"]
        path = f"/v1/wallets/{wallet['id']}/controls"
        client.put(path, json=_UNLIMITED, headers={"X-API-Key": key})
        address = wallet["addresses"][node.name]
        node.fund_eth(address, 10**18)
        node.fund_usdc(address, 10**6)
        return key, wallet["id"]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(make, range(wallets)))


def _send_all(app: Flask, name: ChainName, keys: list[tuple[str, str]], pending: int) -> None:
    body = {"chain": name.value, "to": _RECIPIENT, "amount": "0.000001", "currency": "USDC"}

    def send(number: int) -> None:
        key, wallet_id = keys[number % len(keys)]
        headers = {"X-API-Key": key, "Prefer": "respond-async"}
        answer = app.test_client().post(f"/v1/wallets/{wallet_id}/transfer", json=body, headers=headers)
        if answer.status_code != 200 or answer.get_json()["status"] != "pending":  # noqa: PLR2004 - HTTP's OK
            raise RuntimeError(f"not pending: {answer.get_data(as_text=True)}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, range(pending)))
