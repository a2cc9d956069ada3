"""The errors returned for failed movements: reasons, messages and error classes."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from app.errors import MOVEMENT_FAILURES, ServiceError, TransferFailed
from app.ports.errors import PortError, Unreachable
from app.wallets.core.lifecycle import TransactionType
from app.wallets.views.history import TransactionView

MESSAGES: Mapping[str, str] = tomllib.loads(Path(__file__).with_name("failures.toml").read_text())


def recorded_failure(view: TransactionView) -> ServiceError:
    error_class = _failure_class(TransactionType(view.type), view.kind)
    details = {"reason": view.error or "failed", "transaction_id": view.id, "tx_hash": view.tx_hash}
    return error_class(MESSAGES.get(view.error or "", "It was not executed."), details=details)


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
        MESSAGES.get(reason, "It was not executed.") + missing,
        details=error_details,
        retry_after_seconds=retry_after_seconds,
    )


def _failure_class(type_: TransactionType, kind: str | None) -> type[ServiceError]:
    return MOVEMENT_FAILURES.get(kind or type_) or MOVEMENT_FAILURES.get(type_, TransferFailed)
