"""Keys of deleted wallets: listed, opened for a rescue, purged once nothing is left to rescue.

A key is purged only when every chain was read and has nothing at its addresses. Verbs that write run in the caller's
unit; `holdings` asks the chains and so runs outside of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, func, select, update

from app.core.chains import ChainName, Family, tokens
from app.core.pagination import Page, PageRequest
from app.errors import NotFound
from app.extensions import db
from app.ports import provider
from app.wallets import custody
from app.wallets.models import RetiredKey


@dataclass(frozen=True, slots=True)
class RetiredWallet:
    """A deleted wallet whose sealed key is still kept."""

    wallet_id: str
    agent_id: str
    evm_address: str
    solana_address: str
    retired_at: datetime
    purge_after: datetime
    empty_since: datetime | None

    def address_on(self, chain: ChainName) -> str:
        """Return the wallet's address on a chain."""
        return self.solana_address if chain.family is Family.SOLANA else self.evm_address


_COLUMNS = (
    RetiredKey.wallet_id,
    RetiredKey.agent_id,
    RetiredKey.evm_address,
    RetiredKey.solana_address,
    RetiredKey.retired_at,
    RetiredKey.purge_after,
    RetiredKey.empty_since,
)


def page_of_retired(page: PageRequest) -> Page[RetiredWallet]:
    """Return a page of what is kept, what was retired first at the top. Works in a reading unit."""
    total = db.session.scalar(select(func.count()).select_from(RetiredKey)) or 0
    rows = db.session.execute(
        select(*_COLUMNS)
        .order_by(RetiredKey.retired_at, RetiredKey.wallet_id)
        .limit(page.limit)
        .offset(page.offset)
    )
    return Page([RetiredWallet(*row) for row in rows], total, page)


def due(now: datetime, *, limit: int) -> Sequence[RetiredWallet]:
    """Return keys that are to be purged, the longest due first. Works in a reading unit."""
    rows = db.session.execute(
        select(*_COLUMNS).where(RetiredKey.purge_after <= now).order_by(RetiredKey.purge_after).limit(limit)
    )
    return [RetiredWallet(*row) for row in rows]


def one(wallet_id: str) -> RetiredWallet:
    """Return one kept key. Works in a reading unit. Raises: NotFound."""
    row = db.session.execute(select(*_COLUMNS).where(RetiredKey.wallet_id == wallet_id)).one_or_none()
    if row is None:
        raise _not_kept()
    return RetiredWallet(*row)


def holdings(wallet: RetiredWallet) -> list[str]:
    """Return what the chains have at the wallet's addresses, such as `0.5 ETH on base`; outside of any unit.

    Raises: Unreachable, OutcomeUnknown, Rejected when a chain cannot be read: then nothing is known.
    """
    found = []
    for name, chain in provider.current().chains.items():
        balances = chain.balances(wallet.address_on(name))
        held = (balances.of(token) for token in tokens(name))
        found += [f"{amount} {amount.token.symbol} on {name.value}" for amount in held if amount.units]
    return found


def recovery_phrase(wallet_id: str) -> str:
    """Open a kept key and return its words. Nobody but the person who asked may see them. Raises: NotFound."""
    sealed = db.session.scalar(select(RetiredKey.sealed).where(RetiredKey.wallet_id == wallet_id))
    if sealed is None:
        raise _not_kept()
    return provider.current().vault.recovery_phrase(sealed, custody.retired_place(wallet_id))


def postpone(wallet: RetiredWallet, *, until: datetime, empty_since: datetime | None) -> bool:
    """Keep a key longer, noting since when it was found empty; tell whether it still was as read."""
    moved = db.session.execute(
        update(RetiredKey)
        .where(RetiredKey.wallet_id == wallet.wallet_id, RetiredKey.purge_after == wallet.purge_after)
        .values(purge_after=until, empty_since=empty_since)
        .returning(RetiredKey.wallet_id)
        .execution_options(synchronize_session=False)
    )
    return moved.first() is not None


def purge(wallet: RetiredWallet) -> bool:
    """Forget a key for good; tell whether this call did it."""
    gone = db.session.execute(
        delete(RetiredKey)
        .where(RetiredKey.wallet_id == wallet.wallet_id, RetiredKey.purge_after == wallet.purge_after)
        .returning(RetiredKey.wallet_id)
        .execution_options(synchronize_session=False)
    )
    return gone.first() is not None


def _not_kept() -> NotFound:
    return NotFound("No key of such a wallet is kept: it was never deleted, or its key was purged.")
