"""The catalog for buyers: pages of active services, and the details of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import select

from app.catalog.browse import agent_summary as summary
from app.catalog.models import Service
from app.catalog.services import search_index
from app.catalog.services import service as services
from app.catalog.services.service import ServiceView
from app.catalog.statistics import counts as statistics
from app.core.pagination import Page, PageRequest
from app.db.unit_of_work import read_only_unit
from app.state import app_state


def search_services(page: PageRequest, *, text: str | None, category: str | None) -> Page[ServiceView]:
    """Return active services, those with most calls first, then by name and id."""
    with read_only_unit() as session:
        found = search_index.search(session, page, text=text, category=category)
        rows = (
            session.execute(select(*services.COLUMNS).where(Service.id.in_(found.items))).all() if found.items else ()
        )
    by_id = {row.id: services.view_of(row) for row in rows}
    return Page([by_id[service_id] for service_id in found.items if service_id in by_id], found.total, page)


def service_detail(service_id: str) -> dict[str, Any]:
    """Return an active service with everything needed to call it. Raises: NotFound."""
    with read_only_unit() as session:
        service = services.active_service(session, service_id)
        totals = statistics.totals(session, service.id)
        day = statistics.last_24_hours(session, service.id)
        listing = services.listing_of(session, service.id)
    text = summary.render_summary(service, listing, day, public_url=app_state().settings.public_url)
    return {
        **asdict(service),
        "totals": totals,
        "last_24h": day,
        "openapi_spec": listing.document,
        "endpoints": listing.endpoints,
        "agent_summary": text,
    }
