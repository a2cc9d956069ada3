"""The history of a wallet: its transactions, one by one and in pages."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, ColumnElement, Row, Select, bindparam, func, or_, select
from sqlalchemy.orm import Session

from app.core import clock, identifiers
from app.core.chains import USDC, ChainName, native, token_named
from app.core.money import TokenAmount
from app.core.pagination import Page, PageRequest
from app.db.prepared import PreparedRead
from app.db.tables import after_entry, having, in_list, table_of, within
from app.db.tables import page_of as page_of_rows
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.state import app_state
from app.wallets.core.lifecycle import PERPDEX_CHAIN, AttemptPurpose, MovementStatus, TransactionType
from app.wallets.core.models import Bridge, SignedAttempt, Transaction, TransactionEvent


@dataclass(frozen=True, slots=True)
class TransactionView:
    id: str
    wallet_id: str
    type: str
    kind: str | None
    chain: str
    from_address: str | None
    to_address: str
    amount: str
    currency: str
    output_amount: str | None
    output_currency: str | None
    minimum_output_amount: str | None
    gas_fee: str | None
    network_fee: str | None
    tx_hash: str | None
    previous_hashes: tuple[str, ...]
    status: str
    error: str | None
    cost_nanos: int
    explorer_url: str | None
    created_at: datetime
    confirmed_at: datetime | None
    request_id: str | None
    events: Sequence[Row[*tuple[Any, ...]]] = ()
    details: Any = None


_TransactionRow: TypeAlias = Transaction | Row[*tuple[Any, ...]]
_TABLE, _ATTEMPTS = table_of(Transaction), table_of(SignedAttempt)
_IS_TRANSACTION = _ATTEMPTS.c.purpose != AttemptPurpose.AUTHORIZATION.value
_OF_WALLET = (_TABLE.c.wallet_id == bindparam("of_wallet")) & _TABLE.c.leg.is_(None)
# The columns that agents and owners see as they are.
_COPIED = tuple(name for name in TransactionView.__slots__ if name in _TABLE.c)
_PAGE_COLUMNS = (
    *_COPIED, "amount_units", "nonce", "output_units", "output_quoted_units", "output_minimum_units", "gas_fee_units",
    "fee_units",
)  # fmt: skip


def _page_where(*conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Return the query of a page, newest first; each row has the hashes of its attempts, separated by spaces."""
    page = (
        select(*(_TABLE.c[name] for name in _PAGE_COLUMNS))
        .where(*conditions)
        .order_by(_TABLE.c.created_at.desc(), _TABLE.c.id.desc())
        .limit(bindparam("most", type_=BigInteger))
        .offset(bindparam("skipped", type_=BigInteger))
        .subquery("page")
    )
    attempts = (
        select(_ATTEMPTS.c.tx_hash)
        .where(_ATTEMPTS.c.transaction_id == page.c.id, _IS_TRANSACTION)
        .order_by(_ATTEMPTS.c.id)
        .correlate(page)
        .subquery("attempts")
    )
    # Not in the page's own query: skipped rows need no hashes.
    hashes = select(func.aggregate_strings(attempts.c.tx_hash, " ")).correlate(page).scalar_subquery()
    return select(page, hashes.label("hashes")).order_by(page.c.created_at.desc(), page.c.id.desc())


_PAGE = PreparedRead(_page_where(_OF_WALLET))
_ONE = PreparedRead(
    select(*(_TABLE.c[name] for name in _PAGE_COLUMNS)).where(_TABLE.c.id == bindparam("of_transaction"))
)


class MovementDetails(dict[str, Callable[[Session, Sequence[Any]], Mapping[str, Any]]]):
    """By kind of movement, what reads the `details` of its transactions."""


def page_of(
    wallet_id: str, page: PageRequest, *, filters: Mapping[str, str | None], total_count: int
) -> Page[TransactionView]:
    """Return a wallet's transactions, newest first, with these values of columns; None means any.

    `total_count` is the wallet's stored count of all of them.
    """
    if page.after or within(_TABLE, page) or any(value is not None for value in filters.values()):
        return page_of_wallets([wallet_id], page, filters)
    with read_only_unit() as session:
        rows = _PAGE.all(session, {"of_wallet": wallet_id, "most": page.limit, "skipped": page.offset})
        # The cost of counting rows would grow with the history.
        return Page(_views(session, rows), total_count, page)


