"""The errors returned for failed movements: reasons, messages and error classes."""

from collections.abc import Mapping

from app.errors import MOVEMENT_FAILURES, ServiceError, TransferFailed
from app.ports.errors import PortError, Unreachable
from app.wallets.core.lifecycle import TransactionType
from app.wallets.views.history import TransactionView

_MESSAGES: Mapping[str, str] = {
    "insufficient_funds": "The wallet does not hold enough of this token.",
    "insufficient_gas": "The wallet does not hold enough of the chain's native token to pay the network fee.",
    "gas_unavailable": "The service cannot pay network fees on this chain at the moment; nothing was sent.",
    "gas_price_unknown": "The price of the network fee in USDC is not known at the moment; nothing was sent.",
    "gas_fee_too_high": "The network fee would exceed the amount; nothing was sent.",
    "sponsored_limit": "The service has paid the network fees of as many transfers as it does for an agent in a day;"
    " nothing was sent. Try again after midnight UTC, or deposit some of the native token.",
    "leaves_dust": "It would leave less than the chain's minimum balance of an account: send less, or all of it.",
    "simulation_failed": "The simulation failed: the chain would reject this transaction.",
    "recipient_blocked": "On the other chain, the issuer of the token has blocked the wallet's address or paused the"
    " token, so it could not arrive; nothing was sent.",
    "network_fee_above_maximum": "The network fee is above `max_network_fee_usd` at the moment; nothing was sent. Try"
    " again later, or with a higher maximum.",
    "chain_unreachable": "The chain cannot be reached at the moment; nothing was sent.",
    "network_fee_too_high": "The network fee is above the operator's cap at the moment; try again later.",
    "expired": "No block included it before it expired; nothing was moved, and it can no longer be executed.",
    "reverted": "The transaction was executed and reverted; only the network fee was spent.",
    "cancelled": "It could no longer be executed (late or unaffordable); an empty transaction used its nonce instead.",
    "slot_taken": "Another transaction used its nonce, so it can never be executed.",
    "quote_unavailable": "No quote is available at the moment; nothing was sent. Try again later.",
    "quote_rate_limited": "The quote service is limiting requests; nothing was sent. Try again after"
    " `details.retry_after_seconds`, as a new request.",
    "no_liquidity": "No market offers this swap at the moment.",
    "amount_too_small": "The amount is too small: the output would be zero.",
    "price_deviation": "The exchange's offer is too far below the market price; nothing was sent.",
    "price_moved": "The price moved beyond the allowed slippage; nothing was sent.",
    "unsafe_instructions": "The transaction offered for signing does not match the request; nothing was sent.",
    "deadline_passed": "It was not executed before its deadline, and can no longer be.",
    "bridge_fee_too_high": "Every route charges more than the operator allows; nothing was sent.",
    "written_off": "It was sent and never paid out on the other chain; the operator has written it off.",
    "refunded": "It could not be delivered on the other chain and was refunded on the source chain.",
}


def recorded_failure(view: TransactionView) -> ServiceError:
    error_class = _failure_class(TransactionType(view.type), view.kind)
    details = {"reason": view.error or "failed", "transaction_id": view.id, "tx_hash": view.tx_hash}
    return error_class(_MESSAGES.get(view.error or "", "It was not executed."), details=details)


def reason_of(error: PortError) -> str:
    """Return the reason that agents see: for them, what cannot be reached is the chain."""
    return "chain_unreachable" if isinstance(error, Unreachable) else error.reason


def failure(
    type_: TransactionType, error: PortError, *, transaction_id: str | None = None, kind: str | None = None
) -> ServiceError:
    """Return the error of a movement that is known not to have been executed."""
    reason, details = reason_of(error), error.details
    error_details: dict[str, str | int | None] = {"reason": reason, **details}
    # Details of a port are texts.
    retry_after_seconds = int(details["retry_after_seconds"]) if "retry_after_seconds" in details else None
    if retry_after_seconds is not None:
        error_details["retry_after_seconds"] = retry_after_seconds
    if transaction_id is not None:
        error_details |= {"transaction_id": transaction_id, "tx_hash": None}
    where = f" on {details['chain']}" if "chain" in details else ""
    missing = f" Missing: {details['missing']} {details['currency']}{where}." if "missing" in details else ""
    return _failure_class(type_, kind)(
        _MESSAGES.get(reason, "It was not executed.") + missing,
        details=error_details,
        retry_after_seconds=retry_after_seconds,
    )


def _failure_class(type_: TransactionType, kind: str | None) -> type[ServiceError]:
    return MOVEMENT_FAILURES.get(kind or type_) or MOVEMENT_FAILURES.get(type_, TransferFailed)
