"""The paid resources: the routes of configured providers, then the active services of the catalog.

What a seller wrote is shortened, on one line and quoted, and named in `metadata.untrusted`.
"""

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


def list_resources(page: PageRequest) -> Page[dict[str, Any]]:
    routes = list(operations.list_paid_routes())
    own = routes[page.offset : page.offset + page.limit]
    rest = PageRequest(max(1, page.limit - len(own)), max(0, page.offset - len(routes)))
    found = search_services(rest, text="", category="")
    others = found.items if len(own) < page.limit else ()
    return Page([*map(_route_item, own), *map(_service_item, others)], len(routes) + found.total, page)


def has_payment(*, scheme: str | None, network: str | None, pay_to: str | None) -> bool:
    """Return whether these filters describe a payment that is accepted; it is the same for all resources."""
    wanted = {"scheme": scheme, "network": network, "payTo": pay_to}
    offered = terms.accepted_payments(services.single_payment_nanos(0))
    return any(all(value in (None, each[name]) for name, value in wanted.items()) for each in offered)


def _route_item(route: tuple[str, str, str, int]) -> dict[str, Any]:
    provider, method, path, nanos = route
    text = f"{method} {path.partition(f'/{provider}')[2].lstrip('/')}".strip()
    return {
        **_item(path, nanos, clock.now()),
        "description": f"One call of {provider}: {text}. The 402 response to the request has its price.",
        "metadata": {"provider": provider, "untrusted": []},
        "extensions": terms.discovery_extension(method),
    }


def _service_item(service: Service) -> dict[str, Any]:
    nanos = services.single_payment_nanos(service.price_nanos)
    words = words_of_seller(f"{service.name}: {service.description}", _MAX_WORDS)
    return {
        **_item(f"/v1/x402/services/{service.id}", nanos, service.updated_at),
        "description": f"A service of another agent, in the seller's words: {words}",
        "metadata": {
            "category": words_of_seller(service.category, _MAX_CATEGORY),
            "untrusted": ["description", "metadata.category"],
        },
        "extensions": {},
    }


def _item(path: str, nanos: int, at: Any) -> dict[str, Any]:
    return {
        "resource": app_state().settings.public_url + path, "type": "http", "x402Version": _X402_VERSION,
        "accepts": terms.accepted_payments(nanos), "lastUpdated": at,
    }  # fmt: skip
