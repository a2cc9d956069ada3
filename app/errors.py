"""Failures of the service: one code table, one class per failure, one mapping to HTTP.

Raise a `ServiceError` from any room; it rolls the unit of work back and becomes
`{"error", "code", "details"?, "request_id"}`. Port errors (`app.ports.errors`) are not wire errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


class ErrorCode(StrEnum):
    """Every code of the API, with the status it travels with (`STATUS`)."""

    INVALID_INPUT = "INVALID_INPUT"
    INVALID_SPEC = "INVALID_SPEC"
    SELF_REVOKE = "SELF_REVOKE"
    UNAUTHORIZED = "UNAUTHORIZED"
    INSUFFICIENT_CREDITS = "INSUFFICIENT_CREDITS"
    PAYMENT_REQUIRED = "PAYMENT_REQUIRED"
    PAYMENT_INVALID = "PAYMENT_INVALID"
    PAYMENT_ALREADY_USED = "PAYMENT_ALREADY_USED"
    DAILY_LIMIT_EXCEEDED = "DAILY_LIMIT_EXCEEDED"
    WEEKLY_LIMIT_EXCEEDED = "WEEKLY_LIMIT_EXCEEDED"
    MONTHLY_LIMIT_EXCEEDED = "MONTHLY_LIMIT_EXCEEDED"
    PER_TX_LIMIT_EXCEEDED = "PER_TX_LIMIT_EXCEEDED"
    ADDRESS_NOT_ALLOWED = "ADDRESS_NOT_ALLOWED"
    DOMAIN_NOT_ALLOWED = "DOMAIN_NOT_ALLOWED"
    WALLET_FROZEN = "WALLET_FROZEN"
    CONTROLS_LOCKED = "CONTROLS_LOCKED"
    ROUTE_NOT_ALLOWED = "ROUTE_NOT_ALLOWED"
    EMAIL_MISMATCH = "EMAIL_MISMATCH"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    ALREADY_SUBSCRIBED = "ALREADY_SUBSCRIBED"
    ALREADY_CLAIMED = "ALREADY_CLAIMED"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    TRANSACTION_IN_PROGRESS = "TRANSACTION_IN_PROGRESS"
    PURCHASE_IN_PROGRESS = "PURCHASE_IN_PROGRESS"
    LIMIT_REACHED = "LIMIT_REACHED"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    HEAD_TOO_LARGE = "HEAD_TOO_LARGE"
    RATE_LIMITED = "RATE_LIMITED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    TRANSFER_FAILED = "TRANSFER_FAILED"
    WITHDRAWAL_FAILED = "WITHDRAWAL_FAILED"
    SWAP_FAILED = "SWAP_FAILED"
    BRIDGE_FAILED = "BRIDGE_FAILED"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    PERPDEX_ERROR = "PERPDEX_ERROR"
    BALANCE_FETCH_ERROR = "BALANCE_FETCH_ERROR"
    UPSTREAM_ERROR = "UPSTREAM_ERROR"
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"
    PRICE_UNAVAILABLE = "PRICE_UNAVAILABLE"
    PROVIDER_NOT_CONFIGURED = "PROVIDER_NOT_CONFIGURED"
    OVERLOADED = "OVERLOADED"


_C = ErrorCode
STATUS: Mapping[ErrorCode, int] = {
    **dict.fromkeys((_C.INVALID_INPUT, _C.INVALID_SPEC, _C.SELF_REVOKE), 400),
    _C.UNAUTHORIZED: 401,
    **dict.fromkeys(
        (_C.INSUFFICIENT_CREDITS, _C.PAYMENT_REQUIRED, _C.PAYMENT_INVALID, _C.PAYMENT_ALREADY_USED), 402
    ),
    **dict.fromkeys(
        (
            _C.DAILY_LIMIT_EXCEEDED, _C.WEEKLY_LIMIT_EXCEEDED, _C.MONTHLY_LIMIT_EXCEEDED,
            _C.PER_TX_LIMIT_EXCEEDED, _C.ADDRESS_NOT_ALLOWED, _C.DOMAIN_NOT_ALLOWED, _C.WALLET_FROZEN,
            _C.CONTROLS_LOCKED, _C.ROUTE_NOT_ALLOWED, _C.EMAIL_MISMATCH,
        ),
        403,
    ),
    _C.NOT_FOUND: 404,
    _C.METHOD_NOT_ALLOWED: 405,
    **dict.fromkeys(
        (
            _C.ALREADY_SUBSCRIBED, _C.ALREADY_CLAIMED, _C.IDEMPOTENCY_CONFLICT,
            _C.TRANSACTION_IN_PROGRESS, _C.PURCHASE_IN_PROGRESS, _C.LIMIT_REACHED,
        ),
        409,
    ),
    _C.REQUEST_TIMEOUT: 408, _C.PAYLOAD_TOO_LARGE: 413, _C.RATE_LIMITED: 429, _C.HEAD_TOO_LARGE: 431,
    **dict.fromkeys(
        (_C.INTERNAL_ERROR, _C.TRANSFER_FAILED, _C.WITHDRAWAL_FAILED, _C.SWAP_FAILED, _C.BRIDGE_FAILED), 500
    ),
    _C.NOT_IMPLEMENTED: 501,
    **dict.fromkeys((_C.PERPDEX_ERROR, _C.BALANCE_FETCH_ERROR, _C.UPSTREAM_ERROR), 502),
    **dict.fromkeys((_C.PRICE_UNAVAILABLE, _C.PROVIDER_NOT_CONFIGURED, _C.OVERLOADED), 503),
    _C.UPSTREAM_TIMEOUT: 504,
}  # fmt: skip


class ServiceError(Exception):
    """Base of all failures that a caller sees. Subclasses set `code`; the message is a sentence to act on."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    default_message: ClassVar[str] = "Something went wrong on our side."

    def __init__(
        self,
        message: str | None = None,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Keep the sentence, JSON-able details and, where waiting helps, how long to wait.

        `members` stand in the body beside `error` and `code`, where the contract puts more there than a failure;
        `headers` go with it.
        """
        self.message = message or self.default_message
        self.details = dict(details or {})
        self.members = dict(members or {})
        self.headers = dict(headers or {})
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.message)

    @property
    def status(self) -> int:
        """The HTTP status of this failure's code."""
        return STATUS[self.code]


class InvalidInput(ServiceError):
    """A field is missing or malformed; `details.fields` names each. Not for what is well-formed but not allowed."""

    code = ErrorCode.INVALID_INPUT
    default_message = "The request is not valid."

    @classmethod
    def field(cls, name: str, problem: str) -> InvalidInput:
        """Make the error for one bad field."""
        return cls(f"{name} {problem}.", details={"fields": {name: [problem]}})


class Unauthorized(ServiceError):
    """The key is missing, malformed, unknown or revoked: one and the same answer. Not for a wrong owner (NotFound)."""

    code = ErrorCode.UNAUTHORIZED
    default_message = "A valid API key is needed in the X-API-Key header."


class SelfRevoke(ServiceError):
    """A master key does not revoke itself: another one has to."""

    code = ErrorCode.SELF_REVOKE
    default_message = "A master key cannot revoke itself; use another one."


class NotFound(ServiceError):
    """It does not exist or belongs to somebody else: the answer must not tell which."""

    code = ErrorCode.NOT_FOUND
    default_message = "Not found."


class MethodNotAllowed(ServiceError):
    """The route exists, with other methods."""

    code = ErrorCode.METHOD_NOT_ALLOWED
    default_message = "This route does not answer that method."


class PayloadTooLarge(ServiceError):
    """The body is larger than the route takes."""

    code = ErrorCode.PAYLOAD_TOO_LARGE
    default_message = "The request body is too large: at most 1 MiB of JSON."


class RateLimited(ServiceError):
    """Too many requests, guesses or grants; carries when to come back."""

    code = ErrorCode.RATE_LIMITED
    default_message = "Too many requests; try again later."


class Overloaded(ServiceError):
    """We could do it, but not now; carries when to come back."""

    code = ErrorCode.OVERLOADED
    default_message = "The service is busy; try again shortly."


class InsufficientCredits(ServiceError):
    """The account cannot pay for the call."""

    code = ErrorCode.INSUFFICIENT_CREDITS
    default_message = "There are not enough credits left."


class PaymentRequired(ServiceError):
    """Nobody pays for this call yet: neither a key nor a payment came with it. Carries the terms."""

    code = ErrorCode.PAYMENT_REQUIRED
    default_message = "Payment required"


class PaymentInvalid(ServiceError):
    """The payment that was presented does not pay for this call; nothing was consumed. Carries the terms."""

    code = ErrorCode.PAYMENT_INVALID


class PaymentAlreadyUsed(ServiceError):
    """The payment was taken already, for this call or another one. Carries the terms for a new one."""

    code = ErrorCode.PAYMENT_ALREADY_USED
    default_message = "This payment was used already; each one pays for one call."


class DailyLimitExceeded(ServiceError):
    """The movement would pass the wallet's limit per UTC day."""

    code = ErrorCode.DAILY_LIMIT_EXCEEDED


class WeeklyLimitExceeded(ServiceError):
    """The movement would pass the wallet's limit per UTC week."""

    code = ErrorCode.WEEKLY_LIMIT_EXCEEDED


class MonthlyLimitExceeded(ServiceError):
    """The movement would pass the wallet's limit per UTC month."""

    code = ErrorCode.MONTHLY_LIMIT_EXCEEDED


class PerTxLimitExceeded(ServiceError):
    """The movement alone is larger than the wallet's limit per transaction."""

    code = ErrorCode.PER_TX_LIMIT_EXCEEDED


class AddressNotAllowed(ServiceError):
    """The wallet has an allowlist of recipients, and this one is not on it."""

    code = ErrorCode.ADDRESS_NOT_ALLOWED


class DomainNotAllowed(ServiceError):
    """The wallet has an allowlist of domains, and this one is not on it."""

    code = ErrorCode.DOMAIN_NOT_ALLOWED


class WalletFrozen(ServiceError):
    """The agent was frozen by its owner or the platform: nothing new moves; what is in flight is finished."""

    code = ErrorCode.WALLET_FROZEN
    default_message = "This agent is frozen by its owner or the platform; no new movement is possible."


class ControlsLocked(ServiceError):
    """The controls are locked: the agent's own key may tighten but not loosen them, nor delete the wallet."""

    code = ErrorCode.CONTROLS_LOCKED
    default_message = "The controls are locked by the owner or the platform; this key may only tighten them."


class EmailMismatch(ServiceError):
    """The agent is claimable with the e-mail it was registered with only."""

    code = ErrorCode.EMAIL_MISMATCH
    default_message = "This agent was registered with another e-mail address."


class AlreadyClaimed(ServiceError):
    """The claim code was used before."""

    code = ErrorCode.ALREADY_CLAIMED
    default_message = "This agent was claimed already."


class IdempotencyConflict(ServiceError):
    """The Idempotency-Key was used for another request, or the first request is still running."""

    code = ErrorCode.IDEMPOTENCY_CONFLICT


class TransactionInProgress(ServiceError):
    """A movement of the wallet is still open."""

    code = ErrorCode.TRANSACTION_IN_PROGRESS


class PurchaseInProgress(ServiceError):
    """The same purchase is under way or its outcome is unknown, or it is too far to be cancelled."""

    code = ErrorCode.PURCHASE_IN_PROGRESS


class LimitReached(ServiceError):
    """There are as many of these as there may be."""

    code = ErrorCode.LIMIT_REACHED


class TransferFailed(ServiceError):
    """Certain: the transfer did not take place. Never for an open outcome, which is `pending`."""

    code = ErrorCode.TRANSFER_FAILED


class WithdrawalFailed(ServiceError):
    """Certain: the withdrawal did not take place. Never for an open outcome, which is `pending`."""

    code = ErrorCode.WITHDRAWAL_FAILED


class SwapFailed(ServiceError):
    """Certain: the swap did not take place. Never for an open outcome, which is `pending`."""

    code = ErrorCode.SWAP_FAILED


class BridgeFailed(ServiceError):
    """Certain: nothing left the source chain, or all of it came back. Never for what left and has not arrived yet."""

    code = ErrorCode.BRIDGE_FAILED


class BalanceFetchError(ServiceError):
    """A chain could not be read; `details.chains` names it."""

    code = ErrorCode.BALANCE_FETCH_ERROR


class PerpdexError(ServiceError):
    """The trading exchange cannot be asked; `details.reason` says why and `details.retry_after_seconds` when again."""

    code = ErrorCode.PERPDEX_ERROR
    default_message = "The trading exchange cannot be asked at the moment; try again shortly."


class TradingNotImplemented(ServiceError):
    """The action passed every check and is not sent to the exchange; `payload` is what would be, unsigned."""

    code = ErrorCode.NOT_IMPLEMENTED
    default_message = "Nothing is sent to the trading exchange; this is the payload that would be."


class RouteNotAllowed(ServiceError):
    """All callers share the operator's account there: what would show or bill beyond this one answer is refused."""

    code = ErrorCode.ROUTE_NOT_ALLOWED


class ProviderNotConfigured(ServiceError):
    """The operator has not set this provider up. Nothing was charged."""

    code = ErrorCode.PROVIDER_NOT_CONFIGURED
    default_message = "This provider is not configured on this service."


class UpstreamError(ServiceError):
    """The upstream could not be reached, or broke off before its answer was complete."""

    code = ErrorCode.UPSTREAM_ERROR
    default_message = "The upstream gave no complete answer."


class UpstreamTimeout(ServiceError):
    """The upstream was silent for too long; whether it acted on the request is unknown."""

    code = ErrorCode.UPSTREAM_TIMEOUT
    default_message = "The upstream did not answer in time."


class PriceUnavailable(ServiceError):
    """No price is known, and a limit in US dollars has to be kept."""

    code = ErrorCode.PRICE_UNAVAILABLE
    default_message = (
        "No current price is known for this token, so its limits cannot be checked; try again shortly."
    )


class InvalidSpec(ServiceError):
    """The OpenAPI specification is refused; `details.place` is where in it, as a JSON pointer."""

    code = ErrorCode.INVALID_SPEC


class AlreadySubscribed(ServiceError):
    """The wallet has an active subscription to this service."""

    code = ErrorCode.ALREADY_SUBSCRIBED
    default_message = "This wallet is subscribed to this service already."


class InternalError(ServiceError):
    """A defect of ours; the request id finds it in the logs."""
