"""What commands print: JSON, or text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click


def print_result(value: Any, *, as_json: bool, columns: Sequence[str] = ()) -> None:
    """Print a response; of rows, these columns."""
    if as_json:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif isinstance(value, list):
        print_table(value, columns)
    elif isinstance(value, Mapping):
        rows = _flat(value)
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            click.echo(f"{name:<{width}}  {text}")
    else:
        click.echo(value)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if not rows:
        click.echo("None.")
        return
    shown = [columns, *([_text(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[number]) for line in shown) for number in range(len(columns))]
    for line in shown:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, each in value.items():
        if isinstance(each, Mapping):
            rows += _flat(each, f"{prefix}{name}.")
        elif each is not None and each != []:
            rows.append((prefix + name, _text(each)))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
