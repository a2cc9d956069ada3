"""Circle's attestation service: the fees of a burn, and its attestation. It needs no key.

Source: developers.circle.com/cctp, API reference, `/v2`; over 35 requests a second it blocks for five minutes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from http import HTTPStatus
from operator import itemgetter
from typing import Annotated, Any, TypeVar

import structlog
from pydantic import AfterValidator, AliasPath, Field, model_validator

from app.adapters.http_client import HttpResponse
from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess
from app.core import foreign
from app.ports.errors import Unreachable

T = TypeVar("T")

_BPS_PER_UNIT = 10_000
_FAST = 1000
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


class BurnAttestation(foreign.ForeignModel):
    """The service's state of a burn: message and attestation once both exist; the forwarder's state and hash."""

    message: foreign.HexBytes | None = None
    attestation: foreign.HexBytes | None = None
    delay: Annotated[foreign.OptionalText, AfterValidator(lambda delay: delay and delay[:40])] = Field(
        None, alias="delayReason"
    )
    forwarding_state: foreign.OptionalText = Field(None, alias="forwardState")
    forwarding_hash: foreign.OptionalText = Field(None, alias="forwardTxHash")

    @model_validator(mode="before")
    @classmethod
    def _drop_placeholders(cls, entry: Any) -> Any:
        is_pending = isinstance(entry, dict) and entry.get("status") != "complete"
        return {**entry, "message": None, "attestation": None} if is_pending else entry


class _Tier(foreign.ForeignModel):
    finality_threshold: foreign.U64Digits
    bps: Annotated[Decimal, Field(ge=0, le=_BPS_PER_UNIT), foreign.parsed(lambda fee: Decimal(str(fee)))] = Field(
        alias="minimumFee"
    )
    forward_units: foreign.U256Digits | None = Field(None, validation_alias=AliasPath("forwardFee", "high"))
    """"high" is documented as sufficient if gas prices rise before the mint."""


_read_messages: Callable[[object], tuple[BurnAttestation, ...]] = foreign.reader(
    Annotated[foreign.Items[BurnAttestation], foreign.parsed(itemgetter("messages"))]
)
_read_tiers: Callable[[object], tuple[_Tier, ...]] = foreign.reader(foreign.Items[_Tier])


class AttestationClient:
    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = base_url.rstrip("/")
        self._http = RateLimitedClient("circle", access, total_seconds=8.0)

    def fees(self, source: int, destination: int, *, forwarded: bool) -> BurnFees:
        """Return the current fees of a burn, with the forwarder's if requested. Raises: Unreachable."""
        response = self._http.get(
            f"{self._url}/v2/burn/USDC/fees/{source}/{destination}", query={"forward": "true"} if forwarded else None
        )
        tiers = _parsed(response, _read_tiers)
        fast = [tier.bps for tier in tiers if tier.finality_threshold <= _FAST]
        forwarding = [tier.forward_units for tier in tiers if tier.forward_units is not None]
        return BurnFees(fast[-1] if fast else None, max(forwarding, default=None))

    def burn_attestation(self, source: int, tx_hash: str) -> BurnAttestation | None:
        """Return the attestation of a burn; None while the service has not seen it. Raises: Unreachable."""
        response = self._http.get(f"{self._url}/v2/messages/{source}", query={"transactionHash": tx_hash})
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        found = _parsed(response, _read_messages)
        return found[0] if found else None

    def request_reattestation(self, nonce: bytes) -> None:
        """Request a new attestation of an expired message. Raises: Unreachable."""
        response = self._http.post(f"{self._url}/v2/reattest/0x{nonce.hex()}", b"{}")
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise Unreachable("attestation_service")


def _parsed(response: HttpResponse, read: Callable[[object], T]) -> T:
    """Read a response, or log why that is impossible. Raises: Unreachable."""
    try:
        if response.status == HTTPStatus.OK:
            return read(response.json())
        _log.warning("attestation_service_refused", status=response.status)
    except foreign.MalformedResponseError as error:
        _log.warning("attestation_response_invalid", reason=str(error))
        raise Unreachable("attestation_service") from None
    raise Unreachable("attestation_service")
