"""`python -m benchmarks.cluster`: run the cluster under traffic and faults, and check what it answered and recorded."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.config import Settings
from app.core.chains import ChainName
from app.extensions import db
from app.factory import create_app
from app.payments import treasury
from app.state import app_state
from benchmarks import chain_records, stack, thresholds
from benchmarks.cluster import asynchronous, faults, history, network, running
from benchmarks.cluster.clients import DAILY_LIMIT_USD, Clients, Operation
from benchmarks.cluster.faults import FAULTS, Injected
from benchmarks.cluster.running import Cluster
from benchmarks.soak_traffic import Traffic
from benchmarks.stack import ROOT
from benchmarks.thresholds import Threshold
from workers import sweeps

_FOLDER = "PURSER_CLUSTER_FOLDER"
_EVIDENCE = ROOT / "var" / "cluster-test"
_QUIET_SECONDS = 180.0 + faults.STEP_SECONDS
"""What a host whose clock was ahead sent is looked for that much later."""
_MOST_PRINTED = 12
_CALM_SECONDS = 15.0
_NANOS_PER_UNIT = 1000
"""USDC has six decimals, and amounts of money nine."""
_NOT_FINAL = """
    SELECT (SELECT count(*) FROM transactions WHERE status = 'pending'),
           (SELECT count(*) FROM credit_holds WHERE state = 'held'),
           (SELECT count(*) FROM payments WHERE status = 'settling'),
           (SELECT count(*) FROM topups WHERE closed_at IS NULL)
"""
_SPENT = """
    SELECT wallet_id::text, id::text, amount_units, status FROM transactions
    WHERE type = 'transfer' AND wallet_id::text = ANY(%s)
"""


def main() -> int:
    """Run it; the exit status is 1 if a promise is missed."""
    options = _options()
    if _FOLDER not in os.environ:
        with tempfile.TemporaryDirectory(prefix="purser-cluster-") as name:
            running.prepare(Path(name))
            os.environ[_FOLDER] = name
            network.enter(sys.argv[1:])
    network.enter(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder = Path(os.environ[_FOLDER])
    with contextlib.ExitStack() as stacked:
        stacked.callback(_keep_logs, folder)
        cluster, settings = stacked.enter_context(running.running_cluster(folder))
        thresholds.print_note(cluster.describe())
        promises = _measure(cluster, settings, options)
    for threshold in promises:
        thresholds.print_note(threshold.line())
    return 0 if all(threshold.is_met for threshold in promises) else 1


def _measure(cluster: Cluster, settings: Mapping[str, str], options: argparse.Namespace) -> list[Threshold]:
    outside = {**settings, **{name: f"http://127.0.0.1:{port}" for name, port in running.PORTS.items()}}
    traffic = Traffic(
        running.ROUTER_PORT, outside, master_key=settings["BOOTSTRAP_MASTER_KEY"], seed=options.seed, rate=options.rate
    )
    app = create_app(Settings(**_settings_outside(cluster, outside)))
    traffic.prepare(f"http://{network.WORLD}:{settings['UPSTREAM_PORT']}")
    with app.app_context():
        for chain, native in (("base", "ETH"), ("ethereum", "ETH"), ("solana", "SOL")):
            traffic.give(treasury.settler(ChainName(chain)), chain, native, "50")
    if options.asynchronous:
        booked = asynchronous.lose_commits(cluster, traffic, outside)
        left = _await_quiet(cluster)
        with app.app_context():
            problems = _check_records(cluster, outside, left)
            db.engine.dispose()
        _print(problems)
        return [*booked, *(thresholds.at_most(f"cluster: {kind}", len(each), 0, "") for kind, each in problems.items())]
    clients = Clients(running.ROUTER_PORT, traffic, seed=options.seed)
    clients.prepare()
    injected, failed = _run_load(cluster, traffic, clients, options)
    left = _await_quiet(cluster)
    with app.app_context():
        problems = {
            **_check_records(cluster, outside, left),
            "faults after which the cluster was not whole": failed,
            **_check_history(cluster, clients),
            "payments made twice": [str(ids) for ids in traffic.by_key.values() if len(ids) > 1],
            "unexpected answers": [*traffic.unexpected, *clients.unexpected],
        }
        db.engine.dispose()
    return _report(traffic, clients, injected, problems)


def _check_records(cluster: Cluster, settings: Mapping[str, str], left: tuple[int, ...]) -> dict[str, list[str]]:
    return {
        "not final after the end": [str(each) for each in left if each],
        "violations of audits": [*sweeps.audit(), *_failing_commands(cluster)],
        "chains and records that disagree": _disagreements(cluster, settings),
    }


def _settings_outside(cluster: Cluster, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of an application in this process, which reaches the leader by the router."""
    nowhere = {"REDIS_URL": "redis://127.0.0.1:9/0", "AUDIT_WITNESS_FILE": "off", "DATABASE_URL": cluster.leader_url}
    return stack.settings_of({**settings, **nowhere})


