"""Subscriptions of wallets to services. The only writer of `subscriptions`.

A subscription only expresses interest: calling a service does not require one.
"""

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from app.catalog.models import IS_ACTIVE, SUBSCRIPTIONS, Service, Subscription, SubscriptionStatus
from app.core import clock, identifiers
from app.db.prepared import PreparedInsert
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import AlreadySubscribed, NotFound
from app.idempotency.service import Claim
from app.spending import accounts as spending_accounts

_INSERT = PreparedInsert(Subscription, unique=[Subscription.service_id, Subscription.wallet_id])


def subscribe(service_id: str, *, wallet_id: str, agent_id: str, claim: Claim) -> Subscription:
    """Subscribe a wallet to an active service. Of concurrent requests, one succeeds.

    Raises: AlreadySubscribed; NotFound if the wallet was deleted or the service left the catalog concurrently.
    """
    now, this = clock.now(), _of(service_id, wallet_id)
    cancelled, active = SubscriptionStatus.CANCELLED, SubscriptionStatus.ACTIVE
    values = {
        "id": identifiers.new_id(), "service_id": service_id, "wallet_id": wallet_id, "agent_id": agent_id,
        **SUBSCRIPTIONS.initial(active), "reactivated": False, "created_at": now, "updated_at": now,
    }  # fmt: skip
    with unit_of_work() as session:
        # Deleting the wallet takes this lock first, and then cancels its subscriptions.
        spending_accounts.lock_account(session, wallet_id)
        # The service, so that it is not retired before the end of the unit; a refresh of the totals skips the row.
        query = select(Service.id).where(Service.id == service_id, IS_ACTIVE)
        if session.execute(query.with_for_update(read=True)).one_or_none() is None:
            raise NotFound("This service does not exist.")
        if not _INSERT.execute(session, values) and not SUBSCRIPTIONS.move(
            session, this, cancelled, active, reactivated=True, updated_at=now
        ):
            raise AlreadySubscribed
        row = session.scalars(select(Subscription).where(this)).one()
        claim.bind(session, row.id)
    return row


def cancel(service_id: str, *, wallet_id: str, agent_id: str) -> Subscription:
    """Cancel a subscription; idempotent. Raises: NotFound if there never was one."""
    with unit_of_work() as session:
        _cancel(session, _of(service_id, wallet_id))
        of_agent = Subscription.agent_id == agent_id, _of(service_id, wallet_id)
        missing = NotFound("This wallet has no subscription to this service.")
        return identifiers.require(session.scalar(select(Subscription).where(*of_agent)), missing)


def find(subscription_id: str) -> Subscription:
    """Return a subscription. Raises: NotFound."""
    with read_only_unit() as session:
        found = session.get(Subscription, subscription_id)
        return identifiers.require(found, NotFound("This subscription does not exist."))


def count_active(session: Session, service_id: str) -> int:
    is_active = Subscription.status == SubscriptionStatus.ACTIVE.value
    return count(session, Subscription, Subscription.service_id == service_id, is_active)


def cancel_for_service(session: Session, service_id: str) -> None:
    _cancel(session, Subscription.service_id == service_id)


def cancel_for_wallet(session: Session, wallet_id: str) -> None:
    _cancel(session, Subscription.wallet_id == wallet_id)


def _of(service_id: str, wallet_id: str) -> ColumnElement[bool]:
    return and_(Subscription.service_id == service_id, Subscription.wallet_id == wallet_id)


def _cancel(session: Session, rows: ColumnElement[bool]) -> None:
    now = clock.now()
    SUBSCRIPTIONS.move(session, rows, SubscriptionStatus.ACTIVE, SubscriptionStatus.CANCELLED, updated_at=now)
