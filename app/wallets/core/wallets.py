"""Wallets: creation, listing, reading and deletion."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.authenticated import seal_of
from app.core import clock, identifiers
from app.core.chains import AddressError, ChainName, parse_any_address
from app.core.pagination import Page, PageRequest
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.tables import count, page_of, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import LimitReached, NotFound, ServiceError, TransactionInProgress
from app.events import outbox
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.identity import service as identity
from app.identity.service import AgentSnapshot
from app.ports.vault import NewWallet
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending.policy import DEFAULT, ApprovedPayment, Controls
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import OWNED_BY_TRANSACTION, OWNED_BY_WALLET, RetiredKey, Transaction, Wallet, WalletKey

MAX_WALLETS_PER_AGENT = 100
MAX_DELETED_PER_DAY = 200
_ACTIVITY_PRECISION = timedelta(days=1)
_TABLE, _SEAL = table_of(Wallet), seal_of(Wallet)
_INSERT, _INSERT_KEY = PreparedInsert(Wallet), PreparedInsert(WalletKey)
_IS_OWNED = (_TABLE.c.id == bindparam("wallet_id")) & (_TABLE.c.agent_id == bindparam("owner_id"))
# Most requests of a wallet need its limits, too, and the others hardly notice them.
_OWNED = PreparedRead(spending_controls.with_status(_TABLE, _TABLE.c.id, _IS_OWNED))
_FIRST = PreparedRead(
    select(_TABLE).where(_TABLE.c.agent_id == bindparam("owner_id")).order_by(_TABLE.c.created_at, _TABLE.c.id).limit(1)
)


@dataclass(frozen=True, slots=True)
class WalletView:
    id: str
    agent_id: str
    name: str
    addresses: Mapping[str, str]
    transaction_count: int
    created_at: datetime
    exported_at: datetime | None = None
    spending_controls: Controls | None = None
    # What its owner approved, while that is executed.
    approved: ApprovedPayment | None = None
    # Its row of `spending.controls.read_status`, or what `status_of` returns, if it was read with the wallet.
    spending_status: Any = field(default=None, repr=False, compare=False)

    def address_on(self, chain: ChainName) -> str:
        return self.addresses[chain.value]


def create(
    session: Session,
    agent_id: str,
    key: NewWallet,
    *,
    name: str | None,
    controls: Controls | None = None,
    frozen: bool = False,
    scanned: bool = True,
    imported: bool = False,
) -> WalletView:
    """Store a wallet; the wallet of a `frozen` agent is frozen. Deposits are looked for if it is `scanned`.

    An `imported` one may have been used before, and others may have its keys.

    The first wallet of an agent has `controls`. Another one, of an agent with locked controls, inherits those of the
    oldest wallet that has them.
    """
    sibling_names: dict[str, str] = {}
    if controls is None:
        siblings = _of_agent(agent_id).with_only_columns(Wallet.id, Wallet.name)
        sibling_names = {row.id: row.name for row in session.execute(siblings)}
    default_names = (f"wallet-{number}" for number in itertools.count(len(sibling_names) + 1))
    now = clock.now()
    row = {
        "id": key.wallet_id, "agent_id": agent_id,
        "name": name or next(each for each in default_names if each not in sibling_names.values()),
        "evm_address": key.evm_address, "solana_address": key.solana_address, "transaction_count": 0,
        "created_at": now, "active_at": now if scanned else None,
        "new_to_scans": scanned and not imported, "exported_at": now if imported else None,
    }  # fmt: skip
    row = Wallet.stamp(row)
    _INSERT.execute(session, row)
    _INSERT_KEY.execute(session, {"wallet_id": key.wallet_id, "sealed": key.sealed})
    has_controls = controls is not None
    spending_accounts.open_account(session, key.wallet_id, agent_id, frozen=frozen, controls_version=int(has_controls))
    view = _view(session, Wallet(**row), {})
    if controls is not None:
        return replace(view, spending_controls=spending_controls.insert_new(session, view.id, controls))
    found = spending_controls.controls_of(session, list(sibling_names))
    # The oldest: a later one may have been locked while unlimited.
    locked = next((other for other in sibling_names if other in found and found[other].locked), None)
    if locked is not None:
        return replace(view, spending_controls=spending_controls.inherit(session, view.id, locked))
    if imported:  # it may hold money already
        spending_accounts.advance_controls_version(session, [view.id])
        return replace(view, spending_controls=spending_controls.insert_new(session, view.id, DEFAULT))
    return view


def create_for_agent(agent_id: str, *, name: str | None, claim: Claim) -> WalletView:
    """Create another wallet for an agent. Raises: LimitReached."""
    key = custody.new_key()
    with unit_of_work() as session:
        view = add(session, agent_id, key, name=name)
        claim.bind(session, view.id)
        return view


def add(session: Session, agent_id: str, key: NewWallet, *, name: str | None, imported: bool = False) -> WalletView:
    """Add a wallet to an agent, which is locked. Raises: LimitReached, NotFound."""
    # The lock on the agent's row serialises counting and naming its wallets, and freezing it.
    agent = identity.lock_agent(session, agent_id)
    if count(session, Wallet, Wallet.agent_id == agent_id) >= MAX_WALLETS_PER_AGENT:
        raise LimitReached(f"An agent can have at most {MAX_WALLETS_PER_AGENT} wallets; delete one first.")
    # The key of each deleted wallet is kept, and its addresses are read on every chain before it is purged.
    if custody.count_retired(session, agent_id, within=timedelta(days=1)) >= MAX_DELETED_PER_DAY:
        raise LimitReached(f"This agent deleted {MAX_DELETED_PER_DAY} wallets within 24 hours; create new ones later.")
    return create(session, agent_id, key, name=name, frozen=agent.is_frozen, imported=imported)


def get_owned(wallet_id: str, *, agent_id: str | None) -> WalletView:
    """Return a wallet of an agent. Raises: NotFound, including for malformed ids and those of other agents."""
    missing = spending_accounts.wallet_not_found()
    identifiers.require_id(wallet_id, missing)
    with read_only_unit() as session:
        of_agent = {"wallet_id": wallet_id, "owner_id": identifiers.require(agent_id, missing)}
        row = identifiers.require(_OWNED.one_or_none(session, of_agent), missing)
        view = replace(_view(session, row, {}), spending_status=row)
    if row.active_at is not None and row.active_at < clock.now() - _ACTIVITY_PRECISION:
        with unit_of_work() as session:
            session.execute(update(_TABLE).where(_TABLE.c.id == wallet_id).values(active_at=clock.now()))
    return view


def with_controls(wallet: WalletView) -> WalletView:
    return replace(wallet, spending_controls=spending_controls.controls_from_row(wallet.spending_status))


def get_with_controls(wallet_id: str) -> WalletView:
    """Return a wallet with its controls. Raises: NotFound."""
    with read_only_unit() as session:
        wallet = identifiers.require(session.get(Wallet, wallet_id), spending_accounts.wallet_not_found())
        return _view(session, wallet, spending_controls.controls_of(session, [wallet_id]))


def first_wallet(session: Session, agent_id: str) -> WalletView:
    """Return an agent's first wallet. Raises: NotFound if it has none."""
    row = identifiers.require(
        _FIRST.one_or_none(session, {"owner_id": agent_id}), NotFound("This agent has no wallet.")
    )
    return replace(_view(session, row, {}), spending_controls=spending_controls.find_controls(session, row.id))


