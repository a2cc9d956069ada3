"""curl lines for the documentation, made from schemas so that they cannot name fields that do not exist.

They use shell variables for what only the reader has: `$KEY`, and one per id in the path or body (`$WALLET`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# What a field is shown with whose schema has no example: wire names mean the same in every room.
_SAMPLES: Mapping[str, Any] = {
    "amount": "12.5",
    "chain": "base",
    "code": "ABCD-1234",
    "currency": "USDC",
    "daily_limit_usd": 50,
    "email": "owner@example.com",
    "name": "my-agent",
    "to": "0xRECIPIENT",
    "Idempotency-Key": "order-1001",
}
# Ids that only the reader has, by the member of a body that holds them; OpenAPI's own examples are UUIDs.
_IDS: Mapping[str, str] = {"wallet_id": "$WALLET", "walletId": "$WALLET"}
_QUOTED_VARIABLE = re.compile(r'"(\$[A-Z_]+)"')
_LONGEST_BODY_LINE = 60
_HEADERS_SHOWN = ("Idempotency-Key",)
_TAKEN_VARIABLES = frozenset({"KEY", "PATH"})
_VARIABLES = {"X-API-Key": "$KEY", "X-Master-Key": "$MASTER_KEY"}


def curl(
    method: str,
    url: str,
    *,
    keys: Sequence[str],
    headers: Iterable[str] = (),
    query: Iterable[str] = (),
    body: Mapping[str, Any] | None = None,
) -> str:
    """Return a command line, one option per line; `url` may hold `{some_id}` placeholders."""
    asked = "&".join(f"{name}={_SAMPLES.get(name, '…')}" for name in query)
    target = re.sub(r"{(\w+)}", lambda found: f"${_variable_of(found[1])}", url)
    if asked:
        target = f"{target}?{asked}"
    lines = [f'curl "{target}"' if method == "GET" else f'curl -X {method} "{target}"']
    lines += [f'-H "{name}: {_VARIABLES[name]}"' for name in keys[:1]]
    lines += [f'-H "{name}: {_SAMPLES[name]}"' for name in headers if name in _HEADERS_SHOWN]
    if body is not None:
        example = sample(body)
        text = json.dumps(example, ensure_ascii=False)
        if len(text) > _LONGEST_BODY_LINE:
            text = json.dumps(example, ensure_ascii=False, indent=2)
        text = text.replace("'", r"'\''")
        # A shell replaces nothing in single quotes: they end before the variable and begin again after it.
        text = _QUOTED_VARIABLE.sub(lambda found: f"\"'{found[0]}'\"", text)
        lines += ['-H "Content-Type: application/json"', f"-d '{text}'"]
    return " \\\n  ".join(lines)


def _variable_of(parameter: str) -> str:
    """Return the shell variable for an id of a path: never one that means something else already."""
    short = parameter.removesuffix("_id").upper()
    if short in _TAKEN_VARIABLES:
        return parameter.upper() if parameter.upper() != short else f"UPSTREAM_{short}"
    return short


def sample(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example body: the required members, and those optional ones that have an example."""
    required = schema.get("required", ())
    members: Mapping[str, Any] = schema.get("properties", {})
    chosen = {
        name: _value(name, member)
        for name, member in members.items()
        if name in required or "example" in member or "examples" in member
    }
    if not chosen and members:
        name = next((name for name in members if name in _SAMPLES), next(iter(members)))
        chosen = {name: _value(name, members[name])}
    return chosen


def _value(name: str, member: Mapping[str, Any]) -> Any:
    if name in _IDS:
        return _IDS[name]
    if "example" in member:
        return member["example"]
    if member.get("examples"):
        return member["examples"][0]
    if name in _SAMPLES:
        return _SAMPLES[name]
    if member.get("enum"):
        return member["enum"][0]
    kind = member.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    return {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}.get(kind, "…")
