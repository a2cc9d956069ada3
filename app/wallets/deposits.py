"""Finding deposits and giving them to the funding requests that wait for them, for workers.

New deposits, their allocation, marks and cursor are stored in one unit, under a compare-and-set on the cursor:
a pass that was overtaken rolls back as a whole. Locks are taken in the order that `takebacks` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import or_, select, update

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.ports import provider
from app.ports.chain import BlockRef, Deposit, OwnTransaction, Scan, Terms, WatchedAddress
from app.ports.errors import PortError
from app.wallets import bridge_arrivals, lifecycle, takebacks
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import (
    DepositCursor,
    DepositMark,
    FundingAllocation,
    FundingDeposit,
    SignedAttempt,
    Transaction,
    Wallet,
)

_log = structlog.get_logger(__name__)

# Own movements are listed from further back than an adapter goes back behind a reorganisation: what is looked
# at again must be known for our own again.
_SLACK_BLOCKS = 320


class _OvertakenError(Exception):
    """Another pass stored its findings first."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A wallet's mark as it was read for a scan."""

    wallet_id: str
    mark: Terms
    block_number: int
    revision: int


@dataclass(frozen=True, slots=True)
class _Watching:
    cursor: BlockRef | None
    seen: Mapping[str, _Seen]
    watched: tuple[WatchedAddress, ...]


def find(name: ChainName) -> int:
    """Look once for deposits on a chain and confirm what they fulfil; return how many were new.

    Never raises for an unreachable chain: cursor and marks stay, and the next pass finds the same.
    """
    chain = provider.current().chains[name]
    try:
        takebacks.recheck(chain)
        watching = _watching(name)
        if not watching.watched:
            return 0
        scan = chain.deposits(watching.watched, cursor=watching.cursor)
    except PortError as error:
        _log.warning("deposits_unreadable", chain=name, reason=error.reason)
        return 0
    try:
        with unit_of_work():
            return _store(name, watching, scan)
    except _OvertakenError:
        return 0


def _watching(name: ChainName) -> _Watching:
    with reading() as session:
        cursor = session.get(DepositCursor, name.value)
        wallets = session.execute(
            select(
                Wallet.id,
                Wallet.evm_address,
                Wallet.solana_address,
                DepositMark.mark,
                DepositMark.block_number,
                DepositMark.revision,
            )
            .join(DepositMark, (DepositMark.wallet_id == Wallet.id) & (DepositMark.chain == name.value))
            .where(
                Wallet.id.in_(
                    select(Transaction.wallet_id).where(
                        Transaction.chain == name.value,
                        Transaction.type == TransactionType.FUNDING.value,
                        Transaction.status == Status.PENDING.value,
                    )
                )
            )
        ).all()
        at = None
        if cursor is not None and cursor.block_number is not None:
            at = BlockRef(cursor.block_number, cursor.block_hash or "")
        since = [row.block_number for row in wallets] + ([] if at is None else [at.number])
        wallet_ids = [row.id for row in wallets]
        own = _own_movements(name, wallet_ids, since=min(since, default=0))
        arriving = bridge_arrivals.expected(name, wallet_ids)
        for wallet_id, arrived in bridge_arrivals.of(name, wallet_ids).items():
            own.setdefault(wallet_id, []).extend(arrived)
        watched, seen = [], {}
        for row in wallets:
            address = row.solana_address if name is ChainName.SOLANA else row.evm_address
            seen[address] = _Seen(row.id, row.mark, row.block_number, row.revision)
            awaits = arriving.get(row.id, frozenset())
            watched.append(WatchedAddress(address, row.mark, tuple(own.get(row.id, ())), awaits))
        return _Watching(at, seen, tuple(watched))


def _own_movements(
    name: ChainName, wallet_ids: Sequence[str], *, since: int
) -> dict[str, list[OwnTransaction]]:
    """Return every hash that we signed for these wallets and that may have landed since a block."""
    if not wallet_ids:
        return {}
    own: dict[str, list[OwnTransaction]] = {}
    rows = db.session.execute(
        select(
            Transaction.wallet_id, SignedAttempt.tx_hash, Transaction.tx_hash, Transaction.nonce,
            Transaction.status, Transaction.native_out_units, Transaction.block_number,
        )
        .join(SignedAttempt, SignedAttempt.transaction_id == Transaction.id)
        .where(
            Transaction.chain == name.value,
            Transaction.wallet_id.in_(wallet_ids),
            or_(
                Transaction.status == Status.PENDING.value,
                Transaction.block_number > since - _SLACK_BLOCKS,
                # A slot that something else used: it explains a nonce, though no block of ours.
                Transaction.nonce.is_not(None) & Transaction.block_number.is_(None),
            ),
        )
    )  # fmt: skip
    for wallet_id, attempt_hash, landed_hash, nonce, status, native_out, _block in rows:
        decided = status != Status.PENDING.value and attempt_hash == landed_hash
        if status != Status.PENDING.value and not decided:
            continue
        own.setdefault(wallet_id, []).append(
            OwnTransaction(attempt_hash, nonce, native_out if decided else None)
        )
    return own