def page_of_wallets(
    wallet_ids: Sequence[str] | None, page: PageRequest, filters: Mapping[str, str | None]
) -> Page[TransactionView]:
    """Return the transactions of some wallets or all, newest first, with these values of columns; None means any."""
    conditions = [_TABLE.c.leg.is_(None), *within(_TABLE, page)]
    conditions += [] if wallet_ids is None else [_TABLE.c.wallet_id.in_(wallet_ids)]
    conditions += having(_TABLE.c, filters)
    bindings = {"most": page.limit, "skipped": page.offset}
    with read_only_unit() as session:
        total = session.scalar(select(func.count()).select_from(_TABLE).where(*conditions)) or 0
        later, page = after_entry(session, _TABLE, page, total, *conditions)
        rows = session.execute(_page_where(*conditions, *later), bindings).all()
        return Page(_views(session, rows), total, page)


def latest(
    wallet_ids: Sequence[str], page: PageRequest, *, kind: str | None = None, without: Collection[str] = (),
    chain: str | None = None, status: str | None = None, text: str = "", ids: Sequence[str] = (),
) -> list[TransactionView]:  # fmt: skip
    """Return the latest transactions of some wallets in the period of a page, without counting them.

    Their kind, or else their type, is `kind`, or else none of `without`; with a text, it is a part of an address or of
    the hash, or the transaction is one of `ids`.
    """
    named = func.coalesce(_TABLE.c.kind, _TABLE.c.type)
    conditions = [_TABLE.c.wallet_id.in_(wallet_ids), _TABLE.c.leg.is_(None), *within(_TABLE, page)]
    conditions.append(named == kind if kind else named.not_in(without))
    conditions += [_TABLE.c.chain == chain] if chain else []
    conditions += [_TABLE.c.status == status] if status else []
    if text:
        texts = (_TABLE.c.from_address, _TABLE.c.to_address, _TABLE.c.tx_hash)
        found = [each.icontains(text, autoescape=True) for each in texts]
        conditions.append(or_(*found, _TABLE.c.id.in_(ids)))
    with read_only_unit() as session:
        return _views(session, session.execute(_page_where(*conditions), {"most": page.limit, "skipped": 0}).all())


def get(transaction_id: str, *, wallet_id: str | None = None) -> TransactionView:
    """Return one transaction with its events. Raises: NotFound, including for one of another wallet."""
    is_meant = _TABLE.c.id == identifiers.require_id(transaction_id, _not_found()), _TABLE.c.leg.is_(None)
    of_wallet = having(_TABLE.c, {"wallet_id": wallet_id})
    happened = select(TransactionEvent.status, TransactionEvent.reason, TransactionEvent.at)
    happened = happened.where(TransactionEvent.transaction_id == transaction_id).order_by(TransactionEvent.id)
    with read_only_unit() as session:
        rows = session.execute(_page_where(*is_meant, *of_wallet), {"most": 1, "skipped": 0}).all()
        return replace(_only(session, rows), events=session.execute(happened).all())


def stuck(page: PageRequest, older_than: timedelta) -> Page[TransactionView]:
    """Return the movements that have been pending for longer than this, oldest first."""
    # A bridge under way is checked by its own row.
    under_way = select(Bridge.id).where(Bridge.next_step_at.is_not(None))
    is_open = _TABLE.c.next_check_at.is_not(None) | _TABLE.c.id.in_(under_way)
    conditions = (
        is_open, _TABLE.c.status == MovementStatus.PENDING.value, _TABLE.c.leg.is_(None),
        _TABLE.c.type != TransactionType.FUNDING.value, _TABLE.c.created_at < clock.now() - older_than,
    )  # fmt: skip
    with read_only_unit() as session:
        found = page_of_rows(session, Transaction, page, *conditions)
        return Page(_views(session, found.items), found.total, found.request)


def current_view(transaction_id: str) -> TransactionView:
    """Return a transaction without its events and earlier hashes; one query. Raises: NotFound."""
    with read_only_unit() as session:
        return _only(session, _ONE.all(session, {"of_transaction": transaction_id}))


def views_of(session: Session, transaction_ids: Sequence[str]) -> dict[str, TransactionView]:
    """Return transactions by id, without their events and earlier hashes; two queries."""
    rows = session.scalars(select(Transaction).where(in_list(session, Transaction.id, transaction_ids))).all()
    return {view.id: view for view in _views(session, rows)}


