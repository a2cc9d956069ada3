"""A seller's side: register a service, list one's own, read, change, pause and retire them.

Alone writes `services` (their counters excepted) and `service_specifications`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, delete, func, insert, select, update

from app.catalog import base_urls, search, subscriptions
from app.catalog.models import Service, ServiceSpecification
from app.core import clock, identifiers, row_locks
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading, unit_of_work
from app.errors import InvalidInput, InvalidSpec, LimitReached, NotFound, Overloaded
from app.extensions import db
from app.identity import service as identity
from app.ports import provider
from app.ports.errors import Rejected, Unreachable
from app.ports.specifications import Specification
from app.ports.vault import Place
from app.web import idempotency

MAX_SERVICES_PER_AGENT = 100
MAX_REGISTRATIONS_PER_DAY = 200
_KEY_KIND = "sv"
_RETRY_SECONDS = 5


class ServiceStatus(StrEnum):
    """Active services are found, subscribed to and called; paused ones wait; retired ones are gone for good."""

    ACTIVE = "active"
    PAUSED = "paused"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service as its owner sees it. `total_…` may lag a little behind the exact counters."""

    id: str
    agent_id: str
    name: str
    description: str
    base_url: str
    pricing_model: str
    price_nanos: int
    category: str
    status: ServiceStatus
    total_calls: int
    total_revenue_nanos: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Registered:
    """A new service and the secret with which its calls are signed; the repr does not show it."""

    service: ServiceView
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """What an active service offers: endpoints, the document they come from, and an example request."""

    document: Mapping[str, Any]
    endpoints: Sequence[Mapping[str, Any]]
    example: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class CallableService:
    """What the proxy needs of an active service."""

    id: str
    name: str
    base_url: str
    price_nanos: int
    secret: bytes = field(repr=False)


COLUMNS = (
    Service.id, Service.agent_id, Service.name, Service.description, Service.base_url, Service.pricing_model,
    Service.price_nanos, Service.category, Service.status, Service.total_calls, Service.total_revenue_nanos,
    Service.created_at, Service.updated_at,
)  # fmt: skip


def register(agent_id: str, values: Mapping[str, Any], *, document: str | None) -> Registered:
    """Register a service for an agent; `values` are columns of it, `document` its specification.

    Raises: InvalidInput, InvalidSpec, LimitReached, Overloaded.
    """
    base_url = _checked(values["base_url"])
    specification = None if document is None else _read(document)
    service_id, now = identifiers.new_id(), clock.now()
    secret = identifiers.new_key(_KEY_KIND)
    sealed = provider.current().vault.seal(secret.encode(), _place(service_id))
    with unit_of_work():
        # The agent's row is the lock under which its services are counted.
        identity.lock_agent(agent_id)
        _check_bounds(agent_id, now)
        row = db.session.execute(
            insert(Service)
            .values(
                id=service_id, agent_id=agent_id, **{**values, "base_url": base_url},
                status=ServiceStatus.ACTIVE.value, secret_sealed=sealed, total_calls=0,
                total_revenue_nanos=0, created_at=now, updated_at=now,
            )
            .returning(*COLUMNS)
        ).one()  # fmt: skip
        view = view_of(row)
        _replace_specification(service_id, specification)
        _index(view)
        idempotency.bind(service_id)
    return Registered(view, secret)


def _check_bounds(agent_id: str, now: datetime) -> None:
    """Refuse one service too many. Raises: LimitReached."""
    counted = select(func.count()).select_from(Service)
    if (db.session.scalar(counted.where(*_owned_by(agent_id))) or 0) >= MAX_SERVICES_PER_AGENT:
        raise LimitReached(f"An agent has at most {MAX_SERVICES_PER_AGENT} services; retire one first.")
    # Retired ones leave a row behind, which nothing else bounds.
    of_a_day = counted.where(Service.agent_id == agent_id, Service.created_at > now - timedelta(days=1))
    if (db.session.scalar(of_a_day) or 0) >= MAX_REGISTRATIONS_PER_DAY:
        raise LimitReached(f"An agent registers at most {MAX_REGISTRATIONS_PER_DAY} services a day.")


