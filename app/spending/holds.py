"""Holds: the value of a movement, reserved before it is signed, then spent or released.

The value is fixed when it is held. The only writer of `spending_holds`; the account row is locked before a hold is
touched.
"""

from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, String, and_, bindparam, cast, func, select, text
from sqlalchemy.orm import Session

from app import errors
from app.authenticated import change, seal_of
from app.core import clock, money
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.state_machine import StateMachine
from app.db.tables import in_list
from app.identity import budget_counters, budgets
from app.identity.budgets import SharedBudget
from app.spending import accounts, approval_rules, controls, policy, sessions
from app.spending.accounts import Account
from app.spending.approval_rules import ApprovalReason
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.spending.policy import Controls, SpendingRequest

# The condition of the partial index.
_ENDED = text("spending_holds.state <> 'held'")
_APPROVAL_MESSAGES: Mapping[ApprovalReason, str] = {
    ApprovalReason.THRESHOLD: "The payment exceeds the amount above which the wallet's owner must approve it.",
    ApprovalReason.NEW_RECIPIENT: "The owner must approve the wallet's first payment to each recipient.",
    ApprovalReason.FOREIGN_TOKEN: "The owner must approve each withdrawal of a token that this service does not know.",
    ApprovalReason.NEW_DOMAIN: "The owner must approve the wallet's first payment at each domain.",
}


class SpendingHoldState(StrEnum):
    """The states of a hold; held and spent ones count against limits."""

    HELD = "held"
    SPENT = "spent"
    RELEASED = "released"


HOLDS = StateMachine(
    SpendingHold.state,
    initial={SpendingHoldState.HELD},
    permitted={
        SpendingHoldState.HELD: {SpendingHoldState.SPENT, SpendingHoldState.RELEASED},
        # A reorg reversed the outcome.
        SpendingHoldState.SPENT: {SpendingHoldState.HELD},
        SpendingHoldState.RELEASED: {SpendingHoldState.HELD},
    },
)


_IS_MEANT = SpendingHold.reference == bindparam("of_reference")
_CONTROLS_AND_HOLD = PreparedRead(
    select(*controls.COLUMNS, SpendingHold.reference, controls.HAS_BUDGETS)
    .select_from(SpendingAccount)
    .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
    .outerjoin(SpendingHold, and_(_IS_MEANT, SpendingHold.wallet_id == SpendingAccount.wallet_id))
    .where(SpendingAccount.wallet_id == bindparam("of_wallet"))
)
_SEAL = seal_of(SpendingHold)
_FIND = PreparedRead(
    select(*_SEAL.columns, SpendingHold.state, SpendingHold.budgets, SpendingHold.created_at).where(
        _IS_MEANT, SpendingHold.wallet_id == bindparam("of_wallet")
    )
)
_INSERT = PreparedInsert(SpendingHold)
COMMITTED: ContextVar[Collection[str]] = ContextVar("committed_holds", default=())
"""The references of holds that an earlier unit of this request has committed."""


def hold(
    session: Session, wallet_id: str, request: SpendingRequest, *, reference: str, is_owner_asked: bool = False
) -> None:
    """Check a movement against the wallet's limits and hold its value. Four statements, whatever the history.

    A hold that exists under the reference is not checked or counted again. While the owner is asked, it is held without
    an approval, and an earlier one counts for nothing.

    Raises: WalletFrozen, AddressNotAllowed, DomainNotAllowed, PriceUnavailable, PerTxLimitExceeded,
    DailyLimitExceeded, WeeklyLimitExceeded, MonthlyLimitExceeded, SessionLimitExceeded; ApprovalRequired if the owner
    has to approve it; NotFound if the wallet was deleted, or has no such session; InvalidInput for a value that exceeds
    what can be counted.
    """
    if reference in COMMITTED.get():
        if accounts.lock_account(session, wallet_id).frozen:  # frozen since it was held
            raise errors.WalletFrozen
        return
    approved = None if is_owner_asked else request.approved
    if approved is not None:
        # A payout holds an amount of the seller's wallet until it is sent from the treasury's.
        held_by = session.scalars(select(SpendingHold.wallet_id).where(SpendingHold.reference == approved.reference))
        accounts.lock_accounts(session, {wallet_id, *held_by})
        # In one unit, the hold since the request becomes this one, or stays if this one is refused.
        release(session, approved.reference)
    account = accounts.lock_account(session, wallet_id)
    row = _CONTROLS_AND_HOLD.one(session, {"of_wallet": wallet_id, "of_reference": reference})
    if row.reference is None:
        rules = controls.verified_controls(session, account, row)
        policy.assert_allowed(rules, account.spent, request, frozen=account.frozen, today=account.today)
        _assert_within_session(session, wallet_id, request)
        shared = _lock_budgets(session, account, request) if row.has_budgets else []
        permitted_payee = None if is_owner_asked else _assert_approved(session, account, rules, request)
        _count(
            session, reference, account, request.value_nanos or 0, session_id=request.session_id,
            permitted_payee=permitted_payee, shared=shared,
        )  # fmt: skip
        if approved is not None:
            accounts.approve_payees(session, wallet_id, approval_rules.payees_of(request))
        accounts.announce_thresholds(session, account, rules, request.value_nanos or 0)


