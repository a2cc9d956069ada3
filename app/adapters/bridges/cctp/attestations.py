"""Circle's attestation service: the fees of a burn, and its attestation. It needs no key.

Source: developers.circle.com/cctp, API reference, `/v2`; over 35 requests a second it blocks for five minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, DecimalException
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from app.adapters.http_client import HttpResponse
from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess
from app.ports.errors import Unreachable

T = TypeVar("T")

_CONNECT_SECONDS = 3.0
_TOTAL_SECONDS = 8.0
_BPS_PER_UNIT = 10_000
_COMPLETE = "complete"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BurnFees:
    """The fees: a share of the amount for a fast transfer (None: not offered), and for submitting the mint."""

    fast_bps: Decimal | None
    forward_units: int | None

    def fast_units(self, units: int) -> int | None:
        """Return the fee of a fast transfer for an amount, rounded up."""
        if self.fast_bps is None:
            return None
        return int((units * self.fast_bps / _BPS_PER_UNIT).to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class BurnAttestation:
    """The service's state of a burn: message and attestation once both exist; the forwarder's state and hash."""

    message: bytes | None
    attestation: bytes | None
    delay: str | None
    forwarding_state: str | None
    forwarding_hash: str | None


class AttestationClient:
    """One base address of the service. Opens no connection before the first request."""

    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = base_url.rstrip("/")
        self._http = RateLimitedClient(
            "circle", connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS, access=access
        )

    def fees(self, source: int, destination: int, *, forwarded: bool) -> BurnFees:
        """Return the current fees of a burn, with the forwarder's if requested. Raises: Unreachable."""
        response = self._http.get(
            f"{self._url}/v2/burn/USDC/fees/{source}/{destination}", query={"forward": "true"} if forwarded else None
        )
        return _parsed(response, _parse_fees)

    def burn_attestation(self, source: int, tx_hash: str) -> BurnAttestation | None:
        """Return the attestation of a burn; None while the service has not seen it. Raises: Unreachable."""
        response = self._http.get(f"{self._url}/v2/messages/{source}", query={"transactionHash": tx_hash})
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        return _parsed(response, _parse_messages)

    def request_reattestation(self, nonce: bytes) -> None:
        """Request a new attestation of an expired message. Raises: Unreachable."""
        response = self._http.post(f"{self._url}/v2/reattest/0x{nonce.hex()}", b"{}")
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Unreachable("attestation_service")


def _parsed(response: HttpResponse, parse: Callable[[Any], T]) -> T:
    """Parse a response, or log why that is impossible. Raises: Unreachable."""
    body = response.json()
    if response.status != HTTPStatus.OK:
        _log.warning("attestation_service_refused", status=response.status)
        raise Unreachable("attestation_service")
    try:
        return parse(body)
    except (LookupError, TypeError, ValueError, AttributeError, DecimalException):
        _log.warning("attestation_response_invalid", reader=parse.__name__)
        raise Unreachable("attestation_service") from None


def _parse_fees(body: Any) -> BurnFees:
    fast: Decimal | None = None
    forward: int | None = None
    for tier in body:
        bps = Decimal(str(tier["minimumFee"]))
        if not bps.is_finite() or bps < 0:
            raise ValueError("not a fee")
        if int(tier["finalityThreshold"]) <= 1000:  # noqa: PLR2004 - the service's own word for "fast"
            fast = bps
        fee = tier.get("forwardFee")
        if fee is not None:
            # "high" is documented as sufficient if gas prices rise before the mint.
            forward = max(forward or 0, int(fee["high"]))
    return BurnFees(fast, forward)


def _parse_messages(body: Any) -> BurnAttestation | None:
    listed = body["messages"]
    if not listed:
        return None
    entry = listed[0]
    is_complete = entry.get("status") == _COMPLETE
    delay, state, forward_hash = (entry.get(name) for name in ("delayReason", "forwardState", "forwardTxHash"))
    return BurnAttestation(
        message=_hex_bytes(entry["message"]) if is_complete else None,
        attestation=_hex_bytes(entry["attestation"]) if is_complete else None,
        delay=str(delay)[:40] if delay else None,
        forwarding_state=str(state) if state else None,
        forwarding_hash=str(forward_hash) if forward_hash else None,
    )


def _hex_bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
