"""The API keys in a request, wherever the SDKs of providers put theirs.

In the places where this service documents its keys, any text is a key. Elsewhere only one that looks like a key of
ours is: an SDK may send a placeholder, and a client that pays with x402 may have a key of somebody else.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_plus

from app.errors import Unauthorized
from app.web.client_request import ClientRequest

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
_BEARER_LENGTH = len("bearer ")
_KEY_IN_TEXT = re.compile(r"\b(ak|gw|at)_[A-Za-z0-9_-]{16,}")


def presented_keys(request: ClientRequest) -> list[str]:
    """Return the contents of the headers that are documented for a key, valid or not.

    Raises: Unauthorized if two different ones look like keys of ours: they may have different owners.
    """
    environ = request.environ
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else None
    candidates = (environ.get("HTTP_X_API_KEY"), bearer, environ.get("HTTP_X_GOOG_API_KEY"))
    return _assert_one_key([key for key in candidates if key])


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
            " or in the path), so that it is not clear which account pays. Send one."
        )
    return found


def is_ours(text: str) -> bool:
    return text.startswith(_PREFIXES)


def has_key_segment(path: str) -> bool:
    return any(f"/{prefix}" in path for prefix in _PREFIXES)


def without_key_segment(path: str) -> str:
    """Return a path without a last segment that is a key of ours, and without the version before that."""
    return _KEY_SEGMENT.sub("", path)


def redact_keys(text: str) -> str:
    return _KEY_IN_TEXT.sub(r"\1_…", text)


def _further_texts(environ: Mapping[str, Any]) -> list[str]:
    found = [value.strip() for variable in _FURTHER_HEADERS if (value := environ.get(variable))]
    authorization = environ.get("HTTP_AUTHORIZATION")
    if authorization and authorization[:_BEARER_LENGTH].lower() != "bearer ":
        found += _authorization_keys(authorization)
    if query := environ["QUERY_STRING"]:
        for part in query.split("&"):
            name, _, value = part.partition("=")
            if unquote_plus(name).lower() in CREDENTIAL_PARAMETERS:
                found.append(unquote_plus(value).strip())
    if has_key_segment(path := environ["PATH_INFO"]):
        found += _KEY_SEGMENT.findall(path)
    return found


def _authorization_keys(value: str) -> Iterator[str]:
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() != "basic":
        # The key alone, or after another word than Bearer.
        yield rest.strip() or scheme
        return
    try:
        yield from base64.b64decode(rest, validate=True).decode().split(":", 1)
    except ValueError:
        return
