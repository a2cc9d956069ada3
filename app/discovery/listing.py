"""The paid resources: the routes of configured providers, then the active services of the catalog.

What a seller wrote is shortened, on one line and quoted, and named in `metadata.untrusted`.
"""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

from app.catalog.browse.listing import search_services, words_of_seller
from app.catalog.models import Service
from app.catalog.services import service as services
from app.core import clock
from app.core.pagination import Page, PageRequest
from app.gateway.providers import operations
from app.payments.x402 import terms
from app.state import app_state

_MAX_WORDS = 400
_MAX_CATEGORY = 50
_X402_VERSION = 2
_Accepts = Callable[[int], list[dict[str, Any]]]


def list_resources(
    page: PageRequest, *, scheme: str | None = None, network: str | None = None, pay_to: str | None = None
) -> Page[dict[str, Any]]:
    """Return the resources that accept such a payment now; the same ones are accepted for all of them."""
    wanted = {"scheme": scheme, "network": network, "payTo": pay_to}
    offered = terms.accepted_payments(services.single_payment_nanos(0))
    if not any(all(value in {None, each[name]} for name, value in wanted.items()) for each in offered):
        return Page((), 0, page)
    routes = list(operations.list_paid_routes())
    own = routes[page.offset : page.offset + page.limit]
    rest = PageRequest(max(1, page.limit - len(own)), max(0, page.offset - len(routes)))
    found = search_services(rest, text="", category="")
    others = found.items if len(own) < page.limit else ()
    accepts = cache(terms.accepted_payments)
    items = [*(_route_item(each, accepts) for each in own), *(_service_item(each, accepts) for each in others)]
    return Page(items, len(routes) + found.total, page)


def _route_item(route: tuple[str, str, str, int], accepts: _Accepts) -> dict[str, Any]:
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
    words = words_of_seller(f"{service.name}: {service.description}", _MAX_WORDS)
    return {
        **_item(f"/v1/x402/services/{service.id}", accepts(nanos), service.updated_at),
        "description": f"A service of another agent, in the seller's words: {words}",
        "metadata": {
            "category": words_of_seller(service.category, _MAX_CATEGORY),
            "untrusted": ["description", "metadata.category"],
        },
        "extensions": {},
    }


def _item(path: str, accepted: list[dict[str, Any]], at: datetime) -> dict[str, Any]:
    return {
        "resource": app_state().settings.public_url + path, "type": "http", "x402Version": _X402_VERSION,
        "accepts": accepted, "lastUpdated": at,
    }  # fmt: skip
