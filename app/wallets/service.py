"""The life of a wallet: made, listed, read, deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from flask import current_app
from sqlalchemy import Row, Select, bindparam, delete, func, or_, select

from app.core import clock, identifiers
from app.core.chains import ChainName
from app.core.pagination import Page, PageRequest
from app.core.tables import table_of
from app.core.unit_of_work import reading, unit_of_work
from app.errors import LimitReached, NotFound, TransactionInProgress
from app.extensions import db
from app.identity import service as identity
from app.spending import service as spending
from app.wallets import custody
from app.wallets.custody import NewWalletKey
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import (
    Bridge,
    DepositMark,
    FundingAllocation,
    FundingDeposit,
    RetiredKey,
    SignedAttempt,
    Transaction,
    TransactionEvent,
    Wallet,
    WalletKey,
)
from app.web import idempotency

MAX_WALLETS_PER_AGENT = 100
_TOLD_OF_REMOVALS = "told_of_wallet_removals"
_KEPT_WHILE = "wallets_kept_while"
_TABLE = table_of(Wallet)
_OWNED = select(_TABLE).where(
    _TABLE.c.id == bindparam("wallet_id"), _TABLE.c.agent_id == bindparam("owner_id")
)

new_wallet = custody.new_key


@dataclass(frozen=True, slots=True)
class WalletView:
    """A wallet as its owner sees it."""

    id: str
    agent_id: str
    name: str
    addresses: Mapping[str, str]
    transaction_count: int
    created_at: datetime
    spending_controls: spending.ControlsView | None = None

    def address_on(self, chain: ChainName) -> str:
        """Return the wallet's address on a chain."""
        return self.addresses[chain.value]


def create(
    agent_id: str,
    key: NewWalletKey,
    *,
    name: str | None,
    controls: Literal["default", "none"] = "none",
    frozen: bool = False,
) -> WalletView:
    """Store a wallet whose key was made before, in the current unit; that of a `frozen` agent is born frozen.

    A further wallet of an agent whose controls are locked inherits them: those of the first wallet that has such.
    """
    session = db.session
    wallet = Wallet(
        id=key.wallet_id, agent_id=agent_id, name=name or "", evm_address=key.evm_address,
        solana_address=key.solana_address, transaction_count=0, created_at=clock.now(),
    )  # fmt: skip
    others = {} if controls == "default" else _names_by_id(agent_id)
    wallet.name = name or _free_name(others.values())
    session.add_all([wallet, WalletKey(wallet_id=key.wallet_id, sealed=key.sealed)])
    session.flush()
    spending.open_account(wallet.id, agent_id, frozen=frozen)
    if controls == "default":
        spending.set_default(wallet.id)
    found = spending.controls_of(list(others))
    locked = [other for other in others if other in found and found[other].locked]
    if locked:
        # A later one may have been made without any, and be locked as it was: unlimited.
        spending.inherit(wallet.id, locked[0])
    return _view(wallet, spending.controls_of([wallet.id]))


def add(agent_id: str, *, name: str | None) -> WalletView:
    """Make a further wallet for an agent. Raises: LimitReached."""
    key = new_wallet()
    with unit_of_work():
        # The agent's row is the lock under which its wallets are counted and named, and under which it is frozen.
        agent = identity.lock_agent(agent_id)
        count = (
            db.session.scalar(select(func.count()).select_from(Wallet).where(Wallet.agent_id == agent_id))
            or 0
        )
        if count >= MAX_WALLETS_PER_AGENT:
            raise LimitReached(f"An agent has at most {MAX_WALLETS_PER_AGENT} wallets; delete one first.")
        view = create(agent_id, key, name=name, frozen=agent.is_frozen)
        idempotency.bind(view.id)
        return view


def owned(wallet_id: str, *, agent_id: str | None) -> WalletView:
    """Return a wallet of the caller's. Raises: NotFound for malformed, unknown and foreign ids alike."""
    canonical = identifiers.parse_id(wallet_id)
    if canonical is not None and agent_id is not None:
        with reading() as session:
            row = session.execute(_OWNED, {"wallet_id": canonical, "owner_id": agent_id}).one_or_none()
        if row is not None:
            return _view(row, {})
    raise NotFound("This key has no such wallet.")


