"""Values that all protocols of payment share: the price of a request, the headers of a payment, and the payment.

Each protocol is a module that states terms and reads payments; the gate accepts what they read. Nothing here reads a
chain or the database.
"""

import base64
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

from app.core.chains import USDC
from app.core.money import decimal_string
from app.core.strict_json import parse_response
from app.payments.claimed_payments import NANOS_PER_UNIT, PaymentRow, transaction_claim_key
from app.ports.errors import Rejected
from app.ports.facilitator import Facilitator
from app.state import app_state

SIGNED_HEADER = "PAYMENT-SIGNATURE"
PLAIN_HEADER = "X-Payment"
CHAIN_HEADER = "X-Payment-Chain"
PROOF_HEADER = "X-Payment-Signature"
MPP_SCHEME = "Payment"
_MAX_LENGTH = 16_384
Report: TypeAlias = tuple[dict[str, str], dict[str, str]]


class PaymentHeaders(NamedTuple):
    signed: str | None = None
    plain: str | None = None
    chain: str | None = None
    proof: str | None = None
    # The credential of MPP.
    credential: str | None = None

    @classmethod
    def read(cls, header: Callable[[str], str | None]) -> Self:
        """Read them with a function that returns a request's header by its name."""
        scheme, _, credential = (header("Authorization") or "").partition(" ")
        return cls(
            header(SIGNED_HEADER), header(PLAIN_HEADER), header(CHAIN_HEADER), header(PROOF_HEADER),
            credential if scheme.lower() == MPP_SCHEME.lower() else None,
        )  # fmt: skip

    @property
    def has_payment(self) -> bool:
        return bool(self.signed or self.plain or self.credential)


@dataclass(frozen=True, slots=True)
class PaymentPrice:
    """The price of one call, for one request: `fingerprint` binds a payment to it, `headers` present it."""

    nanos: int
    fingerprint: str
    provider: str
    resource: str
    description: str
    headers: PaymentHeaders
    # The client's: failed payments are counted for its network.
    remote_address: str | None = None
    # Why a payment would be refused, if it would be.
    unavailable_reason: str | None = None
    method: str = ""
    # Whether the call's cost is known after it, so that a payment of its maximum can be metered.
    is_metered: bool = False

    @property
    def units(self) -> int:
        """Return the price in base units of USDC, rounded up."""
        return units_of(self.nanos)

    @property
    def amount(self) -> str:
        return decimal_string(self.units, USDC.decimals)


class PayableRequest(NamedTuple):
    """An HTTP request, as far as its payment depends on it: `target` as it was sent."""

    method: str
    target: str
    headers: PaymentHeaders
    remote_address: str | None

    def price(
        self, nanos: int, body: bytes, *, provider_name: str, description: str, unavailable_reason: str | None
    ) -> PaymentPrice:
        return PaymentPrice(
            nanos=nanos, fingerprint=request_fingerprint(self.method, self.target, body), provider=provider_name,
            resource=app_state().settings.public_url + self.target.partition("?")[0], description=description,
            unavailable_reason=unavailable_reason, headers=self.headers, remote_address=self.remote_address,
            method=self.method,
        )  # fmt: skip


def request_fingerprint(method: str, target: str, body: bytes) -> str:
    """Return the SHA-256 of a request's method, target and body, separated by line feeds."""
    message = f"{method}\n{target}\n".encode("latin-1", "replace") + body
    return hashlib.sha256(message).hexdigest()


def units_of(nanos: int) -> int:
    """Return a price in base units of USDC, rounded up."""
    return -(-nanos // NANOS_PER_UNIT)


@dataclass(frozen=True, slots=True)
class HashPayment:
    """The hash of a transaction, and an optional signature of its payer over hash and request."""

    facilitator: Facilitator
    tx_hash: str
    proof: str | None
    is_metered = False

    def claim_key(self) -> str:
        return transaction_claim_key(self.facilitator.name, self.tx_hash)


@dataclass(frozen=True, slots=True)
class SignedPayment(ABC):
    """A signed payment that the service submits, as its protocol presents it: `payload` has the form of x402."""

    facilitator: Facilitator
    payload: Mapping[str, Any]

    is_metered = False
    """Whether it authorizes a maximum, and the actual cost is charged after the call."""

    def claim_key(self) -> str:
        return self.facilitator.claim_of(self.payload)

    @abstractmethod
    def check(self, price: PaymentPrice) -> None:
        """Check what its protocol binds it to, beyond what it pays to whom. Raises: Rejected."""

    @abstractmethod
    def report(self, payment: PaymentRow, receipt: str | None, note: str | None) -> Report:
        """Return the headers that report the payment that serves the request, and those of a successful response."""

    @abstractmethod
    def failure(self, chain: str | None, **members: Any) -> dict[str, str]:
        """Return the headers that report why it was not settled.

        `chain` is that of the payment that was submitted: the payer may have signed this one for another.
        """


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
