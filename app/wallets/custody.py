"""Custody of wallet keys: made and opened by the vault, stored sealed, retired rather than lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import structlog
from flask import current_app
from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.errors import InternalError, NotFound
from app.extensions import db
from app.ports import provider
from app.ports.errors import Rejected
from app.ports.vault import Place, Signer
from app.wallets.models import KeyStore, RetiredKey, Wallet, WalletKey

_log = structlog.get_logger(__name__)
_THE_ONE = 1


@dataclass(frozen=True, slots=True)
class NewWalletKey:
    """A key that was made for a wallet to be: its id, its addresses and the sealed entropy."""

    wallet_id: str
    evm_address: str
    solana_address: str
    sealed: str


def new_key() -> NewWalletKey:
    """Make a key. Costs a few milliseconds of CPU, so it is called before the unit that stores it.

    Raises: InternalError when this database's keys belong to another network.
    """
    assert_network()
    wallet_id = new_id()
    made = provider.current().vault.new_wallet(place(wallet_id))
    return NewWalletKey(wallet_id, made.evm_address, made.solana_address, made.sealed)


def adopted_key(*, evm: bytes | None, solana: bytes | None) -> NewWalletKey:
    """Take keys that the operator brings for a wallet to be. Raises: ValueError, InternalError like `new_key`."""
    assert_network()
    wallet_id = new_id()
    made = provider.current().vault.adopted_wallet(place(wallet_id), evm=evm, solana=solana)
    return NewWalletKey(wallet_id, made.evm_address, made.solana_address, made.sealed)


def signer_of(wallet_id: str) -> Signer:
    """Open a wallet's key for signing. Raises: NotFound, InternalError on another network's key store."""
    assert_network()
    with reading() as session:
        sealed = session.scalar(select(WalletKey.sealed).where(WalletKey.wallet_id == wallet_id))
    if sealed is None:
        raise NotFound
    return provider.current().vault.signer(sealed, place(wallet_id))


def assert_network() -> None:
    """Refuse to use keys that were made for another network: what they sign would be valid there.

    The first caller on a new database claims it; an application asks only until it knows.

    Raises: InternalError.
    """
    extensions, network = current_app.extensions, provider.settings().network.value
    if extensions.get("key_store_network") == network:
        return
    with unit_of_work() as session:
        claimed = session.scalar(select(KeyStore.network).where(KeyStore.id == _THE_ONE))
        if claimed is None:
            insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
            session.execute(insert(KeyStore).values(id=_THE_ONE, network=network).on_conflict_do_nothing())
            claimed = session.scalar(select(KeyStore.network).where(KeyStore.id == _THE_ONE))
    if claimed != network:
        _log.critical("key_store_of_another_network", made_for=claimed, asked_for=network)
        raise InternalError("This service is set up wrongly: its keys belong to another network.")
    extensions["key_store_network"] = network


def keys_of_another_network() -> str | None:
    """Return the network whose keys this database holds, when it is not ours, in the current unit. Claims nothing."""
    claimed = db.session.scalar(select(KeyStore.network).where(KeyStore.id == _THE_ONE))
    return claimed if claimed not in (None, provider.settings().network.value) else None


def unopened(sample: int) -> int:
    """Return how many of the newest and oldest keys do not open, in the current unit; at most twice the sample."""
    vault, failed = provider.current().vault, 0
    for order in (Wallet.created_at.asc(), Wallet.created_at.desc()):
        rows = db.session.execute(
            select(WalletKey.wallet_id, WalletKey.sealed)
            .join(Wallet, Wallet.id == WalletKey.wallet_id)
            .order_by(order)
            .limit(sample)
        )
        for wallet_id, sealed in rows:
            try:
                vault.open(sealed, place(wallet_id))
            except Rejected:
                failed += 1
    return failed


def retire(wallet: Wallet) -> None:
    """Move a wallet's key to the retired ones, in the current unit."""
    session = db.session
    sealed = session.scalar(select(WalletKey.sealed).where(WalletKey.wallet_id == wallet.id))
    if sealed is None:
        return
    vault, now = provider.current().vault, clock.now()
    resealed = vault.seal(vault.open(sealed, place(wallet.id)), retired_place(wallet.id))
    kept = timedelta(seconds=provider.settings().retired_key_ttl_seconds)
    session.add(
        RetiredKey(
            wallet_id=wallet.id, agent_id=wallet.agent_id, evm_address=wallet.evm_address,
            solana_address=wallet.solana_address, sealed=resealed, retired_at=now, purge_after=now + kept,
        )
    )  # fmt: skip
    session.execute(delete(WalletKey).where(WalletKey.wallet_id == wallet.id))


def place(wallet_id: str) -> Place:
    """Return where a live wallet's key is sealed to."""
    return Place("wallet_keys", "sealed", wallet_id)


def retired_place(wallet_id: str) -> Place:
    """Return where a deleted wallet's key is sealed to."""
    return Place("retired_keys", "sealed", wallet_id)
