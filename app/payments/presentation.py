"""What a caller presents as payment, told apart by its form: `X-Payment` and the standard's are one header.

Nothing here asks a chain or the database.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import request

from app.core.chains import ChainName
from app.ports import provider
from app.ports.errors import Rejected
from app.ports.till import Till

SIGNED_HEADER = "PAYMENT-SIGNATURE"
PLAIN_HEADER = "X-Payment"
CHAIN_HEADER = "X-Payment-Chain"
PROOF_HEADER = "X-Payment-Signature"

_EVM_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_SOLANA_HASH = re.compile(r"[1-9A-HJ-NP-Za-km-z]{64,90}", re.ASCII)
_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class ByHash:
    """A transaction that was made, and perhaps its payer's signature over hash and request."""

    till: Till
    tx_hash: str
    proof: str | None


@dataclass(frozen=True, slots=True)
class Signed:
    """A payment that we are to submit, in one of x402's versions."""

    till: Till
    version: int
    payload: Mapping[str, Any]


def is_present() -> bool:
    """Tell whether the present request carries a payment."""
    return bool(request.headers.get(SIGNED_HEADER) or request.headers.get(PLAIN_HEADER))


def asked_chain() -> str | None:
    """Return the chain that the caller names, if any."""
    return request.headers.get(CHAIN_HEADER)


def read() -> ByHash | Signed:
    """Read the payment of the present request. Raises: Rejected with x402's word, or ours."""
    standard = request.headers.get(SIGNED_HEADER)
    if standard:
        return _signed(standard)
    given = request.headers.get(PLAIN_HEADER, "").strip()
    if _EVM_HASH.fullmatch(given) or _SOLANA_HASH.fullmatch(given):
        return _by_hash(given)
    return _signed(given)


def _by_hash(text: str) -> ByHash:
    named = asked_chain()
    is_evm = text.startswith("0x")
    default = ChainName.BASE if is_evm else ChainName.SOLANA
    till = _till(named.strip().lower() if named else default.value)
    tx_hash = till.canonical_hash(text)
    if tx_hash is None:
        raise Rejected("hash_of_another_chain")
    return ByHash(till, tx_hash, request.headers.get(PROOF_HEADER))


def _signed(text: str) -> Signed:
    document = _decoded(text)
    version = document.get("x402Version")
    # Strict: True is no version.
    if type(version) is not int or version not in (1, 2):
        raise Rejected("invalid_x402_version")
    terms = document.get("accepted") if version == 2 else document  # noqa: PLR2004 - the version
    if not isinstance(terms, dict):
        raise Rejected("invalid_payload")
    if terms.get("scheme") != "exact":
        raise Rejected("unsupported_scheme")
    payload = document.get("payload")
    if not isinstance(payload, dict):
        raise Rejected("invalid_payload")
    network = terms.get("network")
    for till in provider.current().tills.values():
        asset = till.asset
        if isinstance(network, str) and network == (asset.network if version == 2 else asset.legacy_network):  # noqa: PLR2004 - the version
            return Signed(till, version, payload)
    raise Rejected("invalid_network")


def _decoded(text: str) -> Mapping[str, Any]:
    if len(text) > _LONGEST:
        raise Rejected("invalid_payload")
    # The standard alphabet with padding is the rule; the other one and none are met.
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        body = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        document = json.loads(body, parse_float=str)
    except (binascii.Error, ValueError, RecursionError):
        raise Rejected("invalid_payload") from None
    if not isinstance(document, dict):
        raise Rejected("invalid_payload")
    return document


def _till(name: str) -> Till:
    for chain, till in provider.current().tills.items():
        if chain.value == name:
            return till
    raise Rejected("invalid_network")
