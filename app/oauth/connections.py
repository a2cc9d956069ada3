"""Connections: an owner permits an application to act for an agent, and ends that."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from app.agents import claims
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock, identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, LimitReached, NotFound
from app.events import outbox
from app.events.outbox import EventType
from app.identity import grants
from app.identity import service as identity
from app.identity.principal import Grant, Scope
from app.oauth import clients
from app.oauth.clients import Client
from app.spending import sessions
from app.spending.models import SpendingSession

MAX_CONNECTIONS = 50


@dataclass(frozen=True, slots=True)
class Consent:
    """What an owner has chosen; `budget_nanos` of 0 leaves it to the limits of the wallet."""

    agent_id: str
    wallet_id: str | None
    scopes: tuple[Scope, ...]
    budget_nanos: int
    lifetime: timedelta


def open_connection(session: Session, client: Client, consent: Consent, *, redirect_uri: str | None) -> Grant:
    """Open a connection; the unit has to `announce_opened` it last. Raises: InvalidInput, LimitReached, NotFound."""
    if not consent.scopes:
        raise InvalidInput("Select at least one permission.")
    if consent.wallet_id is None and {Scope.WALLET_READ, Scope.WALLET_PAY} & set(consent.scopes):
        raise InvalidInput("These permissions need a wallet, and this agent has none.")
    # A handover ends the connections that it finds: it waits for this unit, or this one for it.
    identity.lock_agent(session, consent.agent_id)
    expires_at = clock.now() + consent.lifetime
    session_id = None
    if consent.budget_nanos and consent.wallet_id is not None:
        opened = sessions.open_session(
            session, consent.wallet_id, max_nanos=consent.budget_nanos, expires_at=expires_at, domains=()
        )
        session_id = opened.id
    if len(grants.list_live(session, consent.agent_id)) >= MAX_CONNECTIONS:
        raise LimitReached(f"An agent can have at most {MAX_CONNECTIONS} connections; end one first.")
    clients.keep(session, client.id, expires_at)
    return grants.add(
        session, agent_id=consent.agent_id, client_id=client.id, client_name=client.name,
        client_host=client.host(redirect_uri), scopes=[each.value for each in consent.scopes],
        wallet_id=consent.wallet_id, session_id=session_id, expires_at=expires_at,
    )  # fmt: skip


def announce_opened(session: Session, actor: Actor, grant: Grant) -> None:
    """Record the event and the audit entry of a new connection, last in its unit."""
    shown = grants.as_json(grant)
    data = {"connection_id": grant.id, **shown}
    outbox.record(session, EventType.CONNECTION_OPENED, agent_id=grant.agent_id, object_id=grant.id, data=data)
    act = AuditEvent(AuditAction.CONNECTION_OPENED, grant.agent_id, after={"id": grant.id, **shown})
    trail.record(session, actor, act)


def end(session: Session, actor: Actor, grant: Grant, *, reason: str) -> bool:
    """End a connection, last in a unit; return whether this call did so."""
    if not claims.end_connection(session, grant, reason=reason):
        return False
    before = {"id": grant.id, **grants.as_json(grant)}
    act = AuditEvent(AuditAction.CONNECTION_ENDED, grant.agent_id, before=before, after={"reason": reason})
    trail.record(session, actor, act)
    return True


def end_by_owner(actor: Actor, agent_id: str, grant_id: str) -> None:
    """End a connection of an agent. Raises: NotFound."""
    with unit_of_work() as session:
        found = next((each for each in grants.list_live(session, agent_id) if each.id == grant_id), None)
        missing = NotFound("This agent has no such connection.")
        end(session, actor, identifiers.require(found, missing), reason="ended_by_owner")


def list_of(agent_id: str) -> Sequence[tuple[Grant, SpendingSession | None]]:
    """Return an agent's connections, newest first, with their budgets."""
    with read_only_unit() as session:
        return [
            (grant, None if grant.session_id is None else session.get(SpendingSession, grant.session_id))
            for grant in grants.list_live(session, agent_id)
        ]