def agent_with_address(session: Session, address: str) -> str | None:
    """Return the agent with a wallet at an address, deleted ones included, or None."""
    found = (session.scalar(select(of.agent_id).where(_is_at(of, address))) for of in (Wallet, RetiredKey))
    return next(filter(None, found), None)


def agent_and_addresses(session: Session, wallet_id: str) -> Sequence[str]:
    """Return the agent of a wallet that exists, followed by its addresses."""
    columns = Wallet.agent_id, Wallet.evm_address, Wallet.solana_address
    return tuple(session.execute(select(*columns).where(Wallet.id == wallet_id)).one())


def find_by_address(session: Session, address: str, *, agent_id: str) -> WalletView | None:
    wallet = session.scalar(select(Wallet).where(_is_at(Wallet, address), Wallet.agent_id == agent_id))
    return None if wallet is None else _view(session, wallet, {})


def list_of(agent_id: str | None, page: PageRequest, *, only: str | None = None) -> Page[WalletView]:
    """Return an agent's wallets, oldest first, or `only` one of them; a gateway-only key has none."""
    if agent_id is None:
        return Page((), 0, page)
    with read_only_unit() as session:
        found = page_of(session, Wallet, page, Wallet.agent_id == agent_id, id=only)
        controls = spending_controls.controls_of(session, [wallet.id for wallet in found.items])
        return Page([_view(session, wallet, controls) for wallet in found.items], found.total, found.request)


def first_wallets(session: Session, agent_ids: Sequence[str]) -> dict[str, WalletView]:
    """Return the first wallet of each agent that has one, without controls; one query."""
    place = func.row_number().over(partition_by=Wallet.agent_id, order_by=(Wallet.created_at, Wallet.id)).label("place")
    ranked = select(Wallet.id, place).where(Wallet.agent_id.in_(agent_ids)).subquery()
    firsts = select(Wallet).join(ranked, ranked.c.id == Wallet.id).where(ranked.c.place == 1)
    return {wallet.agent_id: _view(session, wallet, {}) for wallet in session.scalars(firsts)}


def agents_with(session: Session, named: str) -> Sequence[str]:
    """Return the agent of the wallet with this id or address, if there is one."""
    try:
        is_named = Wallet.id == named if identifiers.parse_id(named) else _is_at(Wallet, parse_any_address(named)[1])
    except AddressError:
        return []
    return session.scalars(select(Wallet.agent_id).where(is_named)).all()


def all_of(session: Session, agent_id: str) -> list[WalletView]:
    """Return every wallet of an agent with its controls, oldest first; two queries."""
    wallets = session.scalars(_of_agent(agent_id)).all()
    controls = spending_controls.controls_of(session, [wallet.id for wallet in wallets])
    return [_view(session, wallet, controls) for wallet in wallets]


