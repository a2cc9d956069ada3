"""The guards of blueprints, and the principal of the current request.

Every failure is the same 401: missing, malformed, unknown, expired and revoked keys are indistinguishable.

In the places where this service documents its keys, any text is a key. Elsewhere, where SDKs of providers put theirs,
only one that looks like a key of ours is: an SDK may send a placeholder, and a client that pays with x402 may have a
key of somebody else.
"""

import base64
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import unquote_plus

from flask import g

from app.core.identifiers import require
from app.errors import InsufficientScope, Unauthorized
from app.identity import grants, limits, service
from app.identity.principal import KeyKind, MasterKeyPrincipal, Principal, assert_permitted, assert_role
from app.web import request_bodies
from app.web.blueprint import Guard
from app.web.client_request import ClientRequest
from server import client_socket
from server.pool import ANONYMOUS

_PREFIXES = ("ak_", "gw_", "at_")
# Azure, Brave, CoinGecko, and what others use.
_FURTHER_HEADERS = (
    "HTTP_API_KEY", "HTTP_X_SUBSCRIPTION_TOKEN", "HTTP_X_CG_PRO_API_KEY", "HTTP_X_CG_DEMO_API_KEY", "HTTP_APIKEY",
    "HTTP_OCP_APIM_SUBSCRIPTION_KEY", "HTTP_X_AUTH_TOKEN", "HTTP_X_ACCESS_TOKEN",
)  # fmt: skip
CREDENTIAL_PARAMETERS = frozenset({
    "key", "$key", "api_key", "apikey", "api-key", "x-api-key", "access_token", "$access_token", "oauth_token",
    "bearer_token", "token", "x_cg_demo_api_key", "x_cg_pro_api_key", "subscription-token", "subscription-key",
})  # fmt: skip
"""Parameters that some upstream takes as a credential: it would override the operator's, or identify the client."""
# Alchemy's SDKs end the path with the key: `/v2/{key}`.
_KEY_SEGMENT = re.compile(r"(?:\A|/)(?:v[0-9]/)?((?:ak|gw|at)_[A-Za-z0-9_-]+)/?\Z", re.ASCII)
# What they are is in `app/web/descriptions.toml`.
API_KEY_SCHEME = "ApiKey"
BEARER_SCHEME = "Bearer"
MASTER_KEY_SCHEME = "MasterKey"
PAYMENT_SCHEME = "Payment"
_NO_MASTER_KEY = "A valid master key is required in the X-Master-Key header."
FindPrincipal: TypeAlias = Callable[[str | None], Principal | None]


def presented_keys(request: ClientRequest) -> list[str]:
    """Return the contents of the headers that are documented for a key, valid or not.

    Raises: Unauthorized if two different ones look like keys of ours: they may have different owners.
    """
    environ = request.environ
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    candidates = (environ.get("HTTP_X_API_KEY"), bearer, environ.get("HTTP_X_GOOG_API_KEY"))
    return _assert_one_key([key for key in candidates if key])


def api_key(request: ClientRequest) -> str | None:
    """Return the content of X-API-Key; without it, the access token of an application in Authorization (RFC 6750).

    Raises: Unauthorized, as `presented_keys` does.
    """
    key: str | None = request.headers.get("X-API-Key")
    if "Authorization" in request.headers:
        keys = presented_keys(request)
        if key is None and keys and keys[0].startswith(f"{grants.PREFIX}_"):
            return keys[0]
    return key


def sdk_keys(request: ClientRequest) -> list[str]:
    """Return what `presented_keys` does, and the keys of ours in other headers, the query and the path.

    Raises: Unauthorized, as `presented_keys` does.
    """
    if request.sdk_keys is None:
        found = presented_keys(request)
        if further := [key for key in _further_texts(request.environ) if is_ours(key)]:
            found = _assert_one_key(found + further)
        request.sdk_keys = found
    return request.sdk_keys


def _assert_one_key(found: list[str]) -> list[str]:
    if len(found) > 1 and len({key for key in found if is_ours(key)}) > 1:
        raise Unauthorized(
            "This request contains two different API keys (in headers such as X-API-Key and Authorization, in the query"
            " or in the path), so it is unclear which account pays. Send one."
        )
    return found


def is_ours(text: str) -> bool:
    return text.startswith(_PREFIXES)


def has_key_segment(path: str) -> bool:
    return any(f"/{prefix}" in path for prefix in _PREFIXES)


def without_key_segment(path: str) -> str:
    """Return a path without a last segment that is a key of ours, and without the version before that."""
    return _KEY_SEGMENT.sub("", path)


