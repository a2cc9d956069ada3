"""The scan states of wallets: from which block on what arrives at a wallet is a deposit.

Deposits in orphaned blocks are reversed, so that the next scan finds each again exactly once. All units that change
deposits lock in one order: spending accounts by wallet id, the chain's cursor, scan states, deposits, transactions. The
account lock excludes a concurrent deletion of the wallet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, ColumnElement, and_, literal, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.db.tables import delete_rows, insert_into, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.chain import BlockRef, Chain, Terms
from app.spending import accounts as spending_accounts
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import (
    DepositCursor,
    DepositScanState,
    FundingAllocation,
    FundingDeposit,
    Transaction,
    Wallet,
)

_log = structlog.get_logger(__name__)
_CHECKED_PER_PASS = 1000
MAX_ACTIVE = 5_000
_ACTIVE_FOR = timedelta(days=30)
# A wallet that was made during a scan is in none of its tiers, and may have been paid before that scan ended.
_MARGIN_BLOCKS = 128
_READ_PER_PASS = 20


class Tier(StrEnum):
    """The wallets that one scan covers; each tier includes those before it.

    So a wallet may change its tier at any time: what the scan of a smaller one misses, that of a larger one finds.
    """

    OPEN = "open"
    """Wallets with open funding requests."""
    ACTIVE = "active"
    """And those that were used within 30 days: the `MAX_ACTIVE` that were used last."""
    ALL = "all"


_PAUSES = {Tier.ACTIVE: timedelta(seconds=30), Tier.ALL: timedelta(minutes=30)}
_PAUSE_WITHOUT_BLOCKS = timedelta(seconds=2)


def pause(name: ChainName, tier: Tier) -> timedelta | None:
    """Return the pause between two scans of a tier; None for open requests, whose age decides (`scan_pause`)."""
    return _PAUSES.get(tier) if lifecycle.block_time(name) or tier is Tier.OPEN else _PAUSE_WITHOUT_BLOCKS


def lease_name(name: ChainName, tier: Tier) -> str:
    return f"deposits:{name}:{tier}"


def is_open_request(name: ChainName) -> ColumnElement[bool]:
    # Part of the statement's text, so that any plan of it uses the partial index of open requests.
    return and_(
        Transaction.chain == name.value,
        Transaction.type == literal(TransactionType.FUNDING.value, literal_execute=True),
        Transaction.status == literal(MovementStatus.PENDING.value, literal_execute=True),
    )


def are_in(tier: Tier, name: ChainName) -> ColumnElement[bool]:
    is_open = Wallet.id.in_(select(Transaction.wallet_id).where(is_open_request(name)))
    if tier is Tier.OPEN:
        return is_open
    if tier is Tier.ALL:
        return Wallet.active_at.is_not(None)
    active = select(Wallet.id).where(Wallet.active_at > clock.now() - _ACTIVE_FOR).order_by(Wallet.active_at.desc())
    return is_open | Wallet.id.in_(active.limit(MAX_ACTIVE))


def begin(chain: Chain) -> None:
    """Store the states of wallets that have none; a few of those that are not new to scans. Raises: PortError."""
    name = chain.name
    has_state = select(DepositScanState.wallet_id).where(
        DepositScanState.wallet_id == Wallet.id, DepositScanState.chain == name.value
    )
    has_none = Wallet.active_at.is_not(None) & ~has_state.exists()
    with read_only_unit() as session:
        has_new = session.scalar(select(Wallet.id).where(has_none, Wallet.new_to_scans).limit(1)) is not None
        older = session.execute(
            select(Wallet.id, Wallet.evm_address, Wallet.solana_address)
            .where(has_none, ~Wallet.new_to_scans)
            .order_by(Wallet.active_at.desc())
            .limit(_READ_PER_PASS)
        ).all()
    if has_new:
        since = start_block(name, chain.head())
        mark = literal(dict(chain.unused_scan_state(since)), JSON)
        new = select(Wallet.id, literal(name.value), mark, literal(since, BigInteger), literal(0, BigInteger))
        columns = ["wallet_id", "chain", "mark", "block_number", "revision"]
        with unit_of_work() as session:
            insert = insert_into(session, DepositScanState)
            session.execute(
                insert.from_select(columns, new.where(has_none, Wallet.new_to_scans)).on_conflict_do_nothing()
            )
    for row in older:
        head = chain.head()
        mark_now = chain.scan_state(row.solana_address if name is ChainName.SOLANA else row.evm_address)
        with unit_of_work() as session:
            store(session, name, row.id, None, mark_now, at=head.number)


def start_block(name: ChainName, head: BlockRef) -> int:
    """Return a block before which no wallet was used that has no state yet."""
    with read_only_unit() as session:
        cursor = session.get(DepositCursor, (name.value, Tier.ACTIVE.value))
        scanned = None if cursor is None else cursor.block_number
    return max(0, (head.number if scanned is None else scanned) - _MARGIN_BLOCKS)


def store(session: Session, name: ChainName, wallet_id: str, revision: int | None, mark: Terms, *, at: int) -> bool:
    """Store the state of a wallet; return whether it is still at this revision. None: it has no state yet."""
    values: dict[str, Any] = {"mark": dict(mark), "block_number": at}
    if revision is None:
        row = {"wallet_id": wallet_id, "chain": name.value, "revision": 0, **values}
        session.execute(insert_into(session, DepositScanState).values(row).on_conflict_do_nothing())
        return True
    of_wallet = DepositScanState.wallet_id == wallet_id, DepositScanState.chain == name.value
    is_unchanged = DepositScanState.revision == revision
    return update_rows(session, DepositScanState, *of_wallet, is_unchanged, revision=revision + 1, **values) > 0


def recheck_blocks(chain: Chain) -> None:
    """Reverse deposits in orphaned blocks, and mark those in final blocks as final. Raises: Unreachable."""
    with read_only_unit() as session:
        rows = session.execute(
            select(FundingDeposit.id, FundingDeposit.wallet_id, FundingDeposit.block_number, FundingDeposit.block_hash)
            .where(FundingDeposit.chain == chain.name.value, FundingDeposit.final.is_(False))
            .order_by(FundingDeposit.block_number, FundingDeposit.id)
            .limit(_CHECKED_PER_PASS)
        ).all()
    if not rows:
        return
    block_of = {row.id: BlockRef(row.block_number, row.block_hash) for row in rows}
    orphaned, safe = chain.orphaned_blocks(sorted(set(block_of.values()), key=lambda block: block.number))
    final_ids = {row.id for row in rows if block_of[row.id] not in orphaned and row.block_number <= safe}
    if final_ids:
        with unit_of_work() as session:
            # No account is locked here, so rows that are locked are skipped until the next pass.
            lockable = select(FundingDeposit.id).where(FundingDeposit.id.in_(final_ids))
            lockable_ids = session.scalars(lockable.with_for_update(skip_locked=True)).all()
            update_rows(session, FundingDeposit, FundingDeposit.id.in_(lockable_ids), final=True)
    reorged = [row for row in rows if block_of[row.id] in orphaned]
    if reorged:
        with unit_of_work() as session:
            spending_accounts.lock_accounts(session, {row.wallet_id for row in reorged})
            _reverse_deposits(session, chain.name, [row.id for row in reorged], orphaned)


def _reverse_deposits(
    session: Session, name: ChainName, deposit_ids: Sequence[str], orphaned: Collection[BlockRef]
) -> None:
    """Reverse those deposits that still are in an orphaned block; their wallets are locked."""
    cursors = session.scalars(
        select(DepositCursor).where(DepositCursor.chain == name.value).order_by(DepositCursor.tier).with_for_update()
    ).all()
    deposits = session.scalars(
        select(FundingDeposit).where(FundingDeposit.id.in_(deposit_ids)).order_by(FundingDeposit.wallet_id)
    ).all()
    # A concurrent pass may have found one of them again in a new block.
    reorged = [entry for entry in deposits if BlockRef(entry.block_number, entry.block_hash) in orphaned]
    if not reorged:
        return
    # An orphaned cursor makes the chain's adapter scan again from as far back as it expects reorgs to reach.
    lowest = min(reorged, key=lambda entry: entry.block_number)
    for cursor in cursors:
        if cursor.block_number is not None and cursor.block_number >= lowest.block_number:
            cursor.block_number, cursor.block_hash = lowest.block_number, lowest.block_hash
    session.flush()
    for wallet_id, of_wallet in groupby(reorged, key=lambda entry: entry.wallet_id):
        _reverse_wallet_deposits(session, wallet_id, name, list(of_wallet))


def _reverse_wallet_deposits(
    session: Session, wallet_id: str, name: ChainName, reorged: Sequence[FundingDeposit]
) -> None:
    """Reset a wallet's scan state to before the orphaned deposits, and reverse all that is found again from there.

    Deposits that were derived from a balance cannot be identified in a longer difference, so all of them since that
    state are reversed; those with a log are recognised when they are found again, and stay.
    """
    first = min(reorged, key=lambda entry: entry.mark_revision)
    resume = {"mark_before": first.mark_before, "mark_block": first.mark_block}
    revision = session.execute(
        update(DepositScanState)
        .where(DepositScanState.wallet_id == wallet_id, DepositScanState.chain == name.value)
        .values(mark=first.mark_before, block_number=first.mark_block, revision=DepositScanState.revision + 1)
        .returning(DepositScanState.revision)
    ).scalar_one()
    of_wallet = FundingDeposit.wallet_id == wallet_id, FundingDeposit.chain == name.value
    is_later = FundingDeposit.mark_revision >= first.mark_revision
    later = session.scalars(select(FundingDeposit).where(*of_wallet, is_later).order_by(FundingDeposit.id)).all()
    reversed_ids = {entry.id for entry in reorged} | {entry.id for entry in later if entry.by_mark}
    retained_ids = {entry.id for entry in later} - reversed_ids
    update_rows(session, FundingDeposit, FundingDeposit.id.in_(retained_ids), **resume, mark_revision=revision)
    # The requests that they fulfilled are open again; what was recorded without a request has failed.
    of_these = FundingAllocation.deposit_id.in_(reversed_ids)
    request_ids = set(session.scalars(select(FundingAllocation.transaction_id).where(of_these)))
    delete_rows(session, FundingAllocation, of_these)
    delete_rows(session, FundingDeposit, FundingDeposit.id.in_(reversed_ids))
    for request_id in sorted(request_ids):
        lifecycle.TRANSACTIONS.move(
            session, request_id, MovementStatus.CONFIRMED, MovementStatus.PENDING,
            reason=StatusReason.REORGANISED, tx_hash=None, from_address=None, confirmed_at=None,
        )  # fmt: skip
    unrequested = Transaction.id.in_(request_ids) & Transaction.kind.is_not(None)
    lifecycle.TRANSACTIONS.move(
        session, unrequested, MovementStatus.PENDING, MovementStatus.FAILED, reason=StatusReason.REORGANISED
    )
    _log.warning("deposits_reorganised", chain=name, wallet_id=wallet_id, deposits=len(reversed_ids))
