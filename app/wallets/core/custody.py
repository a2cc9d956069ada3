"""Custody of wallet keys: generated and opened by the vault, stored sealed, retired instead of deleted.

The key of a deleted wallet is purged only after every chain was read and holds nothing at its addresses.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.authenticated import seal_of
from app.core import clock
from app.core.chains import ChainName, Family, tokens
from app.core.identifiers import new_id, require
from app.core.pagination import Page, PageRequest
from app.db.prepared import PreparedRead
from app.db.tables import count, delete_rows, insert_into, table_of, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InternalError, NotFound
from app.ports.errors import Rejected
from app.ports.vault import NewWallet, SecretLocation, Signer, Vault
from app.state import app_state
from app.wallets.core.models import KeyStore, RetiredKey, Wallet, WalletKey

_log = structlog.get_logger(__name__)
_SINGLETON_ID = 1
_KEYS = table_of(WalletKey)
_SEAL = seal_of(Wallet)
_SEALED = PreparedRead(
    select(*_SEAL.columns, _KEYS.c.sealed)
    .select_from(_KEYS)
    .join(Wallet, Wallet.id == _KEYS.c.wallet_id)
    .where(_KEYS.c.wallet_id == bindparam("of_wallet"))
)


def new_key() -> NewWallet:
    """Generate a key, before the unit that stores it. Raises: InternalError, KeyServiceUnavailable."""
    return assert_network().create_wallet(key_location(new_id()))


def import_key(family: Family, key: bytes) -> NewWallet:
    """Import a key of the operator for a new wallet. Raises: ValueError, and what `new_key` does."""
    evm, solana = (key, None) if family is Family.EVM else (None, key)
    return assert_network().import_wallet(key_location(new_id()), evm=evm, solana=solana)


def import_phrase(phrase: str, info: str, key: str, import_id: str) -> NewWallet:
    """Derive the keys of a phrase that was sealed for an import. Raises: ValueError, and what `new_key` does."""
    return assert_network().import_phrase(key_location(new_id()), phrase, info, key, import_location(import_id))


def signer_of(wallet_id: str, addresses: Mapping[str, str] | None = None) -> Signer:
    """Open a wallet's key; if a signer process has it, no key is read for a wallet whose addresses are known.

    Raises: NotFound, RowChanged, KeyServiceUnavailable, and InternalError for wrong keys.
    """
    vault = assert_network()
    if addresses is not None and app_state().ports.signer is not None:
        pair = addresses[ChainName.ETHEREUM.value], addresses[ChainName.SOLANA.value]
        return vault.signer("", key_location(wallet_id), addresses=pair)
    row = _sealed_key(wallet_id)
    return vault.signer(row.sealed, key_location(wallet_id), addresses=(row.evm_address, row.solana_address))


def seal_phrase(wallet_id: str, recipient: str, info: str) -> str:
    """Seal a wallet's recovery phrase for its owner. Raises: what `signer_of` does; Rejected if it has none."""
    vault, row = assert_network(), _sealed_key(wallet_id)
    return vault.seal_phrase(row.sealed, key_location(wallet_id), recipient=recipient, info=info)


def _sealed_key(wallet_id: str) -> Any:
    with read_only_unit() as session:
        row = require(_SEALED.one_or_none(session, {"of_wallet": wallet_id}), NotFound())
        _SEAL.verify(session, row)
    return row


def assert_network() -> Vault:
    """Return the vault, unless the keys are another network's; a new database gets this one. Raises: InternalError."""
    state = app_state()
    network = state.settings.network.value
    if network in state.verified_networks:
        return state.ports.vault
    with unit_of_work() as session:
        stored = stored_network(session)
        if stored is None:
            session.execute(
                insert_into(session, KeyStore).values(id=_SINGLETON_ID, network=network).on_conflict_do_nothing()
            )
            stored = stored_network(session)
    if stored != network:
        _log.critical("key_store_network_mismatch", made_for=stored, asked_for=network)
        raise InternalError("This service is misconfigured: its keys belong to another network.")
    state.verified_networks.add(network)
    return state.ports.vault


def stored_network(session: Session) -> str | None:
    return session.scalar(select(KeyStore.network).where(KeyStore.id == _SINGLETON_ID))


def count_undecryptable(vault: Vault, sample: int) -> int:
    keys = select(WalletKey.wallet_id, WalletKey.sealed).join(Wallet, Wallet.id == WalletKey.wallet_id).limit(sample)
    orders = Wallet.created_at.asc(), Wallet.created_at.desc()
    with read_only_unit() as session:
        rows = [row for order in orders for row in session.execute(keys.order_by(order))]
    failed = 0
    for wallet_id, sealed in rows:
        try:
            vault.check(sealed, key_location(wallet_id))
        except Rejected:
            failed += 1
    return failed


