"""Codes and refresh tokens: random texts, found by their digest, used once."""

import secrets
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, String, Text, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.authenticated import Authenticated, change, seal_of
from app.core import clock, identifiers
from app.db.tables import ID, UtcDateTime
from app.extensions import Model
from app.oauth.clients import Client


class OAuthToken(Authenticated, Model):
    """An authorization code, a refresh token, or a device code, which has a grant once its owner has consented.

    Each is used once; one that is used again ends its grant. The methods are those that authlib calls.
    """

    __tablename__ = "oauth_tokens"
    not_authenticated = frozenset({"created_at", "polled_at"})
    code_challenge_method = "S256"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    kind: Mapped[str] = mapped_column(String(2))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    user_code_digest: Mapped[str | None] = mapped_column(String(64), unique=True)
    grant_id: Mapped[str | None] = mapped_column(ID, ForeignKey("oauth_grants.id", ondelete="CASCADE"), index=True)
    client_id: Mapped[str] = mapped_column(String(500))
    client_name: Mapped[str] = mapped_column(String(100))
    scope: Mapped[str] = mapped_column(String(200))
    redirect_uri: Mapped[str | None] = mapped_column(Text)
    code_challenge: Mapped[str | None] = mapped_column(String(128))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    denied_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    polled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    def get_redirect_uri(self) -> str | None:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_client_id(self) -> str:
        return self.client_id

    def get_user_code(self) -> str:
        return self.id

    def is_expired(self) -> bool:
        return self.expires_at <= clock.now()

    def check_client(self, client: Any) -> bool:
        return bool(self.client_id == client.id)


POLL_SECONDS = 5
_USER_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"


class TokenKind(StrEnum):
    """The kinds, by the prefix of their text."""

    CODE = "ac"
    REFRESH = "rt"
    DEVICE = "dc"


LIFETIMES = {
    TokenKind.CODE: timedelta(seconds=60),
    TokenKind.REFRESH: timedelta(days=60),
    TokenKind.DEVICE: timedelta(minutes=15),
}


def add(session: Session, kind: TokenKind, client: Client, *, until: datetime | None = None, **values: Any) -> str:
    """Insert a token that is valid for the time of its kind, and at most until an instant; return its text."""
    text, now = identifiers.new_key(kind), clock.now()
    expires_at = now + LIFETIMES[kind]
    row = OAuthToken(
        id=identifiers.new_id(), kind=kind.value, digest=identifiers.digest(text), client_id=client.id,
        client_name=client.name, expires_at=min(expires_at, until or expires_at), created_at=now, **values,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return text


def find(session: Session, kind: TokenKind, text: str) -> OAuthToken | None:
    """Return a token, used and expired ones included."""
    return _one(session, OAuthToken.kind == kind.value, OAuthToken.digest == identifiers.digest(text))


def find_unanswered(session: Session, *, token_id: str = "", user_code: str = "") -> OAuthToken | None:
    """Return the device code with an id or a user code that nobody has answered."""
    by_code = OAuthToken.user_code_digest == user_code_digest(user_code)
    return _one(session, OAuthToken.id == token_id if token_id else by_code, *_unanswered())


def use(session: Session, token: OAuthToken) -> bool:
    """Use a token; return False if it was used before."""
    is_unused = OAuthToken.id == token.id, OAuthToken.used_at.is_(None)
    return bool(change(session, OAuthToken, *is_unused, used_at=clock.now()))


def answer(session: Session, token_id: str, *, grant_id: str | None) -> bool:
    """Store the owner's answer to a device code: the grant, or None to deny; return whether this call did so."""
    values: dict[str, Any] = {"denied_at": clock.now()} if grant_id is None else {"grant_id": grant_id}
    return bool(change(session, OAuthToken, OAuthToken.id == token_id, *_unanswered(), **values))


def note_poll(session: Session, token: OAuthToken) -> bool:
    """Note that a device asked for its answer; return whether it asks too often."""
    now, before = clock.now(), token.polled_at
    session.execute(update(OAuthToken).where(OAuthToken.id == token.id).values(polled_at=now))
    return before is not None and now < before + timedelta(seconds=POLL_SECONDS)


def new_user_code() -> str:
    letters = "".join(secrets.choice(_USER_CODE_LETTERS) for _ in range(8))
    return f"{letters[:4]}-{letters[4:]}"


def user_code_digest(text: str) -> str:
    return identifiers.digest("".join(each for each in text.upper() if each in _USER_CODE_LETTERS))


def _unanswered() -> list[Any]:
    return [
        OAuthToken.kind == TokenKind.DEVICE.value, OAuthToken.grant_id.is_(None), OAuthToken.denied_at.is_(None),
        OAuthToken.expires_at > clock.now(),
    ]  # fmt: skip


def _one(session: Session, *conditions: Any) -> OAuthToken | None:
    query = select(OAuthToken).where(*conditions)
    row = session.scalars(query, execution_options={"populate_existing": True}).one_or_none()
    return row if row is not None and seal_of(OAuthToken).accepts(session, row) else None