def view_of(session: Session, row: _TransactionRow) -> TransactionView:
    """Return the view of a transaction without its events and earlier hashes."""
    return _only(session, [row])


def _only(session: Session, rows: Sequence[_TransactionRow]) -> TransactionView:
    """Return the view of the one row. Raises: NotFound without one."""
    return identifiers.require(next(iter(_views(session, rows)), None), _not_found())


def _not_found() -> NotFound:
    return NotFound("This wallet has no such transaction.")


def recipients_of(session: Session, wallet_ids: Sequence[str], chain: ChainName | None = None) -> Sequence[str]:
    """Return the addresses that wallets have paid on a chain, or on all, each once."""
    sent = [TransactionType.TRANSFER.value, TransactionType.WITHDRAWAL.value]
    paid = select(Transaction.to_address).filter_by(status=MovementStatus.CONFIRMED.value)
    paid = paid.where(Transaction.wallet_id.in_(wallet_ids), Transaction.type.in_(sent))
    return session.scalars((paid if chain is None else paid.filter_by(chain=chain.value)).distinct()).all()


def paid_to(session: Session, wallet_id: str, recipient: str) -> Row[*tuple[Any, ...]]:
    """Return the number of payments of a wallet to a recipient, their sum as `nanos`, and the time of the `last`."""
    sent = [TransactionType.TRANSFER.value, TransactionType.WITHDRAWAL.value, TransactionType.PAYMENT.value]
    last = func.max(Transaction.created_at).label("last")
    paid = select(func.count().label("number"), func.sum(Transaction.cost_nanos).label("nanos"), last)
    is_meant = Transaction.wallet_id == wallet_id, Transaction.to_address == recipient, Transaction.type.in_(sent)
    return session.execute(paid.where(*is_meant, Transaction.status == MovementStatus.CONFIRMED.value)).one()


def targets_of(session: Session, transaction_ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the kind, or else the type, of transactions, and the address that they pay, by id."""
    columns = (Transaction.id, func.coalesce(Transaction.kind, Transaction.type), Transaction.to_address)
    rows = session.execute(select(*columns).where(in_list(session, Transaction.id, transaction_ids)))
    return {of: (kind, address) for of, kind, address in rows}


def explorer_url(chain: str, tx_hash: str | None) -> str | None:
    served = app_state().ports.chains.get(ChainName(chain))
    return served.explorer_url(tx_hash) if served is not None and tx_hash else None


def _views(session: Session, rows: Sequence[Any]) -> list[TransactionView]:
    """Return views of transactions with the details of their kinds; those of a page have their earlier hashes, too."""
    details: dict[str, Any] = {}
    for kind, read in app_state().part(MovementDetails).items():
        of_kind = [row for row in rows if row.kind == kind]
        details |= read(session, of_kind) if of_kind else {}
    return [
        TransactionView(
            **{name: getattr(row, name) for name in _COPIED},
            amount=str(TokenAmount(row.amount_units, token_named(row.currency))),
            output_amount=_output(row, _current_output_units(row)),
            minimum_output_amount=_output(row, row.output_minimum_units),
            gas_fee=None if row.gas_fee_units is None else str(TokenAmount(row.gas_fee_units, USDC)),
            network_fee=_network_fee(row),
            previous_hashes=tuple(each for each in (getattr(row, "hashes", "") or "").split() if each != row.tx_hash),
            explorer_url=None if row.chain == PERPDEX_CHAIN else explorer_url(row.chain, row.tx_hash),
            details=details.get(row.id),
        )
        for row in rows
    ]  # fmt: skip


def _network_fee(row: _TransactionRow) -> str | None:
    """Return what the network charged the wallet, with its token."""
    if not row.fee_units or row.gas_fee_units is not None:
        return None
    token = native(ChainName(row.chain))
    return f"{TokenAmount(row.fee_units, token)} {token.symbol}"


def _current_output_units(row: _TransactionRow) -> int | None:
    """Return the output of a swap: the quoted one until the actual one is known, None if it failed."""
    if row.status == MovementStatus.FAILED.value:
        return None
    return row.output_quoted_units if row.output_units is None else row.output_units


def _output(row: _TransactionRow, units: int | None) -> str | None:
    if row.output_currency is None or units is None:
        return None
    return str(TokenAmount(units, token_named(row.output_currency)))
