"""The verbs of metering: begin, record or cancel a call of unknown cost; charge or refund a fixed price.

All run in the caller's unit (`charge_lapsed` opens its own). Repeating any of them changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy import BigInteger, bindparam, delete, func, insert, select, update

from app.core import clock
from app.core.pagination import Page, PageRequest
from app.core.tables import table_of
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.credits.service import Balance, Hold, HoldState, Outcome
from app.extensions import db
from app.usage.models import UsageByProvider, UsageLog

_MAX_PROVIDER = 100
_MAX_MODEL = 200
_log = structlog.get_logger(__name__)

_LOG, _SUMS = table_of(UsageLog), table_of(UsageByProvider)
_NOTE = insert(_LOG)
_ADD = (
    update(_SUMS)
    .where(_SUMS.c.account_id == bindparam("owner_id"), _SUMS.c.provider == bindparam("of_provider"))
    .values(
        {
            column: column + bindparam(f"more_{column.name}", type_=BigInteger)
            for column in (_SUMS.c.calls, _SUMS.c.cost_nanos, _SUMS.c.tokens_in, _SUMS.c.tokens_out)
        }
    )
    .returning(_SUMS.c.calls)
)
_COUNT = select(func.sum(_SUMS.c.calls - _SUMS.c.carried_calls)).where(
    _SUMS.c.account_id == bindparam("owner_id")
)
_TOTALS = (
    select(_SUMS.c.provider, _SUMS.c.calls, _SUMS.c.cost_nanos, _SUMS.c.tokens_in, _SUMS.c.tokens_out)
    .where(_SUMS.c.account_id == bindparam("owner_id"), _SUMS.c.calls > 0)
    .order_by(_SUMS.c.provider)
)
_PAGE = (
    select(
        _LOG.c.id, _LOG.c.api_key_id, _LOG.c.provider, _LOG.c.model, _LOG.c.tokens_in, _LOG.c.tokens_out,
        _LOG.c.cost_nanos, _LOG.c.created_at,
    )
    .where(_LOG.c.account_id == bindparam("owner_id"))
    .order_by(_LOG.c.created_at.desc(), _LOG.c.id.desc())
    .limit(bindparam("most", type_=BigInteger))
    .offset(bindparam("skipped", type_=BigInteger))
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """What is called, by which key; `model` may be the caller's own word and is cut to what can be stored."""

    api_key_id: str
    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class Metered:
    """What a call used and cost, in tokens and nano-dollars, and by which version of the price table."""

    cost_nanos: int
    tokens_in: int = 0
    tokens_out: int = 0
    price_version: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a call was charged, its cost beyond what the account could pay, and what the account has then.

    `repeated` when it was charged before.
    """

    charged_nanos: int
    unpaid_nanos: int
    balance: Balance
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of the usage log."""

    id: str
    api_key_id: str
    provider: str
    model: str
    tokens_in: int
    tokens_out: int
    cost_nanos: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ProviderTotals:
    """What an account used of one provider, ever."""

    calls: int
    cost_nanos: int
    tokens_in: int
    tokens_out: int


def begin(
    account_id: str,
    call: Call,
    *,
    hold_id: str,
    worst: Metered,
    estimate: Metered,
    lease: timedelta,
    at_least_nanos: int | None = None,
) -> Hold:
    """Hold the worst case of a call before it is made; `estimate` is charged should nobody ever settle it.

    With `at_least_nanos`, all that is left is held where that is less than the worst case.

    Raises: InsufficientCredits.
    """
    memo = {
        **_memo(call),
        "cost_nanos": estimate.cost_nanos,
        "tokens_in": estimate.tokens_in,
        "tokens_out": estimate.tokens_out,
        "price_version": estimate.price_version,
    }
    return credits_service.hold(
        account_id, worst.cost_nanos, hold_id=hold_id, lease=lease, at_least_nanos=at_least_nanos, memo=memo
    )


def record(hold_id: str, metered: Metered) -> Receipt:
    """Settle a call at its cost, log it and add it to the sums. A lapsed call's estimate is replaced.

    The log has what was charged: a cost beyond what the account could pay is in the receipt only.

    Raises: LookupError for a hold that was never made: a defect.
    """
    outcome = credits_service.settle(hold_id, metered.cost_nanos)
    if not outcome.repeated:
        _note(outcome, metered)
    return _receipt(outcome)


def cancel(hold_id: str) -> None:
    """Give back what a call holds, because it was not made or not answered; nothing is logged.

    Raises: LookupError.
    """
    outcome = credits_service.release(hold_id)
    if outcome.before is HoldState.LAPSED:
        _strike(hold_id)


def renew(hold_id: str, *, lease: timedelta) -> bool:
    """Extend the lease of a call that is still running; tell whether its hold still was open."""
    return credits_service.renew(hold_id, lease=lease)


def charge(account_id: str, call: Call, *, charge_id: str, metered: Metered) -> Receipt:
    """Charge a price known beforehand, log it and add it to the sums. Raises: InsufficientCredits."""
    outcome = credits_service.charge(account_id, metered.cost_nanos, charge_id=charge_id, memo=_memo(call))
    if not outcome.repeated:
        _note(outcome, metered)
    return _receipt(outcome)