def _further_texts(environ: Mapping[str, Any]) -> list[str]:
    found = [value.strip() for variable in _FURTHER_HEADERS if (value := environ.get(variable))]
    authorization = environ.get("HTTP_AUTHORIZATION")
    if authorization and authorization[: len("bearer ")].lower() != "bearer ":
        scheme, _, rest = authorization.strip().partition(" ")
        if scheme.lower() == "basic":
            with suppress(ValueError):
                found += base64.b64decode(rest, validate=True).decode().split(":", 1)
        else:
            # The key alone, or after another word than Bearer.
            found.append(rest.strip() or scheme)
    if query := environ["QUERY_STRING"]:
        for part in query.split("&"):
            name, _, value = part.partition("=")
            if unquote_plus(name).lower() in CREDENTIAL_PARAMETERS:
                found.append(unquote_plus(value).strip())
    if has_key_segment(path := environ["PATH_INFO"]):
        found += _KEY_SEGMENT.findall(path)
    return found


def current_principal() -> Principal:
    """Return the principal of the current request. Raises: Unauthorized without one."""
    found = find_principal()
    if found is None:
        raise Unauthorized
    return found


def current_master_key() -> MasterKeyPrincipal:
    """Return the master key of the current request. Raises: Unauthorized without one."""
    found: MasterKeyPrincipal | None = g.get("master_caller")
    return require(found, Unauthorized(_NO_MASTER_KEY))


def acting_key_id() -> str:
    return current_master_key().key_id


def has_master_key() -> bool:
    return g.get("master_caller") is not None


def require_agent() -> str:
    """Return the calling agent's id, for what a gateway-only key cannot do. Raises: Unauthorized."""
    problem = "An agent key (ak_…) is required here; a gateway-only key (gw_…) owns no wallets or services."
    return require(current_principal().agent_id, Unauthorized(problem))


def idempotency_owner() -> str:
    """Return whose idempotency keys are used: the account's, or the own ones of a key that may see less."""
    return current_principal().client_id


def authenticate_as(request: ClientRequest, principal: Principal) -> None:
    """Set the principal of a request, and count it against the rate limit of the account.

    The limit belongs to the account, not to the key: a rotation does not double it.

    Raises: RateLimited; InsufficientScope if the principal is an application without the scope for this request.
    """
    if not request.is_counted:
        # First its own limit: what that refuses must not use up the account's.
        limits.count_key_request(principal)
        limits.count_authenticated_request(principal.account_id, principal.requests_per_minute)
        request.is_counted = True
    assert_permitted(request, principal)
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
    return next((found for key in sdk_keys(request) if (found := find(key)) is not None), None)


def _check_any_key(request: ClientRequest) -> None:
    found = service.find_principal(api_key(request))
    if found is None:
        raise Unauthorized
    authenticate_as(request, found)


def _check_agent_key(request: ClientRequest) -> None:
    _check_any_key(request)
    require_agent()


def _check_key_or_registration(request: ClientRequest) -> None:
    if (api_key(request) or "").startswith(f"{KeyKind.AGENT.value}_"):
        _check_agent_key(request)
    else:
        g.pop("caller", None)
        _check_registration(request)


def _check_master_key(request: ClientRequest) -> None:
    key: str | None = request.headers.get("X-Master-Key")
    found = require(request.master_caller or service.find_master_key(key), Unauthorized(_NO_MASTER_KEY))
    assert_role(request, found)
    limits.count_authenticated_request(found.key_id)
    g.master_caller = found
    client_socket.attribute_request(request.environ, found.key_id)


def _check_registration(request: ClientRequest) -> None:
    request_bodies.limit_to_keyless(request)
    limits.count_registration(limits.client_network(request.remote_addr))


REGISTRATION = Guard(schemes=(), check=_check_registration)
"""No key is required; each client address is limited, and counted before its body is read."""

KEY_OR_REGISTRATION = Guard(schemes=(), check=_check_key_or_registration, errors=(Unauthorized, InsufficientScope))
"""An agent's key, or none, as for a registration."""

KEYLESS = Guard(schemes=(), check=allow_keyless)
"""No key is required; only requests that fail are counted."""

ANY_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_any_key, errors=(InsufficientScope,))
"""An agent's or a gateway-only key. On wallet routes the latter has no agent: empty lists, 404 for ids."""

AGENT_KEY = Guard(schemes=(API_KEY_SCHEME,), check=_check_agent_key, errors=(InsufficientScope,))
"""An agent's key; a gateway-only key gets a 401 that explains it."""

MASTER_KEY = Guard(schemes=(MASTER_KEY_SCHEME,), check=_check_master_key, errors=(InsufficientScope,))
"""A master key whose role includes the operation."""
