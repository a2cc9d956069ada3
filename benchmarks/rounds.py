"""Loads measured in alternating rounds: rates, latencies, and processor time per request of every process involved."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import load_generator, thresholds
from benchmarks.load_generator import Request, Result

_TICK = 0.01
_OWN = "own"
_WARM_UP_SECONDS = 1.0
Plans = Sequence[Sequence[Request]]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to one server: `plans` returns what each of a number of connections repeats.

    `processes` are the roots of the process trees that are measured, by column.
    """

    name: str
    port: int
    plans: Callable[[int], Plans]
    processes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of the rounds of a load. Times are in milliseconds; `processor_ms` is per answered request.

    `alone_per_second` estimates the rate on a machine without other programs.
    """

    per_second: float
    alone_per_second: float
    p50_ms: float
    p99_ms: float
    processor_ms: Mapping[str, float]
    others_share: float
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Round:
    result: Result
    processor_ms: Mapping[str, float]
    own_share: float


COLUMNS = ("web", "database", "node", "load")
Table = dict[str, dict[int, Figures]]


def measure(loads: Sequence[Load], *, connections: Sequence[int], rounds: int, seconds: float) -> Table:
    """Run all loads in alternating rounds, so that other programs on the machine affect all of them alike."""
    table: Table = {load.name: {} for load in loads}
    for load in loads:
        _run(load, max(connections), _WARM_UP_SECONDS)
    columns = ("answers/s", "alone/s", "p50 ms", "p99 ms", *(f"{name} ms" for name in COLUMNS), "others")
    thresholds.print_note(f"{'':40} {' '.join(f'{name:>11}' for name in columns)}  failures")
    for count in connections:
        samples: dict[str, list[_Round]] = {load.name: [] for load in loads}
        for _ in range(rounds):
            for load in loads:
                samples[load.name].append(_run(load, count, seconds))
        for name, found in samples.items():
            table[name][count] = figures = _medians(found)
            _print(f"{count:3} connections, {name}", figures)
    return table


def _run(load: Load, count: int, seconds: float) -> _Round:
    plans, roots = load.plans(count), {**load.processes, _OWN: os.getpid()}
    result = load_generator.run(load.port, plans, seconds=seconds, measured=roots)
    spent = dict(result.processor_seconds)
    share = min(1.0, max(_TICK, spent.pop(_OWN)) / max(_TICK, spent.pop("machine")))
    return _Round(result, {name: used * 1000 / max(1, result.answered) for name, used in spent.items()}, share)


def _medians(rounds: Sequence[_Round]) -> Figures:
    def median(value: Callable[[_Round], float]) -> float:
        return thresholds.median([value(each) for each in rounds])

    failures: Counter[str] = Counter()
    for each in rounds:
        failures.update(each.result.failures)
    names = rounds[0].processor_ms
    return Figures(
        per_second=median(lambda each: each.result.per_second),
        alone_per_second=median(lambda each: each.result.per_second / each.own_share),
        p50_ms=median(lambda each: each.result.p50_ms),
        p99_ms=median(lambda each: each.result.p99_ms),
        processor_ms={name: thresholds.median([each.processor_ms[name] for each in rounds]) for name in names},
        others_share=median(lambda each: 1 - each.own_share),
        failures=dict(failures),
    )


def _print(name: str, found: Figures) -> None:
    spent = [
        f"{found.processor_ms[column]:11.2f}" if column in found.processor_ms else f"{'':11}" for column in COLUMNS
    ]
    failed = ", ".join(f"{count} x {kind}" for kind, count in found.failures.items()) or "none"
    thresholds.print_note(
        f"{name:40} {found.per_second:11.0f} {found.alone_per_second:11.0f} {found.p50_ms:11.1f} {found.p99_ms:11.1f} "
        f"{' '.join(spent)} {found.others_share:11.0%}  {failed}"
    )
