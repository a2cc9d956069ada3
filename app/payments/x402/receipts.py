"""The extension `offer-receipt` of x402: signed terms in a 402, and the receipt of a payment."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import signing
from app.core import clock
from app.signing import Statement

_SIGNED_TERMS = ("scheme", "network", "asset", "payTo", "amount")


def offers(resource: str, accepts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the extension that signs the terms of a 402; {} without a key."""
    found = []
    for index, each in enumerate(accepts):
        until = int(clock.now().timestamp()) + each["maxTimeoutSeconds"]
        payload = {"version": 1, "resourceUrl": resource, "validUntil": until}
        signed = signing.sign(Statement.OFFER, payload | {name: each[name] for name in _SIGNED_TERMS})
        found += [{"format": "jws", "acceptIndex": index, "signature": signed}] if signed else []
    return extension("offers", found) if found else {}


def sign_payment(resource: str, network: str, payer: str | None, transaction: str | None) -> str | None:
    """Return the receipt of a payment that has landed; None without a key, and if several may have paid."""
    issued = {"version": 1, "resourceUrl": resource, "issuedAt": int(clock.now().timestamp())}
    paid = {"network": network, "payer": payer, "transaction": transaction}
    return signing.sign(Statement.PAYMENT, issued | paid) if payer and transaction else None


def extension(name: str, value: Any) -> dict[str, Any]:
    # Short, because it is in a header: the format is defined by x402.
    return {"offer-receipt": {"info": {name: value}, "schema": {"type": "object", "required": [name]}}}
