"""Tables of the console."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, UtcDateTime
from app.extensions import Model


class ConsoleSession(Authenticated, Model):
    """A browser in which the holder of a master key is signed in."""

    __tablename__ = "console_sessions"
    not_authenticated = frozenset({"started_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    master_key_id: Mapped[str] = mapped_column(ID, ForeignKey("master_keys.id", ondelete="CASCADE"))
    role: Mapped[str] = mapped_column(String(10))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
