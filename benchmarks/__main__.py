"""`python -m benchmarks`: take the figures and say which promises hold. The exit status is 1 when one does not."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable

from benchmarks import (
    catalog,
    confirmations,
    figures,
    gateway,
    limit_checks,
    memory,
    platform,
    retention,
    scaling,
    stack,
    throughput,
)
from benchmarks.figures import Promise


def main() -> int:
    """Run what was chosen."""
    chosen = _options()
    if sys.platform != "linux":
        print("The benchmarks read /proc and need Linux.", file=sys.stderr)
        return 2
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    started = time.monotonic()
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} processors, load {load:.1f} before the start: figures of a busy machine are low."
    )
    promises: list[Promise] = []
    with stack.parts() as made:
        for name, take in _PARTS.items():
            if name in chosen.only:
                promises += take(made, quick=chosen.quick)
    figures.heading(f"Promises ({time.monotonic() - started:.0f} s)")
    for promise in promises:
        figures.note(promise.line())
    if chosen.quick:
        figures.note("(--quick is a smoke run: too short for figures to mean much)")
        return 0
    return 0 if all(promise.holds for promise in promises) else 1


def _throughput(made: stack.Parts, *, quick: bool) -> list[Promise]:
    with stack.running(made, made.migrated("throughput")) as service:
        agents = throughput.make_agents(made, service, 4 if quick else 16)
        promises = throughput.measure(
            made, service, rounds=1 if quick else 5, seconds=0.5 if quick else 2, agents=agents
        )
        if not quick:
            promises += throughput.burst(service, agents, seconds=5)
        return promises + memory.measure(service, seconds=1 if quick else 10)


def _limits(made: stack.Parts, *, quick: bool) -> list[Promise]:
    return limit_checks.measure(made, many=20_000 if quick else 1_000_000, rounds=10 if quick else 40)


def _confirmations(made: stack.Parts, *, quick: bool) -> list[Promise]:
    return confirmations.measure(made, pending=100 if quick else 1000)


def _platform(made: stack.Parts, *, quick: bool) -> list[Promise]:
    return platform.measure(made, agents=2_000 if quick else 100_000, rounds=2 if quick else 20)


def _catalog(made: stack.Parts, *, quick: bool) -> list[Promise]:
    return catalog.measure(made, many=5_000 if quick else 100_000, rounds=3 if quick else 9)


def _retention(made: stack.Parts, *, quick: bool) -> list[Promise]:
    return retention.measure(
        made, amounts=retention.FEW if quick else retention.MANY, seconds=1 if quick else 10
    )


_PARTS: dict[str, Callable[..., list[Promise]]] = {
    "throughput": _throughput,
    "limits": _limits,
    "confirmations": _confirmations,
    "platform": _platform,
    "gateway": gateway.measure,
    "catalog": _catalog,
    "scaling": scaling.measure,
    "retention": _retention,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the service on real parts: PostgreSQL, gunicorn, local chains. Takes minutes.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of under half a minute")
    parser.add_argument(
        "--only", action="append", choices=_PARTS, help="take only these figures (may be repeated)"
    )
    options = parser.parse_args()
    options.only = options.only or list(_PARTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
