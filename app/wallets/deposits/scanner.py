"""Detection of deposits and their allocation to funding requests, for workers.

New deposits, their allocation, scan states and cursor are stored in one unit, under a compare-and-set on the cursor:
a pass that lost a race rolls back as a whole. Locks are acquired in the order given in `scan_states`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

import structlog
from sqlalchemy import ColumnElement, Row, ScalarSelect, func, or_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.movement_kinds import MovementKind
from app.db.tables import in_list, insert_into, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.chain import BlockRef, Deposit, DepositScan, OwnTransaction, WatchedAddress
from app.ports.errors import PortError
from app.spending import accounts as spending_accounts
from app.state import app_state
from app.wallets.bridges import state as bridges
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus, TransactionType
from app.wallets.core.models import (
    DepositCursor,
    DepositScanState,
    FundingAllocation,
    FundingDeposit,
    SignedAttempt,
    Transaction,
    Wallet,
)
from app.wallets.deposits import scan_states
from app.wallets.deposits.scan_states import Tier

_log = structlog.get_logger(__name__)

_ScannedWallet: TypeAlias = Row[*tuple[Any, ...]]
"""A wallet and its scan state as it was read."""
# Own movements are listed from further back than adapters rescan after a reorg, so that they are recognised again.
_REORG_MARGIN_BLOCKS = 320


class _ConcurrentScanError(Exception):
    """A concurrent pass stored its scan first."""


@dataclass(frozen=True, slots=True)
class _ScanInput:
    cursor: BlockRef | None
    wallets_by_address: Mapping[str, _ScannedWallet]
    addresses: tuple[WatchedAddress, ...]


def newest_open(name: ChainName) -> ScalarSelect[datetime | None]:
    """Return when the newest expected deposit was requested, or the newest that is not final was found; else None."""
    requested = select(Transaction.created_at.label("at")).where(scan_states.is_open_request(name))
    found = select(FundingDeposit.found_at).where(FundingDeposit.chain == name.value, FundingDeposit.final.is_(False))
    opened = requested.union_all(found).subquery()
    return select(func.max(opened.c.at)).scalar_subquery()


def is_due(name: ChainName, newest: datetime | None, *, last_scan: datetime | None) -> bool:
    """Return whether a chain is to be scanned again, by its `newest_open`."""
    if newest is None:
        return False
    now = clock.now()
    return last_scan is None or now - last_scan >= lifecycle.scan_pause(name, now - newest)


def scan(name: ChainName, tier: Tier = Tier.ALL) -> int:
    """Scan a chain once for deposits to the wallets of a tier; return the number of new ones.

    Never raises for an unreachable chain: cursor and scan states stay, and the next pass finds the same.
    """
    chain = app_state().ports.chains[name]
    try:
        scan_states.recheck_blocks(chain)
        if tier is not Tier.OPEN:
            scan_states.begin(chain)
        scan_input = _load_scan_input(name, tier)
        if not scan_input.addresses:
            return 0
        result = chain.deposits(scan_input.addresses, cursor=scan_input.cursor)
    except PortError as error:
        _log.warning("deposits_unreadable", chain=name, reason=error.reason)
        return 0
    try:
        with unit_of_work() as session:
            return _store_scan(session, name, tier, scan_input, result)
    except _ConcurrentScanError:
        return 0


def _load_scan_input(name: ChainName, tier: Tier) -> _ScanInput:
    with read_only_unit() as session:
        cursor = session.get(DepositCursor, (name.value, tier.value))
        of_state = DepositScanState.mark, DepositScanState.block_number, DepositScanState.revision
        wallets = session.execute(
            select(Wallet.id, Wallet.evm_address, Wallet.solana_address, Wallet.exported_at, *of_state)
            .join(DepositScanState, (DepositScanState.wallet_id == Wallet.id) & (DepositScanState.chain == name.value))
            .where(scan_states.are_in(tier, name))
        ).all()
        cursor_block = None
        if cursor is not None and cursor.block_number is not None:
            cursor_block = BlockRef(cursor.block_number, cursor.block_hash or "")
        if not wallets:
            return _ScanInput(cursor_block, {}, ())
        wallet_ids = [row.id for row in wallets]
        is_recent = partial(_is_recent, cursor=cursor_block)
        own = _own_transactions(session, name, wallet_ids, is_recent=is_recent)
        expected_arrivals = bridges.expected_tokens(session, name, wallet_ids)
        for wallet_id, arrived in bridges.recorded_arrivals(session, name, wallet_ids, is_recent=is_recent).items():
            own[wallet_id] += arrived
        addresses, wallets_by_address = [], {}
        for row in wallets:
            address = row.solana_address if name is ChainName.SOLANA else row.evm_address
            wallets_by_address[address] = row
            expected_tokens = expected_arrivals.get(row.id, frozenset())
            ours, is_exported = tuple(own.get(row.id, ())), row.exported_at is not None
            addresses.append(WatchedAddress(address, row.mark, ours, expected_tokens, is_exported))
        return _ScanInput(cursor_block, wallets_by_address, tuple(addresses))


def _is_recent(block: ColumnElement[Any], *, cursor: BlockRef | None) -> ColumnElement[bool]:
    """Return the condition that a wallet's balance or logs may be unread at a block."""
    is_after_state = block > DepositScanState.block_number - _REORG_MARGIN_BLOCKS
    return is_after_state if cursor is None else is_after_state | (block > cursor.number - _REORG_MARGIN_BLOCKS)


