"""The guards of blueprints, and the principal of the current request.

Every failure is the same 401: missing, malformed, unknown, expired and revoked keys are indistinguishable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flask import g

from app.errors import InsufficientScope, Unauthorized
from app.identity import grants, limits, scopes, sdk_keys, service
from app.identity.principal import MasterKeyPrincipal, Principal
from app.web import request_bodies
from app.web.blueprint import Guard
from app.web.client_request import ClientRequest
from server import client_socket
from server.pool import ANONYMOUS

presented_keys = sdk_keys.presented_keys
API_KEY_SCHEME = "ApiKey"
BEARER_SCHEME = "Bearer"
MASTER_KEY_SCHEME = "MasterKey"
PAYMENT_SCHEME = "Payment"
FindPrincipal: TypeAlias = Callable[[str | None], Principal | None]
SECURITY_SCHEMES = {
    API_KEY_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "An agent's key (`ak_…`), or a gateway-only one (`gw_…`) if it needs no wallet. An application "
        "sends its access token (`at_…`) as `Authorization: Bearer`.",
    },
    BEARER_SCHEME: {
        "type": "http",
        "scheme": "bearer",
        "description": "The same key, where clients of other services send theirs (gateway routes only; there also in "
        "`x-goog-api-key`, `api-key`, `X-Subscription-Token` or `?key=`, as the provider's own SDKs do).",
    },
    PAYMENT_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-Payment",
        "description": (
            "Instead of a key, on gateway and x402 routes: the hash of a USDC transaction (with `X-Payment-Chain`), "
            "or a signed payment of x402, here (version 1) or in `PAYMENT-SIGNATURE` (version 2). A call without "
            "either is answered 402 with the terms."
        ),
    },
    MASTER_KEY_SCHEME: {
        "type": "apiKey",
        "in": "header",
        "name": "X-Master-Key",
        "description": "A master key (`mk_…`): platform administration.",
    },
}
"""The security schemes of the OpenAPI document, by name."""


def current_principal() -> Principal:
    """Return the principal of the current request. Raises: Unauthorized without one."""
    found = find_principal()
    if found is None:
        raise Unauthorized
    return found


def current_master_key() -> MasterKeyPrincipal:
    """Return the master key of the current request. Raises: Unauthorized without one."""
    found: MasterKeyPrincipal | None = g.get("master_caller")
    if found is None:
        raise _invalid_master_key()
    return found


def has_master_key() -> bool:
    return g.get("master_caller") is not None


def require_agent() -> str:
    """Return the calling agent's id, for what a gateway-only key cannot do. Raises: Unauthorized."""
    agent_id = current_principal().agent_id
    if agent_id is None:
        raise Unauthorized(
            "An agent key (ak_…) is required here; a gateway-only key (gw_…) owns no wallets or services."
        )
    return agent_id


def authenticate_as(request: ClientRequest, principal: Principal) -> None:
    """Set the principal of a request, and count it against the rate limit of the account.

    The limit belongs to the account, not to the key: a rotation does not double it.

    Raises: RateLimited; InsufficientScope if the principal is an application without the scope for this request.
    """
    if not request.is_counted:
        limits.count_authenticated_request(principal.account_id)
        request.is_counted = True
    scopes.assert_permitted(request, principal)
    g.caller = principal
    client_socket.attribute_request(request.environ, principal.account_id)


def account_id_or_anonymous() -> str:
    """Return the account that shared resources are counted for: the principal's, or one for all anonymous clients."""
    found = find_principal()
    return ANONYMOUS if found is None else found.account_id


def allow_keyless(request: ClientRequest) -> None:
    """Accept a request without a key, if its body is small and its address has not sent too many.

    Raises: RateLimited when KEYLESS_RATE_LIMIT is exceeded.
    """
    g.pop("caller", None)
    request_bodies.limit_to_keyless(request)
    limits.count_keyless_request(request)


def find_principal() -> Principal | None:
    """Return the principal of the current request, or None for an anonymous client."""
    found: Principal | None = g.get("caller")
    return found


def find_principal_by_sdk_key(request: ClientRequest, find: FindPrincipal = service.find_principal) -> Principal | None:
    """Return the holder of a key where a provider's SDK sends it. Raises: Unauthorized for two different keys."""
    return next((found for key in sdk_keys.sdk_keys(request) if (found := find(key)) is not None), None)


def _check_any_key(request: ClientRequest) -> None:
    key = request.headers.get("X-API-Key")
    if "Authorization" in request.headers:
        keys = presented_keys(request)  # two different keys are refused
        if key is None and keys and keys[0].startswith(f"{grants.PREFIX}_"):
            key = keys[0]
    found = service.find_principal(key)
    if found is None:
        raise Unauthorized
    authenticate_as(request, found)


def _check_agent_key(request: ClientRequest) -> None:
    _check_any_key(request)
    require_agent()


def _check_master_key(request: ClientRequest) -> None:
    found = service.find_master_key(request.headers.get("X-Master-Key"))
    if found is None:
        raise _invalid_master_key()
    limits.count_authenticated_request(found.key_id)
    g.master_caller = found
    client_socket.attribute_request(request.environ, found.key_id)


def _invalid_master_key() -> Unauthorized:
    return Unauthorized("A valid master key is required in the X-Master-Key header.")


def _check_registration(request: ClientRequest) -> None:
    request_bodies.limit_to_keyless(request)
    limits.count_registration(limits.client_network(request.remote_addr))


REGISTRATION = Guard(schemes=(), check=_check_registration)
"""No key is required; each client address is limited, and counted before its body is read."""

KEYLESS = Guard(schemes=(), check=allow_keyless)
"""No key is required; only requests that fail are counted."""

ANY_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_any_key, errors=(InsufficientScope,))
"""An agent's or a gateway-only key. On wallet routes the latter has no agent: empty lists, 404 for ids."""

AGENT_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_agent_key, errors=(InsufficientScope,))
"""An agent's key; a gateway-only key gets a 401 that explains it."""

MASTER_KEY = Guard(schemes=(MASTER_KEY_SCHEME,), check=_check_master_key)
"""A master key."""
