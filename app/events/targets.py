"""Targets: where the events of an agent, an owner or the service are delivered to."""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.orm import Session

from app import base_urls
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import SealedColumn
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.state_machine import StateMachine
from app.db.tables import count, page_of, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, LimitReached, NotFound
from app.events import queues
from app.events.models import EventDelivery, EventTarget
from app.idempotency.service import Claim
from app.identity import service as identity
from app.state import app_state

_OF_OWNERS = {
    AuditAction.WEBHOOK_CREATED: AuditAction.NOTICE_ADDED,
    AuditAction.WEBHOOK_DELETED: AuditAction.NOTICE_REMOVED,
    AuditAction.WEBHOOK_TESTED: AuditAction.NOTICE_TESTED,
}
_NOT_FOUND = "There is no such webhook."
MAX_TARGETS = 10
MAX_OPERATOR_TARGETS = 50
_P256_POINT_BYTES, _AUTH_BYTES = 65, 16
_SEALED = SealedColumn(EventTarget.__tablename__, "sealed")
_FORMER_SEALED = SealedColumn(EventTarget.__tablename__, "former_sealed")


def record_audit(session: Session, actor: Actor | None, action: AuditAction, row: EventTarget, **before: Any) -> None:
    """Record an act of an actor, last in its unit; one on a target of an owner has the agent as its subject."""
    if actor is None:
        return
    is_owners = row.audience == "owner"
    done = _OF_OWNERS.get(action, action) if is_owners else action
    after = None if action is AuditAction.WEBHOOK_DELETED else described(row)
    trail.record(session, actor, AuditEvent(done, row.agent_id if is_owners else row.id, after=after, **before))


def described(row: EventTarget) -> dict[str, Any]:
    """Return what the audit log keeps of a target: of its address what tells it from others, and no path or secret."""
    scheme, _, rest = row.url.partition(":")
    local, at, domain = rest.partition("@")
    shown = f"{local[:1]}…{at}{domain}" if scheme == "mailto" else row.url[: row.url.find("/", len(scheme) + 3)]
    values = {"id": row.id, "agent_id": row.agent_id, "kind": row.kind, "address": shown, "status": row.status}
    return {**values, "types": list(row.types), "created_by": row.created_by}


