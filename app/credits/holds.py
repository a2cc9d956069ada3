"""Holds: credits reserved before a call, settled to its cost or released after it. The only writer of `credit_holds`.

Every function is conditional on the state, so that repeating it changes nothing. The hold is locked before its account.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Row, String, bindparam, case, cast, delete, func, select, update
from sqlalchemy.orm import Session

from app.core import clock, money
from app.credits import accounts
from app.credits.accounts import Bucket, EntryKind
from app.credits.models import CreditHold, CreditLedgerEntry
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.state_machine import StateMachine
from app.db.tables import day_of, table_of, update_rows, utc_day
from app.errors import InsufficientCredits


class CreditHoldState(StrEnum):
    HELD = "held"
    LAPSED = "lapsed"
    SETTLED = "settled"
    RELEASED = "released"


_COLUMNS = (
    CreditHold.id, CreditHold.account_id, CreditHold.amount_nanos, CreditHold.state, CreditHold.settled_nanos,
    CreditHold.unpaid_nanos, CreditHold.memo, CreditHold.lease_until, CreditHold.created_at,
)  # fmt: skip
HOLDS = StateMachine(
    CreditHold.state,
    initial={CreditHoldState.HELD},
    permitted={
        CreditHoldState.HELD: {CreditHoldState.SETTLED, CreditHoldState.RELEASED, CreditHoldState.LAPSED},
        # Charged an estimate when its lease expired; the difference is entered when the cost is known.
        CreditHoldState.LAPSED: {CreditHoldState.SETTLED, CreditHoldState.RELEASED},
        # Refunded.
        CreditHoldState.SETTLED: {CreditHoldState.RELEASED},
    },
    announced=_COLUMNS,
)


class HoldResult(NamedTuple):
    """The outcome of a hold: what was charged, and the part of the cost that the account could not pay.

    `previous_state` is the state before this call; it equals `state` if the call changed nothing. `credits_nanos` are
    the credits of the account afterwards, held ones included, and `budget_nanos` what is left of the budget of a key
    with limits. `set_aside_nanos` was held or charged since `held_at`.
    """

    hold_id: str
    account_id: str
    previous_state: CreditHoldState
    state: CreditHoldState
    charged_nanos: int
    unpaid_nanos: int
    memo: Mapping[str, Any]
    credits_nanos: int
    budget_nanos: int | None = None
    set_aside_nanos: int = 0
    held_at: datetime | None = None

    @property
    def repeated(self) -> bool:
        """Return whether the hold had ended before, so that this call changed nothing."""
        return self.previous_state in {CreditHoldState.SETTLED, CreditHoldState.RELEASED}


REASONS = ("hold", "charge", "settle", "release", "excess", "late", "refund")
"""What follows a hold's id in the references of its ledger entries, or was before it until version 1.1.

Version 1.0 charged a price without a hold."""
# Those of what is returned and of what exceeds, by the state before.
_REASONS = {
    CreditHoldState.HELD: ("release", "excess"),
    CreditHoldState.LAPSED: ("late", "late"),
    CreditHoldState.SETTLED: ("refund", "refund"),
}
_UNSETTLED = (CreditHoldState.HELD, CreditHoldState.LAPSED)
HoldRow: TypeAlias = Row[*tuple[Any, ...]]
MostExcess: TypeAlias = Callable[[Mapping[str, Any]], int | None]
"""Returns by a hold's memo what may be charged beyond it, in nano-dollars; None for no limit."""


def _unlimited(_memo: Mapping[str, Any]) -> None:
    return None


_TABLE = table_of(CreditHold)
_COST = bindparam("cost_nanos", type_=BigInteger)
_READ = PreparedRead(select(*_COLUMNS).where(CreditHold.id == bindparam("hold_id")))
_INSERT = PreparedInsert(CreditHold, unique=[CreditHold.id])
# An open hold is charged the cost of the call, up to its amount.
_CHARGED = case((CreditHold.amount_nanos < _COST, CreditHold.amount_nanos), else_=_COST)
_RESERVED_OR_CHARGED = case(
    (CreditHold.state == CreditHoldState.HELD.value, CreditHold.amount_nanos), else_=CreditHold.settled_nanos
)
_IS_EXPIRED = CreditHold.lease_until <= bindparam("now")


def hold(
    session: Session,
    owner_id: str,
    nanos: int,
    *,
    hold_id: str,
    lease: timedelta,
    minimum_nanos: int | None = None,
    memo: Mapping[str, Any] | None = None,
) -> int:
    """Reserve credits for a call, and return how many. Three statements, whatever the history.

    With `minimum_nanos`, all available credits are held if they are less than `nanos` and at least that minimum. A
    hold that exists under this id is not changed.

    Raises: InsufficientCredits with `details.credits_usd` (what is available) and `details.required_usd`;
    IntegrityError for an account that was never opened.
    """
    now = clock.now()
    values = {
        "id": hold_id, "account_id": owner_id, "amount_nanos": nanos, **HOLDS.initial(CreditHoldState.HELD),
        "settled_nanos": 0, "unpaid_nanos": 0, "memo": dict(memo or {}), "lease_until": now + lease, "created_at": now,
    }  # fmt: skip
    if not _INSERT.execute(session, values):
        amount_nanos: int = _read(session, hold_id).amount_nanos
        return amount_nanos
    held_nanos = _reserve(session, hold_id, owner_id, nanos, nanos if minimum_nanos is None else minimum_nanos)
    entry = EntryKind.HOLD, f"{hold_id}:hold", Bucket.AVAILABLE, Bucket.HELD, held_nanos
    accounts.append_entry(session, owner_id, entry, at=now)
    return held_nanos


