"""Parsing of the payment headers: `X-Payment` holds a hash or a signed payment, `PAYMENT-SIGNATURE` a signed one.

Nothing here reads a chain or the database.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.core.chains import ChainName
from app.core.strict_json import parse_response
from app.payments.consumed import transaction_claim_key
from app.ports.errors import Rejected
from app.ports.facilitator import Facilitator
from app.state import app_state

SIGNED_HEADER = "PAYMENT-SIGNATURE"
PLAIN_HEADER = "X-Payment"
CHAIN_HEADER = "X-Payment-Chain"
PROOF_HEADER = "X-Payment-Signature"

_EVM_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_SOLANA_HASH = re.compile(r"[1-9A-HJ-NP-Za-km-z]{64,90}", re.ASCII)
_MAX_LENGTH = 16_384


@dataclass(frozen=True, slots=True)
class HashPayment:
    """The hash of a transaction, and an optional signature of its payer over hash and request."""

    facilitator: Facilitator
    tx_hash: str
    proof: str | None

    def claim_key(self) -> str:
        return transaction_claim_key(self.facilitator.name, self.tx_hash)


@dataclass(frozen=True, slots=True)
class SignedPayment:
    """A signed payment that the service submits, in one of the versions of x402."""

    facilitator: Facilitator
    version: int
    payload: Mapping[str, Any]

    def claim_key(self) -> str:
        return self.facilitator.claim_of(self.payload)


class PaymentHeaders(NamedTuple):
    """The payment headers of a request, as they were sent."""

    signed: str | None = None
    plain: str | None = None
    chain: str | None = None
    proof: str | None = None

    @classmethod
    def read(cls, header: Callable[[str], str | None]) -> PaymentHeaders:
        """Read them with a function that returns a request's header by its name."""
        return cls(header(SIGNED_HEADER), header(PLAIN_HEADER), header(CHAIN_HEADER), header(PROOF_HEADER))

    @property
    def has_payment(self) -> bool:
        return bool(self.signed or self.plain)


def read_payment(headers: PaymentHeaders) -> HashPayment | SignedPayment:
    """Parse the payment that is presented. Raises: Rejected with a reason of x402 or of this service."""
    if headers.signed:
        return _parse_signed_payment(headers.signed)
    plain_value = (headers.plain or "").strip()
    if _EVM_HASH.fullmatch(plain_value) or _SOLANA_HASH.fullmatch(plain_value):
        return _parse_hash_payment(plain_value, headers)
    return _parse_signed_payment(plain_value)


def _parse_hash_payment(text: str, headers: PaymentHeaders) -> HashPayment:
    chain_header, default = headers.chain, ChainName.BASE if text.startswith("0x") else ChainName.SOLANA
    name = chain_header.strip().lower() if chain_header else default.value
    facilitators = app_state().ports.facilitators.values()
    facilitator = next((each for each in facilitators if each.name.value == name), None)
    if facilitator is None:
        raise Rejected("invalid_network")
    tx_hash = facilitator.canonical_hash(text)
    if tx_hash is None:
        raise Rejected("hash_of_another_chain")
    return HashPayment(facilitator, tx_hash, headers.proof)


def _parse_signed_payment(text: str) -> SignedPayment:
    document = decode_document(text)
    version = document.get("x402Version")
    # Not isinstance: True is an int.
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
    for facilitator in app_state().ports.facilitators.values():
        asset = facilitator.asset
        if isinstance(network, str) and network == (asset.network if version == 2 else asset.legacy_network):  # noqa: PLR2004 - the version
            return SignedPayment(facilitator, version, payload)
    raise Rejected("invalid_network")


def decode_document(text: str) -> Mapping[str, Any]:
    """Decode what a header of x402 carries: a JSON object in base64. Raises: Rejected("invalid_payload")."""
    if len(text) > _MAX_LENGTH:
        raise Rejected("invalid_payload")
    # Some clients use the URL-safe alphabet or omit the padding.
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        body = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        document = parse_response(body, parse_float=str)
    except ValueError:
        raise Rejected("invalid_payload") from None
    if not isinstance(document, dict):
        raise Rejected("invalid_payload")
    return document
