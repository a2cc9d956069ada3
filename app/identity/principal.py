"""The authenticated client of a request, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class KeyKind(StrEnum):
    """The kinds of key for the X-API-Key header, by their prefix."""

    AGENT = "ak"
    GATEWAY = "gw"


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key. Limits and idempotency belong to the agent; a gateway-only key has none.

    `account_id` is the credit account that pays: the agent's id, or a gateway-only key's own id.
    """

    kind: KeyKind
    key_id: str
    account_id: str
    agent_id: str | None


@dataclass(frozen=True, slots=True)
class MasterKeyPrincipal:
    key_id: str
    name: str
