"""`/v1/services`: a seller's own services. Others' are not there (404); a gateway-only key has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flask import Response, request

from app.catalog import listing, schemas, services
from app.catalog.listing import OwnerDetail, Statistics
from app.catalog.services import Registered, ServiceView
from app.core.pagination import Page
from app.errors import (
    IdempotencyConflict,
    InvalidInput,
    InvalidSpec,
    LimitReached,
    NotFound,
    Overloaded,
    Unauthorized,
)
from app.identity import guards
from app.ports import provider
from app.ports.specifications import MAX_BYTES, MAX_DEPTH
from app.web import idempotency
from app.web.blueprint import Blueprint
from app.web.idempotency import idempotent
from app.web.parsing import StrictParser

# A document as a text inside JSON needs up to six bytes for one of its own; the reader has the last word.
_MAX_BODY_BYTES = 3 * MAX_BYTES
_IDEMPOTENCY_NOTE = (
    "Repeating a request with the same key answers with the first answer and registers nothing again."
)


class _DeepParser(StrictParser):
    """Lets documents through that are deeper than other bodies; the reader of documents says how deep exactly."""

    MAX_DEPTH = MAX_DEPTH + 8


class _ServicesBlueprint(Blueprint):
    ARGUMENTS_PARSER = _DeepParser()


blp = _ServicesBlueprint(
    "services",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/services",
    description="Services that the caller offers to others in the catalog.",
)


@dataclass(frozen=True, slots=True)
class _Answer:
    service: ServiceView
    secret: str = field(repr=False)
    proxy_url: str


def _told(registered: Registered) -> _Answer:
    url = f"{provider.settings().public_url}/v1/proxy/{registered.service.id}"
    return _Answer(registered.service, registered.secret, url)


def _rebuild(service_id: str) -> tuple[int, Any]:
    return 201, schemas.RegisteredService().dump(_told(services.registered(service_id)))


@blp.before_request
def _find_service() -> None:
    """Replace the id in the path by the caller's service, before the body is parsed: 401 and 404 win over 400."""
    request.max_content_length = _MAX_BODY_BYTES
    arguments = request.view_args
    if request.method == "POST":
        guards.require_agent()
    if arguments and "service_id" in arguments:
        arguments["service"] = services.owned(arguments.pop("service_id"), agent_id=guards.caller().agent_id)


@blp.after_request
def _never_store(response: Response) -> Response:
    """Keep secrets out of caches on the way."""
    response.headers["Cache-Control"] = "no-store"
    return response


@blp.get("")
@blp.arguments(schemas.ServiceQuery, location="query")
@blp.response(200, schemas.OwnedPage)
@blp.raises(Unauthorized)
def list_services(query: dict[str, Any]) -> Page[ServiceView]:
    """List the caller's services, oldest first; retired ones are gone."""
    return services.list_of(guards.caller().agent_id, query["page"])


@blp.post("")
@idempotent(owner=guards.require_agent, rebuild=_rebuild)
@blp.arguments(schemas.NewServiceBody)
@blp.response(201, schemas.RegisteredService)
@blp.raises(Unauthorized, InvalidSpec, LimitReached, IdempotencyConflict, Overloaded)
@blp.header(idempotency.HEADER, _IDEMPOTENCY_NOTE)
def register_service(body: dict[str, Any]) -> _Answer:
    """Register a service. It is in the catalog at once; the answer holds the secret that signs its calls."""
    document = body.pop("openapi_spec")
    return _told(services.register(guards.require_agent(), body, document=document))


@blp.get("/<string:service_id>")
@blp.response(200, schemas.OwnedService)
@blp.raises(Unauthorized, NotFound)
def get_service(service: ServiceView) -> OwnerDetail:
    """Read one's own service."""
    return listing.for_owner(service)


@blp.put("/<string:service_id>")
@blp.arguments(schemas.ServiceChanges)
@blp.response(200, schemas.UpdatedService)
@blp.raises(Unauthorized, NotFound, InvalidSpec, Overloaded)
def update_service(body: dict[str, Any], service: ServiceView) -> dict[str, Any]:
    """Change a service; what is left out keeps its value. Paused, it leaves the catalog until it is active again."""
    if not body:
        raise InvalidInput(
            "There is nothing to change: send at least one field of the service.",
            details={"fields": {"body": ["has no field to change"]}},
        )
    replaces_document = "openapi_spec" in body
    document = body.pop("openapi_spec", None)
    services.change(
        service.id,
        agent_id=service.agent_id,
        values=body,
        document=document,
        replaces_document=replaces_document,
    )
    return {"id": service.id, "updated": True}


@blp.delete("/<string:service_id>")
@blp.response(200, schemas.RetiredService)
@blp.raises(Unauthorized, NotFound)
def retire_service(service: ServiceView) -> dict[str, Any]:
    """Retire a service for good: it leaves the catalog, and its subscriptions end. Its earnings stay counted."""
    services.retire(service.id, agent_id=service.agent_id)
    return {"id": service.id, "retired": True}


@blp.get("/<string:service_id>/stats")
@blp.response(200, schemas.StatisticsShape)
@blp.raises(Unauthorized, NotFound)
def get_service_stats(service: ServiceView) -> Statistics:
    """Read how a service is doing: calls, revenue, subscribers, the last 24 hours, who calls most."""
    return listing.statistics_of(service)
