"""Errors of the API: their classes, codes and statuses.

Any code may raise a `ServiceError`; it rolls the unit of work back, and `app.web.error_responses` turns it into
`{"error", "code", "details"?, "request_id"}`. Port errors (`app.ports.errors`) are never sent to clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

# The HTTP status of each error code of the API.
STATUS: dict[str, int] = {"INTERNAL_ERROR": 500}
# The codes of refusals of payments and by limits: their responses have a receipt.
PROVABLE: set[str] = set()


class ServiceError(Exception):
    """Base of all errors for clients. Subclasses have a code; the message states what happened and what to do."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    default_message: ClassVar[str] = ""
    """What happened and what to do, where the docstring does not say it."""

    def __init_subclass__(cls, *, code: str | None = None, status: int = 500, provable: bool = False) -> None:
        if code is not None:
            cls.code = code
            STATUS[code] = status
            PROVABLE.update([code] if provable else [])

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
        self.message = message or self.default_message or self.meaning()
        self.details = dict(details or {})
        self.members = dict(members or {})
        self.headers = dict(headers or {})
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.message)

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @classmethod
    def meaning(cls) -> str:
        """Return what the error means to clients. Docstrings may end with when not to raise it, which is left out."""
        return " ".join((cls.__doc__ or "").split()).partition(" Not for ")[0]


class InvalidInput(ServiceError, code="INVALID_INPUT", status=400):
    """A field is missing or malformed; `details.fields` names each. Not for valid input that is not allowed."""

    @classmethod
    def field(cls, name: str, problem: str) -> InvalidInput:
        return cls(f"{name} {problem}.", details={"fields": {name: [problem]}})


class Unauthorized(ServiceError, code="UNAUTHORIZED", status=401):
    """The key is missing, malformed, unknown or revoked, without distinction. Not for a wrong owner (NotFound)."""

    default_message = "A valid API key is required in the X-API-Key header."


class InsufficientScope(ServiceError, code="INSUFFICIENT_SCOPE", status=403):
    """The owner did not permit this to the application (`details.scopes` would), or the key's role is too low."""

    default_message = "The owner's permission for this application does not include this operation."


class SelfRevoke(ServiceError, code="SELF_REVOKE", status=400):
    """A master key cannot revoke itself; use another one."""


class NotFound(ServiceError, code="NOT_FOUND", status=404):
    """It does not exist or belongs to another account, which are not distinguished."""

    default_message = "Not found."


class MethodNotAllowed(ServiceError, code="METHOD_NOT_ALLOWED", status=405):
    """This route does not support that method."""


class PayloadTooLarge(ServiceError, code="PAYLOAD_TOO_LARGE", status=413):
    """The request body is larger than the route accepts."""


class RequestTimeout(ServiceError, code="REQUEST_TIMEOUT", status=408):
    """The request took too long to arrive; nothing was done."""


class HeadTooLarge(ServiceError, code="HEAD_TOO_LARGE", status=431):
    """The request line or the headers are too large: at most 8190 bytes per line and 100 headers."""


class RateLimited(ServiceError, code="RATE_LIMITED", status=429):
    """Too many requests, guesses or grants; try again later, as `Retry-After` says."""


class Overloaded(ServiceError, code="OVERLOADED", status=503):
    """The service has no capacity for the request at the moment; try again shortly."""


class Maintenance(ServiceError, code="MAINTENANCE", status=503):
    """The service is being maintained: reads and what was begun go on, the rest later, as `Retry-After` says."""


class InsufficientCredits(ServiceError, code="INSUFFICIENT_CREDITS", status=402):
    """The account does not have enough credits."""


class BudgetExceeded(InsufficientCredits, code="BUDGET_EXCEEDED", status=402, provable=True):
    """A budget, of this key or shared, does not cover the call; `details` has what is left, and when it begins anew."""


class ModelNotAllowed(ServiceError, code="MODEL_NOT_ALLOWED", status=403):
    """This key may not call that model or service; `details.models` has what it may call."""


