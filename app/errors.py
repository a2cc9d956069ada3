"""Errors of the API: their classes; their codes and statuses are in `error_codes`.

Any code may raise a `ServiceError`; it rolls the unit of work back, and `app.web.error_responses` turns it into
`{"error", "code", "details"?, "request_id"}`. Port errors (`app.ports.errors`) are never sent to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from app.error_codes import STATUS, ErrorCode


class ServiceError(Exception):
    """Base of all errors for clients. Subclasses set `code`; the message states what happened and what to do."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    default_message: ClassVar[str] = "An unexpected error occurred in the service."

    def __init__(
        self,
        message: str | None = None,
        *,
        details: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Accept JSON-serializable details, and members to add to the body next to `error` and `code`."""
        self.message = message or self.default_message
        self.details = dict(details or {})
        self.members = dict(members or {})
        self.headers = dict(headers or {})
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.message)

    @property
    def status(self) -> int:
        """The HTTP status of this error's code."""
        return STATUS[self.code]


class InvalidInput(ServiceError):
    """A field is missing or malformed; `details.fields` names each. Not for valid input that is not allowed."""

    code = ErrorCode.INVALID_INPUT
    default_message = "The request is not valid."

    @classmethod
    def field(cls, name: str, problem: str) -> InvalidInput:
        """Make the error for one bad field."""
        return cls(f"{name} {problem}.", details={"fields": {name: [problem]}})


class Unauthorized(ServiceError):
    """The key is missing, malformed, unknown or revoked, without distinction. Not for a wrong owner (NotFound)."""

    code = ErrorCode.UNAUTHORIZED
    default_message = "A valid API key is required in the X-API-Key header."


class SelfRevoke(ServiceError):
    """A master key cannot revoke itself."""

    code = ErrorCode.SELF_REVOKE
    default_message = "A master key cannot revoke itself; use another one."


class NotFound(ServiceError):
    """It does not exist or belongs to another account, which are not distinguished."""

    code = ErrorCode.NOT_FOUND
    default_message = "Not found."


class MethodNotAllowed(ServiceError):
    """The route exists, with other methods."""

    code = ErrorCode.METHOD_NOT_ALLOWED
    default_message = "This route does not support that method."


class PayloadTooLarge(ServiceError):
    """The body is larger than the route accepts."""

    code = ErrorCode.PAYLOAD_TOO_LARGE
    default_message = "The request body is too large: at most 1 MiB of JSON."


class RequestTimeout(ServiceError):
    """The request did not arrive in time; nothing was done."""

    code = ErrorCode.REQUEST_TIMEOUT
    default_message = "The request took too long to arrive; nothing was done."


class HeadTooLarge(ServiceError):
    """The request line or the headers are too large."""

    code = ErrorCode.HEAD_TOO_LARGE
    default_message = "The request line or the headers are too large: 8190 bytes for each line, 100 headers."


class RateLimited(ServiceError):
    """Too many requests, guesses or grants; states when to retry."""

    code = ErrorCode.RATE_LIMITED
    default_message = "Too many requests; try again later."


class Overloaded(ServiceError):
    """The service has no capacity for the request at the moment; states when to retry."""

    code = ErrorCode.OVERLOADED
    default_message = "The service is busy; try again shortly."


class InsufficientCredits(ServiceError):
    """The account cannot pay for the call."""

    code = ErrorCode.INSUFFICIENT_CREDITS
    default_message = "The account does not have enough credits."


class PaymentRequired(ServiceError):
    """The call has neither a key nor a payment. Contains the payment terms."""

    code = ErrorCode.PAYMENT_REQUIRED
    default_message = "Payment required"


class PaymentInvalid(ServiceError):
    """The payment presented is not valid for this call; nothing was consumed. Contains the payment terms."""

    code = ErrorCode.PAYMENT_INVALID


class PaymentAlreadyUsed(ServiceError):
    """The payment was already consumed, by this call or another one. Contains the terms for a new one."""

    code = ErrorCode.PAYMENT_ALREADY_USED
    default_message = "This payment was already used; each payment pays for one call."


class PaymentPending(ServiceError):
    """A signed payment was submitted and is not settled yet; states when to retry, and offers no terms for another."""

    code = ErrorCode.PAYMENT_PENDING
    default_message = (
        "A payment for this request was submitted and is not settled yet. Do not pay again: repeat exactly this request"
        " after the seconds in Retry-After, with the same payment if your client can, or with a new one of the same"
        " payer, which is then not used."
    )


class DailyLimitExceeded(ServiceError):
    """The amount would exceed the wallet's limit per UTC day."""

    code = ErrorCode.DAILY_LIMIT_EXCEEDED


class WeeklyLimitExceeded(ServiceError):
    """The amount would exceed the wallet's limit per UTC week."""

    code = ErrorCode.WEEKLY_LIMIT_EXCEEDED


class MonthlyLimitExceeded(ServiceError):
    """The amount would exceed the wallet's limit per UTC month."""

    code = ErrorCode.MONTHLY_LIMIT_EXCEEDED


class PerTxLimitExceeded(ServiceError):
    """The amount alone exceeds the wallet's limit per transaction."""

    code = ErrorCode.PER_TX_LIMIT_EXCEEDED


class SessionLimitExceeded(ServiceError):
    """The amount would exceed the budget of the session; or it has expired, or is for other domains."""

    code = ErrorCode.SESSION_LIMIT_EXCEEDED


class AddressNotAllowed(ServiceError):
    """The wallet has an allowlist of recipients, and this one is not on it."""

    code = ErrorCode.ADDRESS_NOT_ALLOWED


class DomainNotAllowed(ServiceError):
    """The wallet has an allowlist of domains, and this one is not on it."""

    code = ErrorCode.DOMAIN_NOT_ALLOWED


class PayeeChanged(ServiceError):
    """A web service asks to pay another address than before; nothing was signed. `details` has both."""

    code = ErrorCode.PAYEE_CHANGED


class WalletFrozen(ServiceError):
    """The agent is frozen by its owner or the platform: no new payment leaves; what is pending is completed."""

    code = ErrorCode.WALLET_FROZEN
    default_message = "This agent is frozen by its owner or the platform; no new payment is possible."


class ApprovalRequired(ServiceError):
    """The owner has to approve this payment. A request to pay is answered with 202 and an approval instead."""

    code = ErrorCode.APPROVAL_REQUIRED
    default_message = "The owner of this wallet has to approve this payment."

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: str = "",
        agent_id: str = "",
        wallet_id: str = "",
        spending_request: Any = None,
    ) -> None:
        """Accept what the limits of a wallet decided on, for the request to its owner."""
        super().__init__(message, details={"reason": reason})
        self.reason, self.agent_id, self.wallet_id = reason, agent_id, wallet_id
        self.spending_request = spending_request


