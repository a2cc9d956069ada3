"""Metering of calls: begin, settle or cancel one of unknown cost; charge or refund a fixed price.

All functions are idempotent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import structlog
from sqlalchemy import BigInteger, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from app.core import clock, money
from app.core.pagination import Page, PageRequest
from app.credits import accounts
from app.credits import holds as credit_holds
from app.credits.holds import CreditHoldState, CreditHoldView, HoldResult
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.tables import day_of, rows_after, table_of, utc_day, within
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import BudgetExceeded, InsufficientCredits
from app.identity import key_limits
from app.usage.models import UsageByProvider, UsageLog

_MAX_PROVIDER = 100
_MAX_MODEL = 200
_log = structlog.get_logger(__name__)

_LOG, _SUMS = table_of(UsageLog), table_of(UsageByProvider)
_INSERT_LOG_LINE = PreparedInsert(UsageLog)
LOGGED_AMOUNTS = (_LOG.c.account_id, _LOG.c.provider, _LOG.c.cost_nanos, _LOG.c.tokens_in, _LOG.c.tokens_out)
"""The account and provider of an entry of the log, and what it adds to the sums."""
_ADD = PreparedStatement(
    update(_SUMS)
    .where(_SUMS.c.account_id == bindparam("owner_id"), _SUMS.c.provider == bindparam("of_provider"))
    .values(
        {
            column: column + bindparam(f"more_{column.name}", type_=BigInteger)
            for column in (_SUMS.c.calls, _SUMS.c.cost_nanos, _SUMS.c.tokens_in, _SUMS.c.tokens_out)
        }
    )
)
_COUNT = PreparedRead(
    select(func.sum(_SUMS.c.calls - _SUMS.c.carried_calls)).where(_SUMS.c.account_id == bindparam("owner_id"))
)
_TOTALS = PreparedRead(
    select(_SUMS.c.provider, _SUMS.c.calls, _SUMS.c.cost_nanos, _SUMS.c.tokens_in, _SUMS.c.tokens_out)
    .where(_SUMS.c.account_id == bindparam("owner_id"), _SUMS.c.calls > 0)
    .order_by(_SUMS.c.provider)
)
_HISTORY = (
    select(
        _LOG.c.id, _LOG.c.api_key_id, _LOG.c.provider, _LOG.c.model, _LOG.c.tokens_in, _LOG.c.tokens_out,
        _LOG.c.cost_nanos, _LOG.c.created_at,
    )
    .where(_LOG.c.account_id == bindparam("owner_id"))
    .order_by(_LOG.c.created_at.desc(), _LOG.c.id.desc())
    .limit(bindparam("most", type_=BigInteger))
    .offset(bindparam("skipped", type_=BigInteger))
)  # fmt: skip
_PAGE = PreparedRead(_HISTORY)


class UsageCall(NamedTuple):
    """The call of a provider with a key, perhaps one with limits; `model` may be a client's text, and is shortened."""

    api_key_id: str
    provider: str
    model: str
    is_limited: bool = False


class MeteredUsage(NamedTuple):
    """The tokens that a call used and its cost in nano-dollars, by a version of the price table."""

    cost_nanos: int
    tokens_in: int = 0
    tokens_out: int = 0
    price_version: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderTotals:
    calls: int
    cost_nanos: int
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class UsageByDay:
    """The calls to a provider on one UTC day, what they cost, and when the last one was charged."""

    day: date
    provider: str
    calls: int
    cost_nanos: int
    last_at: datetime


def begin(
    session: Session,
    account_id: str,
    call: UsageCall,
    *,
    hold_id: str,
    nanos: int,
    estimate: MeteredUsage,
    lease: timedelta,
    minimum_nanos: int | None = None,
) -> CreditHoldView:
    """Hold the worst case of a call before it is made; `estimate` is charged if its lease expires unsettled.

    With `minimum_nanos`, all that is left is held if that is less than the worst case.

    Raises: InsufficientCredits, BudgetExceeded.
    """
    memo = memo_of(call, estimate)
    is_counted = _is_counted(session, account_id, call, hold_id)
    if is_counted:
        nanos = _within_budget(session, call, nanos, minimum_nanos)
    held = credit_holds.hold(
        session, account_id, nanos, hold_id=hold_id, lease=lease, minimum_nanos=minimum_nanos, memo=memo
    )
    if is_counted:
        key_limits.take(session, call.api_key_id, held.amount_nanos)
    return held


