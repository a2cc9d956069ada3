"""What a call costs somebody without credits, and how that is told: the service's own terms and both x402 versions.

Facts of the wire: `accepts` of version 1 in the body, of version 2 in a header; nothing collides (decision 0070).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.core.chains import USDC, ChainName
from app.core.money import NANOS_PER_USD, decimal_string, nanos_from_usd
from app.payments import readiness, treasury
from app.ports import provider
from app.ports.till import Till

REQUIRED_HEADER = "PAYMENT-REQUIRED"
_EXPOSED = "PAYMENT-REQUIRED, PAYMENT-RESPONSE, X-PAYMENT-RESPONSE"
_NANOS_PER_UNIT: int = NANOS_PER_USD // 10**USDC.decimals
_MAX_TIMEOUT_SECONDS = 300
# Clients take the first that they can pay: the cheapest to settle goes first.
_ORDER = (ChainName.BASE, ChainName.SOLANA, ChainName.ETHEREUM)
_MIME_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one call, for one request: `fingerprint` binds a payment to it."""

    nanos: int
    fingerprint: str
    provider: str
    resource: str
    description: str
    # Why paying would be of no use, where it would be.
    obstacle: str | None = None

    @property
    def units(self) -> int:
        """Return the price in base units of USDC, rounded up."""
        return -(-self.nanos // _NANOS_PER_UNIT)

    @property
    def amount(self) -> str:
        """Return the price as a decimal string of USDC."""
        return decimal_string(self.units, USDC.decimals)


def fingerprint_of(method: str, target: str, body: bytes) -> str:
    """Return what names a request: the SHA-256 of method, target and body, by lines."""
    said = f"{method}\n{target}\n".encode("latin-1", "replace") + body
    return hashlib.sha256(said).hexdigest()


def floor_nanos(row_nanos: int) -> int:
    """Return the least that a call costs: a provider's own floor, else the service's."""
    return row_nanos or nanos_from_usd(provider.settings().x402_price_usd)


def members(price: Price, asked_chain: str | None) -> dict[str, Any]:
    """Return what stands in the body of a 402 beside error and code."""
    chain = _chain(asked_chain)
    till = provider.current().tills.get(chain)
    if till is None:
        return {}
    payment = {
        "amount": price.amount,
        "currency": USDC.symbol,
        "recipient": treasury.recipient(chain),
        "chain": chain.value,
        "network": till.asset.network,
        "description": price.description,
        "instructions": _instructions(price, chain),
        "options": [
            {"chain": name.value, "network": each.asset.network, "recipient": treasury.recipient(name)}
            for name, each in _tills()
        ],
    }
    legacy = [] if price.obstacle else list(_legacy_accepts(price))
    version_1 = {"x402Version": 1, "accepts": legacy} if legacy else {}
    return {"payment": payment, **version_1}


def headers(price: Price, asked_chain: str | None, *, error: str) -> dict[str, str]:
    """Return the headers of a 402."""
    chain = _chain(asked_chain)
    common = {"Cache-Control": "no-store", "Access-Control-Expose-Headers": _EXPOSED}
    if chain not in provider.current().tills:
        return common
    return {
        **common,
        "X-Payment-Required": "true",
        "X-Payment-Amount": price.amount,
        "X-Payment-Currency": USDC.symbol,
        "X-Payment-Recipient": treasury.recipient(chain),
        "X-Payment-Chain": chain.value,
        "X-Payment-Description": price.description,
        REQUIRED_HEADER: encoded(_version_2(price, error)),
    }


def encoded(document: Mapping[str, Any]) -> str:
    """Write a document as the headers of x402 carry it."""
    return base64.b64encode(json.dumps(document, separators=(",", ":")).encode()).decode()


def _version_2(price: Price, error: str) -> dict[str, Any]:
    accepts = [] if price.obstacle else [_accept(price, name, till) for name, till in _signable(price)]
    return {
        "x402Version": 2,
        "error": error,
        "resource": {"url": price.resource, "description": price.description, "mimeType": _MIME_TYPE},
        "accepts": accepts,
    }


def _accept(price: Price, name: ChainName, till: Till) -> dict[str, Any]:
    extra = dict(till.asset.extra)
    if name is ChainName.SOLANA:
        extra["feePayer"] = treasury.settler(name)
    return {
        "scheme": "exact",
        "network": till.asset.network,
        "amount": str(price.units),
        "asset": till.asset.address,
        "payTo": treasury.recipient(name),
        "maxTimeoutSeconds": _MAX_TIMEOUT_SECONDS,
        "extra": extra,
    }


def _legacy_accepts(price: Price) -> Iterator[dict[str, Any]]:
    # A legacy client refuses the whole list for one network that it does not know: Base alone.
    for name, till in _signable(price):
        if name is ChainName.BASE and till.asset.legacy_network:
            yield {
                "scheme": "exact",
                "network": till.asset.legacy_network,
                "maxAmountRequired": str(price.units),
                "resource": price.resource,
                "description": price.description,
                "mimeType": _MIME_TYPE,
                "payTo": treasury.recipient(name),
                "maxTimeoutSeconds": _MAX_TIMEOUT_SECONDS,
                "asset": till.asset.address,
                "extra": dict(till.asset.extra),
            }


def _signable(price: Price) -> list[tuple[ChainName, Till]]:
    return [(name, till) for name, till in _tills() if readiness.takes_signed(name, price.nanos)]


def _tills() -> list[tuple[ChainName, Till]]:
    tills = provider.current().tills
    return [(name, tills[name]) for name in _ORDER if name in tills]


def _chain(asked: str | None) -> ChainName:
    return next((name for name in ChainName if name.value == (asked or "").lower()), ChainName.BASE)


def _instructions(price: Price, chain: ChainName) -> str:
    if price.obstacle:
        return f"Do not pay: {price.obstacle}"
    minutes = provider.settings().x402_max_age_seconds // 60
    return (
        f"Pay with an x402 client (the {REQUIRED_HEADER} header has the terms): a signed payment cannot be stolen. Or "
        f"send at least {price.amount} USDC on {chain.value} to {treasury.recipient(chain)} and repeat exactly this "
        f"request within {minutes} minutes with X-Payment: <transaction hash> and X-Payment-Chain: {chain.value}. "
        "Each payment pays for one call. Payments that cannot be verified yet are answered with Retry-After."
    )
