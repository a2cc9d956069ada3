"""Stored figures of benchmark runs, and the tables that docs/performance.md shows of them.

`python -m benchmarks.report` prints the tables; with `--write` it replaces those of the document.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from benchmarks.rounds import Table
from benchmarks.stack import ROOT
from benchmarks.thresholds import Threshold, median

_RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
_DOCUMENT = ROOT / "docs" / "performance.md"
_BLOCK = "<!-- figures: {name} -->\n{text}<!-- end -->"
_CONNECTIONS = (1, 16, 64)


def keep_promises(promises: Sequence[Threshold]) -> None:
    """Store measured promises, in place of earlier ones of the same name."""
    _keep("promises", {each.name: asdict(each) for each in promises})
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - the developer's
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    day = datetime.now(UTC).date().isoformat()
    _keep("run", {"commit": commit, "day": day, "processors": os.cpu_count()})


def keep_table(table: Table) -> None:
    """Store the figures of loads."""
    _keep("loads", {name: {str(n): asdict(each) for n, each in row.items()} for name, row in table.items()})


def keep_profile(request: str, shares: Mapping[str, float]) -> None:
    """Store milliseconds of processor time by layer."""
    _keep("profiles", {request: dict(shares)})


def _keep(part: str, values: Mapping[str, Any]) -> None:
    stored = _stored()
    stored[part] = {**stored.get(part, {}), **values}
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps(stored, indent=1))


def _stored() -> dict[str, Any]:
    return dict(json.loads(_RESULTS.read_text())) if _RESULTS.exists() else {}


def _run(stored: Mapping[str, Any]) -> Iterable[str]:
    run = stored["run"]
    rounds = [each["others_share"] for row in stored.get("loads", {}).values() for each in row.values()]
    others = f"; other programs used {median(rounds):.0%} of the busy time" if rounds else ""
    yield f"Measured on {run['day']} at {run['commit']}, with {run['processors']} processors{others}."


def _promises(stored: Mapping[str, Any]) -> Iterable[str]:
    yield from ("| Promise | Limit | Measured | |", "|---|---:|---:|---|")
    for values in stored["promises"].values():
        each = Threshold(**values)
        sign = "at least" if each.at_least else "at most"
        limit, measured = (_number(value) for value in (each.limit, each.measured))
        yield f"| {each.name} | {sign} {limit} {each.unit} | {measured} | {'met' if each.is_met else '**missed**'} |"


def _loads(stored: Mapping[str, Any]) -> Iterable[str]:
    heads = [f"{count} connections" if count > 1 else "1 connection" for count in _CONNECTIONS]
    yield f"| Answers/s, p50 ms | {' | '.join(heads)} | Web, ms | Database, ms |"
    yield f"|---|{'---:|' * (len(heads) + 2)}"
    for name, row in stored["loads"].items():
        cells = [
            f"{_number(each['per_second'])}, {_number(each['p50_ms'])}" if (each := row.get(str(count))) else ""
            for count in _CONNECTIONS
        ]
        spent = (row.get("16") or next(iter(row.values())))["processor_ms"]
        times = [f"{spent[column]:.2f}" if column in spent else "" for column in ("web", "database")]
        yield f"| {name} | {' | '.join([*cells, *times])} |"


def _profiles(stored: Mapping[str, Any]) -> Iterable[str]:
    profiles: dict[str, dict[str, float]] = stored["profiles"]
    layers = sorted(
        {layer for found in profiles.values() for layer in found},
        key=lambda layer: -max(found.get(layer, 0.0) for found in profiles.values()),
    )
    yield f"| Processor ms | {' | '.join(profiles)} |"
    yield f"|---|{'---:|' * len(profiles)}"
    for layer in layers:
        yield f"| {layer} | {' | '.join(f'{found.get(layer, 0.0):.2f}' for found in profiles.values())} |"
    yield f"| **all** | {' | '.join(f'**{sum(found.values()):.2f}**' for found in profiles.values())} |"


def _number(value: float) -> str:
    if value >= 100:  # noqa: PLR2004 - three digits are as exact as the figures are
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


_BLOCKS: dict[str, Callable[[Mapping[str, Any]], Iterable[str]]] = {
    "run": _run, "promises": _promises, "loads": _loads, "profiles": _profiles
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print or write the tables of what is stored."""
    stored = _stored()
    document = _DOCUMENT.read_text()
    for name, lines in _BLOCKS.items():
        if name not in stored:
            continue
        block = _BLOCK.format(name=name, text="\n".join([*lines(stored), ""]))
        print(block)
        head, tail = _BLOCK.format(name=name, text="|").split("|")
        before, found, rest = document.partition(head)
        if found:
            document = before + block + rest.partition(tail)[2]
    if arguments == ["--write"]:
        _DOCUMENT.write_text(document)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
