"""What the routes of transfers, swaps and bridges have in common: a dry run quotes, a repetition is answered again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import request
from marshmallow import Schema

from app.errors import (
    DailyLimitExceeded,
    MonthlyLimitExceeded,
    PerTxLimitExceeded,
    PriceUnavailable,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.wallets import history, movements
from app.wallets.lifecycle import Status
from app.web import failures
from app.web.parsing import body_of, parse_json

LIMITS = (
    DailyLimitExceeded,
    WeeklyLimitExceeded,
    MonthlyLimitExceeded,
    PerTxLimitExceeded,
    WalletFrozen,
    PriceUnavailable,
)
_SPELLINGS = ("dry_run", "dryRun")


def is_for_real() -> bool:
    """Tell the present request from a dry run, which makes nothing that a repetition could make again."""
    body = parse_json(body_of(request) or b"{}")
    return not (isinstance(body, dict) and any(body.get(name) is True for name in _SPELLINGS))


def rebuilt_as(shape: type[Schema]) -> Callable[[str], tuple[int, Any]]:
    """Return what answers a repetition: the movement as it stands, or the failure that it ended in."""

    def rebuild(transaction_id: str) -> tuple[int, Any]:
        view = history.movement(transaction_id)
        if view.status == Status.FAILED:
            failure = movements.answer_failure(view)
            return failure.status, failures.body_of(failure)
        return 200, shape().dump(view)

    return rebuild


def done_or_quoted(what: str, done: type[Schema], quoted: type[Schema]) -> dict[str, Any]:
    """Document the two kinds of a good answer."""
    schema = {"oneOf": [done, quoted]}
    description = f"The {what}, or the quote of a dry run."
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}