def refund(charge_id: str) -> bool:
    """Give a charge back because its call failed, and take it out of the log; tell whether this call did it.

    Raises: LookupError.
    """
    if credits_service.refund(charge_id).before is not HoldState.SETTLED:
        return False
    _strike(charge_id)
    return True


def charge_lapsed(limit: int = 100) -> int:
    """Charge the estimates of calls whose lease ran out without news, each in its own unit; return how many.

    For a worker; whoever settles such a call after all replaces the estimate.
    """
    with reading():
        expired = credits_service.expired_holds(clock.now(), limit)
    lapsed = 0
    for hold in expired:
        try:
            lapsed += _lapse(hold)
        except Exception:
            # One odd hold must not keep the others from ending.
            _log.exception("lapse_failed", hold_id=hold.id)
    return lapsed


def history(account_id: str, page: PageRequest) -> Page[LogEntry]:
    """Return a page of an account's log, the newest first. Works in a reading unit."""
    total = db.session.scalar(_COUNT, {"owner_id": account_id})
    rows = db.session.execute(
        _PAGE, {"owner_id": account_id, "most": page.limit, "skipped": page.offset}
    ).all()
    return Page([LogEntry(*row) for row in rows], int(total or 0), page)


def by_provider(account_id: str) -> dict[str, ProviderTotals]:
    """Return what an account used of each provider. One row per provider is read. Works in a reading unit."""
    rows = db.session.execute(_TOTALS, {"owner_id": account_id})
    return {provider: ProviderTotals(*totals) for provider, *totals in rows}


def revenue_by_provider(*, prefix: str) -> dict[str, int]:
    """Return what was charged in all, in nano-dollars, by provider whose name begins so. For audits."""
    rows = db.session.execute(
        select(UsageByProvider.provider, func.sum(UsageByProvider.cost_nanos))
        .where(UsageByProvider.provider.startswith(prefix, autoescape=True))
        .group_by(UsageByProvider.provider)
    )
    return {provider: int(nanos) for provider, nanos in rows}


def _lapse(hold: Hold) -> bool:
    memo = hold.memo
    estimate = Metered(
        memo["cost_nanos"], memo["tokens_in"], memo["tokens_out"], price_version=memo["price_version"]
    )
    with unit_of_work():
        outcome = credits_service.lapse(hold.id, estimate.cost_nanos)
        if outcome.before is not HoldState.HELD or outcome.state is not HoldState.LAPSED:
            return False
        _note(outcome, estimate)
        return True


def _note(outcome: Outcome, metered: Metered) -> None:
    """Write the log line of a call and add it to the sums, replacing the line that its lapse has written."""
    if outcome.before is HoldState.LAPSED:
        _strike(outcome.hold_id)
    charged = replace(metered, cost_nanos=outcome.charged_nanos)
    line = {
        "id": outcome.hold_id,
        "account_id": outcome.account_id,
        "api_key_id": outcome.memo["api_key_id"],
        "provider": outcome.memo["provider"],
        "model": outcome.memo["model"],
        "tokens_in": charged.tokens_in,
        "tokens_out": charged.tokens_out,
        "cost_nanos": charged.cost_nanos,
        "price_version": charged.price_version,
        "created_at": clock.now(),
    }
    db.session.execute(_NOTE, line)
    _add(
        outcome.account_id,
        outcome.memo["provider"],
        ProviderTotals(1, charged.cost_nanos, charged.tokens_in, charged.tokens_out),
    )


def _strike(log_id: str) -> None:
    """Take a line out of the log and the sums: its charge was given back or is being replaced."""
    struck = db.session.execute(
        delete(UsageLog)
        .where(UsageLog.id == log_id)
        .returning(
            UsageLog.account_id,
            UsageLog.provider,
            UsageLog.cost_nanos,
            UsageLog.tokens_in,
            UsageLog.tokens_out,
        )
        .execution_options(synchronize_session=False)
    ).one()
    _add(
        struck.account_id,
        struck.provider,
        ProviderTotals(-1, -struck.cost_nanos, -struck.tokens_in, -struck.tokens_out),
    )


def _add(account_id: str, provider: str, more: ProviderTotals) -> None:
    # The unit has changed the credit account's row before: two first calls of a provider wait for each other.
    values = {
        "calls": more.calls,
        "cost_nanos": more.cost_nanos,
        "tokens_in": more.tokens_in,
        "tokens_out": more.tokens_out,
    }
    mores = {f"more_{name}": value for name, value in values.items()}
    added = db.session.execute(_ADD, {"owner_id": account_id, "of_provider": provider, **mores})
    if added.first() is None:
        db.session.execute(insert(_SUMS).values(account_id=account_id, provider=provider, **values))


def _memo(call: Call) -> dict[str, str | int | None]:
    return {
        "api_key_id": call.api_key_id,
        "provider": _printable(call.provider, _MAX_PROVIDER),
        "model": _printable(call.model, _MAX_MODEL),
    }


def _printable(text: str, length: int) -> str:
    # PostgreSQL has no NUL in texts and no lone surrogates; both can come out of a caller's JSON.
    return "".join(letter for letter in text if letter.isprintable())[:length]


def _receipt(outcome: Outcome) -> Receipt:
    return Receipt(outcome.charged_nanos, outcome.unpaid_nanos, outcome.balance, outcome.repeated)
