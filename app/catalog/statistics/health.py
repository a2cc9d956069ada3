"""The health of services: an event for the seller when most calls of a service fail."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import func, select

from app.catalog.models import Service, ServiceMinute
from app.core import clock
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.outbox import EventType

WINDOW = timedelta(minutes=10)
MIN_CALLS = 10
MIN_FAILURES_PERCENT = 50


def announce_unhealthy(now: datetime) -> None:
    """Record an event for each service when half of at least ten calls in ten minutes failed, once an hour."""
    # The counters have paid calls and failed ones apart.
    failures = func.sum(ServiceMinute.failures)
    calls = func.sum(ServiceMinute.calls) + failures
    query = (
        select(Service.id, Service.agent_id, Service.name, calls.label("calls"), failures.label("failures"))
        .join(ServiceMinute, ServiceMinute.service_id == Service.id)
        .where(ServiceMinute.minute >= now - WINDOW)
        .group_by(Service.id, Service.agent_id, Service.name)
        .having(calls >= MIN_CALLS, failures * 100 >= calls * MIN_FAILURES_PERCENT)
    )
    with read_only_unit() as session:
        rows = session.execute(query).all()
    for row in rows:
        with unit_of_work() as session:
            outbox.record(
                session,
                EventType.SERVICE_UNHEALTHY,
                agent_id=row.agent_id,
                object_id=row.id,
                data={
                    "service_id": row.id,
                    "name": row.name,
                    "calls": int(row.calls),
                    "failures": int(row.failures),
                    "since": clock.isoformat(now - WINDOW),
                },
                once=f"unhealthy:{now:%Y-%m-%dT%H}",
            )
