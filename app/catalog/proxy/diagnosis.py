"""Why calls of a service can or cannot be bought, step by step, for its owner."""

from collections.abc import Iterator
from http import HTTPStatus

from app import base_urls
from app.capacity.limiter import quotas_of
from app.catalog.models import Service, ServiceStatus
from app.catalog.proxy import call
from app.catalog.services import service as services
from app.core.checks import CheckedStep
from app.db.unit_of_work import read_only_unit
from app.payments.x402 import terms
from app.ports.errors import PortError, Rejected
from app.ports.upstream import UpstreamRequest
from app.state import app_state

_LIMIT = "10 per minute"
_TIMEOUT_SECONDS = 15


def steps(service: Service) -> Iterator[CheckedStep]:
    """Yield the steps up to the first without which the others mean nothing. Raises: RateLimited, Overloaded."""
    app_state().rate_limiter.count(_LIMIT, "checked-services", service.agent_id)
    is_active = service.status == ServiceStatus.ACTIVE and not service.is_suspended
    state = "stopped by the operator" if service.is_suspended else service.status
    yield CheckedStep("listed", f"The service is {state}; active ones are listed and can be called.", ok=is_active)
    if not is_active:
        return
    try:
        url = base_urls.parse(service.base_url)
        base_urls.assert_public(url, app_state().settings)
    except ValueError as error:
        yield CheckedStep("address", f"The base URL {error}.", ok=False)
        return
    yield CheckedStep("address", "The base URL is a public one.")
    count = len(terms.accepted_payments(services.single_payment_nanos(service.price_nanos)))
    yield CheckedStep("payment", f"Signed payments of this price are accepted now on {count} chains.", ok=count > 0)
    yield _response(service, url)
    with read_only_unit() as session:
        is_specified = bool(services.specification_of(session, service.id).endpoints)
    yield CheckedStep("description", "Buyers read what it does.", ok=bool(service.description), required=False)
    yield CheckedStep("openapi_spec", "Buyers learn its paths from it.", ok=is_specified, required=False)


def _response(service: Service, url: base_urls.BaseUrl) -> CheckedStep:
    """Send a signed request to the base URL, as a call would."""
    target = url.path or "/"
    headers = call.signed_headers(services.callable_service(service.id).secret, "GET", target, b"")
    outgoing = UpstreamRequest("GET", url.origin, target, [*headers.items()], b"", timeout_seconds=_TIMEOUT_SECONDS)
    quotas = quotas_of("service", service.id, service.agent_id)
    permit = app_state().forwarding_limiter.acquire(service.agent_id, quotas)
    try:
        incoming = app_state().ports.public_upstream.send(outgoing)
        incoming.close()
    except Rejected:
        return CheckedStep("response", "The base URL must lead to an address of the public internet.", ok=False)
    except PortError as error:
        return CheckedStep("response", f"The service gave no answer: {error.reason.replace('_', ' ')}.", ok=False)
    finally:
        permit.release()
    is_served = incoming.status < HTTPStatus.INTERNAL_SERVER_ERROR
    detail = f"The base URL answers GET with {incoming.status}; a call is served with a status below 500."
    return CheckedStep("response", detail, ok=is_served)
