"""Finding deposits and giving them to the funding requests that wait for them, for workers.

New deposits, their allocation, marks and cursor are stored in one unit, under a compare-and-set on the cursor:
a pass that was overtaken rolls back as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import delete, or_, select, update

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.ports import provider
from app.ports.chain import BlockRef, Chain, Deposit, OwnTransaction, Scan, Terms, WatchedAddress
from app.ports.errors import PortError
from app.wallets import lifecycle
from app.wallets.lifecycle import Reason, Status, TransactionType
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

# Own movements are listed from a little before the mark, so that a small reorganisation cannot hide one.
_SLACK_BLOCKS = 64


class _OvertakenError(Exception):
    """Another pass stored its findings first."""


@dataclass(frozen=True, slots=True)
class _Watching:
    cursor: BlockRef | None
    wallet_of: Mapping[str, str]
    marks: Mapping[str, Terms]
    watched: tuple[WatchedAddress, ...]


def find(name: ChainName) -> int:
    """Look once for deposits on a chain and confirm what they fulfil; return how many were new.

    Never raises for an unreachable chain: cursor and marks stay, and the next pass finds the same.
    """
    chain = provider.current().chains[name]
    try:
        _recheck(chain)
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
        own = _own_movements(name, {row.id: row.block_number for row in wallets})
        watched, wallet_of, marks = [], {}, {}
        for row in wallets:
            address = row.solana_address if name is ChainName.SOLANA else row.evm_address
            wallet_of[address], marks[address] = row.id, row.mark
            watched.append(WatchedAddress(address, row.mark, tuple(own.get(row.id, ()))))
        at = None
        if cursor is not None and cursor.block_number is not None:
            at = BlockRef(cursor.block_number, cursor.block_hash or "")
        return _Watching(at, wallet_of, marks, tuple(watched))


def _own_movements(name: ChainName, since: Mapping[str, int]) -> Mapping[str, list[OwnTransaction]]:
    """Return every hash that we signed for these wallets and that may have landed since their marks."""
    if not since:
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
            Transaction.wallet_id.in_(list(since)),
            or_(
                Transaction.status == Status.PENDING.value,
                Transaction.block_number > min(since.values()) - _SLACK_BLOCKS,
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
    session = db.session
    before, after = watching.cursor, scan.cursor or watching.cursor
    if after is not None:
        unchanged = (
            DepositCursor.block_number.is_(None)
            if before is None
            else DepositCursor.block_number == before.number
        )
        same_hash = (
            DepositCursor.block_hash.is_(None) if before is None else DepositCursor.block_hash == before.hash
        )
        won = session.execute(
            update(DepositCursor)
            .where(DepositCursor.chain == name.value, unchanged, same_hash)
            .values(block_number=after.number, block_hash=after.hash)
        )
        if won.rowcount != 1:  # type: ignore[attr-defined]
            raise _OvertakenError
    for address, mark in scan.marks.items():
        if mark != watching.marks[address]:
            session.execute(
                update(DepositMark)
                .where(DepositMark.wallet_id == watching.wallet_of[address], DepositMark.chain == name.value)
                .values(mark=dict(mark), block_number=after.number if after else 0)
            )
    return sum(_credit(name, watching.wallet_of[deposit.address], deposit) for deposit in scan.deposits)


def _credit(name: ChainName, wallet_id: str, deposit: Deposit) -> bool:
    session = db.session
    # A position tells deposits of one transaction, or of one block where there is no hash, from each other.
    position = f"{deposit.tx_hash or deposit.block.hash}:{deposit.position}"
    known = session.scalar(
        select(FundingDeposit).where(
            FundingDeposit.chain == name.value,
            FundingDeposit.wallet_id == wallet_id,
            FundingDeposit.position == position,
        )
    )
    if known is not None:
        # The same transaction in another block: it survived a reorganisation.
        known.block_number, known.block_hash = deposit.block.number, deposit.block.hash
        return False
    if session.get(Wallet, wallet_id) is None:
        # Deleted since the look; nothing of it shall come back.
        return False
    row = FundingDeposit(
        id=new_id(), wallet_id=wallet_id, chain=name.value, currency=deposit.amount.token.symbol,
        units=deposit.amount.units, tx_hash=deposit.tx_hash, payer=deposit.payer, position=position,
        block_number=deposit.block.number, block_hash=deposit.block.hash,
        mark_before=None if deposit.mark_before is None else dict(deposit.mark_before),
        final=False, found_at=clock.now(),
    )  # fmt: skip
    session.add(row)
    session.flush()
    _allocate(row)
    _log.info("deposit_found", chain=name, wallet_id=wallet_id, currency=row.currency, tx_hash=row.tx_hash)
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


def _recheck(chain: Chain) -> None:
    """Take back deposits whose block was reorganised away. Raises: Unreachable."""
    with reading() as session:
        open_deposits = session.execute(
            select(FundingDeposit.id, FundingDeposit.block_number, FundingDeposit.block_hash)
            .where(FundingDeposit.chain == chain.name.value, FundingDeposit.final.is_(False))
            .limit(1000)
        ).all()
    if not open_deposits:
        return
    blocks = sorted(
        {BlockRef(row.block_number, row.block_hash) for row in open_deposits}, key=lambda b: b.number
    )
    orphaned, safe = chain.orphaned(blocks)
    with unit_of_work() as session:
        settled = [
            row.id
            for row in open_deposits
            if row.block_number <= safe and BlockRef(row.block_number, row.block_hash) not in orphaned
        ]
        session.execute(update(FundingDeposit).where(FundingDeposit.id.in_(settled)).values(final=True))
        for row in open_deposits:
            if BlockRef(row.block_number, row.block_hash) in orphaned:
                _take_back(row.id)


def _take_back(deposit_id: str) -> None:
    session = db.session
    deposit = session.get(FundingDeposit, deposit_id)
    if deposit is None:
        return
    _log.warning(
        "deposit_reorganised", chain=deposit.chain, wallet_id=deposit.wallet_id, tx_hash=deposit.tx_hash
    )
    requests: Sequence[str] = session.scalars(
        select(FundingAllocation.transaction_id).where(FundingAllocation.deposit_id == deposit_id)
    ).all()
    session.execute(delete(FundingAllocation).where(FundingAllocation.deposit_id == deposit_id))
    for request_id in requests:
        lifecycle.move(
            request_id,
            source=Status.CONFIRMED,
            target=Status.PENDING,
            reason=Reason.REORGANISED,
            changes={"tx_hash": None, "from_address": None, "confirmed_at": None},
        )
    if deposit.mark_before is not None:
        session.execute(
            update(DepositMark)
            .where(DepositMark.wallet_id == deposit.wallet_id, DepositMark.chain == deposit.chain)
            .values(mark=deposit.mark_before)
        )
    session.delete(deposit)
