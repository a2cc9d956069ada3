"""The challenges of MPP in the 402 of a web service, in the form of x402's terms, and the credential that answers one.

Only `evm/charge` by an EIP-3009 authorization is paid; of everything else, the method and the intent are the scheme.
Its packages add an extension to terms of x402, `mppx`, by which a payment is bound to a route.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.request import parse_http_list

from app.core import clock
from app.payments.mpp import CREDENTIAL_TYPE, INTENT, METHOD, encode
from app.payments.presented import MPP_SCHEME, decode_document
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment

_MAX_LENGTH = 16_384
_ROUTE = "mppx"
_ECHOED = ("id", "realm", "method", "intent", "request", "expires", "digest", "opaque")


def read_offers(headers: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return an offer for each challenge that can be read, with the parameters to repeat as `challenge`."""
    stated = ", ".join(value for name, value in headers if name.lower() == "www-authenticate")
    found: list[tuple[str, dict[str, str]]] = []
    for item in parse_http_list(stated) if len(stated) <= _MAX_LENGTH else ():
        head, _, value = item.partition("=")
        # A parameter after the name of a scheme begins the next challenge.
        *scheme, name = head.split() or [""]
        if scheme:
            found.append((scheme[0].lower(), {}))
        if found:
            text = value.strip()
            found[-1][1].setdefault(name.lower(), text[1:-1] if text[:1] == text[-1:] == '"' else text)
    offers = [_offer(parameters) for scheme, parameters in found if scheme == MPP_SCHEME.lower()]
    return [each for each in offers if each is not None]


def _offer(parameters: Mapping[str, str]) -> dict[str, Any] | None:
    challenge = {name: parameters[name] for name in _ECHOED if name in parameters}
    # Nonces are hashes of the bytes, and clients differ in how they read others.
    if not all(challenge.get(name) for name in _ECHOED[:5]) or not all(map(str.isascii, challenge.values())):
        return None
    try:
        request = decode_document(challenge["request"])
    except Rejected:
        return None
    details = request.get("methodDetails")
    details = details if isinstance(details, dict) else {}
    kind = f"{challenge['method']}/{challenge['intent']}"
    types = details.get("credentialTypes")
    is_payable = kind == f"{METHOD}/{INTENT}" and isinstance(types, list) and CREDENTIAL_TYPE in types
    # Such a challenge pays several, or is answered in another header.
    is_payable = is_payable and not details.get("splits") and "header" not in parameters
    return {
        "scheme": "exact" if is_payable else kind, "network": f"eip155:{details.get('chainId')}",
        "amount": request.get("amount"), "asset": request.get("currency"), "payTo": request.get("recipient"),
        "resource": f"https://{challenge['realm']}", "challenge": challenge,
        **({"maxTimeoutSeconds": _seconds_until(challenge["expires"])} if "expires" in challenge else {}),
    }  # fmt: skip


def _seconds_until(end: str) -> int:
    """Return the seconds until a time; 0 if it cannot be read."""
    try:
        return int((datetime.fromisoformat(end) - clock.now()).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0


def credential(challenge: Mapping[str, str], network: str, signed: AuthorizedPayment) -> str:
    """Return the value of the header that answers a challenge."""
    authorization = signed.payload["authorization"]
    payload = {"type": CREDENTIAL_TYPE, **authorization, "signature": signed.payload["signature"]}
    source = f"did:pkh:{network}:{authorization['from']}"
    return f"{MPP_SCHEME} {encode({'challenge': challenge, 'payload': payload, 'source': source})}"


def bind_to_route(extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Return extensions whose one member binds a payment to a route, with a random salt in it; {} for any others."""
    stated = extensions.get(_ROUTE) if len(extensions) == 1 else None
    if not isinstance(stated, dict) or not isinstance(stated.get("info"), dict):
        return {}
    return {_ROUTE: {**stated, "info": {**stated["info"], "nonce": secrets.token_hex(16)}}}


def route_nonce(accepted: Mapping[str, Any], resource: Any, extensions: Mapping[str, Any]) -> bytes:
    """Return the nonce that binds a payment to a route: sellers derive it from what the payment repeats."""
    return hashlib.sha256("|".join(map(encode, (accepted, resource, extensions))).encode()).digest()
