"""The table of the names that owners give addresses, and whether an address has one; `address_book` writes it."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated, seal_of
from app.db.tables import ID, UtcDateTime
from app.db.unit_of_work import read_only_unit
from app.extensions import Model

MAX_NAME_CHARACTERS = 60


class AddressName(Authenticated, Model):
    """The owner's name of an address on a chain: authenticated, because it makes a payment look familiar."""

    __tablename__ = "address_names"
    not_authenticated = frozenset({"created_at"})

    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True)
    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    address: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_CHARACTERS))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


def is_named(agent_id: str, chain: str, address: str) -> bool:
    with read_only_unit() as session:
        row = session.get(AddressName, (agent_id, chain, address))
        return row is not None and seal_of(AddressName).accepts(session, row)