def charge_session(session: Session, wallet_id: str, request: SpendingRequest, *, reference: str) -> None:
    """Count what credits pay for against the session that it names, and against no limit of the wallet.

    It is spent immediately: if the process dies during the call, the session has less, and nothing is left over.

    Raises: SessionLimitExceeded; NotFound if the wallet was deleted, or has no such session.
    """
    account = accounts.lock_account(session, wallet_id)
    _assert_within_session(session, wallet_id, request)
    amount_nanos = request.value_nanos or 0
    _count(session, reference, account, amount_nanos, session_id=request.session_id, paid_by_credits=True)
    spend(session, reference)


def refund_session(session: Session, reference: str) -> None:
    """Stop counting a call against its session: nothing was charged for it."""
    restore_hold(session, reference)
    release(session, reference)


def record_without_limits(session: Session, wallet_id: str, *, reference: str, value_nanos: int) -> None:
    """Count at least this much under a reference, ignoring limits: it was, or may have been, spent without a hold.

    A released hold stays released, and nothing is counted for a wallet that was deleted.
    """
    try:
        account = accounts.lock_account(session, wallet_id)
    except errors.NotFound:
        return
    found = _find(session, account, reference)
    if found is None:
        shared = budgets.budgets_of(session, wallet_id, account.agent_id)
        _count(session, reference, account, value_nanos, shared=shared, is_locked=False)
    elif found.state != SpendingHoldState.RELEASED and found.amount_nanos < value_nanos:
        accounts.adjust_count(session, account, value_nanos - found.amount_nanos, made_on=found.made_on)
        change(session, SpendingHold, SpendingHold.reference == reference, amount_nanos=value_nanos)
        more_nanos = value_nanos - found.amount_nanos
        budget_counters.give_back(session, found.budgets or (), -more_nanos, held_at=found.created_at)


def check(session: Session, wallet_id: str, request: SpendingRequest, *, status: Any = None) -> None:
    """Decide as `hold` does, without locking or writing. Raises: what `hold` raises.

    `status` is the wallet's row of `controls.read_status`, if it was just read.
    """
    row = controls.read_status(session, wallet_id) if status is None else status
    account, rules = controls.verified(session, row)
    # What is held for a request since its owner was asked, if anything is.
    held = None if request.approved is None else _find(session, account, request.approved.reference)
    held = held if held is not None and held.state == SpendingHoldState.HELD else None
    if held is not None:
        own = policy.in_windows(-held.amount_nanos, held.made_on, account.today)
        account = replace(account, spent=account.spent.plus(own))
    policy.assert_allowed(rules, account.spent, request, frozen=account.frozen, today=account.today)
    own_nanos = 0 if held is None else held.amount_nanos
    _assert_within_session(session, wallet_id, request, own_nanos=own_nanos)
    is_counted = row.has_budgets and not request.buys_credits
    shared = budgets.budgets_of(session, account.wallet_id, account.agent_id) if is_counted else []
    _assert_within_budgets(session, budgets.read(session, shared), request, own_nanos=own_nanos)
    _assert_approved(session, account, rules, request)
    accounts.countable_sums(account, request.value_nanos or 0)


