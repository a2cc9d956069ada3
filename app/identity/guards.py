"""The guards that blueprints hang at their doors, and the caller of the present request.

Every failure is the same 401: missing, malformed, unknown, expired and revoked keys cannot be told apart.
"""

from __future__ import annotations

from flask import g, request

from app.errors import Unauthorized
from app.identity import limits, service
from app.identity.caller import Caller, MasterCaller
from app.web import callers
from app.web.blueprint import Guard
from app.web.budgets import STRANGERS

API_KEY_SCHEME = "ApiKey"
BEARER_SCHEME = "Bearer"
MASTER_KEY_SCHEME = "MasterKey"
PAYMENT_SCHEME = "Payment"
SECURITY_SCHEMES = {
    API_KEY_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "An agent's key (`ak_…`), or a gateway-only one (`gw_…`) where no wallet is needed.",
    },
    BEARER_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "The same key, where clients of other services send theirs (gateway routes only).",
    },
    PAYMENT_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-Payment",
        "description": (
            "Instead of a key, on gateway routes: the hash of a USDC transaction (with `X-Payment-Chain`), or a signed "
            "payment of x402, here (version 1) or in `PAYMENT-SIGNATURE` (version 2). A call without either is "
            "answered 402 with the terms."
        ),
    },
    MASTER_KEY_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-Master-Key",
        "description": "A master key (`mk_…`): platform administration.",
    },
}
"""What the OpenAPI document says about the keys, by scheme name."""


def caller() -> Caller:
    """Return who makes the present request. Raises: Unauthorized where no guard let anybody in."""
    found: Caller | None = g.get("caller")
    if found is None:
        raise Unauthorized
    return found


def master() -> MasterCaller:
    """Return which master key makes the present request. Raises: Unauthorized where no guard let it in."""
    found: MasterCaller | None = g.get("master_caller")
    if found is None:
        raise _no_master()
    return found


def require_agent() -> str:
    """Return the calling agent's id, for what a gateway-only key cannot do. Raises: Unauthorized."""
    agent_id = caller().agent_id
    if agent_id is None:
        raise Unauthorized(
            "An agent key (ak_…) is needed here; a gateway-only key (gw_…) owns no wallets or services."
        )
    return agent_id


def admit(found: Caller) -> None:
    """Make somebody the caller of the present request, counted against the rate limit of their account.

    It hangs on the agent, not on the key: two keys during a rotation are no two allowances.
    """
    limits.count_call_of_key(found.account_id)
    g.caller = found
    _introduce(found.account_id)


def account_or_stranger() -> str:
    """Return whose budget the present request draws from: its caller's account, or that of all without a key."""
    found = find_caller()
    return STRANGERS if found is None else found.account_id


def admit_without_key() -> None:
    """Let somebody in whom no key names."""
    g.pop("caller", None)


def find_caller() -> Caller | None:
    """Return who makes the present request by a key, None where a door let somebody in without one."""
    found: Caller | None = g.get("caller")
    return found


def sends_key_of_client() -> bool:
    """Tell whether the request carries a key where `find_key_of_client` looks for one, good or not."""
    return bool(presented_keys())


def find_key_of_client() -> Caller | None:
    """Return who holds the key that a client of another service sends where that service wants it."""
    return next((found for key in presented_keys() if (found := service.find_caller(key)) is not None), None)


def presented_keys() -> list[str]:
    """Return what the present request has where a key may stand, valid or not."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    candidates = (request.headers.get("X-API-Key"), bearer, request.headers.get("X-Goog-Api-Key"))
    return [key for key in candidates if key]


def _check_any_key() -> None:
    found = service.find_caller(request.headers.get("X-API-Key"))
    if found is None:
        raise Unauthorized
    admit(found)


def _check_agent_key() -> None:
    _check_any_key()
    require_agent()


def _check_master_key() -> None:
    found = service.find_master(request.headers.get("X-Master-Key"))
    if found is None:
        raise _no_master()
    limits.count_call_of_key(found.key_id)
    g.master_caller = found
    _introduce(found.key_id)


def _introduce(whose: str) -> None:
    """Tell the server whose request this is, so that a crowd without keys takes nothing from those who have one."""
    connection = callers.present(request.environ)
    if connection is not None:
        connection.whose = whose


def _no_master() -> Unauthorized:
    return Unauthorized("A valid master key is needed in the X-Master-Key header.")


ANY_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_any_key)
"""An agent's or a gateway-only key. On wallet routes the latter has no agent: empty lists, 404 for ids."""

AGENT_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_agent_key)
"""An agent's key; a gateway-only key gets a 401 that says so."""

MASTER_KEY = Guard(schemes=(MASTER_KEY_SCHEME,), check=_check_master_key)
"""A master key."""