def settle(session: Session, hold_id: str, metered: MeteredUsage) -> HoldResult:
    """Settle a call at its cost, log it and add it to the sums. An estimate that was charged is replaced.

    The log has what was charged: a cost beyond what the account could pay is in the result only.

    Raises: LookupError for an unknown hold: a bug.
    """
    most_excess = partial(_left_of_budget, session)
    ended = credit_holds.settle(session, hold_id, metered.cost_nanos, most_excess=most_excess)
    outcome = _counted(session, ended)
    if not outcome.repeated:
        _write_log_line(session, outcome, metered)
    return outcome


def cancel(session: Session, hold_id: str) -> HoldResult:
    """Release the hold of a call that was not made or got no response; nothing is logged.

    Raises: LookupError.
    """
    outcome = _counted(session, credit_holds.release(session, hold_id))
    if outcome.previous_state is CreditHoldState.LAPSED:
        _delete_log_line(session, hold_id)
    return outcome


def charge(
    session: Session,
    account_id: str,
    call: UsageCall,
    *,
    charge_id: str,
    metered: MeteredUsage,
    replaces_refund: bool = False,
) -> HoldResult:
    """Charge a known price, log it and add it to the sums. Raises: InsufficientCredits, BudgetExceeded.

    What replaces a refund in the same unit is charged even if the budget has shrunk since.
    """
    is_counted = _is_counted(session, account_id, call, charge_id)
    if is_counted and not replaces_refund:
        _within_budget(session, call, metered.cost_nanos)
    ended = credit_holds.charge(session, account_id, metered.cost_nanos, charge_id=charge_id, memo=memo_of(call))
    if is_counted:
        key_limits.take(session, call.api_key_id, ended.charged_nanos)
    outcome = _counted(session, ended)
    if not outcome.repeated:
        _write_log_line(session, outcome, metered)
    return outcome


def refund(session: Session, charge_id: str) -> HoldResult:
    """Refund the charge of a call that failed, once, and delete its log entry. Raises: LookupError."""
    outcome = _counted(session, credit_holds.refund(session, charge_id))
    if outcome.previous_state is CreditHoldState.SETTLED:
        _delete_log_line(session, charge_id)
    return outcome


def _is_counted(session: Session, account_id: str, call: UsageCall, step_id: str) -> bool:
    """Lock the account of a key with limits; return whether its budget has yet to count this step."""
    if not call.is_limited:
        return False
    accounts.lock_available(session, account_id)
    return not credit_holds.exists(session, step_id)


def _within_budget(session: Session, call: UsageCall, nanos: int, minimum_nanos: int | None = None) -> int:
    """Return what the budget of a key covers of an amount. Raises: BudgetExceeded if that is less than the minimum."""
    left_nanos, _, resets_at = key_limits.budget_of(session, call.api_key_id)
    if left_nanos is None or (left_nanos and nanos <= left_nanos):
        return nanos
    required_nanos = nanos if minimum_nanos is None else min(nanos, minimum_nanos)
    if not left_nanos or left_nanos < required_nanos:
        amounts = {
            "credits_usd": money.usd_from_nanos(left_nanos),
            "required_usd": money.usd_from_nanos(required_nanos),
        }
        raise BudgetExceeded(details={**amounts, "resets_at": resets_at and clock.isoformat(resets_at)})
    return left_nanos


def _left_of_budget(session: Session, memo: Mapping[str, Any]) -> int | None:
    return key_limits.budget_of(session, memo["api_key_id"]).left_nanos if "is_limited" in memo else None


