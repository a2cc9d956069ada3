"""The catalog for buyers: pages of active services, and the details of one.

`agent_summary` is plain text with everything an agent needs for its first call, by a template. The seller's text is put
on single lines and marked as the seller's words, because an agent must not mistake its instructions for the gateway's.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.catalog import statistics
from app.catalog.models import IS_ACTIVE, Service, ServiceSpecification
from app.catalog.services import service as services
from app.core import money
from app.db.unit_of_work import read_only_unit
from app.state import app_state

_MAX_CHARS = 8_000
_MAX_DESCRIPTION = 600
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


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
    """Return an active service with everything needed to call it, and what its summary says. Raises: NotFound."""
    with read_only_unit() as session:
        service = services.find(session, service_id, IS_ACTIVE)
        totals = statistics.totals(session, service.id)
        day = statistics.last_24_hours(session, [service.id])[service.id]
        specification = services.specification_of(session, service.id)
    return {
        **vars(service), "totals": totals, "last_24h": day, "openapi_spec": json.loads(specification.document),
        "endpoints": specification.endpoints, "summary": _summary(service, specification),
    }  # fmt: skip


def _summary(service: Service, specification: ServiceSpecification) -> dict[str, Any]:
    base = app_state().settings.public_url
    url = f"{base}/v1/proxy/{service.id}"
    return {
        "name": _single_line(service.name), "category": _single_line(service.category), "url": url,
        "described": words_of_seller(service.description, _MAX_DESCRIPTION),
        "price_nanos": service.price_nanos, "price": money.usd_string(service.price_nanos),
        "payer_url": f"{base}/v1/x402/services/{service.id}", "lines": [*_endpoints(specification.endpoints)],
        "example": _example(url, specification.example),
    }  # fmt: skip