def set_frozen(session: Session, agent_id: str, *, frozen: bool) -> AgentSnapshot:
    """Freeze or unfreeze an agent with all its wallets; return its previous state.

    Pending transactions are completed; nothing new is held or deleted. The agent is locked first, so that a wallet that
    is created concurrently is also frozen.

    Raises: NotFound.
    """
    before = identity.set_frozen(session, agent_id, frozen=frozen)
    spending_accounts.set_frozen(session, agent_id, frozen=frozen)
    if before.is_frozen is not frozen:
        outbox.record(
            session, EventType.WALLET_FROZEN if frozen else EventType.WALLET_UNFROZEN, agent_id=agent_id,
            object_id=agent_id, data={"agent_id": agent_id, "frozen": frozen},
        )  # fmt: skip
    return before


def delete_wallet(wallet_id: str, *, agent_id: str, refusal: ServiceError | None = None) -> None:
    """Delete a wallet with its transactions and controls; the sealed key is retired.

    Raises: NotFound, TransactionInProgress, ControlsLocked, WalletFrozen; else the `refusal`, if there is one.
    """
    with unit_of_work() as session:
        spending_controls.assert_deletable(session, wallet_id)
        wallet = session.get(Wallet, wallet_id)
        if wallet is None or wallet.agent_id != agent_id:
            raise spending_accounts.wallet_not_found()
        _assert_nothing_pending(session, wallet)
        if refusal is not None:
            raise refusal
        _delete_wallet_rows(session, wallet)


def delete_all(session: Session, agent_id: str) -> list[str]:
    """Delete all wallets of a locked agent, even those with locked controls, or none; return their ids.

    Raises: TransactionInProgress, WalletFrozen.
    """
    # Accounts first and in the order of their ids, as in every unit that locks several.
    for wallet_id in spending_accounts.lock_accounts_of(session, [agent_id]):
        spending_controls.assert_deletable(session, wallet_id, by_agent=False)
    wallets = session.scalars(select(Wallet).where(Wallet.agent_id == agent_id).order_by(Wallet.id)).all()
    for wallet in wallets:
        _assert_nothing_pending(session, wallet)
        _delete_wallet_rows(session, wallet)
    return [wallet.id for wallet in wallets]


def _assert_nothing_pending(session: Session, wallet: Wallet) -> None:
    """Refuse the deletion of a wallet that is in use. Raises: TransactionInProgress, or what a guard returns."""
    in_flight = session.scalar(
        select(Transaction.id)
        .filter_by(wallet_id=wallet.id, status=MovementStatus.PENDING.value)
        .where(Transaction.type != TransactionType.FUNDING.value)
        # Prefer a movement to its legs, which have no id in the API.
        .order_by(Transaction.leg.is_not(None))
        .limit(1)
    )
    if in_flight is not None:
        raise TransactionInProgress(
            "A transaction of this wallet is still pending; delete the wallet once it has ended.",
            details={"transaction_id": in_flight},
        )
    for guard in app_state().wallet_deletion_guards:
        refusal = guard(session, wallet.id)
        if refusal is not None:
            raise refusal


def _delete_wallet_rows(session: Session, wallet: Wallet) -> None:
    """Delete a wallet after its account was locked."""
    custody.retire(session, wallet)
    transaction_ids = select(Transaction.id).where(Transaction.wallet_id == wallet.id)
    for table in OWNED_BY_TRANSACTION:
        session.execute(delete(table).where(table.transaction_id.in_(transaction_ids)))
    for owned_table in OWNED_BY_WALLET:
        session.execute(delete(owned_table).where(owned_table.wallet_id == wallet.id))
    spending_controls.close_account(session, wallet.id)
    session.execute(delete(Wallet).where(Wallet.id == wallet.id))
    for listener in app_state().wallet_deletion_listeners:
        listener(session, wallet.id)


def _is_at(table: type[Wallet | RetiredKey], address: str) -> ColumnElement[bool]:
    return or_(table.evm_address == address, table.solana_address == address)


def _of_agent(agent_id: str) -> Select[Wallet]:
    return select(Wallet).where(Wallet.agent_id == agent_id).order_by(Wallet.created_at, Wallet.id)


def _view(session: Session, wallet: Wallet | Row[*tuple[Any, ...]], controls: Mapping[str, Controls]) -> WalletView:
    _SEAL.verify(session, wallet)
    addresses = {
        ChainName.ETHEREUM.value: wallet.evm_address, ChainName.BASE.value: wallet.evm_address,
        ChainName.SOLANA.value: wallet.solana_address,
    }  # fmt: skip
    return WalletView(
        id=wallet.id, agent_id=wallet.agent_id, name=wallet.name, addresses=addresses, created_at=wallet.created_at,
        transaction_count=wallet.transaction_count, exported_at=wallet.exported_at,
        spending_controls=controls.get(wallet.id),
    )  # fmt: skip