class TargetKind(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"
    WEB_PUSH = "web_push"


class Audience(StrEnum):
    """Who a target belongs to. Owners see the events of their agent, operators all."""

    AGENT = "agent"
    OWNER = "owner"
    OPERATOR = "operator"


class TargetStatus(StrEnum):
    """The states of a target. Nothing is sent to a disabled one; its deliveries wait."""

    ENABLED = "enabled"
    DISABLED = "disabled"


TARGETS = StateMachine(
    EventTarget.status,
    initial={TargetStatus.ENABLED},
    permitted={TargetStatus.ENABLED: {TargetStatus.DISABLED}, TargetStatus.DISABLED: {TargetStatus.ENABLED}},
    logger=structlog.get_logger(__name__),
    values=lambda status, reason: {
        "status_reason": reason,
        **({"failing_since": None, "unanswered": 0} if status is TargetStatus.ENABLED else {}),
    },
)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who owns targets and reads events: an agent, its owner, or with no agent the operators of the service.

    Changes by an `actor` are recorded in the audit log.
    """

    audience: Audience
    agent_id: str | None
    actor: Actor | None = field(default=None, compare=False)


def new_secret() -> str:
    """Return a new signing secret in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def create_webhook(
    subscriber: Subscriber, *, url: str, types: Sequence[str], description: str, claim: Claim
) -> EventTarget:
    """Add a webhook; it has its secret. Raises: InvalidInput, LimitReached."""
    return add(
        subscriber, TargetKind.WEBHOOK, url=parse_webhook_url(url), types=types, description=description,
        secret=new_secret(), claim=claim,
    )  # fmt: skip


def add_email(subscriber: Subscriber, address: str, *, types: Sequence[str]) -> EventTarget:
    """Add an email address that was parsed. Raises: InvalidInput, LimitReached."""
    return add(subscriber, TargetKind.EMAIL, url=f"mailto:{address}", types=types, claim=Claim.none())


def add_browser(
    subscriber: Subscriber, *, endpoint: str, p256dh: str, auth: str, types: Sequence[str], description: str = ""
) -> EventTarget:
    """Add a browser by its push subscription. Raises: InvalidInput, LimitReached."""
    url = parse_webhook_url(endpoint)
    for name, text, size in (("p256dh", p256dh, _P256_POINT_BYTES), ("auth", auth, _AUTH_BYTES)):
        try:
            is_key = len(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) == size
        except ValueError:
            is_key = False
        if not is_key:
            raise InvalidInput.field(name, "must be a key of a push subscription in base64url")
    return add(
        subscriber, TargetKind.WEB_PUSH, url=url, types=types, description=description, secret=f"{p256dh} {auth}",
        claim=Claim.none(),
    )  # fmt: skip


def browser_keys_of(row: EventTarget) -> dict[str, str]:
    p256dh, auth = _SEALED.open(row.sealed, row.id).decode().split(" ")
    return {"p256dh": p256dh, "auth": auth}


def add(
    subscriber: Subscriber,
    kind: TargetKind,
    *,
    url: str,
    types: Sequence[str],
    description: str = "",
    secret: str = "",
    claim: Claim,
) -> EventTarget:
    """Add a target of any kind, with an address that was checked. Raises: InvalidInput, LimitReached."""
    target_id, now = identifiers.new_id(), clock.now()
    row = EventTarget(
        id=target_id, kind=kind.value, audience=subscriber.audience.value, agent_id=subscriber.agent_id, url=url,
        description=description, types=list(types), **TARGETS.initial(TargetStatus.ENABLED),
        sealed=_SEALED.seal(secret, target_id), lease_until=now, paused_until=now, unanswered=0, created_at=now,
        created_by=None if subscriber.actor is None else subscriber.actor.id,
    )  # fmt: skip
    with unit_of_work() as session:
        if subscriber.agent_id is not None:
            identity.lock_agent(session, subscriber.agent_id)
            same = select(EventTarget).where(*_of(subscriber), EventTarget.kind == kind.value, EventTarget.url == url)
            if kind is not TargetKind.WEBHOOK and (existing := session.scalars(same).first()) is not None:
                return existing
        most = MAX_OPERATOR_TARGETS if subscriber.agent_id is None else MAX_TARGETS
        if count(session, EventTarget, *_of(subscriber)) >= most:
            raise LimitReached(f"You have {most} webhooks and other targets, which is the maximum. Delete one first.")
        queues.join(session, row)
        session.add(row)
        session.flush()
        claim.bind(session, target_id)
        record_audit(session, subscriber.actor, AuditAction.WEBHOOK_CREATED, row)
    row.secret = secret
    return row


def parse_webhook_url(url: str) -> str:
    """Return a URL that may be delivered to, in canonical form. Raises: InvalidInput."""
    try:
        base, target = base_urls.parse_public(url, app_state().settings)
    except ValueError as error:
        raise InvalidInput.field("url", str(error)) from None
    return base.origin + target


def get(subscriber: Subscriber, target_id: str) -> EventTarget:
    """Return a target. Raises: NotFound, including for those of others."""
    with read_only_unit() as session:
        return find(session, subscriber, target_id)


def reveal(target_id: str) -> EventTarget:
    """Return a target with its present secret, to repeat the response in which it was made. Raises: NotFound."""
    with read_only_unit() as session:
        row = identifiers.require(session.get(EventTarget, target_id), NotFound(_NOT_FOUND))
    row.secret = _SEALED.open(row.sealed, row.id).decode()
    return row


def list_of(subscriber: Subscriber, page: PageRequest) -> Page[EventTarget]:
    """Return a page of a subscriber's targets, oldest first."""
    with read_only_unit() as session:
        return page_of(session, EventTarget, page, *_of(subscriber))


def change(subscriber: Subscriber, target_id: str, changes: dict[str, Any]) -> EventTarget:
    """Change `url`, `types` or `description`, or enable or disable a webhook by `enabled`.

    Raises: InvalidInput, NotFound.
    """
    values = {name: value for name, value in changes.items() if name in ("url", "types", "description")}
    if "url" in values:
        values["url"] = parse_webhook_url(values["url"])
    now = clock.now()
    with unit_of_work() as session:
        row = find(session, subscriber, target_id)
        before = described(row)
        if values:
            session.execute(update(EventTarget).where(EventTarget.id == row.id).values(**values))
        if changes.get("enabled") is True:
            TARGETS.move(session, row.id, TargetStatus.DISABLED, TargetStatus.ENABLED, paused_until=now, due_at=now)
        elif changes.get("enabled") is False:
            TARGETS.move(session, row.id, TargetStatus.ENABLED, TargetStatus.DISABLED, reason="disabled by request")
        session.refresh(row)
        record_audit(session, subscriber.actor, AuditAction.WEBHOOK_CHANGED, row, before=before)
    return row


def remove(subscriber: Subscriber, target_id: str) -> EventTarget:
    """Remove a target with its deliveries, and return it as it was. Raises: NotFound."""
    with unit_of_work() as session:
        row = find(session, subscriber, target_id)
        before = described(row)
        session.expunge(row)
        _delete(session, [row.id])
        record_audit(session, subscriber.actor, AuditAction.WEBHOOK_DELETED, row, before=before)
    return row


def remove_all(session: Session, subscriber: Subscriber) -> list[str]:
    """Remove all targets of a subscriber; return the email addresses."""
    rows = session.scalars(select(EventTarget).where(*_of(subscriber))).all()
    _delete(session, [row.id for row in rows])
    return [row.url.removeprefix("mailto:") for row in rows if row.kind == TargetKind.EMAIL]


def disable_set_up_by(session: Session, *, master_key_id: str | None = None, owner_of: str | None = None) -> list[str]:
    """Disable what a revoked master key created, or all but e-mail of an owner with a replaced key.

    Returns the ids. E-mail goes on: its addresses were confirmed, and an owner without any notice is worse off.
    """
    made, reason = EventTarget.created_by == master_key_id, "its master key was revoked"
    if owner_of is not None:
        of_owner = _of(Subscriber(Audience.OWNER, owner_of))
        made, reason = and_(*of_owner, EventTarget.kind != "email"), "the owner key was replaced"
    return sorted(TARGETS.move(session, made, TargetStatus.ENABLED, TargetStatus.DISABLED, reason=reason))


def rotate_secret(subscriber: Subscriber, target_id: str) -> EventTarget:
    """Replace the secret of a webhook; for a day, deliveries are signed with both. Raises: NotFound."""
    secret = new_secret()
    with unit_of_work() as session:
        row = find(session, subscriber, target_id, locks=True)
        row.former_sealed = _FORMER_SEALED.seal(_SEALED.open(row.sealed, row.id), row.id)
        row.former_until = clock.now() + timedelta(hours=24)
        row.sealed = _SEALED.seal(secret, row.id)
        session.flush()
        record_audit(session, subscriber.actor, AuditAction.WEBHOOK_SECRET_ROTATED, row)
    row.secret = secret
    return row


def secrets_of(row: EventTarget) -> list[str]:
    """Return the secrets that sign now, the newest first."""
    found = [_SEALED.open(row.sealed, row.id).decode()]
    if row.former_sealed is not None and row.former_secret_until is not None:
        found.append(_FORMER_SEALED.open(row.former_sealed, row.id).decode())
    return found


def find(session: Session, subscriber: Subscriber, target_id: str, *, locks: bool = False) -> EventTarget:
    """Return the row of a subscriber's target. Raises: NotFound."""
    canonical = identifiers.require_id(target_id, NotFound(_NOT_FOUND))
    query = select(EventTarget).where(EventTarget.id == canonical, *_of(subscriber))
    return identifiers.require(session.scalar(query.with_for_update() if locks else query), NotFound(_NOT_FOUND))


def _of(subscriber: Subscriber) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    # Compared with None it is IS NULL.
    return EventTarget.audience == subscriber.audience.value, EventTarget.agent_id == subscriber.agent_id


def _delete(session: Session, target_ids: Sequence[str]) -> None:
    for model, key in ((EventDelivery, EventDelivery.target_id), (EventTarget, EventTarget.id)):
        session.execute(delete(table_of(model)).where(key.in_(target_ids)))
