"""Metering of calls: begin, settle or cancel one; charge or refund a price that is known.

All functions are idempotent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import structlog
from sqlalchemy import BigInteger, ColumnElement, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from app.core import clock, money
from app.core.pagination import Page, PageRequest
from app.credits import accounts
from app.credits import holds as credit_holds
from app.credits.holds import CreditHoldState, HoldResult, HoldRow
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.tables import after_entry, day_of, having, table_of, utc_day, within
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import BudgetExceeded, InsufficientCredits
from app.identity import api_keys, budget_counters, budgets
from app.identity.budgets import SharedBudget
from app.usage.models import UsageByMonth, UsageByProvider, UsageLog

_MAX_PROVIDER = 100
_MAX_MODEL = 200
_ESTIMATED = ("cost_nanos", "tokens_in", "tokens_out", "price_version")
"""What the memo of a hold has of the estimate of its call."""
_log = structlog.get_logger(__name__)

_LOG, _SUMS, _DROPPED = table_of(UsageLog), table_of(UsageByProvider), table_of(UsageByMonth).c
_INSERT_LOG_LINE = PreparedInsert(UsageLog)
LOGGED_AMOUNTS = (_LOG.c.account_id, _LOG.c.provider, _LOG.c.cost_nanos, _LOG.c.tokens_in, _LOG.c.tokens_out)
"""The account and provider of an entry of the log, and what it adds to the sums."""
_SUMMED = (_SUMS.c.calls, _SUMS.c.cost_nanos, _SUMS.c.tokens_in, _SUMS.c.tokens_out)
_OF_OWNER = _SUMS.c.account_id == bindparam("owner_id")
_ADD = PreparedStatement(
    update(_SUMS)
    .where(_OF_OWNER, _SUMS.c.provider == bindparam("of_provider"))
    .values({column: column + bindparam(f"more_{column.name}", type_=BigInteger) for column in _SUMMED})
)
_dropped = select(func.coalesce(func.sum(_DROPPED.calls), 0)).where(_DROPPED.account_id == bindparam("owner_id"))
_COUNT = PreparedRead(
    select(func.sum(_SUMS.c.calls - _SUMS.c.carried_calls) - _dropped.scalar_subquery()).where(_OF_OWNER)
)
_TOTALS = PreparedRead(
    select(_SUMS.c.provider, *_SUMMED).where(_OF_OWNER, _SUMS.c.calls > 0).order_by(_SUMS.c.provider)
)
_HISTORY = (
    select(
        _LOG.c.id, _LOG.c.api_key_id, _LOG.c.provider, _LOG.c.model, _LOG.c.tokens_in, _LOG.c.tokens_out,
        _LOG.c.cached_tokens, _LOG.c.reasoning_tokens, _LOG.c.cost_nanos, _LOG.c.created_at,
    )
    .where(_LOG.c.account_id == bindparam("owner_id"))
    .order_by(_LOG.c.created_at.desc(), _LOG.c.id.desc())
    .limit(bindparam("most", type_=BigInteger))
    .offset(bindparam("skipped", type_=BigInteger))
)  # fmt: skip
_PAGE = PreparedRead(_HISTORY)


class UsageCall(NamedTuple):
    """The call of a provider with a key; `model` may be a client's text, and is shortened.

    `has_budgets` chooses the faster way to count it in budgets, to which it belongs or not.
    """

    api_key_id: str
    provider: str
    model: str
    has_budgets: bool = False


class MeteredUsage(NamedTuple):
    """The tokens that a call used and its cost in nano-dollars, by a version of the price table.

    `cached_tokens` are the part of `tokens_in` that was read from a cache, `reasoning_tokens` a part of `tokens_out`.
    """

    cost_nanos: int
    tokens_in: int = 0
    tokens_out: int = 0
    price_version: str | None = None
    cached_tokens: int = 0
    reasoning_tokens: int = 0


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
    is_paid: bool = False,
) -> int:
    """Hold the worst case of a call before it is made; `estimate` is charged if its lease expires unsettled.

    Returns what is held: with `minimum_nanos`, all that is left if that is less than the worst case. What a payment in
    the same unit has paid for is held whatever is left of the budgets.

    Raises: InsufficientCredits, BudgetExceeded.
    """
    counted_in = _lock_counted(session, account_id, call, hold_id)
    if counted_in is not None and not is_paid:
        nanos = _covered(call, counted_in, nanos, minimum_nanos)
    memo = memo_of(call, estimate, counted_in or ())
    held_nanos = credit_holds.hold(
        session, account_id, nanos, hold_id=hold_id, lease=lease, minimum_nanos=minimum_nanos, memo=memo
    )
    budget_counters.add(session, memo.get("budgets", ()), held_nanos)
    return held_nanos


def settle(session: Session, hold_id: str, metered: MeteredUsage) -> HoldResult:
    """Settle a call at its cost, log it and add it to the sums. An estimate that was charged is replaced.

    The log has what was charged: a cost beyond what the account could pay is in the result only.

    Raises: LookupError for an unknown hold: a bug.
    """
    # Before the hold, in case its cost exceeds it.
    budgets.lock(session, credit_holds.memo_of(session, hold_id).get("budgets", ()))
    most_excess = partial(_left_of, session)
    ended = credit_holds.settle(session, hold_id, metered.cost_nanos, most_excess=most_excess)
    outcome = _corrected(session, ended)
    if not outcome.repeated:
        _write_log_line(session, outcome, metered)
    return outcome


def cancel(session: Session, hold_id: str) -> HoldResult:
    """Release the hold of a call that was not made or got no response; nothing is logged.

    Raises: LookupError.
    """
    outcome = _corrected(session, credit_holds.release(session, hold_id))
    if outcome.previous_state is CreditHoldState.LAPSED:
        _delete_log_line(session, hold_id)
    return outcome


def charge(
    session: Session, account_id: str, call: UsageCall, *, charge_id: str, metered: MeteredUsage, is_paid: bool = False
) -> HoldResult:
    """Hold a known price and settle it in one unit. Raises: InsufficientCredits, BudgetExceeded."""
    begin(
        session, account_id, call, hold_id=charge_id, nanos=metered.cost_nanos, estimate=metered, lease=timedelta(0),
        is_paid=is_paid,
    )  # fmt: skip
    return settle(session, charge_id, metered)


def lock_budgets(session: Session, account_id: str, call: UsageCall) -> list[SharedBudget]:
    """Lock the budgets of a call and return them, also for a unit that locks its account before it charges the call."""
    return budgets.lock(session, budgets.budgets_of(session, account_id, call.api_key_id))


def refund(session: Session, charge_id: str) -> HoldResult:
    """Refund or release what a call that failed has cost, once, and delete its log entry. Raises: LookupError."""
    outcome = _corrected(session, credit_holds.refund(session, charge_id))
    if outcome.previous_state not in {CreditHoldState.HELD, outcome.state}:
        _delete_log_line(session, charge_id)
    return outcome


def memo_of(call: UsageCall, estimate: MeteredUsage, counted_in: Sequence[SharedBudget] = ()) -> dict[str, Any]:
    """Return what the hold of a call stores about it, for its entry in the log, and for budgets."""
    return {
        **({"budgets": sorted(each.id for each in counted_in)} if counted_in else {}),
        "api_key_id": call.api_key_id,
        "provider": _printable(call.provider, _MAX_PROVIDER),
        "model": _printable(call.model, _MAX_MODEL),
        **{name: getattr(estimate, name) for name in _ESTIMATED},
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

    It has the calls with these values of columns, or with keys of a `tag`; None means any.
    """
    conditions = filtered(session, account_id, filters) + within(_LOG, page)
    bounds = {"owner_id": account_id, "most": page.limit, "skipped": page.offset}
    of_account = _LOG.c.account_id == account_id
    if conditions:
        total = session.scalar(select(func.count()).select_from(_LOG).where(of_account, *conditions)) or 0
    else:
        total = int(_COUNT.scalar(session, {"owner_id": account_id}) or 0)
        if page.after is None:
            return Page(_PAGE.all(session, bounds), total, page)
    later, page = after_entry(session, _LOG, page, total, of_account, *conditions)
    return Page(session.execute(_HISTORY.where(*conditions, *later), bounds).all(), total, page)


