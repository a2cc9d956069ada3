"""The paid resources: the routes of configured providers, then the active services of the catalog.

What a seller wrote is shortened, on one line and quoted, and named in `metadata.untrusted`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from app.catalog.browse.listing import words_of_seller
from app.catalog.models import Service
from app.catalog.services import search_index
from app.catalog.services import service as services
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.gateway.providers import operations
from app.payments.x402 import terms
from app.state import app_state

_Route = tuple[str, str, str, int]
_Accepts = Callable[[int], list[dict[str, Any]]]


def list_resources(page: PageRequest, *, is_described: bool, **wanted: str | None) -> Page[dict[str, Any]]:
    """Return the resources that accept payments with the `wanted` members of terms now; all, or those with `bazaar`."""
    found, accepts = _find(page, wanted, is_described=is_described), cache(terms.accepted_payments)
    items = [
        _service_item(each, accepts) if isinstance(each, Service) else _route_item(each, accepts)
        for each in found.items
    ]
    return Page(items, found.total, page)


def list_urls(page: PageRequest) -> list[str]:
    """Return the URLs of the resources that accept any payment now."""
    return [_url(_service_path(each) if isinstance(each, Service) else each[2]) for each in _find(page, {}).items]


def _find(page: PageRequest, wanted: Mapping[str, str | None], *, is_described: bool = False) -> Page[_Route | Service]:
    least_nanos = terms.least_price_nanos(wanted)
    if least_nanos is None:
        return Page((), 0, page)
    routes = [each for each in operations.list_paid_routes() if each[3] >= least_nanos]
    own = routes[page.offset : page.offset + page.limit]
    if is_described:
        # Services have no such extension: it names one method.
        return Page(own, len(routes), page)
    rest = PageRequest(max(1, page.limit - len(own)), max(0, page.offset - len(routes)))
    # All services have the minimum price of a payment at least.
    found = search_index.search(rest, min_nanos=0 if services.single_payment_nanos(0) >= least_nanos else least_nanos)
    others = found.items if len(own) < page.limit else ()
    return Page([*own, *others], len(routes) + found.total, page)


def _route_item(route: _Route, accepts: _Accepts) -> dict[str, Any]:
    provider, method, path, nanos = route
    text = f"{method} {path.partition(f'/{provider}')[2].lstrip('/')}".strip()
    return {
        **_item(path, accepts(nanos), clock.now()),
        "description": f"One call of {provider}: {text}. The 402 response to the request has its price.",
        "metadata": {"provider": provider, "untrusted": []},
        "extensions": terms.discovery_extension(method),
    }


def _service_item(service: Service, accepts: _Accepts) -> dict[str, Any]:
    nanos = services.single_payment_nanos(service.price_nanos)
    words = words_of_seller(f"{service.name}: {service.description}", 400)
    return {
        **_item(_service_path(service), accepts(nanos), service.updated_at),
        "description": f"A service of another agent, in the seller's words: {words}",
        "metadata": {
            "category": words_of_seller(service.category, 50),
            "untrusted": ["description", "metadata.category"],
        },
        "extensions": {},
    }


def _item(path: str, accepted: list[dict[str, Any]], at: datetime) -> dict[str, Any]:
    return {
        "resource": _url(path), "type": "http", "x402Version": 2,
        "accepts": accepted, "lastUpdated": at,
    }  # fmt: skip


def _service_path(service: Service) -> str:
    return f"/v1/x402/services/{service.id}"


def _url(path: str) -> str:
    return app_state().settings.public_url + path