def with_controls(wallet: WalletView) -> WalletView:
    """Return a wallet that was just read together with its controls; one query."""
    with reading():
        return replace(wallet, spending_controls=spending.controls_of([wallet.id]).get(wallet.id))


def detail(wallet_id: str) -> WalletView:
    """Return a wallet with its controls. Raises: NotFound."""
    with reading() as session:
        wallet = session.get(Wallet, wallet_id)
        if wallet is None:
            raise NotFound("This key has no such wallet.")
        return _view(wallet, spending.controls_of([wallet_id]))


def first_of(agent_id: str) -> WalletView:
    """Return an agent's first wallet, in the current unit. Raises: NotFound when all were deleted."""
    wallet = db.session.scalar(_of_agent(agent_id).limit(1))
    if wallet is None:
        raise NotFound("This agent has no wallet.")
    return _view(wallet, spending.controls_of([wallet.id]))


def holder_of(address: str) -> str | None:
    """Return the agent whose wallet has an address, a deleted one too; None for a stranger's. In a reading unit."""
    for table in (Wallet, RetiredKey):
        agent_id: str | None = db.session.scalar(
            select(table.agent_id).where(or_(table.evm_address == address, table.solana_address == address))
        )
        if agent_id is not None:
            return agent_id
    return None


def with_address(address: str, *, agent_id: str) -> WalletView | None:
    """Return the wallet of an agent that has an address, if there is one. In a reading unit."""
    wallet = db.session.scalar(
        select(Wallet).where(
            or_(Wallet.evm_address == address, Wallet.solana_address == address), Wallet.agent_id == agent_id
        )
    )
    return None if wallet is None else _view(wallet, {})


def list_of(agent_id: str | None, page: PageRequest) -> Page[WalletView]:
    """Return an agent's wallets, oldest first; a gateway-only key has none."""
    if agent_id is None:
        return Page((), 0, page)
    with reading() as session:
        total = (
            session.scalar(select(func.count()).select_from(Wallet).where(Wallet.agent_id == agent_id)) or 0
        )
        wallets = session.scalars(_of_agent(agent_id).limit(page.limit).offset(page.offset)).all()
        controls = spending.controls_of([wallet.id for wallet in wallets])
        return Page([_view(wallet, controls) for wallet in wallets], total, page)


def firsts_of(agent_ids: Sequence[str]) -> dict[str, WalletView]:
    """Return the first wallet of each agent that has one, without controls; one query. In a reading unit."""
    place = (
        func.row_number()
        .over(partition_by=Wallet.agent_id, order_by=(Wallet.created_at, Wallet.id))
        .label("place")
    )
    ranked = select(Wallet.id, place).where(Wallet.agent_id.in_(agent_ids)).subquery()
    firsts = select(Wallet).join(ranked, ranked.c.id == Wallet.id).where(ranked.c.place == 1)
    return {wallet.agent_id: _view(wallet, {}) for wallet in db.session.scalars(firsts)}


def all_of(agent_id: str) -> list[WalletView]:
    """Return every wallet of an agent with its controls, the oldest first; two queries. In a reading unit."""
    wallets = db.session.scalars(_of_agent(agent_id)).all()
    controls = spending.controls_of([wallet.id for wallet in wallets])
    return [_view(wallet, controls) for wallet in wallets]


def on_removal(listener: Callable[[str], None]) -> None:
    """Have the running application call this with the id of each wallet that is deleted, inside that unit.

    For higher rooms with rows that hang on a wallet; the factory introduces them.
    """
    current_app.extensions.setdefault(_TOLD_OF_REMOVALS, []).append(listener)


def keep_while(open_work: Callable[[str], TransactionInProgress | None]) -> None:
    """Let a room above refuse a wallet's deletion: it says what is still open, in the current unit."""
    current_app.extensions.setdefault(_KEPT_WHILE, []).append(open_work)