def _run_load(
    cluster: Cluster, traffic: Traffic, clients: Clients, options: argparse.Namespace
) -> tuple[list[Injected], list[str]]:
    stop = threading.Event()
    traffic.start()
    clients.start()
    injected: list[Injected] = []
    try:
        stop.wait(_CALM_SECONDS)
        injected = faults.inject_all(
            cluster, seed=options.seed, seconds=options.minutes * 60, only=options.only, stop=stop,
            log=thresholds.print_note,
        )  # fmt: skip
    except RuntimeError as error:
        return injected, [str(error)]
    finally:
        traffic.stop()
        clients.stop()
    return injected, []


def _await_quiet(cluster: Cluster) -> tuple[int, ...]:
    deadline = time.monotonic() + _QUIET_SECONDS
    while True:
        with cluster.connect() as connection:
            row = connection.execute(_NOT_FINAL).fetchone()
        assert row is not None
        if not any(row) or time.monotonic() > deadline:
            return tuple(row)
        time.sleep(1)


def _failing_commands(cluster: Cluster) -> list[str]:
    failed = []
    for command in (["audit", "verify"], ["doctor"]):
        done = cluster.run_on("web1", "flask", "--app", "wsgi", *command)
        if done.returncode:
            failed.append(f"{' '.join(command)}: {done.stdout}{done.stderr[-500:]}")
    return failed


def _disagreements(cluster: Cluster, settings: Mapping[str, str]) -> list[str]:
    urls = {name: settings[f"{name.value.upper()}_RPC_URL"] for name in ChainName}
    ledger = cluster.folder / "sandbox" / "faucet.sqlite"
    with cluster.connect() as connection:
        try:
            return list(chain_records.compare(connection, app_state().ports.chains, urls, ledger))
        except chain_records.MissingBlock as error:
            return [str(error)]


def _check_history(cluster: Cluster, clients: Clients) -> dict[str, list[str]]:
    wallets = sorted({payment.wallet for payment in clients.payments})
    stored, spent = {}, Counter[str]()
    with cluster.connect() as connection:
        for wallet, identifier, units, status in connection.execute(_SPENT, [wallets]):
            stored[identifier] = int(units)
            if status != "failed":
                spent[wallet] += int(units) * _NANOS_PER_UNIT
        calls = {row[0] for row in connection.execute("SELECT id::text FROM usage_logs")}
        agents = {row[0] for row in connection.execute("SELECT id::text FROM agents")}
    registers = [
        text
        for identifier, agent in clients.registers.items()
        for text in (
            *history.stale_reads(clients.writes[identifier], clients.reads[identifier]),
            *history.lost_writes(clients.writes[identifier], clients.final(agent)),
        )
    ]
    return {
        "reads that no single database could answer": registers,
        "payments that differ from their answers": list(history.wrong_payments(clients.payments, stored)),
        "limits exceeded": list(history.exceeded_limits(spent, DAILY_LIMIT_USD * 10**9)),
        "answered and lost": [
            *history.missing(clients.calls, calls, "call"),
            *history.missing(clients.registered, agents, "agent"),
        ],
    }