def _own_transactions(
    session: Session, name: ChainName, wallet_ids: Sequence[str], *, is_recent: Callable[..., ColumnElement[bool]]
) -> dict[str, list[OwnTransaction]]:
    """Return all hashes signed for these wallets that may have landed in a recent block."""
    own: dict[str, list[OwnTransaction]] = defaultdict(list)
    rows = session.execute(
        select(
            Transaction.wallet_id, SignedAttempt.tx_hash, Transaction.tx_hash, Transaction.nonce,
            Transaction.status, Transaction.native_out_units,
        )
        .join(SignedAttempt, SignedAttempt.transaction_id == Transaction.id)
        .join(DepositScanState, DepositScanState.wallet_id == Transaction.wallet_id)
        .where(
            Transaction.chain == name.value,
            DepositScanState.chain == name.value,
            in_list(session, Transaction.wallet_id, wallet_ids),
            # Another party's transaction takes none of the native balance, and no nonce.
            SignedAttempt.purpose != AttemptPurpose.AUTHORIZATION.value,
            or_(
                Transaction.status == MovementStatus.PENDING.value,
                is_recent(Transaction.block_number),
                # A nonce that another transaction used: our own is in no block.
                Transaction.nonce.is_not(None) & Transaction.block_number.is_(None),
            ),
        )
    )  # fmt: skip
    for wallet_id, attempt_hash, landed_hash, nonce, status, native_out in rows:
        is_decided = status != MovementStatus.PENDING.value and attempt_hash == landed_hash
        if status != MovementStatus.PENDING.value and not is_decided:
            continue
        own[wallet_id].append(OwnTransaction(attempt_hash, nonce, native_out if is_decided else None))
    return own


def _store_scan(session: Session, name: ChainName, tier: Tier, scan_input: _ScanInput, result: DepositScan) -> int:
    """Store a scan; scan states are locked in the order of their wallets. Raises: _ConcurrentScanError."""
    wallets, states = scan_input.wallets_by_address, result.scan_states
    credited = {deposit.address for deposit in result.deposits}
    spending_accounts.lock_accounts(session, {wallets[each].id for each in credited})
    _advance_cursor(session, name, tier, scan_input.cursor, result.cursor)
    changed = {address for address, state in states.items() if state != wallets[address].mark}
    remaining = set()
    for address in sorted(credited | changed, key=lambda each: wallets[each].id):
        of_wallet = (DepositScanState.wallet_id == wallets[address].id) & (DepositScanState.chain == name.value)
        revision = session.scalar(select(DepositScanState.revision).where(of_wallet).with_for_update())
        # What arrives at wallets that were deleted since the scan is left alone.
        if revision is None:
            continue
        if revision != wallets[address].revision:
            raise _ConcurrentScanError
        if address in changed:
            # Not the cursor: a state that only noted a reading still awaits the own transactions since its block.
            at = result.state_blocks[address]
            scan_states.store(session, name, wallets[address].id, revision, states[address], at=at)
        remaining.add(address)
    arrived = [deposit for deposit in result.deposits if deposit.address in remaining]
    return sum(_record_deposit(session, name, wallets[deposit.address], deposit) for deposit in arrived)


def _advance_cursor(
    session: Session, name: ChainName, tier: Tier, before: BlockRef | None, after: BlockRef | None
) -> None:
    """Lock the cursor and set it if it is unchanged. Raises: _ConcurrentScanError."""
    number, block_hash = (None, None) if before is None else (before.number, before.hash)
    to = after or before
    if to is None:
        return
    if before is None:
        session.execute(
            insert_into(session, DepositCursor).values(chain=name.value, tier=tier.value).on_conflict_do_nothing()
        )
    updated = update_rows(
        session, DepositCursor, DepositCursor.chain == name.value, DepositCursor.tier == tier.value,
        DepositCursor.block_number.is_not_distinct_from(number),
        DepositCursor.block_hash.is_not_distinct_from(block_hash), block_number=to.number, block_hash=to.hash,
    )  # fmt: skip
    if not updated:
        raise _ConcurrentScanError


