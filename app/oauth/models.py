"""Tables of OAuth: registered applications, and the codes and refresh tokens of grants. Only digests are stored."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.core import clock
from app.db.columns import ID, UtcDateTime
from app.extensions import Model


class OAuthClient(Model):
    """An application that has registered itself; nothing that it says of itself is verified."""

    __tablename__ = "oauth_clients"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    redirect_uris: Mapped[list[str]] = mapped_column(JSON)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


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