def assert_approved(session: Session, wallet_id: str, request: SpendingRequest) -> None:
    """Check only whether a request waits for the owner's approval, not the limits. Raises: ApprovalRequired."""
    _assert_approved(session, *controls.verified(session, controls.read_status(session, wallet_id)), request)


def spend(session: Session, reference: str, *, account: Account | None = None) -> bool:
    """Mark a held amount as spent; return whether this call did it. `account` is its account, if it is locked."""
    if account is None and accounts.lock_account_of_hold(session, reference) is None:
        return False
    # It counts as before, so that nothing else changes.
    return bool(HOLDS.move(session, reference, SpendingHoldState.HELD, SpendingHoldState.SPENT))


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


def states_of(session: Session, references: Sequence[str]) -> dict[str, SpendingHoldState]:
    """Return the states of holds by reference. For the audits of other packages."""
    named = in_list(session, SpendingHold.reference, references)
    rows = session.execute(select(SpendingHold.reference, SpendingHold.state).where(named))
    return {row.reference: SpendingHoldState(row.state) for row in rows}


def counted_since(session: Session, wallet_id: str, since: date, *, most: int) -> list[Row[*tuple[Any, ...]]]:
    """Return the latest amounts that count against a wallet's limits since a day, oldest first."""
    columns = (SpendingHold.reference, SpendingHold.amount_nanos, SpendingHold.made_on, SpendingHold.created_at)
    latest = select(*columns).where(*_counts([wallet_id], since)).order_by(SpendingHold.created_at.desc()).limit(most)
    return list(session.execute(latest))[::-1]


def counted_by_day(session: Session, wallet_ids: Collection[str], since: date) -> dict[date, int]:
    total = func.sum(SpendingHold.amount_nanos)
    days = select(SpendingHold.made_on, total).where(*_counts(wallet_ids, since)).group_by(SpendingHold.made_on)
    return {day: int(nanos) for day, nanos in session.execute(days)}


def _counts(wallet_ids: Collection[str], since: date) -> Sequence[ColumnElement[bool]]:
    return (
        SpendingHold.wallet_id.in_(wallet_ids),
        SpendingHold.made_on >= since,
        SpendingHold.state != SpendingHoldState.RELEASED,
        SpendingHold.paid_by_credits.is_(False),
    )


def _find(session: Session, account: Account, reference: str) -> Any | None:
    found = _FIND.one_or_none(session, {"of_reference": reference, "of_wallet": account.wallet_id})
    if found is not None:
        _SEAL.verify(session, found)
    return found


def _count(
    session: Session,
    reference: str,
    account: Account,
    amount_nanos: int,
    *,
    session_id: str | None = None,
    permitted_payee: str | None = None,
    paid_by_credits: bool = False,
    shared: Sequence[str] = (),
    is_locked: bool = True,
) -> None:
    now = clock.now()
    if not paid_by_credits:
        accounts.count_amount(session, account, amount_nanos)
    if is_locked:
        budget_counters.add(session, shared, amount_nanos)
    else:
        budget_counters.give_back(session, shared, -amount_nanos, held_at=now)
    if session_id is not None:
        sessions.adjust_count(session, session_id, amount_nanos)
    held = {
        "reference": reference, "wallet_id": account.wallet_id, "amount_nanos": amount_nanos,
        **HOLDS.initial(SpendingHoldState.HELD), "made_on": account.today, "session_id": session_id,
        "permitted_payee": permitted_payee, "paid_by_credits": paid_by_credits, "budgets": list(shared) or None,
        "created_at": now,
    }  # fmt: skip
    _INSERT.execute(session, held)


def _transition(session: Session, reference: str, sources: set[SpendingHoldState], target: SpendingHoldState) -> bool:
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
        if not found.paid_by_credits:
            accounts.adjust_count(session, account, change_nanos, made_on=found.made_on)
        budget_counters.give_back(session, found.budgets or (), -change_nanos, held_at=found.created_at)
        if found.session_id is not None:
            sessions.adjust_count(session, found.session_id, change_nanos)
    return True


