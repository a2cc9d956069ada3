"""`/v1/wallets/{id}/sessions`: budgets for one task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from app.audit_log import trail
from app.audit_log.actors import current_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock
from app.core.money import usd_string
from app.core.pagination import Page
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, LimitReached
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.spending import sessions
from app.spending.models import SpendingSession
from app.wallets.api import schemas
from app.wallets.api.routes import IDEMPOTENCY_NOTE, blp
from app.wallets.core.wallets import WalletView
from app.web.schemas import PageQuery

_MAX_DURATION = timedelta(days=366)


def _rebuild(session_id: str) -> SpendingSession:
    with read_only_unit() as session:
        return sessions.get(session, session_id)


@blp.post("/<string:wallet_id>/sessions")
@idempotent(owner=guards.require_agent, rebuild=_rebuild, note=IDEMPOTENCY_NOTE)
@blp.arguments(schemas.SessionBody)
@blp.response(201, schemas.SpendingSessionShape)
@blp.raises(LimitReached)
def open_session(body: dict[str, Any], wallet: WalletView, claim: Claim) -> SpendingSession:
    """Open a session: a transfer, withdrawal or x402 payment that names it stays within its budget, too."""
    now = clock.now()
    if not now < body["expires_at"] <= now + _MAX_DURATION:
        raise InvalidInput.field("expires_at", f"must be in the future, at most {_MAX_DURATION.days} days")
    with unit_of_work() as session:
        opened = sessions.open_session(session, wallet.id, **body)
        claim.bind(session, opened.id)
        after = {"session_id": opened.id, "wallet_id": wallet.id, "max_usd": usd_string(opened.max_nanos)}
        act = AuditEvent(AuditAction.SESSION_OPENED, wallet.agent_id, after=after)
        trail.record(session, current_actor(), act)
        return opened


@blp.get("/<string:wallet_id>/sessions")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.SessionPage)
def list_sessions(query: dict[str, Any], wallet: WalletView) -> Page[SpendingSession]:
    """List the sessions of a wallet, newest first."""
    with read_only_unit() as session:
        return sessions.list_of(session, wallet.id, query["page"])


@blp.get("/<string:wallet_id>/sessions/<string:session_id>")
@blp.response(200, schemas.SpendingSessionShape)
def get_session(session_id: str, wallet: WalletView) -> SpendingSession:
    """Read a session and what is left of its budget."""
    with read_only_unit() as session:
        return sessions.get(session, session_id, wallet_id=wallet.id)
