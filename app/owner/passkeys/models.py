"""Tables of passkeys, without the library that verifies them, which only web processes need."""

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, UtcDateTime
from app.extensions import Model


class Passkey(Authenticated, Model):
    """A passkey with the power of one owner key or master key, as long as that key is valid."""

    __tablename__ = "owner_passkeys"
    not_authenticated = frozenset({"sign_count", "backup_eligible", "name", "created_at", "used_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    # The column has the name that it had when only owners had passkeys: the previous version serves while this starts.
    key_id: Mapped[str] = mapped_column("owner_key_id", ID, index=True)
    credential_digest: Mapped[str] = mapped_column(String(64), unique=True)
    credential_id: Mapped[bytes] = mapped_column(LargeBinary)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    sign_count: Mapped[int] = mapped_column(BigInteger)
    # Whether it may be copied to other devices; null if it was added before this was stored, and not used since.
    backup_eligible: Mapped[bool | None]
    name: Mapped[str] = mapped_column(String(60))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class UsedPasskeyChallenge(Model):
    """A challenge that an authenticator has signed: it is not accepted again."""

    __tablename__ = "used_passkey_challenges"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
