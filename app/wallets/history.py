"""What happened to a wallet: its transactions, one by one and in pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import BigInteger, Row, bindparam, func, or_, select

from app.core import identifiers
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token
from app.core.money import TokenAmount
from app.core.pagination import Page, PageRequest
from app.core.tables import table_of
from app.core.unit_of_work import reading
from app.errors import NotFound
from app.extensions import db
from app.ports import provider
from app.ports.chain import Chain
from app.wallets import bridge_legs
from app.wallets.bridge_legs import BridgeView
from app.wallets.lifecycle import EXCHANGE, Kind, Status, TransactionType
from app.wallets.models import SignedAttempt, Transaction, TransactionEvent

_TransactionRow: TypeAlias = Transaction | Row[*tuple[Any, ...]]
_TABLE, _ATTEMPTS = table_of(Transaction), table_of(SignedAttempt)
_OF_WALLET = (_TABLE.c.wallet_id == bindparam("of_wallet")) & _TABLE.c.bridge_id.is_(None)
_PAGE = (
    select(
        _TABLE.c.id, _TABLE.c.wallet_id, _TABLE.c.type, _TABLE.c.kind, _TABLE.c.chain, _TABLE.c.from_address,
        _TABLE.c.to_address, _TABLE.c.amount_units, _TABLE.c.currency, _TABLE.c.tx_hash, _TABLE.c.status,
        _TABLE.c.error, _TABLE.c.cost_nanos, _TABLE.c.created_at, _TABLE.c.confirmed_at, _TABLE.c.nonce,
        _TABLE.c.output_currency, _TABLE.c.output_units, _TABLE.c.output_quoted_units, _TABLE.c.output_minimum_units,
        _TABLE.c.request_id,
    )
    .where(_OF_WALLET)
    .order_by(_TABLE.c.created_at.desc(), _TABLE.c.id.desc())
    .limit(bindparam("most", type_=BigInteger))
    .offset(bindparam("skipped", type_=BigInteger))
)  # fmt: skip
_HASHES = (
    select(_ATTEMPTS.c.transaction_id, _ATTEMPTS.c.tx_hash)
    .where(_ATTEMPTS.c.transaction_id.in_(bindparam("transaction_ids", expanding=True)))
    .order_by(_ATTEMPTS.c.id)
)


@dataclass(frozen=True, slots=True)
class Event:
    """One move of a transaction's state."""

    status: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as its owner sees it."""

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
    tx_hash: str | None
    previous_hashes: tuple[str, ...]
    status: str
    error: str | None
    cost_nanos: int
    explorer_url: str | None
    created_at: datetime
    confirmed_at: datetime | None
    request_id: str | None
    events: tuple[Event, ...] = ()
    bridge: BridgeView | None = None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which transactions of a wallet are asked for; None means all."""

    status: str | None = None
    chain: str | None = None
    type: str | None = None


def page_of(wallet_id: str, page: PageRequest, *, filters: Filters, recorded: int) -> Page[TransactionView]:
    """Return a wallet's transactions, newest first; `recorded` is the wallet's own count of all of them."""
    conditions = [
        column == wanted
        for column, wanted in (
            (_TABLE.c.status, filters.status),
            (_TABLE.c.chain, filters.chain),
            (_TABLE.c.type, filters.type),
        )
        if wanted is not None
    ]
    place = {"of_wallet": wallet_id, "most": page.limit, "skipped": page.offset}
    with reading() as session:
        if conditions:
            counted = select(func.count()).select_from(_TABLE).where(_OF_WALLET, *conditions)
            total = session.scalar(counted, {"of_wallet": wallet_id}) or 0
            rows = session.execute(_PAGE.where(*conditions), place).all()
        else:
            # Counting rows would cost more with every past transaction.
            total = recorded
            rows = session.execute(_PAGE, place).all()
        hashes = _hashes([row.id for row in rows if row.nonce is not None])
        bridged = _bridged(rows)
        views = [_view(row, hashes.get(row.id, ()), bridge=bridged.get(row.id)) for row in rows]
        return Page(views, total, page)


def one(transaction_id: str, *, wallet_id: str | None = None) -> TransactionView:
    """Return one transaction with its events. Raises: NotFound, also for another wallet's."""
    canonical = identifiers.parse_id(transaction_id)
    with reading() as session:
        row = session.get(Transaction, canonical) if canonical else None
        if row is None or (wallet_id is not None and row.wallet_id != wallet_id) or row.bridge_id is not None:
            raise NotFound("This wallet has no such transaction.")
        hashes = _hashes([row.id])
        events = session.scalars(
            select(TransactionEvent)
            .where(TransactionEvent.transaction_id == row.id)
            .order_by(TransactionEvent.id)
        )
        return _view(
            row,
            hashes.get(row.id, ()),
            tuple(Event(event.status, event.reason, event.at) for event in events),
            bridge=_bridged([row]).get(row.id),
        )


