"""Subscriptions of wallets to services: made, cancelled, made again. Alone writes `subscriptions`.

A subscription is a note of interest: calling a service needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.catalog.models import Service, Subscription
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading, unit_of_work
from app.errors import AlreadySubscribed, NotFound
from app.extensions import db
from app.spending import service as spending
from app.web import idempotency


class SubscriptionStatus(StrEnum):
    """Whether a subscription is in force."""

    ACTIVE = "active"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SubscriptionView:
    """A wallet's subscription; `reactivated` tells that it had been cancelled once."""

    id: str
    service_id: str
    service_name: str
    wallet_id: str
    status: SubscriptionStatus
    reactivated: bool
    created_at: datetime


def subscribe(service_id: str, service_name: str, *, wallet_id: str, agent_id: str) -> SubscriptionView:
    """Subscribe a wallet to an active service. Of two requests at once, one subscribes.

    Raises: AlreadySubscribed; NotFound when the wallet was deleted or the service has left the catalog meanwhile.
    """
    now = clock.now()
    with unit_of_work():
        # Whoever deletes the wallet takes this lock first, and then ends its subscriptions.
        spending.lock_account(wallet_id)
        _lock_active(service_id)
        row = _insert(service_id, wallet_id=wallet_id, agent_id=agent_id, at=now)
        if row is None:
            row = _turn(
                service_id,
                wallet_id=wallet_id,
                changes={
                    Subscription.status: SubscriptionStatus.ACTIVE.value,
                    Subscription.reactivated: True,
                    Subscription.updated_at: now,
                },
                found=SubscriptionStatus.CANCELLED,
            )
        if row is None:
            raise AlreadySubscribed
        idempotency.bind(row.id)
    return _view(row, service_name)


def cancel(service_id: str, *, wallet_id: str, agent_id: str) -> SubscriptionView:
    """Cancel a subscription; cancelling it again changes nothing. Raises: NotFound when there never was one."""
    with unit_of_work():
        _turn(
            service_id,
            wallet_id=wallet_id,
            changes={
                Subscription.status: SubscriptionStatus.CANCELLED.value,
                Subscription.updated_at: clock.now(),
            },
            found=SubscriptionStatus.ACTIVE,
        )
        row = db.session.execute(
            _of_agent(agent_id).where(
                Subscription.service_id == service_id, Subscription.wallet_id == wallet_id
            )
        ).one_or_none()
    if row is None:
        raise NotFound("This wallet has no subscription to that service.")
    return _view(row, row.service_name)


def list_of(agent_id: str | None, page: PageRequest, *, status: str | None) -> Page[SubscriptionView]:
    """Return an agent's subscriptions, oldest first; a gateway-only key has none."""
    if agent_id is None:
        return Page((), 0, page)
    query = _of_agent(agent_id)
    if status is not None:
        query = query.where(Subscription.status == status)
    with reading():
        total = db.session.scalar(select(func.count()).select_from(query.subquery())) or 0
        rows = db.session.execute(
            query.order_by(Subscription.created_at, Subscription.id).limit(page.limit).offset(page.offset)
        ).all()
    return Page([_view(row, row.service_name) for row in rows], total, page)


def one(subscription_id: str) -> SubscriptionView:
    """Return a subscription. Raises: NotFound."""
    with reading():
        row = db.session.execute(_all().where(Subscription.id == subscription_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such subscription.")
    return _view(row, row.service_name)


def count_active(service_id: str) -> int:
    """Return how many wallets are subscribed to a service. Works in a reading unit."""
    return (
        db.session.scalar(
            select(func.count())
            .select_from(Subscription)
            .where(
                Subscription.service_id == service_id, Subscription.status == SubscriptionStatus.ACTIVE.value
            )
        )
        or 0
    )


def end_of_service(service_id: str, *, at: datetime) -> None:
    """Cancel all subscriptions to a service that is being retired. In the caller's unit."""
    _end(Subscription.service_id == service_id, at=at)


def end_of_wallet(wallet_id: str) -> None:
    """Cancel all subscriptions of a wallet that is being deleted. In the caller's unit."""
    _end(Subscription.wallet_id == wallet_id, at=clock.now())


def _end(condition: Any, *, at: datetime) -> None:
    db.session.execute(
        update(Subscription)
        .where(condition, Subscription.status == SubscriptionStatus.ACTIVE.value)
        .values(status=SubscriptionStatus.CANCELLED.value, updated_at=at)
        .execution_options(synchronize_session=False)
    )


_COLUMNS = (
    Subscription.id, Subscription.service_id, Subscription.wallet_id, Subscription.status,
    Subscription.reactivated, Subscription.created_at,
)  # fmt: skip


def _lock_active(service_id: str) -> None:
    """Keep the service from being retired before the unit's end. Raises: NotFound when it is not active."""
    # Who refreshes the rank meanwhile skips the row.
    query = select(Service.id).where(Service.id == service_id, Service.status == "active")
    if db.session.execute(query.with_for_update(read=True)).one_or_none() is None:
        raise NotFound("There is no such service.")


def _insert(service_id: str, *, wallet_id: str, agent_id: str, at: datetime) -> Row[*tuple[Any, ...]] | None:
    insert = postgresql.insert if db.session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(Subscription).values(
        id=identifiers.new_id(), service_id=service_id, wallet_id=wallet_id, agent_id=agent_id,
        status=SubscriptionStatus.ACTIVE.value, reactivated=False, created_at=at, updated_at=at,
    )  # fmt: skip
    # Waits for another unit that is inserting the same, so that the answer is final.
    statement = statement.on_conflict_do_nothing(index_elements=["service_id", "wallet_id"])
    inserted: Row[*tuple[Any, ...]] | None = db.session.execute(statement.returning(*_COLUMNS)).one_or_none()
    return inserted


def _turn(
    service_id: str, *, wallet_id: str, changes: dict[Any, Any], found: SubscriptionStatus
) -> Row[*tuple[Any, ...]] | None:
    return db.session.execute(
        update(Subscription)
        .where(
            Subscription.service_id == service_id,
            Subscription.wallet_id == wallet_id,
            Subscription.status == found.value,
        )
        .values(changes)
        .returning(*_COLUMNS)
        .execution_options(synchronize_session=False)
    ).one_or_none()


def _all() -> Select[Any]:
    query: Select[Any] = select(*_COLUMNS, Service.name.label("service_name"))  # type: ignore[assignment]
    return query.join(Service, Service.id == Subscription.service_id)


def _of_agent(agent_id: str) -> Select[Any]:
    return _all().where(Subscription.agent_id == agent_id)


def _view(row: Row[*tuple[Any, ...]], service_name: str) -> SubscriptionView:
    return SubscriptionView(
        row.id, row.service_id, service_name, row.wallet_id, SubscriptionStatus(row.status), row.reactivated,
        row.created_at,
    )  # fmt: skip