def _keep_logs(folder: Path) -> None:
    shutil.rmtree(_EVIDENCE, ignore_errors=True)
    _EVIDENCE.mkdir(parents=True)
    for path in (*folder.glob("*.log"), *(folder / "state").glob("*.log")):
        shutil.copy(path, _EVIDENCE)


def _report(
    traffic: Traffic, clients: Clients, injected: Sequence[Injected], problems: Mapping[str, list[str]]
) -> list[Threshold]:
    statuses = Counter[int]()
    for (_action, status), count in traffic.outcomes.items():
        statuses[status] += count
    thresholds.print_heading("Traffic")
    thresholds.print_note(", ".join(f"{count} x {status or 'broken'}" for status, count in statuses.most_common()))
    thresholds.print_note(
        f"registers: {sum(map(len, clients.writes.values()))} writes, {sum(map(len, clients.reads.values()))} reads;"
        f" {len(clients.payments)} payments of {len({each.wallet for each in clients.payments})} wallets,"
        f" {len(clients.calls)} calls, {len(clients.registered)} agents, {len(clients.operations)} probes"
    )
    thresholds.print_heading("Seconds until a request that its client repeats succeeds, by fault")
    thresholds.print_note(f"{'':45} {'times':>5} {'p50':>7} {'p99':>7} {'max':>7} {'max, of reads':>14} {'reports':>8}")
    worst: defaultdict[str, list[float]] = defaultdict(list)
    for fault in FAULTS:
        times = [each for each in injected if each.name == fault.name]
        if not times:
            continue
        writes = sorted(
            each.seconds for each in _during(fault.name, injected, clients.operations) if each.kind == "write"
        )
        reads, reports = (
            [each.seconds for each in _during(fault.name, injected, clients.operations) if each.kind == kind]
            for kind in ("read", "report")
        )
        worst[fault.name] = writes
        thresholds.print_note(
            f"{fault.name:45} {len(times):5} {_quantile(writes, 0.5):7.2f} {_quantile(writes, 0.99):7.2f}"
            f" {max(writes, default=0):7.2f} {max(reads, default=0):14.2f} {max(reports, default=0):8.2f}"
        )
    _print(problems)
    report = {
        "answers": {f"{action} {status}": count for (action, status), count in sorted(traffic.outcomes.items())},
        "faults": [[each.name, each.began, each.ended] for each in injected],
        "operations": [[each.kind, each.began, each.seconds, each.attempts] for each in clients.operations],
        "problems": problems,
    }
    (_EVIDENCE / "report.json").parent.mkdir(parents=True, exist_ok=True)
    (_EVIDENCE.parent / "cluster-report.json").write_text(json.dumps(report, indent=1))
    thresholds.print_heading("Thresholds")
    return [
        *(thresholds.at_most(f"cluster: {kind}", len(found), 0, "") for kind, found in problems.items()),
        *(
            thresholds.at_most(f"{fault.name}, p99", _quantile(worst[fault.name], 0.99), fault.limit_seconds, "s")
            for fault in FAULTS
            if fault.name in worst
        ),
    ]


def _print(problems: Mapping[str, list[str]]) -> None:
    for kind, found in problems.items():
        for problem in found[:_MOST_PRINTED]:
            thresholds.print_note(f"{kind}: {problem}")


def _during(name: str, injected: Sequence[Injected], operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations of a kind of fault: each belongs to the last fault that began before it succeeded."""
    found = []
    for each in operations:
        earlier = [fault for fault in injected if fault.began <= each.began + each.seconds]
        if earlier and earlier[-1].name == name and each.began <= earlier[-1].ended:
            found.append(each)
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="how long faults are injected (%(default)s)")
    parser.add_argument("--rate", type=float, default=8, help="mixed requests a second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all choices (%(default)s)")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only faults whose name begins so, or so (a comma between)"
    )
    parser.add_argument(
        "--asynchronous", action="store_true", help="instead lose commits by asynchronous replication, and reconcile"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