def registered(service_id: str) -> Registered:
    """Return a service as its registration answered it, with its secret. Raises: NotFound."""
    with reading():
        row = db.session.execute(
            select(*COLUMNS, Service.secret_sealed).where(Service.id == service_id)
        ).one_or_none()
    if row is None:
        raise _gone()
    return Registered(view_of(row), _open(row.secret_sealed, service_id))


def owned(service_id: str, *, agent_id: str | None) -> ServiceView:
    """Return a service of the caller's. Raises: NotFound for malformed, unknown, retired and foreign ids alike."""
    canonical = identifiers.parse_id(service_id)
    if canonical is None or agent_id is None:
        raise _gone()
    with reading():
        row = db.session.execute(
            select(*COLUMNS).where(Service.id == canonical, *_owned_by(agent_id))
        ).one_or_none()
    if row is None:
        raise _gone()
    return view_of(row)


def list_of(agent_id: str | None, page: PageRequest) -> Page[ServiceView]:
    """Return an agent's services, oldest first; a gateway-only key has none."""
    if agent_id is None:
        return Page((), 0, page)
    with reading():
        total = db.session.scalar(select(func.count()).select_from(Service).where(*_owned_by(agent_id))) or 0
        rows = db.session.execute(
            select(*COLUMNS)
            .where(*_owned_by(agent_id))
            .order_by(Service.created_at, Service.id)
            .limit(page.limit)
            .offset(page.offset)
        ).all()
    return Page([view_of(row) for row in rows], total, page)


def change(
    service_id: str,
    *,
    agent_id: str,
    values: Mapping[str, Any],
    document: str | None,
    replaces_document: bool,
) -> ServiceView:
    """Change some columns of a service and, if asked, its specification; all of it or nothing.

    Raises: NotFound, InvalidInput, InvalidSpec, Overloaded.
    """
    changes = dict(values)
    if "base_url" in changes:
        changes["base_url"] = _checked(changes["base_url"])
    specification = None if document is None else _read(document)
    with unit_of_work():
        row = db.session.execute(
            update(Service)
            .where(Service.id == service_id, *_owned_by(agent_id))
            .values(**changes, updated_at=clock.now())
            .returning(*COLUMNS)
            .execution_options(synchronize_session=False)
        ).one_or_none()
        if row is None:
            raise _gone()
        view = view_of(row)
        if replaces_document:
            _replace_specification(service_id, specification)
        _index(view)
    return view


def retire(service_id: str, *, agent_id: str) -> None:
    """Take a service out of the catalog for good and cancel its subscriptions; its earnings stay counted.

    Raises: NotFound.
    """
    now = clock.now()
    with unit_of_work():
        retired = db.session.execute(
            update(Service)
            .where(Service.id == service_id, *_owned_by(agent_id))
            .values(status=ServiceStatus.RETIRED.value, updated_at=now)
            .returning(Service.id)
            .execution_options(synchronize_session=False)
        ).one_or_none()
        if retired is None:
            raise _gone()
        _leave_catalog(service_id, at=now)


