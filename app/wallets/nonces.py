"""Nonce slots of our addresses: handed out under a row lock, lowest free slot first, so that a gap closes by itself.

Two movements never share a slot, for equal movements would sign to identical bytes and one payment would answer two
requests. Alone writes `nonces`.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.core.chains import ChainName
from app.extensions import db
from app.ports.errors import Rejected
from app.wallets.models import Nonce, Transaction

# A database that was restored from a backup may lack some slots that were used.
_FURTHEST_AHEAD = 100


def allocate(chain: ChainName, address: str, *, floor: int) -> int:
    """Take the next free slot at or above the chain's own count, in the current unit.

    The row stays locked until the unit ends; a unit that rolls back gives its slot back.
    """
    session = db.session
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    new = insert(Nonce).values(chain=chain.value, address=address, next_nonce=0)
    # The no-op update takes the row lock on PostgreSQL and the write lock on SQLite.
    locked = new.on_conflict_do_update(
        index_elements=[Nonce.chain, Nonce.address], set_={"next_nonce": Nonce.next_nonce}
    ).returning(Nonce.next_nonce)
    high = int(session.execute(locked).scalar_one())
    # The keys are ours alone: a chain that counts far more than was ever handed out here is not believed.
    # A database that was set back further is told by `flask restored`.
    if floor > high + _FURTHEST_AHEAD:
        raise Rejected("chain_unreachable")
    slot = floor
    if high > floor:
        taken = set(
            session.scalars(
                select(Transaction.nonce).where(
                    Transaction.chain == chain.value,
                    Transaction.from_address == address,
                    Transaction.nonce >= floor,
                )
            )
        )
        while slot in taken:
            slot += 1
    if slot >= high:
        session.execute(
            update(Nonce)
            .where(Nonce.chain == chain.value, Nonce.address == address)
            .values(next_nonce=slot + 1)
            .execution_options(synchronize_session=False)
        )
    return slot


def learn(chain: ChainName, address: str, *, used: int) -> None:
    """Note that a chain counts so many used slots though fewer were handed out here, in the current unit."""
    session = db.session
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    new = insert(Nonce).values(chain=chain.value, address=address, next_nonce=used)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[Nonce.chain, Nonce.address],
            set_={"next_nonce": new.excluded.next_nonce},
            where=Nonce.next_nonce < new.excluded.next_nonce,
        ).execution_options(synchronize_session=False)
    )