def _assert_within_session(session: Session, wallet_id: str, request: SpendingRequest, *, own_nanos: int = 0) -> None:
    """Check a request against the session that it names, if it names one; `own_nanos` are held for it already."""
    if request.session_id is None:
        return
    budget = sessions.budget_of(session, wallet_id, request.session_id)
    budget = replace(budget, counted_nanos=budget.counted_nanos - own_nanos)
    policy.assert_within_session(budget, request, clock.now())


def _assert_approved(
    session: Session, account: Account, rules: Controls | None, request: SpendingRequest
) -> str | None:
    """Return the payee whose weekly permission replaces an approval, None if none is needed.

    Raises: ApprovalRequired.
    """
    if not request.is_foreign and (rules is None or not rules.asks):
        return None
    known = accounts.known_payees(session, account.wallet_id, approval_rules.payees_of(request), account.today)
    reasons = approval_rules.approval_reasons(rules, request, known)
    if not reasons:
        return approval_rules.used_permission(rules, request, known)
    raise errors.ApprovalRequired(
        _APPROVAL_MESSAGES[reasons[0]], reason=reasons[0].value, agent_id=account.agent_id, wallet_id=account.wallet_id,
        spending_request=request,
    )  # fmt: skip


def _lock_budgets(session: Session, account: Account, request: SpendingRequest) -> list[str]:
    """Lock the budgets that the wallet shares, and check the request against them; return their ids.

    Raises: BudgetLimitExceeded, PriceUnavailable.
    """
    if request.buys_credits:
        return []
    shared = budgets.lock(session, budgets.budgets_of(session, account.wallet_id, account.agent_id))
    _assert_within_budgets(session, shared, request)
    return [each.id for each in shared]


def _assert_within_budgets(
    session: Session, shared: Sequence[SharedBudget], request: SpendingRequest, *, own_nanos: int = 0
) -> None:
    """Check a request against shared budgets; `own_nanos` are held for it already."""
    for budget in shared:
        if request.value_nanos is None and budget.limit_nanos is None and budget.velocity is None:
            continue
        if request.value_nanos is None:
            raise errors.PriceUnavailable(details={"rule": "budget", "budget_id": budget.id})
        details: dict[str, Any] = {"rule": "budget", "budget_id": budget.id, "budget": budget.name}
        details["requested_usd"] = money.usd_from_nanos(request.value_nanos)
        limit_nanos = accounts.MAX_COUNTED_NANOS if budget.limit_nanos is None else budget.limit_nanos
        left_nanos = max(0, limit_nanos - budget.used_nanos)
        if request.value_nanos > left_nanos + own_nanos:
            amounts = {"limit_usd": limit_nanos, "spent_usd": budget.used_nanos, "remaining_usd": left_nanos}
            details |= {name: money.usd_from_nanos(nanos) for name, nanos in amounts.items()}
            details["resets_at"] = budget.resets_at and clock.isoformat(budget.resets_at)
            problem = f"This transaction exceeds the shared budget {budget.name!r}."
            raise errors.BudgetLimitExceeded(problem, details=details)
        if (velocity := budget.velocity) is not None and not own_nanos:
            minutes = velocity.minutes
            payments, paid_nanos = paid_since(session, budget.id, clock.now() - timedelta(minutes=minutes))
            if velocity.is_exceeded(payments, paid_nanos + request.value_nanos):
                details |= {"minutes": minutes, "payments": payments, "spent_usd": money.usd_from_nanos(paid_nanos)}
                problem = f"Too much was paid from the shared budget {budget.name!r} in {minutes} minutes; wait."
                raise errors.BudgetLimitExceeded(problem, details=details)


def paid_since(session: Session, budget_id: str, since: datetime) -> tuple[int, int]:
    """Return how many payments count in a budget since an instant, and how much."""
    named = SpendingHold.budgets.is_not(None), cast(SpendingHold.budgets, String).contains(budget_id)
    counts = SpendingHold.created_at >= since, SpendingHold.state != SpendingHoldState.RELEASED
    paid = select(func.count(), func.sum(SpendingHold.amount_nanos)).where(*named, *counts)
    payments, nanos = session.execute(paid).one()
    return payments, int(nanos or 0)