def _store(name: ChainName, watching: _Watching, scan: Scan) -> int:
    """Write a scan in the current unit. Raises: _OvertakenError."""
    receiving = {deposit.address for deposit in scan.deposits}
    takebacks.lock_wallets(watching.seen[address].wallet_id for address in receiving)
    _move_cursor(name, watching.cursor, scan.cursor)
    at = scan.cursor or watching.cursor
    changed = {address for address, mark in scan.marks.items() if mark != watching.seen[address].mark}
    # Wallets that were deleted, or watched anew, since the look keep what they have now.
    held = {
        address
        for address in sorted(receiving | changed, key=lambda entry: watching.seen[entry].wallet_id)
        if _move_mark(name, watching.seen[address], scan.marks.get(address), at=at)
    }
    return sum(
        _credit(name, watching.seen[deposit.address], deposit)
        for deposit in scan.deposits
        if deposit.address in held
    )


def _move_cursor(name: ChainName, before: BlockRef | None, after: BlockRef | None) -> None:
    """Lock the cursor and set it, provided that it still is where it was. Raises: _OvertakenError."""
    number, block_hash = (None, None) if before is None else (before.number, before.hash)
    to = after or before
    if to is None:
        return
    won = db.session.execute(
        update(DepositCursor)
        .where(
            DepositCursor.chain == name.value,
            DepositCursor.block_number.is_not_distinct_from(number),
            DepositCursor.block_hash.is_not_distinct_from(block_hash),
        )
        .values(block_number=to.number, block_hash=to.hash)
    )
    if won.rowcount != 1:  # type: ignore[attr-defined]
        raise _OvertakenError


def _move_mark(name: ChainName, seen: _Seen, mark: Terms | None, *, at: BlockRef | None) -> bool:
    """Lock a mark and write what a scan made of it; tell whether it still was the one that was seen."""
    changes: dict[str, Any] = {"revision": seen.revision}
    if mark is not None and mark != seen.mark:
        changes = {
            "revision": seen.revision + 1, "mark": dict(mark), "block_number": 0 if at is None else at.number,
        }  # fmt: skip
    moved = db.session.execute(
        update(DepositMark)
        .where(
            DepositMark.wallet_id == seen.wallet_id,
            DepositMark.chain == name.value,
            DepositMark.revision == seen.revision,
        )
        .values(**changes)
    )
    return bool(moved.rowcount == 1)  # type: ignore[attr-defined]


def _credit(name: ChainName, seen: _Seen, deposit: Deposit) -> bool:
    session = db.session
    # A position tells deposits of one transaction, or of one block where there is no hash, from each other.
    position = f"{deposit.tx_hash or deposit.block.hash}:{deposit.position}"
    by_mark = deposit.mark_before is not None
    resume = {
        "mark_before": dict(seen.mark), "mark_block": seen.block_number, "mark_revision": seen.revision,
    }  # fmt: skip
    known = session.scalar(
        select(FundingDeposit).where(
            FundingDeposit.chain == name.value,
            FundingDeposit.wallet_id == seen.wallet_id,
            FundingDeposit.position == position,
        )
    )
    if known is not None:
        if (known.block_number, known.block_hash) != (deposit.block.number, deposit.block.hash):
            # The same transaction in another block: it survived a reorganisation.
            known.block_number, known.block_hash = deposit.block.number, deposit.block.hash
            known.final = False
        if by_mark:
            # It is part of what this mark's balance grew by, so it goes back with this mark.
            for column, value in resume.items():
                setattr(known, column, value)
        return False
    row = FundingDeposit(
        id=new_id(), wallet_id=seen.wallet_id, chain=name.value, currency=deposit.amount.token.symbol,
        units=deposit.amount.units, tx_hash=deposit.tx_hash, payer=deposit.payer, position=position,
        block_number=deposit.block.number, block_hash=deposit.block.hash, by_mark=by_mark,
        final=False, found_at=clock.now(), **resume,
    )  # fmt: skip
    session.add(row)
    session.flush()
    _allocate(row)
    _log.info(
        "deposit_found", chain=name, wallet_id=row.wallet_id, currency=row.currency, tx_hash=row.tx_hash
    )
    return True


def _allocate(deposit: FundingDeposit) -> None:
    """Give a deposit to the oldest open requests that were made before it."""
    session = db.session
    left = deposit.units
    requests = session.scalars(
        select(Transaction)
        .where(
            Transaction.wallet_id == deposit.wallet_id,
            Transaction.chain == deposit.chain,
            Transaction.currency == deposit.currency,
            Transaction.type == TransactionType.FUNDING.value,
            Transaction.status == Status.PENDING.value,
            Transaction.opened_block < deposit.block_number,
        )
        .order_by(Transaction.created_at, Transaction.id)
    ).all()
    for request in requests:
        if left == 0:
            return
        # Summed here: SQLite keeps units as text, which its SUM would turn into a float.
        given = sum(
            session.scalars(
                select(FundingAllocation.units).where(FundingAllocation.transaction_id == request.id)
            )
        )
        share = min(left, request.amount_units - given)
        session.add(FundingAllocation(deposit_id=deposit.id, transaction_id=request.id, units=share))
        session.flush()
        left -= share
        if given + share == request.amount_units:
            lifecycle.move(
                request.id,
                source=Status.PENDING,
                target=Status.CONFIRMED,
                changes={
                    "tx_hash": deposit.tx_hash,
                    "from_address": deposit.payer,
                    "confirmed_at": clock.now(),
                },
            )
