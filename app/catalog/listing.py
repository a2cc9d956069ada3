"""A buyer's side: the catalog's pages and the whole of one service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from app.catalog import search, services, statistics, subscriptions, summary
from app.catalog.models import Service
from app.catalog.services import ServiceView
from app.catalog.statistics import Day, TopCaller, Totals
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading
from app.extensions import db
from app.ports import provider


@dataclass(frozen=True, slots=True)
class Detail:
    """An active service with all that a caller needs to use it."""

    service: ServiceView
    totals: Totals
    last_24h: Day
    openapi_spec: Mapping[str, Any]
    endpoints: Sequence[Mapping[str, Any]]
    agent_summary: str


@dataclass(frozen=True, slots=True)
class OwnerDetail:
    """A service with what its owner asks of it."""

    service: ServiceView
    totals: Totals
    subscribers: int
    endpoints: Sequence[Mapping[str, Any]]

    @property
    def endpoints_count(self) -> int:
        """Return how many endpoints its specification has."""
        return len(self.endpoints)


@dataclass(frozen=True, slots=True)
class Statistics:
    """How a service is doing."""

    service: ServiceView
    totals: Totals
    active_subscribers: int
    last_24h: Day
    top_agents: Sequence[TopCaller]


def page_of(page: PageRequest, *, text: str | None, category: str | None) -> Page[ServiceView]:
    """Return active services, those with most calls first, then by name and id."""
    with reading():
        found = search.find(page, text=text, category=category)
        rows = (
            db.session.execute(select(*services.COLUMNS).where(Service.id.in_(found.ids))).all()
            if found.ids
            else ()
        )
    by_id = {row.id: services.view_of(row) for row in rows}
    return Page([by_id[service_id] for service_id in found.ids if service_id in by_id], found.total, page)


def detail(service_id: str) -> Detail:
    """Return an active service. Raises: NotFound."""
    with reading():
        service = services.active(service_id)
        totals = statistics.totals(service.id)
        day = statistics.last_day(service.id)
        offer = services.offer_of(service.id)
    text = summary.write(service, offer, day, public_url=provider.settings().public_url)
    return Detail(service, totals, day, offer.document, offer.endpoints, text)


def for_owner(service: ServiceView) -> OwnerDetail:
    """Return what an owner sees of a service that was just read."""
    with reading():
        return OwnerDetail(
            service,
            statistics.totals(service.id),
            subscriptions.count_active(service.id),
            services.endpoints_of(service.id),
        )


def statistics_of(service: ServiceView) -> Statistics:
    """Return the statistics of a service that was just read. A handful of rows, whatever its history."""
    with reading():
        return Statistics(
            service,
            statistics.totals(service.id),
            subscriptions.count_active(service.id),
            statistics.last_day(service.id),
            statistics.top_callers(service.id),
        )
