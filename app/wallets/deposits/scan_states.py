"""The scan states of wallets: from which block on what arrives at a wallet is a deposit."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ColumnElement, and_, literal, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.db.tables import insert_into, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.chain import BlockRef, Chain, Terms
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import DepositCursor, DepositScanState, Transaction, Wallet

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
