"""The seller's use cases: register, list, read, change, pause and retire services.

Only writer of `services` (except their counters) and `service_specifications`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, select
from sqlalchemy.orm import Session

from app import base_urls
from app.authenticated import SealedColumn, seal_of
from app.authenticated import change as change_row
from app.catalog import statistics, subscriptions
from app.catalog.models import IS_ACTIVE, PROVIDER_PREFIX, SERVICES, Service, ServiceSpecification, ServiceStatus
from app.catalog.services import search_index
from app.core import clock, identifiers, money
from app.core.pagination import Page, PageRequest
from app.db import lock_order
from app.db.prepared import PreparedRead
from app.db.replica import report_engine
from app.db.tables import count, delete_rows, page_of
from app.db.unit_of_work import read_only_unit, striped_lock, unit_of_work
from app.errors import InvalidInput, InvalidSpec, LimitReached, NotFound, Overloaded
from app.idempotency.service import Claim
from app.identity import service as identity
from app.ports.errors import Rejected, Unreachable
from app.ports.specifications import Specification
from app.state import app_state
from server.pool import ResourceUse

MAX_SERVICES_PER_AGENT = 100
MAX_REGISTRATIONS_PER_DAY = 200
_SECRETS = SealedColumn("services", "secret_sealed")
_RETRY_SECONDS = 5
_QUEUE_SECONDS = 10
_UNRETIRED = {ServiceStatus.ACTIVE, ServiceStatus.PAUSED}


@dataclass(frozen=True, slots=True)
class CallableService:
    """The data of an active service that the proxy needs."""

    id: str
    base_url: str
    price_nanos: int
    secret: bytes = field(repr=False)

    @property
    def provider(self) -> str:
        return f"{PROVIDER_PREFIX}{self.id}"


def single_payment_nanos(price_nanos: int) -> int:
    """Return the price of a call that is paid for by itself: a settlement has a cost, so it has a minimum."""
    return max(price_nanos, money.nanos_from_usd(app_state().settings.x402_price_usd))


_SEAL = seal_of(Service)
IS_LISTED = Service.status != ServiceStatus.RETIRED.value
_CALLABLE = PreparedRead(
    select(*_SEAL.columns, Service.secret_sealed).where(Service.id == bindparam("of_service"), IS_ACTIVE)
)


def register(agent_id: str, values: Mapping[str, Any], *, document: str | None, claim: Claim) -> Service:
    """Register a service for an agent; `values` are columns of it, `document` its specification.

    Raises: InvalidInput, InvalidSpec, LimitReached, Overloaded.
    """
    base_url = _validated_url(values["base_url"])
    specification = None if document is None else _parse_specification(document, agent_id)
    service_id, now = identifiers.new_id(), clock.now()
    secret = identifiers.new_key("sv")
    with unit_of_work() as session:
        # Lock the agent's row while its services are counted.
        identity.lock_agent(session, agent_id)
        _check_limits(session, agent_id, now)
        made = Service(
            id=service_id, agent_id=agent_id, **{**values, "base_url": base_url},
            **SERVICES.initial(ServiceStatus.ACTIVE), secret_sealed=_SECRETS.seal(secret, service_id), total_calls=0,
            total_revenue_nanos=0, created_at=now, updated_at=now,
        )  # fmt: skip
        session.add(made)
        session.flush()
        _replace_specification(session, service_id, specification)
        search_index.update_service(session, made)
        claim.bind(session, service_id)
    made.secret = secret
    return made


def _check_limits(session: Session, agent_id: str, now: datetime) -> None:
    """Check the limits of an agent's services. Raises: LimitReached."""
    if count(session, Service, *owned_by(agent_id)) >= MAX_SERVICES_PER_AGENT:
        raise LimitReached(f"An agent may have at most {MAX_SERVICES_PER_AGENT} services; retire one first.")
    # The rows of retired services remain, and have no other limit.
    is_recent = Service.created_at > now - timedelta(days=1)
    if count(session, Service, Service.agent_id == agent_id, is_recent) >= MAX_REGISTRATIONS_PER_DAY:
        raise LimitReached(
            f"An agent may register at most {MAX_REGISTRATIONS_PER_DAY} services within 24 hours; try again later."
        )


def registration_of(service_id: str) -> Service:
    """Return a service with its secret, for the replay of a registration. Raises: NotFound."""
    with read_only_unit() as session:
        found = find(session, service_id)
    found.secret = _SECRETS.open(found.secret_sealed, service_id).decode()
    return found


def change(service_id: str, values: Mapping[str, Any], *, agent_id: str) -> Service:
    """Change some columns of a service and its `openapi_spec` if it is among them; all of it or nothing.

    Raises: NotFound, InvalidInput, InvalidSpec, Overloaded.
    """
    changes = dict(values)
    document = changes.pop("openapi_spec", None)
    if "base_url" in changes:
        changes["base_url"] = _validated_url(changes["base_url"])
    specification = None if document is None else _parse_specification(document, agent_id)
    status = changes.pop("status", None)
    with unit_of_work() as session:
        if status is not None:
            others = _UNRETIRED - {ServiceStatus(status)}
            SERVICES.move(session, _owned(service_id, agent_id), others, ServiceStatus(status))
        if not change_row(session, Service, _owned(service_id, agent_id), **changes, updated_at=clock.now()):
            raise _not_found()
        view = find(session, service_id)
        if "openapi_spec" in values:
            _replace_specification(session, service_id, specification)
        search_index.update_service(session, view)
    return view


