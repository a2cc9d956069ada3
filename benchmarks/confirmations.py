"""Node requests and time per pass over many pending transactions."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from flask import Flask

from app.config import Settings
from app.core.chains import ChainName
from app.extensions import db
from app.factory import create_app
from app.wallets.transactions import confirmation
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold
from sandbox.evm import EvmNode
from tests.support.exchange_counts import count_exchanges, relay

_MAX_REQUESTS = 20
_REQUESTS = "requests"
_PER_WALLET = 10
_RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}
_BLOCKS_BETWEEN_PASSES = 3


def measure(infrastructure: Infrastructure, *, pending: int) -> list[Threshold]:
    """Take movements from pending to final in single passes, and count each pass's requests."""
    promises: list[Threshold] = []
    for name in (ChainName.ETHEREUM, ChainName.BASE):
        # A separate node that mines on request only.
        counts: Counter[str] = Counter()
        count = count_exchanges(counts, _REQUESTS, start=b"POST")
        with EvmNode(name.value) as node, relay(node.url, sent=count) as port:
            settings = {f"{name.name}_RPC_URL": f"http://127.0.0.1:{port}", "LOG_LEVEL": "ERROR"}
            environment = infrastructure.migrated(f"pending_{name.value}", **settings)
            app = create_app(Settings(**stack.settings_of(environment)))
            with app.app_context():
                promises += _measure_chain(infrastructure, app, node, counts, pending=pending)
                db.engine.dispose()
    return promises


def _measure_chain(
    made: Infrastructure, app: Flask, node: EvmNode, counts: Counter[str], *, pending: int
) -> list[Threshold]:
    name = ChainName(node.name)
    thresholds.print_heading(f"{pending} pending movements of {-(-pending // _PER_WALLET)} wallets on {name}")
    thresholds.print_note(f"{'':44} {'requests':>8} {'seconds':>8}  settled")
    keys = _funded_wallets(app, node, -(-pending // _PER_WALLET))
    node.set_automine(False)
    try:
        _send_all(app, name, keys, pending)
        max_requests = _run_pass(made, name, counts, "first poll, nothing mined: all are sent again")
        max_requests = max(max_requests, _run_pass(made, name, counts, "second poll, nothing mined"))
    finally:
        node.set_automine(True)
    node.mine(_BLOCKS_BETWEEN_PASSES)
    max_requests = max(max_requests, _run_pass(made, name, counts, "all mined: all are settled"))
    max_requests = max(max_requests, _run_pass(made, name, counts, "settled: blocks checked for reorgs"))
    return [thresholds.at_most(f"requests per pass over {pending} pending on {name}", max_requests, _MAX_REQUESTS, "")]


def _run_pass(made: Infrastructure, name: ChainName, counts: Counter[str], label: str) -> int:
    with made.database.connect(f"pending_{name.value}") as connection:
        connection.execute("UPDATE transactions SET next_check_at = now() WHERE next_check_at IS NOT NULL")
        # The first poll repeats what was sent three seconds before; these were sent just now.
        connection.execute("UPDATE signed_attempts SET sent_at = sent_at - interval '4 seconds' "
                           "WHERE seen_at_block IS NULL")  # fmt: skip
    before = counts[_REQUESTS]
    started = time.perf_counter()
    done = confirmation.confirm(name)
    seconds = time.perf_counter() - started
    requests = counts[_REQUESTS] - before
    thresholds.print_note(f"{label:44} {requests:8} {seconds:8.2f}  {done.settled}")
    return requests


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
