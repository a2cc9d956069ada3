"""Holds: the value of a movement, reserved before it is signed, then spent or released.

The value is fixed when it is held. The only writer of `spending_holds`; the account row is locked before a hold is
touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from enum import StrEnum

from sqlalchemy import Row, and_, bindparam, select, text, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.state_machine import Transitions
from app.db import batching
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.state_machine import StateMachine
from app.db.statements import in_list
from app.errors import (
    AddressNotAllowed,
    DailyLimitExceeded,
    DomainNotAllowed,
    MonthlyLimitExceeded,
    NotFound,
    PerTxLimitExceeded,
    PriceUnavailable,
    ServiceError,
    SessionLimitExceeded,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.spending import accounts, controls, policy, sessions, thresholds
from app.spending.accounts import Account
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.spending.policy import Controls, SpendingRequest, SpendingRule

_BATCH_SIZE = 1000
_MAX_BATCHES = 10
# The condition of the partial index.
_ENDED = text("spending_holds.state <> 'held'")
_ERRORS: Mapping[SpendingRule, type[ServiceError]] = {
    SpendingRule.FROZEN: WalletFrozen,
    SpendingRule.ADDRESS: AddressNotAllowed,
    SpendingRule.DOMAIN: DomainNotAllowed,
    SpendingRule.PRICE: PriceUnavailable,
    SpendingRule.PER_TX: PerTxLimitExceeded,
    SpendingRule.DAILY: DailyLimitExceeded,
    SpendingRule.WEEKLY: WeeklyLimitExceeded,
    SpendingRule.MONTHLY: MonthlyLimitExceeded,
    SpendingRule.SESSION: SessionLimitExceeded,
}


class SpendingHoldState(StrEnum):
    """The states of a hold; held and spent ones count against limits."""

    HELD = "held"
    SPENT = "spent"
    RELEASED = "released"


HOLDS = StateMachine(
    SpendingHold.state,
    Transitions(
        initial={SpendingHoldState.HELD},
        permitted={
            SpendingHoldState.HELD: {SpendingHoldState.SPENT, SpendingHoldState.RELEASED},
            # A reorg reversed the outcome.
            SpendingHoldState.SPENT: {SpendingHoldState.HELD},
            SpendingHoldState.RELEASED: {SpendingHoldState.HELD},
        },
    ),
)


_CONTROLS_AND_HOLD = PreparedRead(
    select(*controls.COLUMNS, SpendingHold.reference)
    .select_from(SpendingAccount)
    .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
    .outerjoin(
        SpendingHold,
        and_(
            SpendingHold.reference == bindparam("of_reference"),
            SpendingHold.wallet_id == SpendingAccount.wallet_id,
        ),
    )
    .where(SpendingAccount.wallet_id == bindparam("of_wallet"))
)
_FIND = PreparedRead(
    select(
        SpendingHold.amount_nanos, SpendingHold.state, SpendingHold.made_on, SpendingHold.session_id
    ).where(
        SpendingHold.reference == bindparam("of_reference"), SpendingHold.wallet_id == bindparam("of_wallet")
    )
)
_INSERT = PreparedInsert(SpendingHold)


def hold(session: Session, wallet_id: str, request: SpendingRequest, *, reference: str) -> None:
    """Check a movement against the wallet's limits and hold its value. Four statements, whatever the history.

    A hold that exists under the reference is not checked or counted again.

    Raises: WalletFrozen, AddressNotAllowed, DomainNotAllowed, PriceUnavailable, PerTxLimitExceeded,
    DailyLimitExceeded, WeeklyLimitExceeded, MonthlyLimitExceeded, SessionLimitExceeded; NotFound if the wallet was
    deleted, or has no such session; InvalidInput for a value that exceeds what can be counted.
    """
    account = accounts.lock_account(session, wallet_id)
    row = _CONTROLS_AND_HOLD.one(session, {"of_wallet": wallet_id, "of_reference": reference})
    if row.reference is None:
        rules = controls.controls_from_row(row)
        _assert_permitted(account, rules, request)
        _assert_within_session(session, wallet_id, request)
        _count(session, reference, account, request.value_nanos or 0, session_id=request.session_id)
        thresholds.announce(session, account, rules, request.value_nanos or 0)


def record_without_limits(session: Session, wallet_id: str, *, reference: str, value_nanos: int) -> None:
    """Count at least this much under a reference, ignoring limits: it was, or may have been, spent without a hold.

    A released hold stays released, and nothing is counted for a wallet that was deleted.
    """
    try:
        account = accounts.lock_account(session, wallet_id)
    except NotFound:
        return
    found = _find(session, account, reference)
    if found is None:
        _count(session, reference, account, value_nanos)
    elif found.state != SpendingHoldState.RELEASED and found.amount_nanos < value_nanos:
        accounts.adjust_count(session, account, value_nanos - found.amount_nanos, made_on=found.made_on)
        session.execute(
            update(SpendingHold)
            .where(SpendingHold.reference == reference)
            .values(amount_nanos=value_nanos)
            .execution_options(synchronize_session=False)
        )


def check(session: Session, wallet_id: str, request: SpendingRequest) -> None:
    """Decide as `hold` does, without locking or writing. Raises: what `hold` raises."""
    row = controls.read_status(session, wallet_id)
    account = accounts.account_from_row(row)
    _assert_permitted(account, controls.controls_from_row(row), request)
    _assert_within_session(session, wallet_id, request)
    accounts.countable_sums(account, request.value_nanos or 0)


def spend(session: Session, reference: str) -> bool:
    """Mark a held amount as spent; return whether this call did it."""
    return _transition(session, reference, {SpendingHoldState.HELD}, SpendingHoldState.SPENT)


def release(session: Session, reference: str) -> bool:
    """Release a held amount, which no longer counts; return whether this call did it.

    Windows that have ended are not changed, and a spent amount stays spent.
    """
    return _transition(session, reference, {SpendingHoldState.HELD}, SpendingHoldState.RELEASED)


def restore_hold(session: Session, reference: str) -> bool:
    """Hold a spent or released amount again because a reorg reversed its outcome; return whether this call did it.

    A released amount counts again even if that exceeds a limit: its transaction is signed and cannot be refused.
    """
    sources = {SpendingHoldState.SPENT, SpendingHoldState.RELEASED}
    return _transition(session, reference, sources, SpendingHoldState.HELD)


def prune(before: date, *, batch_size: int = _BATCH_SIZE, max_batches: int = _MAX_BATCHES) -> int:
    """Delete holds that ended and were made before a day, in short units; return how many.

    The day must precede every window that the audit reads: two months are enough.
    """
    old = (
        select(SpendingHold.reference)
        .where(_ENDED, SpendingHold.made_on < before)
        .order_by(SpendingHold.made_on)
        .with_for_update(skip_locked=True)
    )
    return batching.delete_in_batches(
        SpendingHold.reference, old, batch_size=batch_size, max_batches=max_batches
    )


def states_of(session: Session, references: Sequence[str]) -> dict[str, SpendingHoldState]:
    """Return the states of holds by reference. For the audits of other packages."""
    rows = session.execute(
        select(SpendingHold.reference, SpendingHold.state).where(
            in_list(session, SpendingHold.reference, references)
        )
    )
    return {row.reference: SpendingHoldState(row.state) for row in rows}


def _find(session: Session, account: Account, reference: str) -> Row[int, str, date, str | None] | None:
    return _FIND.one_or_none(session, {"of_reference": reference, "of_wallet": account.wallet_id})


def _count(
    session: Session, reference: str, account: Account, amount_nanos: int, *, session_id: str | None = None
) -> None:
    accounts.count_amount(session, account, amount_nanos)
    if session_id is not None:
        sessions.adjust_count(session, session_id, amount_nanos)
    held = {
        "reference": reference, "wallet_id": account.wallet_id, "amount_nanos": amount_nanos,
        **HOLDS.initial(SpendingHoldState.HELD), "made_on": account.today, "session_id": session_id,
        "created_at": clock.now(),
    }  # fmt: skip
    _INSERT.execute(session, held)


def _transition(
    session: Session, reference: str, sources: set[SpendingHoldState], target: SpendingHoldState
) -> bool:
    account = accounts.lock_account_of_hold(session, reference)
    if account is None:
        # Never held, or the wallet and its holds were deleted.
        return False
    found = _find(session, account, reference)
    if found is None or found.state not in sources:
        return False
    HOLDS.move(session, reference, SpendingHoldState(found.state), target)
    change_nanos = 0
    if target is SpendingHoldState.RELEASED:
        change_nanos = -found.amount_nanos
    elif found.state == SpendingHoldState.RELEASED:
        change_nanos = found.amount_nanos
    if change_nanos:
        accounts.adjust_count(session, account, change_nanos, made_on=found.made_on)
        if found.session_id is not None:
            sessions.adjust_count(session, found.session_id, change_nanos)
    return True


def _assert_within_session(session: Session, wallet_id: str, request: SpendingRequest) -> None:
    """Check a request against the session that it names, if it names one. The only check that reads it."""
    if request.session_id is None:
        return
    budget = sessions.budget_of(session, wallet_id, request.session_id)
    refusal = policy.decide_session(budget, request, clock.now())
    if refusal is not None:
        raise _ERRORS[refusal.rule](refusal.message, details=refusal.details)


def _assert_permitted(account: Account, rules: Controls | None, movement: SpendingRequest) -> None:
    refusal = policy.decide(rules, account.spent, movement, frozen=account.frozen, today=account.today)
    if refusal is not None:
        raise _ERRORS[refusal.rule](refusal.message, details=refusal.details)
