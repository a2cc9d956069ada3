"""The catalog for buyers: pages of active services, and the details of one.

`agent_summary` is plain text with everything an agent needs for its first call. The seller's text is put on single
lines and marked as the seller's words, because an agent must not mistake its instructions for the gateway's.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.catalog import statistics
from app.catalog.models import IS_ACTIVE, Service, ServiceSpecification
from app.catalog.services import service as services
from app.catalog.statistics import DailyUsage
from app.core import money
from app.db.unit_of_work import read_only_unit
from app.state import app_state

_MAX_CHARS = 8_000
_MAX_DESCRIPTION = 600
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def render_summary(service: Service, specification: ServiceSpecification, day: DailyUsage, *, public_url: str) -> str:
    """Return the description of a service: purpose, price, authentication, endpoints, and an example call."""
    url, payer_url = (f"{public_url}/v1/{path}/{service.id}" for path in ("proxy", "x402/services"))
    described = words_of_seller(service.description, _MAX_DESCRIPTION)
    lines = [
        f"{_single_line(service.name)} ({_single_line(service.category)})",
        f"What it does, in the seller's words: {described}" if described else "The seller has not described it.", "",
        _price(service), "Auth: send your key as X-API-Key; the seller does not get it.",
        "If the seller has given you a key of its own, send that as X-Upstream-Authorization.",
        f"URL: {url}/ followed by the endpoint's path. The seller's response is returned unchanged.",
        f"Without an account: the same calls below {payer_url}/ are paid for one by one with USDC (x402).",
        *_reliability(day), "", *_endpoints(specification.endpoints), "", "Example:",
        _example(url, specification.example),
    ]  # fmt: skip
    return "\n".join(lines)


def _price(service: Service) -> str:
    if not service.price_nanos:
        return "Price: free."
    usd = money.usd_string(service.price_nanos)
    return (
        f"Price: {usd} USD for each call with a response status below 500; other calls are free. "
        f"X-Max-Price-Usd: {usd} refuses the call if the price has risen."
    )


def _reliability(day: DailyUsage) -> Iterator[str]:
    if day.success_rate is not None:
        median = "" if day.median_latency_ms is None else f", median latency {day.median_latency_ms} ms"
        yield f"Last 24 hours: {day.success_rate * 100:.2f} % of the calls got a response{median}."


def _endpoints(endpoints: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not endpoints:
        yield "Endpoints: the seller has listed none; any method and path below the URL is forwarded."
        return
    yield f"Endpoints ({len(endpoints)}; ? marks optional parameters):"
    used = 0
    for number, endpoint in enumerate(endpoints):
        line = _endpoint(endpoint)
        used += len(line)
        if used > _MAX_CHARS:
            yield f"- and {len(endpoints) - number} more: see endpoints and openapi_spec"
            return
        yield line


def _endpoint(endpoint: Mapping[str, Any]) -> str:
    parameters = ", ".join(
        f"{_single_line(parameter['name'])}{'' if parameter['required'] else '?'} in {parameter['in']}"
        for parameter in endpoint["parameters"]
    )
    line = f"- {endpoint['method']} {_single_line(endpoint['path'])}"
    line += f" ({parameters})" if parameters else ""
    return f"{line}: {_single_line(endpoint['summary'])}" if endpoint["summary"] else line


def _example(url: str, example: Mapping[str, Any] | None) -> str:
    if example is None:
        return f'curl "{url}/" -H "X-API-Key: $KEY"'
    method, target = str(example["method"]), str(example["target"])
    parts = [f"curl -X {method} '{url}{target}'", '-H "X-API-Key: $KEY"']
    if example["body"] is not None:
        body = _single_line(str(example["body"])).replace("'", "'\\''")
        parts += ["-H 'Content-Type: application/json'", f"-d '{body}'"]
    return " ".join(parts)


def words_of_seller(text: str, limit: int) -> str:
    """Return a seller's text as one quoted line that it cannot end, or nothing if it is empty."""
    # Long texts are not read to their end: many are listed at a time.
    line = _single_line(text[: 2 * limit])[:limit]
    return json.dumps(line, ensure_ascii=False) if line else ""


def _single_line(text: str) -> str:
    """Return a text on one line, without control characters and marks that change the direction of text."""
    characters = (
        " " if unicodedata.category(letter)[0] in "CZ" else letter for letter in text if letter not in _DIRECTION_MARKS
    )
    return " ".join("".join(characters).split())


def service_detail(service_id: str) -> dict[str, Any]:
    """Return an active service with everything needed to call it. Raises: NotFound."""
    with read_only_unit() as session:
        service = services.find(session, service_id, IS_ACTIVE)
        totals = statistics.totals(session, service.id)
        day = statistics.last_24_hours(session, service.id)
        specification = services.specification_of(session, service.id)
    text = render_summary(service, specification, day, public_url=app_state().settings.public_url)
    return {
        **vars(service), "totals": totals, "last_24h": day, "openapi_spec": json.loads(specification.document),
        "endpoints": specification.endpoints, "agent_summary": text,
    }  # fmt: skip