def _record_deposit(session: Session, name: ChainName, wallet: _ScannedWallet, deposit: Deposit) -> bool:
    # The position distinguishes deposits of one transaction, or of one block if there is no hash.
    position = f"{deposit.tx_hash or deposit.block.hash}:{deposit.position}"
    by_mark = deposit.scan_state_before is not None
    resume = {"mark_before": dict(wallet.mark), "mark_block": wallet.block_number, "mark_revision": wallet.revision}
    same = select(FundingDeposit).filter_by(chain=name.value, wallet_id=wallet.id, position=position)
    existing = session.scalar(same)
    if existing is not None:
        if (existing.block_number, existing.block_hash) != (deposit.block.number, deposit.block.hash):
            # The same transaction in another block after a reorg.
            existing.block_number, existing.block_hash = deposit.block.number, deposit.block.hash
            existing.final = False
        if by_mark:
            # It is part of the growth of this balance, so it is reversed with this scan state.
            for column, value in resume.items():
                setattr(existing, column, value)
        return False
    row = FundingDeposit(
        id=new_id(), wallet_id=wallet.id, chain=name.value, currency=deposit.amount.token.symbol,
        units=deposit.amount.units, tx_hash=deposit.tx_hash, payer=deposit.payer, position=position,
        block_number=deposit.block.number, block_hash=deposit.block.hash, by_mark=by_mark,
        final=False, found_at=clock.now(), **resume,
    )  # fmt: skip
    session.add(row)
    session.flush()
    remaining_units = _allocate(session, row, after=deposit.arrived_after)
    if remaining_units:
        _record_unrequested(session, row, deposit.address, remaining_units)
    _log.info("deposit_found", chain=name, wallet_id=row.wallet_id, currency=row.currency, tx_hash=row.tx_hash)
    return True


def _allocate(session: Session, deposit: FundingDeposit, *, after: int | None) -> int:
    """Allocate a deposit to the oldest open requests that were made before it; return what is left."""
    remaining_units = deposit.units
    earliest = deposit.block_number if after is None else after + 1
    expected = select(Transaction).filter_by(
        wallet_id=deposit.wallet_id, chain=deposit.chain, currency=deposit.currency,
        type=TransactionType.FUNDING.value, status=MovementStatus.PENDING.value,
    )  # fmt: skip
    expected = expected.where(Transaction.opened_block < earliest).order_by(Transaction.created_at, Transaction.id)
    for request in session.scalars(expected).all():
        if remaining_units == 0:
            break
        # Summed here: SQLite stores units as text, which its SUM would convert to a float.
        allocated_units = sum(
            session.scalars(select(FundingAllocation.units).where(FundingAllocation.transaction_id == request.id))
        )
        allocation_units = min(remaining_units, request.amount_units - allocated_units)
        session.add(FundingAllocation(deposit_id=deposit.id, transaction_id=request.id, units=allocation_units))
        session.flush()
        remaining_units -= allocation_units
        if allocated_units + allocation_units == request.amount_units:
            lifecycle.TRANSACTIONS.move(
                session, request.id, MovementStatus.PENDING, MovementStatus.CONFIRMED,
                tx_hash=deposit.tx_hash, from_address=deposit.payer, confirmed_at=clock.now(),
            )  # fmt: skip
    return remaining_units


def _record_unrequested(session: Session, deposit: FundingDeposit, address: str, units: int) -> None:
    """Record what no request expected as a confirmed transaction: a deposit, or what the service sold for fees."""
    now = clock.now()
    kind = session.scalar(
        select(Transaction.kind)
        .join(SignedAttempt, SignedAttempt.transaction_id == Transaction.id)
        .where(SignedAttempt.chain == deposit.chain, SignedAttempt.tx_hash == deposit.tx_hash)
        .where(Transaction.kind == MovementKind.GAS_SALE.value)
    )
    transaction = Transaction(
        id=new_id(), wallet_id=deposit.wallet_id, type=TransactionType.FUNDING.value,
        kind=kind or MovementKind.DEPOSIT.value, chain=deposit.chain, from_address=deposit.payer, to_address=address,
        amount_units=units, currency=deposit.currency, tx_hash=deposit.tx_hash, cost_nanos=0, created_at=now,
        confirmed_at=now, checks=0,
    )  # fmt: skip
    lifecycle.record(session, transaction, status=MovementStatus.CONFIRMED)
    session.flush()
    session.add(FundingAllocation(deposit_id=deposit.id, transaction_id=transaction.id, units=units))
    session.flush()