def filtered(session: Session, account_id: str | None, filters: Mapping[str, str | None]) -> list[ColumnElement[bool]]:
    """Return the conditions of entries with these values of columns, and with keys of a `tag`; None means any."""
    tag = filters.get("tag")
    conditions = having(_LOG.c, {name: value for name, value in filters.items() if name != "tag"})
    if tag is not None:
        tags = api_keys.tags_by_key(session, account_id)
        conditions.append(_LOG.c.api_key_id.in_([key for key, of_key in tags.items() if tag in of_key]))
    return conditions


def by_day(
    session: Session, account_id: str | None, start: datetime, end: datetime | None = None, *, text: str = ""
) -> list[UsageByDay]:
    """Return the calls of some whole days by day and provider, of one account or all; reads the log of that time."""
    day = utc_day(UsageLog.created_at, dialect=session.get_bind().dialect.name)
    of_account = [] if account_id is None else [_LOG.c.account_id == account_id]
    conditions = [*of_account, *within(_LOG, PageRequest(0, 0, None, start, end))]
    conditions += [_LOG.c.provider.icontains(text, autoescape=True)] if text else []
    columns = (day, _LOG.c.provider, func.count(), func.sum(_LOG.c.cost_nanos), func.max(_LOG.c.created_at))
    rows = session.execute(select(*columns).where(*conditions).group_by(day, _LOG.c.provider))
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


