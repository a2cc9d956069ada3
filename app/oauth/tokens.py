"""Codes and refresh tokens: random texts, found by their digest, used once."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock, identifiers
from app.oauth.clients import Client
from app.oauth.models import OAuthToken

_SEAL = seal_of(OAuthToken)
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


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A row, with the methods that authlib calls."""

    id: str
    grant_id: str | None
    client_id: str
    client_name: str
    scope: str
    redirect_uri: str | None
    code_challenge: str | None
    expires_at: datetime
    is_used: bool
    is_denied: bool
    polled_at: datetime | None
    code_challenge_method: str = "S256"

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

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.id


def add(session: Session, kind: TokenKind, client: Client, *, until: datetime | None = None, **values: Any) -> str:
    """Insert a token that is valid for the time of its kind, and at most until an instant; return its text."""
    text, now = identifiers.new_key(kind), clock.now()
    expires_at = min(now + LIFETIMES[kind], until or datetime.max.replace(tzinfo=now.tzinfo))
    row = OAuthToken(
        id=identifiers.new_id(), kind=kind.value, digest=identifiers.digest(text), client_id=client.id,
        client_name=client.name, expires_at=expires_at, created_at=now, **values,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return text


def find(session: Session, kind: TokenKind, text: str) -> StoredToken | None:
    """Return a token, used and expired ones included."""
    digest = identifiers.digest(text)
    return _one(session, OAuthToken.kind == kind.value, OAuthToken.digest == digest)


def find_by_user_code(session: Session, text: str) -> StoredToken | None:
    """Return the device code of a user code that nobody has answered."""
    return _one(session, OAuthToken.user_code_digest == user_code_digest(text), *_unanswered())


def find_unanswered(session: Session, token_id: str) -> StoredToken | None:
    return _one(session, OAuthToken.id == token_id, OAuthToken.kind == TokenKind.DEVICE.value, *_unanswered())


def use(session: Session, token: StoredToken) -> bool:
    """Use a token; return False if it was used before."""
    is_unused = OAuthToken.id == token.id, OAuthToken.used_at.is_(None)
    return bool(change(session, OAuthToken, *is_unused, used_at=clock.now()))


def answer(session: Session, token_id: str, *, grant_id: str | None) -> bool:
    """Store the owner's answer to a device code: the grant, or None to deny; return whether this call did so."""
    values: dict[str, Any] = {"denied_at": clock.now()} if grant_id is None else {"grant_id": grant_id}
    return bool(change(session, OAuthToken, OAuthToken.id == token_id, *_unanswered(), **values))


def note_poll(session: Session, token: StoredToken) -> bool:
    """Note that a device asked for its answer; return whether it asks too often."""
    now = clock.now()
    session.execute(update(OAuthToken).where(OAuthToken.id == token.id).values(polled_at=now))
    return token.polled_at is not None and now < token.polled_at + timedelta(seconds=POLL_SECONDS)


def new_user_code() -> str:
    letters = [secrets.choice(_USER_CODE_LETTERS) for _ in range(8)]
    return f"{''.join(letters[:4])}-{''.join(letters[4:])}"


def user_code_digest(text: str) -> str:
    return identifiers.digest("".join(each for each in text.upper() if each in _USER_CODE_LETTERS))


def prune(session: Session, now: datetime) -> None:
    """Delete tokens a day after they expired: until then, a repeated use ends the grant."""
    session.execute(delete(OAuthToken).where(OAuthToken.expires_at < now - timedelta(days=1)))


def _unanswered() -> list[Any]:
    return [OAuthToken.grant_id.is_(None), OAuthToken.denied_at.is_(None), OAuthToken.expires_at > clock.now()]


def _one(session: Session, *conditions: Any) -> StoredToken | None:
    query = select(*_SEAL.columns, OAuthToken.polled_at).where(*conditions)
    row = session.execute(query).one_or_none()
    if row is None or not _SEAL.accepts(session, row):
        return None
    return StoredToken(
        row.id, row.grant_id, row.client_id, row.client_name, row.scope, row.redirect_uri, row.code_challenge,
        row.expires_at, row.used_at is not None, row.denied_at is not None, row.polled_at,
    )  # fmt: skip