def list_all(page: PageRequest) -> Page[Service]:
    """Return the services of all agents with their last 24 hours, oldest first, without retired ones."""
    with read_only_unit() as session:
        found = page_of(session, Service, page, IS_LISTED)
        days = statistics.last_24_hours(session, [each.id for each in found.items])
    for each in found.items:
        each.last_24h = days[each.id]
    return found


def set_suspended(session: Session, service_id: str, *, suspended: bool) -> Service:
    """Stop the calls of a service, or permit them again, whatever its owner does; return it. Raises: NotFound."""
    canonical = identifiers.require_id(service_id, _not_found())
    at = clock.now() if suspended else None
    change_row(session, Service, and_(Service.id == canonical, IS_LISTED), suspended_at=at)
    view = find(session, service_id, IS_LISTED)
    search_index.update_service(session, view)
    return view


def retire(service_id: str, *, agent_id: str) -> None:
    """Retire a service permanently and cancel its subscriptions; its earnings stay counted. Raises: NotFound."""
    with unit_of_work() as session:
        if not _retire(session, _owned(service_id, agent_id)):
            raise _not_found()


def retire_all(session: Session, agent_id: str) -> list[str]:
    return _retire(session, Service.id.in_(lock_order.lock_rows(session, Service.id, *owned_by(agent_id))))


def _retire(session: Session, rows: ColumnElement[bool]) -> list[str]:
    ids = SERVICES.move(session, rows, _UNRETIRED, ServiceStatus.RETIRED, updated_at=clock.now())
    for service_id in ids:
        search_index.remove_service(session, service_id)
        # Up to a mebibyte that is no longer used.
        _replace_specification(session, service_id, None)
        subscriptions.cancel_for_service(session, service_id)
    return ids


def callable_service(service_id: str) -> CallableService:
    """Return an active service for the proxy. Raises: NotFound."""
    canonical = identifiers.require_id(service_id, _not_found())
    with read_only_unit() as session:
        row = identifiers.require(_CALLABLE.one_or_none(session, {"of_service": canonical}), _not_found())
        _SEAL.verify(session, row)
    return CallableService(row.id, row.base_url, row.price_nanos, _SECRETS.open(row.secret_sealed, row.id))


def specification_of(session: Session, service_id: str) -> ServiceSpecification:
    """Return what the seller has specified of a service, which may be nothing."""
    found = session.get(ServiceSpecification, service_id)
    return found or ServiceSpecification(document="{}", endpoints=[], example=None)


def owner_detail(service: Service) -> dict[str, Any]:
    specified = select(ServiceSpecification.endpoints).where(ServiceSpecification.service_id == service.id)
    with read_only_unit() as session:
        endpoints = session.scalar(specified) or ()
        return {
            **vars(service), "totals": statistics.totals(session, service.id),
            "subscribers": subscriptions.count_active(session, service.id), "endpoints": endpoints,
            "endpoints_count": len(endpoints),
        }  # fmt: skip


def owner_statistics(service: Service) -> dict[str, Any]:
    with read_only_unit(report_engine()) as session:
        return {
            **vars(service),
            "totals": statistics.totals(session, service.id),
            "active_subscribers": subscriptions.count_active(session, service.id),
            "last_24h": statistics.last_24_hours(session, [service.id])[service.id],
            "top_agents": statistics.top_callers(session, service.id),
        }


def owned_by(agent_id: str | None) -> tuple[Any, Any]:
    """Return the conditions of an agent's services without retired ones; a gateway-only key, of no agent, has none."""
    return Service.agent_id == agent_id, IS_LISTED


def find(session: Session, service_id: str, *conditions: ColumnElement[bool]) -> Service:
    """Return a service. Raises: NotFound, including for a malformed id."""
    canonical = identifiers.require_id(service_id, _not_found())
    found: Service | None = session.scalar(select(Service).where(Service.id == canonical, *conditions))
    return identifiers.require(found, _not_found())


def _owned(service_id: str, agent_id: str) -> ColumnElement[bool]:
    return and_(Service.id == service_id, *owned_by(agent_id))


def _replace_specification(session: Session, service_id: str, specification: Specification | None) -> None:
    delete_rows(session, ServiceSpecification, ServiceSpecification.service_id == service_id)
    if specification is not None:
        endpoints = list(specification.endpoints)
        row = ServiceSpecification(
            service_id=service_id, document=specification.document, endpoints=endpoints,
            endpoints_count=len(endpoints), example=specification.example,
        )  # fmt: skip
        session.add(row)


def _validated_url(base_url: str) -> str:
    try:
        url = base_urls.parse(base_url)
        base_urls.assert_public(url, app_state().settings)
        return str(url)
    except ValueError as error:
        raise InvalidInput.field("base_url", str(error)) from None


def _parse_specification(document: str, agent_id: str) -> Specification:
    """Parse a specification, one at a time per agent, because all agents share a few concurrent slots."""
    state = app_state()
    busy = Overloaded("Other specifications are being read; try again later.", retry_after_seconds=_RETRY_SECONDS)
    try:
        with state.threads.try_acquire(ResourceUse.OUTCOME, agent_id) as is_admitted:
            seconds = _QUEUE_SECONDS if is_admitted else 0
            with striped_lock(f"specification:{agent_id}", timeout_seconds=seconds) as is_locked:
                if not is_locked or not is_admitted:
                    raise busy
                return state.ports.specifications.read(document)
    except Rejected as error:
        place, problem = error.details["place"], error.details["problem"]
        raise InvalidSpec(
            f"The OpenAPI specification is not valid at {place}: {problem}",
            details={"place": place, "problem": problem, "fields": {"openapi_spec": [problem]}},
        ) from None
    except Unreachable:
        raise busy from None


def _not_found() -> NotFound:
    return NotFound("This service does not exist.")