def calls(session: Session, call_ids: Sequence[str]) -> Sequence[Row[*tuple[Any, ...]]]:
    return session.execute(select(_LOG).where(_LOG.c.id.in_(call_ids)).order_by(_LOG.c.created_at)).all()


def revenue_by_provider(session: Session, *, prefix: str) -> dict[str, int]:
    """Return the total charged, in nano-dollars, by provider with a name that begins with `prefix`. For audits."""
    named = _SUMS.c.provider.startswith(prefix, autoescape=True)
    sums = select(_SUMS.c.provider, func.sum(_SUMS.c.cost_nanos)).where(named).group_by(_SUMS.c.provider)
    return {provider: int(nanos) for provider, nanos in session.execute(sums)}


def _lock_counted(session: Session, account_id: str, call: UsageCall, step_id: str) -> list[SharedBudget] | None:
    """Lock what a call is counted in; return its budgets, None if there is nothing to count, or no more."""
    counted_in = lock_budgets(session, account_id, call)
    if not counted_in:
        return None
    accounts.lock_available(session, account_id)
    return None if credit_holds.exists(session, step_id) else counted_in


def _covered(call: UsageCall, counted_in: Sequence[SharedBudget], nanos: int, minimum_nanos: int | None = None) -> int:
    """Return what all budgets of a call cover of an amount. Raises: BudgetExceeded if that is less than the minimum."""
    least = budgets.least_left(counted_in)
    if least is None or (left_nanos := least.remaining_nanos) is None or (left_nanos and nanos <= left_nanos):
        return nanos
    required_nanos = nanos if minimum_nanos is None else min(nanos, minimum_nanos)
    if not left_nanos or left_nanos < required_nanos:
        details = {
            "credits_usd": money.usd_from_nanos(left_nanos), "required_usd": money.usd_from_nanos(required_nanos),
            "resets_at": least.resets_at and clock.isoformat(least.resets_at),
        }  # fmt: skip
        if least.id == call.api_key_id:
            raise BudgetExceeded(details=details)
        message = f"The shared budget {least.name!r} does not cover the call."
        raise BudgetExceeded(message, details={**details, "budget_id": least.id, "budget": least.name})
    return left_nanos


def _left_of(session: Session, memo: Mapping[str, Any]) -> int | None:
    left = [each.remaining_nanos for each in budgets.read(session, memo.get("budgets", ()))]
    return min((each for each in left if each is not None), default=None)


def _corrected(session: Session, outcome: HoldResult) -> HoldResult:
    """Count what the end of a call changes in its budgets, and return what is left of them."""
    memo, difference = outcome.memo, outcome.charged_nanos - outcome.set_aside_nanos
    if "budgets" not in memo:
        return outcome
    if outcome.held_at is not None and difference < 0:
        budget_counters.give_back(session, memo["budgets"], -difference, held_at=outcome.held_at)
    elif outcome.held_at is not None and difference:
        # What exceeds a hold is bounded by the budget of now, and counts there.
        budget_counters.add(session, memo["budgets"], difference)
    return outcome._replace(budget_nanos=_left_of(session, memo))


def _lapse(hold: HoldRow) -> bool:
    estimate = MeteredUsage(**{name: hold.memo[name] for name in _ESTIMATED})
    with unit_of_work() as session:
        budgets.lock(session, hold.memo.get("budgets", ()))
        most_excess = partial(_left_of, session)
        outcome = credit_holds.lapse(session, hold.id, estimate.cost_nanos, most_excess=most_excess)
        if outcome.previous_state is not CreditHoldState.HELD or outcome.state is not CreditHoldState.LAPSED:
            return False
        _write_log_line(session, _corrected(session, outcome), estimate)
        return True


def _write_log_line(session: Session, outcome: HoldResult, metered: MeteredUsage) -> None:
    """Write the log entry of a call and add it to the sums, replacing the entry of its estimate."""
    if outcome.previous_state is CreditHoldState.LAPSED:
        _delete_log_line(session, outcome.hold_id)
    provider, nanos = outcome.memo["provider"], outcome.charged_nanos
    line = {
        **metered._asdict(), "id": outcome.hold_id, "account_id": outcome.account_id, "provider": provider,
        "api_key_id": outcome.memo["api_key_id"], "model": outcome.memo["model"], "cost_nanos": nanos,
        "created_at": clock.now(),
    }  # fmt: skip
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