def _counted(session: Session, outcome: HoldResult) -> HoldResult:
    """Count what the end of a call changes in the budget of a key with limits, and return what is left of that."""
    if "is_limited" not in outcome.memo:
        return outcome
    key_id, difference = outcome.memo["api_key_id"], outcome.charged_nanos - outcome.set_aside_nanos
    if outcome.held_at is not None and difference < 0:
        key_limits.correct(session, key_id, difference, held_at=outcome.held_at)
    elif outcome.held_at is not None and difference:
        # What exceeds a hold is bounded by the budget of now, and counts there.
        key_limits.take(session, key_id, difference)
    return outcome._replace(budget_nanos=_left_of_budget(session, outcome.memo))


def memo_of(call: UsageCall, estimate: MeteredUsage | None = None) -> dict[str, str | int | None]:
    """Return what the hold or charge of a call stores about it, for its entry in the log, and for a key's budget."""
    return {
        **({"is_limited": True} if call.is_limited else {}),
        "api_key_id": call.api_key_id,
        "provider": _printable(call.provider, _MAX_PROVIDER),
        "model": _printable(call.model, _MAX_MODEL),
        **(estimate._asdict() if estimate else {}),
    }


def assert_has_credits(session: Session, account_id: str) -> None:
    """Check that an account has credits left, for calls that cost nothing. Raises: InsufficientCredits."""
    available_nanos = accounts.balance(session, account_id).available_nanos
    if available_nanos <= 0:
        raise InsufficientCredits(details={"credits_usd": money.usd_from_nanos(available_nanos)})


def charge_lapsed(limit: int = 100) -> int:
    """Charge the estimates of calls with an expired lease, each in its own unit; return how many.

    For a worker. A later settlement replaces the estimate.
    """
    with read_only_unit() as session:
        expired = credit_holds.expired_holds(session, clock.now(), limit)
    lapsed = 0
    for hold in expired:
        try:
            lapsed += _lapse(hold)
        except Exception:
            # One faulty hold must not block the others.
            _log.exception("lapse_failed", hold_id=hold.id)
    return lapsed


def history(
    session: Session, account_id: str, page: PageRequest, filters: Mapping[str, str | None]
) -> Page[Row[*tuple[Any, ...]]]:
    """Return a page of an account's log, newest first: the columns that it shows.

    It has the calls with these values of columns; None means any.
    """
    conditions = [_LOG.c[name] == value for name, value in filters.items() if value is not None] + within(_LOG, page)
    bounds = {"owner_id": account_id, "most": page.limit, "skipped": page.offset}
    of_account = _LOG.c.account_id == account_id
    if conditions:
        total = session.scalar(select(func.count()).select_from(_LOG).where(of_account, *conditions)) or 0
    else:
        total = int(_COUNT.scalar(session, {"owner_id": account_id}) or 0)
        if page.after is None:
            return Page(_PAGE.all(session, bounds), total, page)
    if page.after is not None:
        later, remaining = rows_after(session, _LOG, page.after, of_account, *conditions)
        conditions, page = [*conditions, later], replace(page, offset=total - remaining)
    return Page(session.execute(_HISTORY.where(*conditions), bounds).all(), total, page)


def by_day(
    session: Session, account_id: str | None, start: datetime, end: datetime | None = None, *, text: str = ""
) -> list[UsageByDay]:
    """Return the calls of some whole days by day and provider, of one account or all; reads the log of that time."""
    day = utc_day(UsageLog.created_at, dialect=session.get_bind().dialect.name)
    of_account = [] if account_id is None else [_LOG.c.account_id == account_id]
    conditions = [*of_account, *within(_LOG, PageRequest(0, 0, None, start, end))]
    conditions += [_LOG.c.provider.icontains(text, autoescape=True)] if text else []
    rows = session.execute(
        select(day, _LOG.c.provider, func.count(), func.sum(_LOG.c.cost_nanos), func.max(_LOG.c.created_at))
        .where(*conditions)
        .group_by(day, _LOG.c.provider)
    )
    return [UsageByDay(day_of(of), name, calls, int(nanos), last_at) for of, name, calls, nanos, last_at in rows]