class PaymentRequired(ServiceError, code="PAYMENT_REQUIRED", status=402):
    """The call has neither a key nor a payment. Contains the payment terms."""

    default_message = "Payment required"


class PaymentInvalid(ServiceError, code="PAYMENT_INVALID", status=402, provable=True):
    """The payment presented is not valid for this call; nothing was consumed. Contains the payment terms."""


class PaymentAlreadyUsed(ServiceError, code="PAYMENT_ALREADY_USED", status=402, provable=True):
    """This payment was already used; each pays for one call. Contains the terms for a new one."""


class PaymentPending(ServiceError, code="PAYMENT_PENDING", status=503):
    """A payment for this request was submitted and is not settled yet. Do not pay again.

    Repeat exactly this request after the seconds in Retry-After, with the same payment if your client can. A new
    payment by the same payer is accepted too, but not used.
    """


class DailyLimitExceeded(ServiceError, code="DAILY_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount would exceed the wallet's limit per UTC day."""


class WeeklyLimitExceeded(ServiceError, code="WEEKLY_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount would exceed the wallet's limit per UTC week."""


class MonthlyLimitExceeded(ServiceError, code="MONTHLY_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount would exceed the wallet's limit per UTC month."""


class PerTxLimitExceeded(ServiceError, code="PER_TX_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount alone exceeds the wallet's limit per transaction."""


class SessionLimitExceeded(ServiceError, code="SESSION_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount would exceed the budget of the session; or it has expired, or is for other domains."""


class BudgetLimitExceeded(ServiceError, code="BUDGET_LIMIT_EXCEEDED", status=403, provable=True):
    """The amount would exceed a budget that the wallet shares, or too many payments left it in the last minutes."""


class AddressNotAllowed(ServiceError, code="ADDRESS_NOT_ALLOWED", status=403, provable=True):
    """The wallet has an allowlist of recipients, and this one is not on it."""


class DomainNotAllowed(ServiceError, code="DOMAIN_NOT_ALLOWED", status=403, provable=True):
    """The wallet has an allowlist of domains, and this one is not on it."""


class PayeeChanged(ServiceError, code="PAYEE_CHANGED", status=403, provable=True):
    """A web service asks to pay another address than before; nothing was signed. `details` has both."""


class WalletFrozen(ServiceError, code="WALLET_FROZEN", status=403, provable=True):
    """The owner or the operator froze this agent: no payment leaves until it is unfrozen, except what is pending."""


class ApprovalRequired(ServiceError, code="APPROVAL_REQUIRED", status=403, provable=True):
    """The owner of this wallet must approve this payment. A request to pay is answered with 202 and an approval."""

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


class ControlsLocked(ServiceError, code="CONTROLS_LOCKED", status=403):
    """The owner or the operator has locked the controls: this key can only tighten them, and not delete the wallet."""


class EmailMismatch(ServiceError, code="EMAIL_MISMATCH", status=403):
    """This agent was registered with another email address, and can only be claimed with that."""


class AlreadyClaimed(ServiceError, code="ALREADY_CLAIMED", status=409):
    """This agent has already been claimed."""


class IdempotencyConflict(ServiceError, code="IDEMPOTENCY_CONFLICT", status=409):
    """The Idempotency-Key was used for another request, or the first request is still running."""


class TransactionInProgress(ServiceError, code="TRANSACTION_IN_PROGRESS", status=409):
    """A transaction of the wallet is still pending."""


class WalletNotEmpty(ServiceError, code="WALLET_NOT_EMPTY", status=409):
    """The wallet holds tokens; `details.balances` lists them. Transfer them out, or delete it with `force`."""


class GasPending(ServiceError, code="GAS_PENDING", status=503):
    """The wallet has bought the native token for its network fee, which has not arrived yet. Nothing else was done.

    Repeat the same request after the seconds in Retry-After, with the same Idempotency-Key.
    """


class PurchaseInProgress(ServiceError, code="PURCHASE_IN_PROGRESS", status=409):
    """The same purchase is in progress, has an unknown outcome, or can no longer be cancelled."""


class LimitReached(ServiceError, code="LIMIT_REACHED", status=409):
    """The maximum number of these exists already."""


class TransferFailed(ServiceError, code="TRANSFER_FAILED", status=500):
    """The transfer failed and no funds moved. If the outcome is unknown, the response is `pending`."""


class WithdrawalFailed(ServiceError, code="WITHDRAWAL_FAILED", status=500):
    """The withdrawal failed and no funds moved. If the outcome is unknown, the response is `pending`."""


class SwapFailed(ServiceError, code="SWAP_FAILED", status=500):
    """The swap failed and no funds moved (`quote_rate_limited`: `Retry-After`). An unknown outcome is `pending`."""


class BridgeFailed(ServiceError, code="BRIDGE_FAILED", status=500):
    """Nothing left the source chain (`quote_rate_limited`: `Retry-After`), or all was returned; else `pending`."""


class PaymentFailed(ServiceError, code="PAYMENT_FAILED", status=500):
    """The payment to a web service was not made, and no funds moved. If the outcome is unknown, it is `pending`."""


class PayoutFailed(ServiceError, code="PAYOUT_FAILED", status=500):
    """The payout or refund was not sent, and no funds moved. If the outcome is unknown, the response is `pending`."""


class PayoutRefused(ServiceError, code="PAYOUT_REFUSED", status=409):
    """The earnings of the service do not permit this payout or refund now; `details.reason` states why."""


MOVEMENT_FAILURES: Mapping[str, type[ServiceError]] = {
    each.code.removesuffix("_FAILED").lower(): each
    for each in (TransferFailed, WithdrawalFailed, SwapFailed, BridgeFailed, PaymentFailed, PayoutFailed)
} | {"refund": PayoutFailed}
"""The error of a movement that was not executed, by its kind or type."""


class TermsNotSupported(ServiceError, code="TERMS_NOT_SUPPORTED", status=502):
    """A web service offers no terms that can be paid; `details.offers` has the reason for each. Nothing was signed."""


class BalanceFetchError(ServiceError, code="BALANCE_FETCH_ERROR", status=502):
    """A chain could not be read; `details.chains` names it."""


class PerpdexError(ServiceError, code="PERPDEX_ERROR", status=502):
    """The trading exchange cannot be queried; `details.reason` is why, `details.retry_after_seconds` when to retry."""


class TradingNotImplemented(ServiceError, code="NOT_IMPLEMENTED", status=501):
    """The action passed every check and is not sent to the exchange; `payload` is the unsigned request."""


class RouteNotAllowed(ServiceError, code="ROUTE_NOT_ALLOWED", status=403):
    """Only calls that store nothing at the provider and have a price are forwarded; `details.allowed` lists them."""


class ProviderNotConfigured(ServiceError, code="PROVIDER_NOT_CONFIGURED", status=503):
    """This provider is not configured on this service. Nothing was charged."""


class UpstreamError(ServiceError, code="UPSTREAM_ERROR", status=502):
    """The upstream could not be reached, or its response was incomplete."""


class UpstreamTimeout(ServiceError, code="UPSTREAM_TIMEOUT", status=504):
    """The upstream did not respond in time; whether it acted on the request is unknown."""


class PriceUnavailable(ServiceError, code="PRICE_UNAVAILABLE", status=503):
    """There is no current price for this token, so limits in dollars cannot be checked; try again shortly."""


class KeyServiceUnavailable(ServiceError, code="KEY_SERVICE_UNAVAILABLE", status=503):
    """A KMS or HSM refused to encrypt or decrypt a wallet's key, or did not respond; states when to retry."""

    default_message = "The key of the wallet cannot be used at the moment, so nothing was signed; try again shortly."
    reason = "key_service_unreachable"


class InvalidSpec(ServiceError, code="INVALID_SPEC", status=400):
    """The OpenAPI specification is invalid; `details.place` is where, as a JSON pointer."""


class AlreadySubscribed(ServiceError, code="ALREADY_SUBSCRIBED", status=409):
    """This wallet is already subscribed to this service."""


class InternalError(ServiceError):
    """An unexpected error; the request id identifies it in the logs."""
