"""`python -m benchmarks`: runs the benchmarks and checks their thresholds. The exit status is 1 if one is missed."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks import (
    budgets,
    catalog,
    confirmations,
    events,
    gateway,
    hostile_bodies,
    hot_rows,
    idle,
    limit_checks,
    owner_pages,
    platform,
    report,
    rpc,
    scaling,
    signer,
    small_hosts,
    soak,
    stack,
    thresholds,
    throughput,
)
from benchmarks.thresholds import Threshold


def main() -> int:
    """Run the chosen benchmarks."""
    chosen = _options()
    if sys.platform != "linux":
        print("The benchmarks read /proc and need Linux.", file=sys.stderr)
        return 2
    # On SIGTERM the processes that were started are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    started = time.monotonic()
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.1f} before the start: figures of a busy machine are low.")
    promises: list[Threshold] = []
    with stack.start_infrastructure() as infrastructure:
        for name, run_part in {**_ALL_PARTS, "soak": _soak_part(chosen)}.items():
            if name in chosen.only:
                promises += run_part(infrastructure, quick=chosen.quick)
    thresholds.print_heading(f"Thresholds ({time.monotonic() - started:.0f} s)")
    for threshold in promises:
        thresholds.print_note(threshold.line())
    if chosen.quick:
        thresholds.print_note("(--quick is a smoke run; its figures mean little)")
        return 0
    report.keep_promises(promises)
    return 0 if all(threshold.is_met for threshold in promises) else 1


def _throughput(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    with stack.running_service(made, made.migrated("throughput")) as service:
        agents = throughput.make_agents(made, service, 4 if quick else 16)
        promises = throughput.measure(
            made, service, rounds=1 if quick else 3, seconds=0.5 if quick else 2, agents=agents
        )
        if not quick:
            promises += throughput.burst(service, agents, seconds=3)
        return promises + throughput.memory(service)


def _limits(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    return limit_checks.measure(made, many=20_000 if quick else 1_000_000, rounds=10 if quick else 40)


def _confirmations(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    return confirmations.measure(made, pending=100 if quick else 1000)


def _events(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    return [
        *events.measure(made, seconds=5 if quick else 60),
        *events.measure_hostile(made, seconds=10 if quick else 60),
    ]


def _platform(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    return platform.measure(made, agents=2_000 if quick else 100_000, rounds=2 if quick else 20)


def _catalog(made: stack.Infrastructure, *, quick: bool) -> list[Threshold]:
    return catalog.measure(made, service_count=5_000 if quick else 100_000, rounds=3 if quick else 9)


def _soak_part(chosen: argparse.Namespace) -> Callable[..., list[Threshold]]:
    return partial(soak.measure, minutes=chosen.soak_minutes, rate=chosen.soak_rate, seed=chosen.seed)


_PARTS: dict[str, Callable[..., list[Threshold]]] = {
    "gateway": gateway.measure,
    "throughput": _throughput,
    "limits": _limits,
    "confirmations": _confirmations,
    "events": _events,
}
_LONG_PARTS: dict[str, Callable[..., list[Threshold]]] = {
    "budgets": budgets.measure,
    "platform": _platform,
    "catalog": _catalog,
    "hostile_bodies": hostile_bodies.measure,
    "hot_rows": hot_rows.measure,
    "idle": idle.measure,
    "owner_pages": owner_pages.measure,
    "rpc": rpc.measure,
    "scaling": scaling.measure,
    "signer": signer.measure,
    "small_hosts": small_hosts.measure,
}
_ALL_PARTS = _PARTS | _LONG_PARTS


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the service on real parts: PostgreSQL, gunicorn, local chains.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute; stores nothing")
    parser.add_argument(
        "--only",
        action="append",
        choices=[*_ALL_PARTS, "soak"],
        help=f"these parts (may be repeated); by default {', '.join(_PARTS)}, which take ten minutes",
    )
    parser.add_argument("--soak-minutes", type=float, default=60, help="how long the soak lasts (%(default)s)")
    parser.add_argument("--soak-rate", type=float, default=25, help="its requests per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the soak's choices (%(default)s)")
    options = parser.parse_args()
    options.only = options.only or list(_PARTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
