"""The door of the ledger: its verbs and snapshots, all of them for use inside the caller's unit."""

from app.credits.accounts import (
    Balance,
    balance,
    balances,
    grant,
    grants_by_reference,
    open_account,
    totals,
)
from app.credits.holds import (
    Hold,
    HoldState,
    Outcome,
    charge,
    expired_holds,
    hold,
    lapse,
    refund,
    release,
    renew,
    settle,
)

__all__ = [
    "Balance",
    "Hold",
    "HoldState",
    "Outcome",
    "balance",
    "balances",
    "charge",
    "expired_holds",
    "grant",
    "grants_by_reference",
    "hold",
    "lapse",
    "open_account",
    "refund",
    "release",
    "renew",
    "settle",
    "totals",
]
