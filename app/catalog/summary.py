"""`agent_summary`: all that an agent needs to make its first call, in plain text.

What a seller wrote is told on single lines and named as the seller's words: an agent reads this text, and must not
take an instruction for one of ours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.catalog.services import Offer, ServiceView
from app.catalog.statistics import Day
from app.core import money

_MAX_LETTERS = 8_000
_MAX_DESCRIPTION = 600
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def write(service: ServiceView, offer: Offer, day: Day, *, public_url: str) -> str:
    """Describe a service to an agent: what it does, its price, how to sign in, each endpoint, an example call."""
    address = f"{public_url}/v1/proxy/{service.id}"
    described = _line(service.description)[:_MAX_DESCRIPTION]
    lines = [
        f"{_line(service.name)} ({_line(service.category)})",
        f'What it does, in the seller\'s words: "{described}"'
        if described
        else "The seller has not described it.",
        "",
        *_price(service),
        "Auth: send your key as X-API-Key; the seller does not get it.",
        "If the seller has given you a key of its own, send that as X-Upstream-Authorization.",
        f"Address: {address}/ followed by the endpoint's path. The seller's answer comes back as it is.",
        *_reliability(day),
        "",
        *_endpoints(offer.endpoints),
        "",
        "Example:",
        _example(address, offer.example),
    ]
    return "\n".join(lines)


def _price(service: ServiceView) -> Iterator[str]:
    usd = money.decimal_string(service.price_nanos, 9)
    if service.price_nanos:
        yield (
            f"Price: {usd} USD for each call that is answered with a status below 500; other calls cost nothing. "
            f"X-Max-Price-Usd: {usd} refuses the call should the price have risen."
        )
    else:
        yield "Price: free."


def _reliability(day: Day) -> Iterator[str]:
    if day.success_rate is not None:
        median = "" if day.median_latency_ms is None else f", median latency {day.median_latency_ms} ms"
        yield f"Last 24 hours: {day.success_rate * 100:.2f} % of the calls were answered{median}."


def _endpoints(endpoints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not endpoints:
        yield "Endpoints: the seller has listed none; any method and path below the address is forwarded."
        return
    yield f"Endpoints ({len(endpoints)}; ? marks what may be left out):"
    used = 0
    for number, endpoint in enumerate(endpoints):
        line = _endpoint(endpoint)
        used += len(line)
        if used > _MAX_LETTERS:
            yield f"- and {len(endpoints) - number} more: see endpoints and openapi_spec"
            return
        yield line


def _endpoint(endpoint: Mapping[str, Any]) -> str:
    parameters = ", ".join(
        f"{_line(parameter['name'])}{'' if parameter['required'] else '?'} in {parameter['in']}"
        for parameter in endpoint["parameters"]
    )
    line = f"- {endpoint['method']} {_line(endpoint['path'])}"
    line += f" ({parameters})" if parameters else ""
    return f"{line}: {_line(endpoint['summary'])}" if endpoint["summary"] else line


def _example(address: str, example: Mapping[str, Any] | None) -> str:
    if example is None:
        return f'curl "{address}/" -H "X-API-Key: $KEY"'
    method, target = str(example["method"]), str(example["target"])
    parts = [f"curl -X {method} '{address}{target}'", '-H "X-API-Key: $KEY"']
    if example["body"] is not None:
        body = _line(str(example["body"])).replace("'", "'\\''")
        parts += ["-H 'Content-Type: application/json'", f"-d '{body}'"]
    return " ".join(parts)


def _line(text: str) -> str:
    """Return a text on one line, without control characters and marks that change the direction of text."""
    kept = (
        " " if unicodedata.category(letter)[0] in "CZ" else letter
        for letter in text
        if letter not in _DIRECTION_MARKS
    )
    return " ".join("".join(kept).split())
