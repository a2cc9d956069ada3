"""Web Bot Auth: signatures by which a web site verifies that a request is this service's. Off without a key.

HTTP Message Signatures (RFC 9421) by Ed25519 over the site's authority and the address of this service, which has the
public keys, as draft-ietf-webbotauth-httpsig-protocol defines them.
"""

import base64
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from app.core import clock
from app.core.setting_types import keys
from app.state import app_state

DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
DIRECTORY_TYPE = "application/http-message-signatures-directory+json"
_VALIDITY_SECONDS = 600
_NONCE_BYTES = 64
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def request_headers(url: str) -> dict[str, str]:
    """Return the headers that sign a request to a URL; {} without a key."""
    own = _keys()
    if not own:
        return {}
    parts, agent = urlsplit(url), f'"{app_state().settings.public_url}"'
    authority = parts.netloc.lower().removesuffix(_DEFAULT_PORTS[parts.scheme])
    signed = {'"@authority"': authority, '"signature-agent"': agent}
    return {"Signature-Agent": agent, **_signature(own[:1], "web-bot-auth", signed)}


def directory() -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Return the public keys, and the headers by which each proves that it is meant for this service's address."""
    own, authority = _keys(), urlsplit(app_state().settings.public_url).netloc
    proof = _signature(own, "http-message-signatures-directory", {'"@authority";req': authority})
    return {"keys": [each.as_dict(private=False) for each in own]}, proof


def _signature(keys: tuple[OKPKey, ...], tag: str, components: Mapping[str, str]) -> dict[str, str]:
    created, inputs, signatures = int(clock.now().timestamp()), [], []
    for number, key in enumerate(keys, start=1):
        nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        stated = (
            f"({' '.join(components)});created={created};expires={created + _VALIDITY_SECONDS}"
            f';keyid="{key.kid}";alg="ed25519";nonce="{nonce}";tag="{tag}"'
        )
        lines = [f"{name}: {value}" for name, value in {**components, '"@signature-params"': stated}.items()]
        private: Any = key.private_key
        signature = base64.b64encode(private.sign("\n".join(lines).encode())).decode()
        inputs.append(f"sig{number}={stated}")
        signatures.append(f"sig{number}=:{signature}:")
    return {"Signature-Input": ", ".join(inputs), "Signature": ", ".join(signatures)}


def _keys() -> tuple[OKPKey, ...]:
    """Return the keys: the first signs, all are published."""
    return _parse(keys(app_state().settings.web_bot_auth_keys.get_secret_value(), "WEB_BOT_AUTH_KEYS"))


@lru_cache(maxsize=4)
def _parse(seeds: tuple[tuple[str, bytes], ...]) -> tuple[OKPKey, ...]:
    private = [Ed25519PrivateKey.from_private_bytes(seed) for _name, seed in seeds]
    found = tuple(OKPKey(each, each, {"use": "sig"}) for each in private)
    for key in found:
        # The thumbprint of RFC 7638.
        key.ensure_kid()
    return found
