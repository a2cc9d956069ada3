"""Tables of owner sessions. The browser has the token; the database only its digest."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.columns import ID, UtcDateTime
from app.extensions import Model


class OwnerSession(Authenticated, Model):
    """A browser in which an owner is signed in. It ends when the row is deleted."""

    __tablename__ = "owner_sessions"
    not_authenticated = frozenset({"started_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class OwnerSessionKey(Authenticated, Model):
    """An owner key that was entered in a session: the session opens that key's agent, and no other."""

    __tablename__ = "owner_session_keys"
    not_authenticated = frozenset()

    session_id: Mapped[str] = mapped_column(ID, ForeignKey("owner_sessions.id", ondelete="CASCADE"), primary_key=True)
    owner_key_id: Mapped[str] = mapped_column(
        ID, ForeignKey("owner_keys.id", ondelete="CASCADE"), primary_key=True, index=True
    )