def by_provider(session: Session, account_id: str, key_id: str | None = None) -> dict[str, ProviderTotals]:
    """Return the sums of an account's log, or those of one of its keys, which read the log."""
    if key_id is None:
        rows = _TOTALS.all(session, {"owner_id": account_id})
    else:
        sums = (func.count(), func.sum(_LOG.c.cost_nanos), func.sum(_LOG.c.tokens_in), func.sum(_LOG.c.tokens_out))
        of_key = _LOG.c.account_id == account_id, _LOG.c.api_key_id == key_id
        found = session.execute(select(_LOG.c.provider, *sums).where(*of_key).group_by(_LOG.c.provider))
        rows = [(provider, *map(int, totals)) for provider, *totals in found]
    return {provider: ProviderTotals(*totals) for provider, *totals in rows}


def revenue_by_provider(session: Session, *, prefix: str) -> dict[str, int]:
    """Return the total charged, in nano-dollars, by provider with a name that begins with `prefix`. For audits."""
    rows = session.execute(
        select(UsageByProvider.provider, func.sum(UsageByProvider.cost_nanos))
        .where(UsageByProvider.provider.startswith(prefix, autoescape=True))
        .group_by(UsageByProvider.provider)
    )
    return {provider: int(nanos) for provider, nanos in rows}


def _lapse(hold: CreditHoldView) -> bool:
    estimate = MeteredUsage(**{name: hold.memo[name] for name in MeteredUsage._fields})
    with unit_of_work() as session:
        most_excess = partial(_left_of_budget, session)
        outcome = credit_holds.lapse(session, hold.id, estimate.cost_nanos, most_excess=most_excess)
        if outcome.previous_state is not CreditHoldState.HELD or outcome.state is not CreditHoldState.LAPSED:
            return False
        _write_log_line(session, _counted(session, outcome), estimate)
        return True


def _write_log_line(session: Session, outcome: HoldResult, metered: MeteredUsage) -> None:
    """Write the log entry of a call and add it to the sums, replacing the entry of its estimate."""
    if outcome.previous_state is CreditHoldState.LAPSED:
        _delete_log_line(session, outcome.hold_id)
    provider, nanos = outcome.memo["provider"], outcome.charged_nanos
    line = {
        "id": outcome.hold_id,
        "account_id": outcome.account_id,
        "api_key_id": outcome.memo["api_key_id"],
        "provider": provider,
        "model": outcome.memo["model"],
        "tokens_in": metered.tokens_in,
        "tokens_out": metered.tokens_out,
        "cost_nanos": nanos,
        "price_version": metered.price_version,
        "created_at": clock.now(),
    }
    _INSERT_LOG_LINE.execute(session, line)
    _add_to_totals(session, outcome.account_id, provider, (1, nanos, metered.tokens_in, metered.tokens_out))


def _delete_log_line(session: Session, log_id: str) -> None:
    """Delete an entry from the log and the sums: its charge was refunded or is being replaced."""
    deleted = delete(_LOG).where(_LOG.c.id == log_id).returning(*LOGGED_AMOUNTS)
    account_id, provider, *amounts = session.execute(deleted).one()
    _add_to_totals(session, account_id, provider, (-1, *(-amount for amount in amounts)))


def _add_to_totals(session: Session, account_id: str, provider: str, amounts: Sequence[int]) -> None:
    # The unit holds the lock of the credit account's row: two first calls of a provider wait for each other.
    values = dict(zip(ProviderTotals.__slots__, amounts, strict=True))
    increments = {f"more_{name}": value for name, value in values.items()}
    if not _ADD.execute(session, {"owner_id": account_id, "of_provider": provider, **increments}):
        session.execute(insert(_SUMS).values(account_id=account_id, provider=provider, **values))


def _printable(text: str, length: int) -> str:
    # PostgreSQL stores no NUL and no lone surrogates; both can come from a client's JSON.
    printable = text if text.isprintable() else "".join(letter for letter in text if letter.isprintable())
    return printable[:length]
