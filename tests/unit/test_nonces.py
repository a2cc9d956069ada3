"""Nonces: the lowest free one at or above the chain's count, each allocated once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from sqlalchemy import delete

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.ports.errors import Rejected
from app.wallets.core import lifecycle
from app.wallets.core.models import Nonce, Transaction

BASE = ChainName.BASE


@pytest.fixture
def database(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[None]:
    with build_app(each_database_url).app_context():
        yield


def _store(address: str, next_nonce: int | None, used: set[int]) -> None:
    with unit_of_work() as session:
        if next_nonce is not None:
            session.add(Nonce(chain=BASE.value, address=address, next_nonce=next_nonce))
        session.add_all(
            Transaction(
                id=new_id(), wallet_id=new_id(), type="transfer", chain=BASE.value, from_address=address,
                to_address="x", amount_units=1, currency="ETH", status="confirmed", cost_nanos=0, nonce=nonce,
                created_at=clock.now(),
            )
            for nonce in used
        )  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "floor", "used", "allocated", "following"),
    [
        (None, 0, set(), 0, 1),
        (None, 100, set(), 100, 101),
        (3, 3, set(), 3, 4),
        (2, 5, set(), 5, 6),
        (5, 3, {3, 4}, 5, 6),
        (5, 3, {4}, 3, 5),
        (5, 3, {3}, 4, 5),
        (5, 3, {1, 3, 4, 5, 6}, 7, 8),
    ],
)
@pytest.mark.usefixtures("database")
def test_the_lowest_free_nonce_is_allocated(
    stored: int | None, floor: int, used: set[int], allocated: int, following: int
) -> None:
    address = new_id()
    _store(address, stored, used)
    with unit_of_work() as session:
        assert lifecycle.allocate_nonce(session, BASE, address, floor=floor) == allocated
    with unit_of_work() as session:
        assert session.get_one(Nonce, (BASE.value, address)).next_nonce == following
        session.execute(delete(Transaction).where(Transaction.from_address == address))


@pytest.mark.parametrize("stored", [None, 0])
@pytest.mark.usefixtures("database")
def test_a_count_far_above_the_allocated_nonces_is_not_trusted(stored: int | None) -> None:
    address = new_id()
    _store(address, stored, set())
    with pytest.raises(Rejected, match="chain_unreachable"), unit_of_work() as session:
        lifecycle.allocate_nonce(session, BASE, address, floor=101)
    with unit_of_work() as session:
        row = session.get(Nonce, (BASE.value, address))
        assert (row and row.next_nonce) == stored