def movement(transaction_id: str) -> TransactionView:
    """Return a transaction without its events and earlier hashes, which its maker is not told; one query.

    Raises: NotFound.
    """
    with reading() as session:
        row = session.get(Transaction, transaction_id)
        if row is None:
            raise NotFound("This wallet has no such transaction.")
        return _view(row, (), bridge=_bridged([row]).get(row.id))


def view_of(row: Transaction) -> TransactionView:
    """Return a transaction that was just made, as its maker is told of it; in the current unit."""
    return _view(row, (), bridge=_bridged([row]).get(row.id))


def _bridged(rows: Sequence[Any]) -> Mapping[str, BridgeView]:
    return bridge_legs.views([row for row in rows if row.kind == Kind.BRIDGE])


def outflows_not_mined(
    sender: str, chain: ChainName, *, since_sequence: int | None, since_block: int | None = None
) -> tuple[Mapping[Token, int], int]:
    """Return what movements take from balances that were read at a nonce count: tokens, and fees at most.

    In the current unit. Movements with a lower nonce were mined already and are in the balances; one with this
    nonce or a higher one is not, even if it has come to its end since. Without nonces, what landed after the
    block of the balances is not in them, and of a pending movement nobody knows yet: it counts.
    """
    if since_sequence is not None:
        not_mined = Transaction.nonce >= since_sequence
    else:
        not_mined = or_(
            # Pending rows have no block; both halves are ranges of one index.
            Transaction.block_number.is_(None) & (Transaction.status == Status.PENDING.value),
            Transaction.block_number > (since_block if since_block is not None else 0),
        ) & Transaction.nonce.is_(None)
    columns = (
        Transaction.currency,
        Transaction.amount_units,
        Transaction.fee_cap_units,
        Transaction.status,
    )
    rows = select(*columns).where(
        Transaction.chain == chain.value,
        Transaction.from_address == sender,
        not_mined,
        Transaction.fee_cap_units.is_not(None),
    )
    sent: dict[Token, int] = defaultdict(int)
    fees = 0
    for currency, units, fee_cap, status in db.session.execute(rows):
        if status != Status.FAILED.value:
            sent[TOKENS_BY_SYMBOL[currency]] += units
        fees += fee_cap or 0
    return sent, fees


def _hashes(transaction_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    if not transaction_ids:
        return {}
    hashes: dict[str, tuple[str, ...]] = defaultdict(tuple)
    attempts = db.session.execute(_HASHES, {"transaction_ids": list(transaction_ids)})
    for transaction_id, tx_hash in attempts:
        hashes[transaction_id] += (tx_hash,)
    return hashes


def _chain_of(row: _TransactionRow) -> Chain | None:
    return None if row.chain == EXCHANGE else provider.current().chains.get(ChainName(row.chain))


def _view(
    row: _TransactionRow,
    hashes: Sequence[str],
    events: tuple[Event, ...] = (),
    *,
    bridge: BridgeView | None = None,
) -> TransactionView:
    chain = _chain_of(row)
    return TransactionView(
        id=row.id,
        wallet_id=row.wallet_id,
        type=row.type,
        kind=row.kind,
        chain=row.chain,
        from_address=row.from_address,
        to_address=row.to_address,
        amount=str(TokenAmount(row.amount_units, TOKENS_BY_SYMBOL[row.currency])),
        currency=row.currency,
        output_amount=_output(row, _brought(row)),
        output_currency=row.output_currency,
        minimum_output_amount=_output(row, row.output_minimum_units),
        tx_hash=row.tx_hash,
        previous_hashes=tuple(tx_hash for tx_hash in hashes if tx_hash != row.tx_hash),
        status=row.status,
        error=row.error,
        cost_nanos=row.cost_nanos,
        explorer_url=chain.explorer_url(row.tx_hash) if chain and row.tx_hash else None,
        created_at=row.created_at,
        confirmed_at=row.confirmed_at,
        request_id=row.request_id,
        events=events,
        bridge=bridge,
    )


def _brought(row: _TransactionRow) -> int | None:
    """Return what an exchange brought: by its quote until the chain has told, nothing where it failed."""
    if row.status == Status.FAILED.value:
        return None
    return row.output_quoted_units if row.output_units is None else row.output_units


def _output(row: _TransactionRow, units: int | None) -> str | None:
    if row.output_currency is None or units is None:
        return None
    return str(TokenAmount(units, TOKENS_BY_SYMBOL[row.output_currency]))


def swaps_not_mined(
    sender: str, chain: ChainName, currency: str, *, since_sequence: int, before_sequence: int
) -> int:
    """Count the swaps of a token in the slots from the chain's own count up to a new one; in the current unit."""
    return (
        db.session.scalar(
            select(func.count())
            .select_from(Transaction)
            .where(
                Transaction.chain == chain.value,
                Transaction.from_address == sender,
                Transaction.type == TransactionType.SWAP.value,
                Transaction.currency == currency,
                Transaction.nonce >= since_sequence,
                Transaction.nonce < before_sequence,
            )
        )
        or 0
    )