class ControlsLocked(ServiceError):
    """The controls are locked: the agent's own key may tighten but not loosen them, nor delete the wallet."""

    code = ErrorCode.CONTROLS_LOCKED
    default_message = "The controls are locked by the owner or the platform; this key may only tighten them."


class EmailMismatch(ServiceError):
    """The agent can only be claimed with the email address it was registered with."""

    code = ErrorCode.EMAIL_MISMATCH
    default_message = "This agent was registered with another email address."


class AlreadyClaimed(ServiceError):
    """The claim code was used before."""

    code = ErrorCode.ALREADY_CLAIMED
    default_message = "This agent was already claimed."


class IdempotencyConflict(ServiceError):
    """The Idempotency-Key was used for another request, or the first request is still running."""

    code = ErrorCode.IDEMPOTENCY_CONFLICT


class TransactionInProgress(ServiceError):
    """A transaction of the wallet is still pending."""

    code = ErrorCode.TRANSACTION_IN_PROGRESS


class GasPending(ServiceError):
    """The wallet has paid for its network fee in USDC, and the native token has not arrived; states when to retry."""

    code = ErrorCode.GAS_PENDING
    default_message = (
        "The wallet has paid for its network fee in USDC, and the native token has not arrived yet; nothing else was"
        " done. Repeat the same request shortly, with the same Idempotency-Key."
    )