def retire_all(agent_id: str) -> list[str]:
    """Retire every service of an agent that is being deleted, in the current unit; return their ids."""
    now = clock.now()
    ids: list[str] = row_locks.lock(Service.id, *_owned_by(agent_id))
    db.session.execute(
        update(Service)
        .where(Service.id.in_(ids))
        .values(status=ServiceStatus.RETIRED.value, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    for service_id in ids:
        _leave_catalog(service_id, at=now)
    return ids


def _leave_catalog(service_id: str, *, at: datetime) -> None:
    search.drop(service_id)
    # Up to a mebibyte, which nobody reads any more.
    _replace_specification(service_id, None)
    subscriptions.end_of_service(service_id, at=at)


def active(service_id: str) -> ServiceView:
    """Return a service that is in the catalog. Works in a reading unit. Raises: NotFound."""
    canonical = identifiers.parse_id(service_id)
    if canonical is None:
        raise _gone()
    row = db.session.execute(_active(canonical).with_only_columns(*COLUMNS)).one_or_none()
    if row is None:
        raise _gone()
    return view_of(row)


def not_retired(service_id: str) -> ServiceView:
    """Return a service whose subscribers may leave it: active or paused. Works in a reading unit. Raises: NotFound."""
    canonical = identifiers.parse_id(service_id)
    row = None
    if canonical is not None:
        standing = Service.id == canonical, Service.status != ServiceStatus.RETIRED.value
        row = db.session.execute(select(*COLUMNS).where(*standing)).one_or_none()
    if row is None:
        raise _gone()
    return view_of(row)


def for_calling(service_id: str) -> CallableService:
    """Return what the proxy needs of an active service. Raises: NotFound."""
    canonical = identifiers.parse_id(service_id)
    row = None
    if canonical is not None:
        with reading():
            row = db.session.execute(
                _active(canonical).with_only_columns(
                    Service.name, Service.base_url, Service.price_nanos, Service.secret_sealed
                )
            ).one_or_none()
    if canonical is None or row is None:
        raise _gone()
    secret = _open(row.secret_sealed, canonical).encode()
    return CallableService(canonical, row.name, row.base_url, row.price_nanos, secret)


def offer_of(service_id: str) -> Offer:
    """Return what a service's specification says; nothing where it has none. Works in a reading unit."""
    row = db.session.execute(
        select(
            ServiceSpecification.document, ServiceSpecification.endpoints, ServiceSpecification.example
        ).where(ServiceSpecification.service_id == service_id)
    ).one_or_none()
    return Offer({}, (), None) if row is None else Offer(json.loads(row.document), row.endpoints, row.example)


def endpoints_of(service_id: str) -> Sequence[Mapping[str, Any]]:
    """Return a service's endpoints. Works in a reading unit."""
    found = select(ServiceSpecification.endpoints).where(ServiceSpecification.service_id == service_id)
    return db.session.scalar(found) or ()


def view_of(row: Row[*tuple[Any, ...]]) -> ServiceView:
    """Return the service in a row of `COLUMNS`."""
    return ServiceView(
        row.id, row.agent_id, row.name, row.description, row.base_url, row.pricing_model, row.price_nanos,
        row.category, ServiceStatus(row.status), row.total_calls, row.total_revenue_nanos, row.created_at,
        row.updated_at,
    )  # fmt: skip


def _owned_by(agent_id: str) -> tuple[Any, Any]:
    return Service.agent_id == agent_id, Service.status != ServiceStatus.RETIRED.value


def _active(service_id: str) -> Select[Any]:
    return select(Service).where(Service.id == service_id, Service.status == ServiceStatus.ACTIVE.value)


def _index(view: ServiceView) -> None:
    if view.status is ServiceStatus.ACTIVE:
        search.put(view.id, name=view.name, description=view.description, category=view.category)
    else:
        search.drop(view.id)


def _replace_specification(service_id: str, specification: Specification | None) -> None:
    db.session.execute(
        delete(ServiceSpecification)
        .where(ServiceSpecification.service_id == service_id)
        .execution_options(synchronize_session=False)
    )
    if specification is not None:
        db.session.execute(
            insert(ServiceSpecification).values(
                service_id=service_id,
                document=specification.document,
                endpoints=list(specification.endpoints),
                endpoints_count=len(specification.endpoints),
                example=specification.example,
            )
        )


def _checked(base_url: str) -> str:
    try:
        return base_urls.checked(base_url)
    except ValueError as error:
        raise InvalidInput.field("base_url", str(error)) from None


def _read(document: str) -> Specification:
    try:
        return provider.current().specifications.read(document)
    except Rejected as error:
        place, problem = error.details["place"], error.details["problem"]
        raise InvalidSpec(
            f"The OpenAPI specification is not valid at {place}: {problem}",
            details={"place": place, "problem": problem, "fields": {"openapi_spec": [problem]}},
        ) from None
    except Unreachable:
        raise Overloaded(
            "Too many specifications are being read.", retry_after_seconds=_RETRY_SECONDS
        ) from None


def _place(service_id: str) -> Place:
    return Place("services", "secret_sealed", service_id)


def _open(sealed: str, service_id: str) -> str:
    return provider.current().vault.open(sealed, _place(service_id)).decode()


def _gone() -> NotFound:
    return NotFound("There is no such service.")
