"""`/v1/services`: a seller's own services; those of others return 404. A gateway-only key has none."""

from typing import Any

from flask import request

from app.catalog import schemas
from app.catalog.models import Service
from app.catalog.services import service as services
from app.core.pagination import Page
from app.core.strict_json import MAX_VALUES
from app.db.tables import page_of
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidSpec, LimitReached, Overloaded
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.ports.specifications import MAX_BYTES, MAX_DEPTH
from app.web.blueprint import Blueprint
from app.web.request_bodies import StrictParser
from app.web.schemas import PageQuery, assert_any_field

# A document inside a JSON string needs up to six bytes per byte; its reader enforces the exact limit.
_MAX_BODY_BYTES = 3 * MAX_BYTES
_NOTE = "Repeating a request with the same key returns the first response and registers nothing again."


class _DeepParser(StrictParser):
    """Accepts deeper and larger documents than other bodies have; their reader enforces the exact limits."""

    MAX_DEPTH = MAX_DEPTH + 8
    MAX_VALUES = MAX_VALUES


blp = Blueprint("services", guard=guards.ANY_KEY, url_prefix="/v1/services")
blp.ARGUMENTS_PARSER = _DeepParser()


@blp.before_request
def _find_service() -> None:
    """Replace the id in the path by the caller's service before the body is parsed: 401 and 404 precede 400."""
    request.max_content_length = _MAX_BODY_BYTES
    arguments = request.view_args
    if request.method == "POST":
        guards.require_agent()
    if arguments and "service_id" in arguments:
        are_own = services.owned_by(guards.current_principal().agent_id)
        with read_only_unit() as session:
            arguments["service"] = services.find(session, arguments.pop("service_id"), *are_own)


@blp.get("")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.OwnedPage)
def list_services(query: dict[str, Any]) -> Page[Service]:
    """List your services, oldest first, without retired ones."""
    are_own = services.owned_by(guards.current_principal().agent_id)
    with read_only_unit() as session:
        return page_of(session, Service, query["page"], *are_own)


@blp.post("")
@idempotent(owner=guards.require_agent, rebuild=services.registration_of, note=_NOTE)
@blp.arguments(schemas.NewServiceBody)
@blp.response(201, schemas.RegisteredService)
@blp.raises(InvalidSpec, LimitReached, Overloaded)
def register_service(body: dict[str, Any], claim: Claim) -> Service:
    """Register a service. It is in the catalog immediately; the response has the secret that signs its calls."""
    document = body.pop("openapi_spec")
    return services.register(guards.require_agent(), body, document=document, claim=claim)


@blp.get("/<string:service_id>")
@blp.response(200, schemas.OwnedService)
def get_service(service: Service) -> dict[str, Any]:
    """Read a service that you own."""
    return services.owner_detail(service)


@blp.put("/<string:service_id>")
@blp.arguments(schemas.ServiceChanges)
@blp.response(200, schemas.UpdatedService)
@blp.raises(InvalidSpec, Overloaded)
def update_service(body: dict[str, Any], service: Service) -> dict[str, Any]:
    """Change a service; omitted fields keep their values. A paused service is not in the catalog."""
    assert_any_field(body, schemas.ServiceChanges)
    services.change(service.id, body, agent_id=service.agent_id)
    return {"id": service.id, "updated": True}


@blp.delete("/<string:service_id>")
@blp.response(200, schemas.RetiredService)
def retire_service(service: Service) -> dict[str, Any]:
    """Retire a service permanently: it leaves the catalog, and its subscriptions end. Its earnings stay counted."""
    services.retire(service.id, agent_id=service.agent_id)
    return {"id": service.id, "retired": True}


@blp.get("/<string:service_id>/stats")
@blp.response(200, schemas.ServiceStatisticsShape)
def get_service_stats(service: Service) -> dict[str, Any]:
    """Read a service's statistics: calls, revenue, subscribers, the last 24 hours, top callers."""
    return services.owner_statistics(service)