def count_sealed_with(key_id: str) -> int:
    with read_only_unit() as session:
        return count(session, WalletKey, WalletKey.sealed.startswith(f"{key_id}.", autoescape=True))


def retire(session: Session, wallet: Wallet) -> None:
    sealed = session.scalar(select(WalletKey.sealed).where(WalletKey.wallet_id == wallet.id))
    if sealed is None:
        return
    state, now = app_state(), clock.now()
    moved = state.ports.vault.move(sealed, key_location(wallet.id), _retired_key_location(wallet.id))
    retention_period = timedelta(seconds=state.settings.retired_key_ttl_seconds)
    session.add(
        RetiredKey(
            wallet_id=wallet.id, agent_id=wallet.agent_id, evm_address=wallet.evm_address,
            solana_address=wallet.solana_address, sealed=moved, retired_at=now, purge_after=now + retention_period,
        )
    )  # fmt: skip
    delete_rows(session, WalletKey, WalletKey.wallet_id == wallet.id)


def count_retired(session: Session, agent_id: str, *, within: timedelta) -> int:
    since = clock.now() - within
    retention_period = timedelta(seconds=app_state().settings.retired_key_ttl_seconds)
    # The last condition is implied by the one before; it uses the index.
    return count(
        session, RetiredKey, RetiredKey.agent_id == agent_id, RetiredKey.retired_at > since,
        RetiredKey.purge_after > since + retention_period,
    )  # fmt: skip


def key_location(wallet_id: str) -> SecretLocation:
    return SecretLocation("wallet_keys", "sealed", wallet_id)


def import_location(import_id: str) -> SecretLocation:
    return SecretLocation("key_transfers", "key_sealed", import_id)


def _retired_key_location(wallet_id: str) -> SecretLocation:
    return SecretLocation("retired_keys", "sealed", wallet_id)


def list_retired(session: Session, page: PageRequest) -> Page[RetiredKey]:
    listed = select(RetiredKey).order_by(RetiredKey.retired_at, RetiredKey.wallet_id)
    rows = session.scalars(listed.limit(page.limit).offset(page.offset)).all()
    return Page(rows, count(session, RetiredKey), page)


def due_for_purge(session: Session, now: datetime, *, limit: int) -> Sequence[RetiredKey]:
    """Return keys that are due for purging, the longest due first."""
    due = select(RetiredKey).where(RetiredKey.purge_after <= now)
    return session.scalars(due.order_by(RetiredKey.purge_after).limit(limit)).all()


def export_retired(wallet_id: str) -> tuple[RetiredKey, str]:
    """Return a retired key and its recovery phrase; show that only to the operator. Raises: NotFound."""
    with read_only_unit() as session:
        missing = "No retired key of this wallet exists: the wallet was never deleted, or its key was purged."
        retired = require(session.get(RetiredKey, wallet_id), NotFound(missing))
    return retired, app_state().ports.vault.recovery_phrase(retired.sealed, _retired_key_location(wallet_id))


def remaining_balances(retired: RetiredKey) -> list[str]:
    """Return balances such as `0.5 ETH on base`; outside of any unit. Raises: PortError if a chain cannot be read."""
    non_zero = []
    for name, chain in app_state().ports.chains.items():
        balances = chain.balances(retired.solana_address if name.family is Family.SOLANA else retired.evm_address)
        balances_by_token = (balances.of(token) for token in tokens(name))
        non_zero += [f"{amount} {amount.token.symbol} on {name.value}" for amount in balances_by_token if amount.units]
    return non_zero


def postpone(session: Session, retired: RetiredKey, *, until: datetime, empty_since: datetime | None) -> None:
    """Postpone the purge of a key, recording since when it is empty, unless its row has changed."""
    is_unchanged = RetiredKey.wallet_id == retired.wallet_id, RetiredKey.purge_after == retired.purge_after
    update_rows(session, RetiredKey, *is_unchanged, purge_after=until, empty_since=empty_since)


def purge(session: Session, retired: RetiredKey) -> bool:
    """Delete a key permanently; return whether this call did it."""
    is_unchanged = RetiredKey.wallet_id == retired.wallet_id, RetiredKey.purge_after == retired.purge_after
    return delete_rows(session, RetiredKey, *is_unchanged) > 0
