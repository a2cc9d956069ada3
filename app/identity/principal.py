"""The authenticated client of a request, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class KeyKind(StrEnum):
    """The kinds of key for the X-API-Key header, by their prefix."""

    AGENT = "ak"
    GATEWAY = "gw"


class Scope(StrEnum):
    """What an owner may permit an application."""

    WALLET_READ = "wallet:read"
    WALLET_PAY = "wallet:pay"
    GATEWAY = "gateway"
    CATALOG = "catalog"


@dataclass(frozen=True, slots=True)
class Grant:
    """What an agent's owner has permitted an application: scopes, one wallet, and a session as the budget."""

    id: str
    agent_id: str
    client_id: str
    client_name: str
    client_host: str
    scopes: tuple[Scope, ...]
    wallet_id: str | None
    session_id: str | None
    expires_at: datetime
    created_at: datetime
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key. Limits and idempotency belong to the agent; a gateway-only key has none.

    `account_id` is the credit account that pays: the agent's id, or a gateway-only key's own id. An application has
    the agent, and the `grant` of its owner.
    """

    kind: KeyKind
    key_id: str
    account_id: str
    agent_id: str | None
    grant: Grant | None = None

    @property
    def only_wallet_id(self) -> str | None:
        """Return the wallet that an application was permitted; None for the agent itself, whose wallets are all."""
        return None if self.grant is None else self.grant.wallet_id

    def agent_of_wallet(self, wallet_id: str) -> str | None:
        """Return the agent whose wallet this may be; None for a wallet that an application was not permitted."""
        return self.agent_id if self.grant is None or self.grant.wallet_id == wallet_id else None


@dataclass(frozen=True, slots=True)
class MasterKeyPrincipal:
    key_id: str
    name: str