def remove(wallet_id: str, *, agent_id: str) -> None:
    """Delete a wallet with its transactions and controls; the sealed key alone is retired, not lost.

    Raises: NotFound, TransactionInProgress, ControlsLocked, WalletFrozen.
    """
    with unit_of_work() as session:
        spending.assert_deletable(wallet_id)
        wallet = session.get(Wallet, wallet_id)
        if wallet is None or wallet.agent_id != agent_id:
            raise NotFound("This key has no such wallet.")
        _remove(wallet)


def remove_all(agent_id: str) -> list[str]:
    """Delete all wallets of a locked agent, locked controls or not, or none; return their ids. In the current unit.

    Raises: TransactionInProgress, WalletFrozen.
    """
    # Accounts first and in order, like everybody who takes several.
    for wallet_id in spending.lock_accounts_of([agent_id]):
        spending.assert_deletable(wallet_id, by_agent=False)
    wallets = db.session.scalars(select(Wallet).where(Wallet.agent_id == agent_id).order_by(Wallet.id)).all()
    for wallet in wallets:
        _remove(wallet)
    return [wallet.id for wallet in wallets]


def _remove(wallet: Wallet) -> None:
    """Delete a wallet whose account is locked. Raises: TransactionInProgress."""
    session = db.session
    in_flight = session.scalar(
        select(Transaction.id)
        .where(
            Transaction.wallet_id == wallet.id,
            Transaction.type != TransactionType.FUNDING.value,
            Transaction.status == Status.PENDING.value,
        )
        # A bridge itself rather than one of its legs, of which the caller knows no id.
        .order_by(Transaction.bridge_id.is_not(None))
        .limit(1)
    )
    if in_flight is not None:
        raise TransactionInProgress(
            "A movement of this wallet is still in flight; delete it once that has ended.",
            details={"transaction_id": in_flight},
        )
    for open_work in current_app.extensions.get(_KEPT_WHILE, ()):
        refusal = open_work(wallet.id)
        if refusal is not None:
            raise refusal
    custody.retire(wallet)
    mine = select(Transaction.id).where(Transaction.wallet_id == wallet.id)
    for table in (TransactionEvent, SignedAttempt, FundingAllocation):
        session.execute(delete(table).where(table.transaction_id.in_(mine)))
    for owned_table in (Transaction, Bridge, FundingDeposit, DepositMark):
        session.execute(delete(owned_table).where(owned_table.wallet_id == wallet.id))
    spending.close_account(wallet.id)
    for listener in current_app.extensions.get(_TOLD_OF_REMOVALS, ()):
        listener(wallet.id)
    session.execute(delete(Wallet).where(Wallet.id == wallet.id))


def _names_by_id(agent_id: str) -> dict[str, str]:
    """Return an agent's wallets, the oldest first."""
    rows = db.session.execute(
        select(Wallet.id, Wallet.name)
        .where(Wallet.agent_id == agent_id)
        .order_by(Wallet.created_at, Wallet.id)
    )
    return {row.id: row.name for row in rows}


def _free_name(taken: Collection[str]) -> str:
    number = len(taken) + 1
    while f"wallet-{number}" in taken:
        number += 1
    return f"wallet-{number}"


def _of_agent(agent_id: str) -> Select[Wallet]:
    return select(Wallet).where(Wallet.agent_id == agent_id).order_by(Wallet.created_at, Wallet.id)


def _view(
    wallet: Wallet | Row[*tuple[Any, ...]], controls: Mapping[str, spending.ControlsView]
) -> WalletView:
    return WalletView(
        id=wallet.id,
        agent_id=wallet.agent_id,
        name=wallet.name,
        addresses={
            ChainName.ETHEREUM.value: wallet.evm_address,
            ChainName.BASE.value: wallet.evm_address,
            ChainName.SOLANA.value: wallet.solana_address,
        },
        transaction_count=wallet.transaction_count,
        created_at=wallet.created_at,
        spending_controls=controls.get(wallet.id),
    )