class PurchaseInProgress(ServiceError):
    """The same purchase is in progress, has an unknown outcome, or can no longer be cancelled."""

    code = ErrorCode.PURCHASE_IN_PROGRESS


class LimitReached(ServiceError):
    """The maximum number of these exists already."""

    code = ErrorCode.LIMIT_REACHED


class TransferFailed(ServiceError):
    """The transfer failed and no funds moved. If the outcome is unknown, the response is `pending`."""

    code = ErrorCode.TRANSFER_FAILED


class WithdrawalFailed(ServiceError):
    """The withdrawal failed and no funds moved. If the outcome is unknown, the response is `pending`."""

    code = ErrorCode.WITHDRAWAL_FAILED


class SwapFailed(ServiceError):
    """The swap failed and no funds moved (`quote_rate_limited`: `Retry-After`). An unknown outcome is `pending`."""

    code = ErrorCode.SWAP_FAILED


class BridgeFailed(ServiceError):
    """Nothing left the source chain (`quote_rate_limited`: `Retry-After`), or all was returned; else `pending`."""

    code = ErrorCode.BRIDGE_FAILED


class PaymentFailed(ServiceError):
    """The payment to a web service was not made, and no funds moved. If the outcome is unknown, it is `pending`."""

    code = ErrorCode.PAYMENT_FAILED


class TermsNotSupported(ServiceError):
    """A web service offers no terms that can be paid; `details.offers` has the reason for each. Nothing was signed."""

    code = ErrorCode.TERMS_NOT_SUPPORTED


class BalanceFetchError(ServiceError):
    """A chain could not be read; `details.chains` names it."""

    code = ErrorCode.BALANCE_FETCH_ERROR


class PerpdexError(ServiceError):
    """The trading exchange cannot be queried; `details.reason` is why, `details.retry_after_seconds` when to retry."""

    code = ErrorCode.PERPDEX_ERROR
    default_message = "The trading exchange cannot be queried at the moment; try again shortly."


class TradingNotImplemented(ServiceError):
    """The action passed every check and is not sent to the exchange; `payload` is the unsigned request."""

    code = ErrorCode.NOT_IMPLEMENTED
    default_message = "Nothing is sent to the trading exchange; `payload` is the unsigned request."


class RouteNotAllowed(ServiceError):
    """Only calls that store nothing at the provider and have a price are forwarded; `details.allowed` lists them."""

    code = ErrorCode.ROUTE_NOT_ALLOWED


class ProviderNotConfigured(ServiceError):
    """The operator has not configured this provider. Nothing was charged."""

    code = ErrorCode.PROVIDER_NOT_CONFIGURED
    default_message = "This provider is not configured on this service."


class UpstreamError(ServiceError):
    """The upstream could not be reached, or its response was incomplete."""

    code = ErrorCode.UPSTREAM_ERROR
    default_message = "The upstream gave no complete response."


class UpstreamTimeout(ServiceError):
    """The upstream did not respond in time; whether it acted on the request is unknown."""

    code = ErrorCode.UPSTREAM_TIMEOUT
    default_message = "The upstream did not respond in time."


class PriceUnavailable(ServiceError):
    """No price is known, so that a limit in US dollars cannot be checked."""

    code = ErrorCode.PRICE_UNAVAILABLE
    default_message = "No current price of this token is known to check its limits; try again shortly."


class InvalidSpec(ServiceError):
    """The OpenAPI specification is invalid; `details.place` is where, as a JSON pointer."""

    code = ErrorCode.INVALID_SPEC


class AlreadySubscribed(ServiceError):
    """The wallet has an active subscription to this service."""

    code = ErrorCode.ALREADY_SUBSCRIBED
    default_message = "This wallet is already subscribed to this service."


class InternalError(ServiceError):
    """An unexpected error; the request id identifies it in the logs."""
