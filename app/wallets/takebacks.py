"""Taking back deposits whose block was reorganised away, so that the next scan finds each again exactly once.

Whoever touches deposits takes locks in one order: spending accounts by wallet id, the chain's cursor, marks,
deposits, transactions. Under its wallet's account a deposit is safe from the wallet's deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

import structlog
from sqlalchemy import delete, select, update

from app.core.chains import ChainName
from app.core.unit_of_work import reading, unit_of_work
from app.errors import NotFound
from app.extensions import db
from app.ports.chain import BlockRef, Chain
from app.spending import service as spending
from app.wallets import lifecycle
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import DepositCursor, DepositMark, FundingAllocation, FundingDeposit

_log = structlog.get_logger(__name__)
_CHECKED_PER_PASS = 1000


def lock_wallets(wallet_ids: Iterable[str]) -> None:
    """Lock the spending accounts of wallets, in one order, in the current unit; deleted ones have none."""
    for wallet_id in sorted(set(wallet_ids)):
        with suppress(NotFound):
            spending.lock_account(wallet_id)


def recheck(chain: Chain) -> None:
    """Take back deposits whose block is gone, and leave alone for good what is `safe`. Raises: Unreachable."""
    with reading() as session:
        rows = session.execute(
            select(
                FundingDeposit.id,
                FundingDeposit.wallet_id,
                FundingDeposit.block_number,
                FundingDeposit.block_hash,
            )
            .where(FundingDeposit.chain == chain.name.value, FundingDeposit.final.is_(False))
            .order_by(FundingDeposit.block_number, FundingDeposit.id)
            .limit(_CHECKED_PER_PASS)
        ).all()
    if not rows:
        return
    block_of = {row.id: BlockRef(row.block_number, row.block_hash) for row in rows}
    orphaned, safe = chain.orphaned(sorted(set(block_of.values()), key=lambda block: block.number))
    settled = {row.id for row in rows if block_of[row.id] not in orphaned and row.block_number <= safe}
    if settled:
        with unit_of_work():
            _settle(settled)
    gone = [row for row in rows if block_of[row.id] in orphaned]
    if gone:
        with unit_of_work():
            lock_wallets(row.wallet_id for row in gone)
            _take_back(chain.name, [row.id for row in gone], orphaned)


def _settle(deposit_ids: Collection[str]) -> None:
    session = db.session
    # Nobody is waited for, as no account is locked here: what is in other hands just now has its turn later.
    free = session.scalars(
        select(FundingDeposit.id).where(FundingDeposit.id.in_(deposit_ids)).with_for_update(skip_locked=True)
    ).all()
    session.execute(update(FundingDeposit).where(FundingDeposit.id.in_(free)).values(final=True))


def _take_back(name: ChainName, deposit_ids: Sequence[str], orphaned: Collection[BlockRef]) -> None:
    """Take back those deposits that still are in a block that is gone; their wallets are locked."""
    session = db.session
    cursor = session.scalar(select(DepositCursor).where(DepositCursor.chain == name.value).with_for_update())
    deposits = session.scalars(
        select(FundingDeposit).where(FundingDeposit.id.in_(deposit_ids)).order_by(FundingDeposit.wallet_id)
    ).all()
    # Another pass may have found one of them again in its new block meanwhile.
    gone = [entry for entry in deposits if BlockRef(entry.block_number, entry.block_hash) in orphaned]
    if not gone:
        return
    if cursor is not None and cursor.block_number is not None:
        # Watching may have begun anew on the other side of the reorganisation. A place that is gone tells the
        # chain's adapter to go back behind it, as far as it thinks that reorganisations reach.
        lowest = min(gone, key=lambda entry: entry.block_number)
        cursor.block_number = min(cursor.block_number, lowest.block_number)
        cursor.block_hash = lowest.block_hash
        session.flush()
    for wallet_id, of_wallet in groupby(gone, key=lambda entry: entry.wallet_id):
        _take_back_from(wallet_id, name, list(of_wallet))


def _take_back_from(wallet_id: str, name: ChainName, gone: Sequence[FundingDeposit]) -> None:
    """Put a wallet's mark back to before all that is gone, and all that is found again from there with it.

    What a balance told of cannot be told apart in a longer difference, so that all of it since the mark goes;
    what left a log is recognised when it is found again, and stays.
    """
    session = db.session
    first = min(gone, key=lambda entry: entry.mark_revision)
    resume = {"mark_before": first.mark_before, "mark_block": first.mark_block}
    since = first.mark_revision
    revision = session.execute(
        update(DepositMark)
        .where(DepositMark.wallet_id == wallet_id, DepositMark.chain == name.value)
        .values(mark=first.mark_before, block_number=first.mark_block, revision=DepositMark.revision + 1)
        .returning(DepositMark.revision)
    ).scalar_one()
    later = session.scalars(
        select(FundingDeposit)
        .where(
            FundingDeposit.wallet_id == wallet_id,
            FundingDeposit.chain == name.value,
            FundingDeposit.mark_revision >= since,
        )
        .order_by(FundingDeposit.id)
    ).all()
    taken = {entry.id for entry in gone} | {entry.id for entry in later if entry.by_mark}
    kept = {entry.id for entry in later} - taken
    session.execute(
        update(FundingDeposit).where(FundingDeposit.id.in_(kept)).values(**resume, mark_revision=revision)
    )
    _release(taken)
    _log.warning("deposits_reorganised", chain=name, wallet_id=wallet_id, deposits=len(taken))


def _release(deposit_ids: Collection[str]) -> None:
    """Delete deposits, and let the requests that they fulfilled wait again."""
    session = db.session
    of_these = FundingAllocation.deposit_id.in_(deposit_ids)
    request_ids = set(session.scalars(select(FundingAllocation.transaction_id).where(of_these)))
    session.execute(delete(FundingAllocation).where(of_these))
    session.execute(delete(FundingDeposit).where(FundingDeposit.id.in_(deposit_ids)))
    for request_id in sorted(request_ids):
        lifecycle.move(
            request_id,
            source=Status.CONFIRMED,
            target=Status.PENDING,
            reason=Reason.REORGANISED,
            changes={"tx_hash": None, "from_address": None, "confirmed_at": None},
        )