def settle(session: Session, hold_id: str, cost_nanos: int, *, most_excess: MostExcess = _unlimited) -> HoldResult:
    """Charge the cost of a call and release the rest of its hold.

    A cost that exceeds the hold is charged up to the available credits, and to what `most_excess` returns for the memo
    once the account is locked; the remainder is recorded as unpaid, never as a debt. After a lapse the difference from
    the estimate is entered. A hold that was settled or released before keeps its first outcome.

    Raises: LookupError for an unknown hold: a bug.
    """
    return _end(session, hold_id, cost_nanos, CreditHoldState.SETTLED, *_UNSETTLED, most_excess=most_excess)


def lapse(session: Session, hold_id: str, estimate_nanos: int, *, most_excess: MostExcess = _unlimited) -> HoldResult:
    """Charge an estimate for a hold with an expired lease, as `settle` does; the actual cost may still replace it.

    A hold that was renewed or has ended is not changed. Raises: LookupError.
    """
    held, lapsed = CreditHoldState.HELD, CreditHoldState.LAPSED
    return _end(session, hold_id, estimate_nanos, lapsed, held, where=_IS_EXPIRED, most_excess=most_excess)


def release(session: Session, hold_id: str) -> HoldResult:
    """Release what is held, or was charged by a lapse. A settled hold keeps its first outcome.

    Raises: LookupError.
    """
    return _end(session, hold_id, 0, CreditHoldState.RELEASED, *_UNSETTLED)


def refund(session: Session, charge_id: str) -> HoldResult:
    """Refund a charge once, or release what is still held, because its call failed. Raises: LookupError."""
    return _end(session, charge_id, 0, CreditHoldState.RELEASED, *_UNSETTLED, CreditHoldState.SETTLED)


def finish_lapsed(session: Session, owner_id: str) -> None:
    """Make the estimates final that lapsed holds of an account were charged: nothing replaces them any more."""
    held = CreditLedgerEntry.account_id == owner_id, CreditLedgerEntry.kind == EntryKind.HOLD.value
    for reference in session.scalars(select(CreditLedgerEntry.reference).where(*held)):
        hold_id = reference.removesuffix(":hold").removeprefix("hold:")
        HOLDS.move(session, hold_id, CreditHoldState.LAPSED, CreditHoldState.SETTLED)


def renew(session: Session, hold_id: str, *, lease: timedelta, memo: Mapping[str, Any] | None = None) -> bool:
    """Extend the lease of an open hold from now, with another memo if given; return whether it was still open."""
    values = {"lease_until": clock.now() + lease, **({} if memo is None else {"memo": dict(memo)})}
    is_open = CreditHold.id == hold_id, CreditHold.state == CreditHoldState.HELD.value
    return update_rows(session, CreditHold, *is_open, **values) > 0


def exists(session: Session, hold_id: str) -> bool:
    """Return whether credits were held or charged under an id."""
    return _READ.one_or_none(session, {"hold_id": hold_id}) is not None


def memo_of(session: Session, hold_id: str) -> Mapping[str, Any]:
    """Return the memo of a hold or charge. Raises: LookupError."""
    memo: Mapping[str, Any] = _read(session, hold_id).memo
    return memo


def expired_holds(session: Session, now: datetime, limit: int) -> Sequence[HoldRow]:
    """Return open holds with an expired lease, oldest first."""
    is_expired = CreditHold.state == CreditHoldState.HELD.value, CreditHold.lease_until <= now
    return session.execute(select(*_COLUMNS).where(*is_expired).order_by(CreditHold.lease_until).limit(limit)).all()


def totals_in_budgets(session: Session, since: datetime) -> Iterator[tuple[list[str], date, int]]:
    """Yield what holds since an instant have reserved and charged, by their budgets, and day. For audits."""
    counted_by = cast(CreditHold.memo["budgets"], String).label("counted_by")
    day = utc_day(CreditHold.created_at, dialect=session.get_bind().dialect.name).label("on_day")
    rows = session.execute(
        select(counted_by, day, func.sum(_RESERVED_OR_CHARGED))
        .where(CreditHold.created_at >= since, counted_by.contains('"'))
        .group_by("counted_by", "on_day")
    )
    yield from ((budget_ids.split('"')[1::2], day_of(on_day), int(nanos)) for budget_ids, on_day, nanos in rows)


def references_of(hold_id: str) -> list[str]:
    """Return every reference that a ledger entry of this hold may have."""
    return [reference for reason in REASONS for reference in (f"{hold_id}:{reason}", f"{reason}:{hold_id}")]


