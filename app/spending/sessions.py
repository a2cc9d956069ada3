"""Sessions: budgets for one task, which narrow the limits of a wallet for what names them.

What counts against a session is changed only with its holds, under the lock of the wallet's account. The only writer of
`spending_sessions`.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.tables import count, page_of
from app.errors import LimitReached, NotFound
from app.spending import accounts
from app.spending.models import SpendingSession
from app.spending.policy import SessionBudget

MAX_OPEN_SESSIONS = 1000


def open_session(
    session: Session, wallet_id: str, *, max_nanos: int, expires_at: datetime, domains: Sequence[str]
) -> SpendingSession:
    """Open a session of a wallet. Raises: LimitReached, NotFound if the wallet was deleted."""
    accounts.lock_account(session, wallet_id)
    now = clock.now()
    is_open = (SpendingSession.wallet_id == wallet_id, SpendingSession.expires_at > now)
    if count(session, SpendingSession, *is_open) >= MAX_OPEN_SESSIONS:
        raise LimitReached(f"A wallet can have at most {MAX_OPEN_SESSIONS} sessions that have not expired.")
    row = SpendingSession(
        id=identifiers.new_id(), wallet_id=wallet_id, max_nanos=max_nanos, counted_nanos=0,
        domains=list(dict.fromkeys(domains)), expires_at=expires_at, created_at=now,
    )  # fmt: skip
    session.add(row)
    return row


def get(session: Session, session_id: str, *, wallet_id: str | None = None) -> SpendingSession:
    """Return a session. Raises: NotFound, including for one of another wallet."""
    row = session.get(SpendingSession, identifiers.require_id(session_id, _not_found()))
    if row is None or (wallet_id is not None and row.wallet_id != wallet_id):
        raise _not_found()
    return row


def list_of(session: Session, wallet_id: str, page: PageRequest) -> Page[SpendingSession]:
    """Return a page of a wallet's sessions, newest first."""
    return page_of(session, SpendingSession, page, SpendingSession.wallet_id == wallet_id, newest_first=True)


def budget_of(session: Session, wallet_id: str, session_id: str) -> SessionBudget:
    """Return the budget of a wallet's session. Raises: NotFound."""
    seal = seal_of(SpendingSession)
    is_meant = SpendingSession.id == session_id, SpendingSession.wallet_id == wallet_id
    row = identifiers.require(session.execute(select(*seal.columns).where(*is_meant)).one_or_none(), _not_found())
    seal.verify(session, row)
    return SessionBudget(row.max_nanos, row.counted_nanos, row.expires_at, tuple(row.domains))


def adjust_count(session: Session, session_id: str, change_nanos: int) -> None:
    """Add to what counts against a session; less if a hold is released. The wallet's account must be locked."""
    counted_nanos = SpendingSession.counted_nanos + change_nanos
    change(session, SpendingSession, SpendingSession.id == session_id, counted_nanos=counted_nanos)


def _not_found() -> NotFound:
    return NotFound("This wallet has no such session.")
