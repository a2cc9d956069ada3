"""A failover that loses commits, as asynchronous replication permits, and the reconciliation that books them."""

import json
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import redis

from benchmarks import soak_traffic, stack, thresholds
from benchmarks.cluster.running import DATA, ROUTER_PORT, WEB, WORKERS, Cluster
from benchmarks.soak_traffic import Traffic
from benchmarks.stack import ROOT
from benchmarks.thresholds import Threshold

_AGENTS = 4
_TRANSFERS = 3
_FUNDS = (("base", "ETH", "1"), ("base", "USDC", "100"), ("ethereum", "ETH", "1"), ("ethereum", "USDC", "100"))
_OUTSIDE = "0x00000000000000000000000000000000C0FFEE02"
_SECONDS = 60.0


def lose_commits(cluster: Cluster, traffic: Traffic, settings: Mapping[str, str]) -> list[Threshold]:
    """Cut the leader off from its replicas, let it acknowledge transfers, and kill it; then reconcile.

    Afterwards the records must agree with the chains again, which the caller compares.
    """
    _configure(cluster, {"synchronous_mode": False})
    cluster.replica = "replica"
    agents = [_register(traffic) for _ in range(_AGENTS)]
    kept = _transfers(agents, "1")
    leader = cluster.leader()
    with cluster.network.separated(leader, [host for host in DATA if host != leader]):
        lost = _transfers(agents, "2")
        cluster.kill(leader)
    _await(lambda: cluster.leader() not in {"", leader}, what="a new leader")
    cluster.start(leader)
    waited = cluster.await_whole()
    stored = _stored(cluster)
    thresholds.print_note(
        f"{len(kept)} transfers before and {len(lost)} after the leader was cut off were answered with 200;"
        f" {len(set(lost) - stored)} of these are lost with it; whole again after {waited:.1f} s"
    )
    for host in (*WEB, *WORKERS):
        cluster.kill(host)
    _flush(cluster)
    ran = subprocess.run(  # noqa: S603 - the operator's command
        [stack.procfile_command("release")[0], "--app", "wsgi", "restored"],
        cwd=ROOT, env={**cluster.environment, **settings, "DATABASE_URL": cluster.leader_url},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for line in ran.stdout.splitlines():
        thresholds.print_note(line)
    cluster.start(*WEB, *WORKERS)
    cluster.await_whole()
    return [
        thresholds.at_most("asynchronous: answered before the cut and lost", len(set(kept) - stored), 0, ""),
        thresholds.at_least("asynchronous: answered after the cut and lost", len(set(lost) - stored), 1, ""),
        thresholds.at_most("asynchronous: exit status of `flask restored`", ran.returncode, 0, ""),
        thresholds.at_most("asynchronous: lost transfers that are not booked", len(lost) - _recovered(cluster), 0, ""),
    ]


def _register(traffic: Traffic) -> Any:
    agent = soak_traffic.send(ROUTER_PORT, "POST", "/v1/agents/register", {"name": "asynchronous"}, {}).json()
    for chain, currency, amount in _FUNDS:
        traffic.give(agent["wallet"]["addresses"][chain], chain, currency, amount)
    return agent


def _transfers(agents: list[Any], amount: str) -> list[str]:
    """Transfer from each agent on both chains; return the ids of those that were answered."""
    found = []
    for agent in agents:
        for number in range(_TRANSFERS):
            chain = ("base", "ethereum")[number % 2]
            body = {"chain": chain, "to": _OUTSIDE, "currency": "USDC", "amount": amount}
            path, headers = f"/v1/wallets/{agent['wallet']['id']}/transfer", {"X-API-Key": agent["apiKey"]}
            answer = soak_traffic.send(
                ROUTER_PORT, "POST", path, body, {**headers, "Prefer": "respond-async"}, seconds=20
            )
            if answer.status == HTTPStatus.OK:
                found.append(answer.json()["transaction_id"])
    return found


def _stored(cluster: Cluster) -> set[str]:
    with cluster.connect() as connection:
        return {row[0] for row in connection.execute("SELECT id::text FROM transactions")}


def _recovered(cluster: Cluster) -> int:
    with cluster.connect() as connection:
        row = connection.execute("SELECT count(*) FROM transactions WHERE kind = 'recovered'").fetchone()
    assert row is not None
    return int(row[0])


def _flush(cluster: Cluster) -> None:
    client = redis.Redis(
        cluster.network.addresses[cluster.redis_master()], password=cluster.environment["REDIS_PASSWORD"]
    )
    client.flushall()
    client.close()


def _configure(cluster: Cluster, change: Mapping[str, Any]) -> None:
    """Change the dynamic configuration, and wait until the leader applied it."""
    account = b64encode(f"patroni:{cluster.environment['PATRONI_PASSWORD']}".encode()).decode()
    request = urllib.request.Request(
        f"http://{cluster.network.addresses[cluster.leader()]}:8008/config",
        json.dumps(change).encode(),
        {"Authorization": f"Basic {account}", "Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 - the address of a host
    _await(lambda: _synchronous_standbys(cluster) == "", what="asynchronous replication")


def _synchronous_standbys(cluster: Cluster) -> str:
    with cluster.connect() as connection:
        row = connection.execute("SHOW synchronous_standby_names").fetchone()
    assert row is not None
    return str(row[0])


def _await(condition: Callable[[], bool], *, what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"there was no {what}")
        time.sleep(0.2)