def _end(
    session: Session, hold_id: str, cost_nanos: int, state: CreditHoldState, *sources: CreditHoldState,
    where: ColumnElement[bool] | None = None, most_excess: MostExcess = _unlimited,
) -> HoldResult:  # fmt: skip
    """Move a hold from the one of some states that it is in, and charge a cost; a hold in another is not changed.

    The states are in the order in which a hold passes through them, so that a concurrent change is not missed.
    """
    for before in sources:
        values: dict[str, Any] = {}
        if before is CreditHoldState.HELD:
            at = {} if where is None else {"now": clock.now()}
            values = {"settled_nanos": _CHARGED, "where": where, "parameters": {"cost_nanos": cost_nanos, **at}}
        if moved := HOLDS.transition(session, hold_id, before, state, **values):
            return _close(session, moved[0], before, cost_nanos, state=state, most_excess=most_excess)
    return _result_of(session, _read(session, hold_id))


def _close(
    session: Session, row: HoldRow, before: CreditHoldState, cost_nanos: int, *, state: CreditHoldState,
    most_excess: MostExcess,
) -> HoldResult:  # fmt: skip
    """Charge a cost from what was held or charged before, any excess from the available credits; return the rest."""
    was_held = before is CreditHoldState.HELD
    set_aside_nanos = row.amount_nanos if was_held else row.settled_nanos
    covered_nanos = min(set_aside_nanos, cost_nanos)
    rest_nanos, excess_nanos = set_aside_nanos - covered_nanos, cost_nanos - covered_nanos
    extra_nanos = 0
    if excess_nanos:
        # Only such a cost depends on the available credits, and so needs the lock first.
        extra_nanos = min(excess_nanos, accounts.lock_available(session, row.account_id))
        most_nanos = most_excess(row.memo)
        extra_nanos = extra_nanos if most_nanos is None else min(extra_nanos, most_nanos)
    charged_nanos, unpaid_nanos = covered_nanos + extra_nanos, excess_nanos - extra_nanos
    balance = accounts.adjust(
        session, row.account_id, available=rest_nanos - extra_nanos, held=-set_aside_nanos if was_held else 0,
        spent=charged_nanos if was_held else charged_nanos - set_aside_nanos,
    )  # fmt: skip
    # The transition of an open hold has stored a cost that it covers.
    if excess_nanos or not was_held:
        values = {"settled_nanos": charged_nanos, "unpaid_nanos": unpaid_nanos}
        session.execute(update(_TABLE).where(_TABLE.c.id == row.id).values(values))
    # Each reason occurs at most once per hold, and in one direction.
    source = Bucket.HELD if was_held else Bucket.REVENUE
    (released, exceeded), now = _REASONS[before], clock.now()
    for entry in (
        (EntryKind.RELEASE, f"{row.id}:{released}", source, Bucket.AVAILABLE, rest_nanos),
        (EntryKind.SETTLE, f"{row.id}:{exceeded}", Bucket.AVAILABLE, Bucket.REVENUE, extra_nanos),
        (EntryKind.SETTLE, f"{row.id}:settle", source, Bucket.REVENUE, covered_nanos if was_held else 0),
    ):
        accounts.append_entry(session, row.account_id, entry, at=now)
    return HoldResult(
        row.id, row.account_id, before, state, charged_nanos, unpaid_nanos, row.memo, balance.credits_nanos,
        set_aside_nanos=set_aside_nanos, held_at=row.created_at,
    )  # fmt: skip


def _reserve(session: Session, hold_id: str, owner_id: str, wanted_nanos: int, minimum_nanos: int) -> int:
    if accounts.hold_available(session, owner_id, wanted_nanos):
        return wanted_nanos
    available_nanos = accounts.lock_available(session, owner_id)
    nanos, required_nanos = min(wanted_nanos, available_nanos), min(wanted_nanos, minimum_nanos)
    if nanos == 0 or nanos < required_nanos:
        # A unit that catches the refusal must not commit an empty hold.
        session.execute(delete(CreditHold).where(CreditHold.id == hold_id))
        amounts = {"credits_usd": available_nanos, "required_usd": required_nanos}
        raise InsufficientCredits(details={name: money.usd_from_nanos(each) for name, each in amounts.items()})
    if not accounts.hold_available(session, owner_id, nanos):
        raise RuntimeError("a locked account lost credits")
    if nanos != wanted_nanos:
        session.execute(update(_TABLE).where(_TABLE.c.id == hold_id).values(amount_nanos=nanos))
    return nanos


def _read(session: Session, hold_id: str) -> HoldRow:
    row: HoldRow | None = _READ.one_or_none(session, {"hold_id": hold_id})
    if row is None:
        raise LookupError(f"no credits were ever held under {hold_id}")
    return row


def _result_of(session: Session, row: HoldRow) -> HoldResult:
    state = CreditHoldState(row.state)
    credits_nanos = accounts.balance(session, row.account_id).credits_nanos
    return HoldResult(
        row.id, row.account_id, state, state, row.settled_nanos, row.unpaid_nanos, row.memo, credits_nanos
    )
