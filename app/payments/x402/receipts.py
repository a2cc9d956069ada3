"""The extension `offer-receipt` of x402: signed terms in a 402, and the receipt of a payment."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import signing
from app.core import clock
from app.core.chains import ChainName
from app.payments.claimed_payments import PaymentRow
from app.signing import Statement
from app.state import app_state

_SIGNED_TERMS = ("scheme", "network", "asset", "payTo", "amount")


def offers(resource: str, accepts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the extension that signs the terms of a 402; {} without a key."""
    found = []
    for index, each in enumerate(accepts):
        until = int(clock.now().timestamp()) + each["maxTimeoutSeconds"]
        payload = {"version": 1, "resourceUrl": resource, "validUntil": until}
        signed = signing.sign(Statement.OFFER, payload | {name: each[name] for name in _SIGNED_TERMS})
        found += [{"format": "jws", "acceptIndex": index, "signature": signed}] if signed else []
    return extension("offers", found)


def sign_payment(resource: str, payment: PaymentRow) -> str | None:
    """Return the receipt of a payment that has landed; None without a key, and if several may have paid."""
    if not payment.payer or not payment.tx_hash:
        return None
    network = app_state().ports.facilitators[ChainName(payment.chain)].asset.network
    paid = {"network": network, "payer": payment.payer, "transaction": payment.tx_hash}
    issued_at = int(clock.now().timestamp())
    return signing.sign(Statement.PAYMENT, {"version": 1, "resourceUrl": resource, "issuedAt": issued_at, **paid})


def extension(name: str, value: Any) -> dict[str, Any]:
    """Return the extension with a member; {} if that is empty."""
    # Short, because it is in a header: the format is defined by x402.
    return {"offer-receipt": {"info": {name: value}, "schema": {"type": "object", "required": [name]}}} if value else {}
