"""Circle's attestation service: what a burn costs, and the proof of one. It needs no key.

Source: developers.circle.com/cctp, API reference, `/v2`; over 35 requests a second it blocks for five minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, DecimalException
from http import HTTPStatus
from typing import Any

import structlog

from app.adapters.http_client import HttpClient
from app.ports.errors import Unreachable

_CONNECT_SECONDS = 3.0
_TOTAL_SECONDS = 8.0
_WHOLE_BPS = 10_000
_COMPLETE = "complete"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fees:
    """What is charged: a share of the amount for the fast way (None: there is none), and for submitting the mint."""

    fast_bps: Decimal | None
    forward_units: int | None

    def fast_units(self, units: int) -> int | None:
        """Return the fee of the fast way for an amount, rounded up."""
        if self.fast_bps is None:
            return None
        return int((units * self.fast_bps / _WHOLE_BPS).to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class Attested:
    """What the service says of a burn: message and attestation once both are there; the forwarder's state and hash."""

    message: bytes | None
    attestation: bytes | None
    delay: str | None
    forward_state: str | None
    forward_hash: str | None

    @property
    def is_complete(self) -> bool:
        """Tell whether it can be minted."""
        return self.message is not None and self.attestation is not None


class Attestations:
    """One base address of the service. Opens no connection before the first question."""

    def __init__(self, base_url: str) -> None:
        """Take the service's base."""
        self._url = base_url.rstrip("/")
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def fees(self, source: int, destination: int) -> Fees:
        """Ask what a burn costs now. Raises: Unreachable."""
        answer = self._http.get(
            f"{self._url}/v2/burn/USDC/fees/{source}/{destination}", query={"forward": "true"}
        )
        body = answer.json()
        if answer.status != HTTPStatus.OK:
            _log.warning("attestation_fees_refused", status=answer.status)
            raise Unreachable("attestation_service")
        try:
            return _fees(body)
        except (LookupError, TypeError, ValueError, DecimalException):
            _log.warning("attestation_fees_unreadable")
            raise Unreachable("attestation_service") from None

    def of_burn(self, source: int, tx_hash: str) -> Attested | None:
        """Ask for the proof of a burn; None while the service has not seen it. Raises: Unreachable."""
        answer = self._http.get(f"{self._url}/v2/messages/{source}", query={"transactionHash": tx_hash})
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        body = answer.json()
        if answer.status != HTTPStatus.OK:
            _log.warning("attestation_refused", status=answer.status)
            raise Unreachable("attestation_service")
        try:
            listed = body["messages"]
            return _attested(listed[0]) if listed else None
        except (LookupError, TypeError, ValueError, AttributeError):
            _log.warning("attestation_unreadable")
            raise Unreachable("attestation_service") from None

    def renew(self, nonce: bytes) -> None:
        """Ask for a message that has expired to be attested anew. Raises: Unreachable."""
        answer = self._http.post(f"{self._url}/v2/reattest/0x{nonce.hex()}", b"{}")
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Unreachable("attestation_service")


def _fees(body: Any) -> Fees:
    fast: Decimal | None = None
    forward: int | None = None
    for tier in body:
        bps = Decimal(str(tier["minimumFee"]))
        if not bps.is_finite() or bps < 0:
            raise ValueError("not a fee")
        if int(tier["finalityThreshold"]) <= 1000:  # noqa: PLR2004 - the service's own word for "fast"
            fast = bps
        asked = tier.get("forwardFee")
        if asked is not None:
            # "high" is what the service documents as sufficient when gas gets dearer on the way.
            forward = max(forward or 0, int(asked["high"]))
    return Fees(fast, forward)


def _attested(entry: Any) -> Attested:
    is_complete = entry.get("status") == _COMPLETE
    delay, state, forward_hash = (
        entry.get(name) for name in ("delayReason", "forwardState", "forwardTxHash")
    )
    return Attested(
        message=_octets(entry["message"]) if is_complete else None,
        attestation=_octets(entry["attestation"]) if is_complete else None,
        delay=str(delay)[:40] if delay else None,
        forward_state=str(state) if state else None,
        forward_hash=str(forward_hash) if forward_hash else None,
    )


def _octets(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))
