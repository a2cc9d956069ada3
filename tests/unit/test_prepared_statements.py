"""Prepared statements do what SQLAlchemy does, and leave the connections of the pool as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Integer, Select, bindparam, cast, delete, func, select, text, update
from sqlalchemy.exc import DataError, IntegrityError, MultipleResultsFound, OperationalError

from app.core import clock, identifiers
from app.db.leases import Heartbeat
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.tables import table_of
from app.db.unit_of_work import UnitError, read_only_unit, unit_of_work
from app.extensions import db
from app.spending.models import SpendingControls
from app.wallets.core.models import SignedAttempt, Transaction, Wallet

BEATS = table_of(Heartbeat)
NAMES = PreparedRead(select(BEATS.c.name).order_by(BEATS.c.name))


@pytest.fixture
def database(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    app = build_app(each_database_url)
    with app.app_context():
        yield app


def beat(*names: str) -> None:
    with unit_of_work() as session:
        session.add_all(Heartbeat(name=name, at=clock.now()) for name in names)


def names_now() -> list[str]:
    with read_only_unit() as session:
        return [row.name for row in NAMES.all(session, {})]


@pytest.mark.usefixtures("database")
def test_rows_are_converted_as_by_sqlalchemy() -> None:
    wallet_id = identifiers.new_id()
    with unit_of_work() as session:
        session.add(
            Transaction(
                id=identifiers.new_id(), wallet_id=wallet_id, type="funding", chain="base", to_address="x",
                amount_units=2**255 + 1, currency="USDC", status="failed", cost_nanos=10**18, created_at=clock.now(),
            )
        )  # fmt: skip
        session.add(
            SpendingControls(
                wallet_id=wallet_id, daily_limit_nanos=1, weekly_limit_nanos=2, monthly_limit_nanos=3,
                per_tx_limit_nanos=4, allowed_addresses=["a", "é"], allowed_domains=[], locked=True,
                updated_at=clock.now(),
            )
        )  # fmt: skip
    for model in (Transaction, SpendingControls):
        table = table_of(model)
        statement = select(table).where(table.c.wallet_id == bindparam("of_wallet"), table.c.wallet_id.is_not(None))
        parameters = {"of_wallet": wallet_id}
        with read_only_unit() as session:
            prepared = PreparedRead(statement).one_or_none(session, parameters)
            usual = session.execute(statement, parameters).one()
        assert prepared is not None
        assert tuple(prepared) == tuple(usual)
        assert prepared._fields == tuple(usual._fields)
    with unit_of_work() as session:
        session.execute(delete(SpendingControls))


@pytest.mark.usefixtures("database")
def test_a_missing_parameter_is_not_null_and_one_row_is_one_row() -> None:
    beat("a", "b")
    of_name = PreparedRead(select(BEATS.c.name).where(BEATS.c.name == bindparam("of_name")))
    with read_only_unit() as session:
        with pytest.raises(KeyError):
            of_name.all(session, {})
        assert of_name.scalar(session, {"of_name": "b"}) == "b"
        assert of_name.scalar(session, {"of_name": "none"}) is None
        with pytest.raises(MultipleResultsFound):
            NAMES.one_or_none(session, {})


@pytest.mark.parametrize(
    "statement",
    [
        select(BEATS.c.name).with_for_update(),
        select(BEATS.c.name).where(BEATS.c.name.in_(bindparam("names", expanding=True))),
    ],
    ids=["locks rows", "SQL depends on values"],
)
def test_only_constant_reads_are_prepared(
    postgres_url: str, build_app: Callable[..., Flask], statement: Select[Any]
) -> None:
    with (
        build_app(postgres_url).app_context(),
        read_only_unit() as session,
        pytest.raises(UnitError, match="constant SQL"),
    ):
        PreparedRead(statement).all(session, {"names": ["a"]})


@pytest.mark.usefixtures("database")
def test_a_unit_that_writes_reads_its_own_rows_and_can_roll_back_after_prepared_reads() -> None:
    """A connection that came back in autocommit would commit what is rolled back."""
    beat("kept")

    def fail() -> None:
        with unit_of_work() as session:
            session.add(Heartbeat(name="lost", at=clock.now()))
            session.flush()
            assert [row.name for row in NAMES.all(session, {})] == ["kept", "lost"]
            raise LookupError

    for _ in range(3):
        assert names_now() == ["kept"]
        with pytest.raises(LookupError):
            fail()
    assert names_now() == ["kept"]


@pytest.mark.usefixtures("database")
def test_prepared_reads_outside_a_unit_are_refused() -> None:
    with read_only_unit() as session:
        pass
    with pytest.raises(UnitError, match="outside a unit"):
        NAMES.all(session, {})


@pytest.mark.usefixtures("database")
def test_a_unit_never_waits_for_a_second_connection_while_it_holds_one() -> None:
    """Otherwise units that each hold one could wait for each other."""
    with read_only_unit() as session:
        NAMES.all(session, {})
        assert db.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        session.execute(text("SELECT 1"))
        NAMES.all(session, {})
        assert db.engine.pool.checkedout() == 1  # type: ignore[attr-defined]


def test_a_lost_connection_fails_one_read_as_unavailable_and_is_replaced(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    end_own_backend = PreparedRead(select(func.pg_terminate_backend(func.pg_backend_pid())))
    with build_app(postgres_url).app_context():
        beat("kept")
        with read_only_unit() as session, pytest.raises(OperationalError):
            end_own_backend.all(session, {})
        assert names_now() == ["kept"]


def test_a_failed_read_leaves_no_connection_in_autocommit(postgres_url: str, build_app: Callable[..., Flask]) -> None:
    """It would commit what a later unit rolls back."""
    square_root = PreparedRead(select(func.sqrt(bindparam("of_number", type_=Integer))))
    with build_app(postgres_url).app_context():
        with read_only_unit() as session, pytest.raises(DataError):
            square_root.all(session, {"of_number": -1})
        with suppress(LookupError), unit_of_work() as session:
            session.add(Heartbeat(name="lost", at=clock.now()))
            session.flush()
            raise LookupError
        assert names_now() == []


@pytest.mark.usefixtures("database")
def test_a_prepared_insert_stores_what_the_orm_stores_with_defaults() -> None:
    columns = {
        "transaction_id": identifiers.new_id(), "chain": "base", "purpose": "payment", "raw": b"\x02\xff",
        "terms": {"max_fee": "1", "call": None}, "sent_at": clock.now(), "created_at": clock.now(),
    }  # fmt: skip
    agent_id = identifiers.new_id()
    wallets = [
        Wallet(
            id=identifiers.new_id(), agent_id=agent_id, name="x", evm_address=address, solana_address=address,
            created_at=clock.now(),
        )
        for address in ("a", "b")
    ]  # fmt: skip
    with unit_of_work() as session:
        session.add_all([SignedAttempt(**columns, tx_hash="0x1"), wallets[0]])
        assert PreparedInsert(SignedAttempt).execute(session, {**columns, "tx_hash": "0x2"}) == 1
        PreparedInsert(Wallet).execute_for(session, wallets[1])
    with unit_of_work() as session:
        usual, prepared = session.scalars(select(SignedAttempt).order_by(SignedAttempt.tx_hash))
        for name in set(table_of(SignedAttempt).c.keys()) - {"id", "tx_hash", "mac"}:
            assert getattr(usual, name) == getattr(prepared, name), name
        assert usual.id != prepared.id
        counts = session.scalars(select(Wallet.transaction_count).where(Wallet.agent_id == agent_id)).all()
        assert counts == [0, 0]
        session.execute(delete(SignedAttempt))
        session.execute(delete(Wallet).where(Wallet.agent_id == agent_id))


@pytest.mark.usefixtures("database")
def test_a_prepared_write_is_part_of_its_unit_and_counts_the_rows_it_matched() -> None:
    beat("kept")
    rename = PreparedStatement(
        update(BEATS).where(BEATS.c.name == bindparam("of_name")).values(name=bindparam("new_name"))
    )
    with suppress(LookupError), unit_of_work() as session:
        session.add(Heartbeat(name="added", at=clock.now()))
        assert rename.execute(session, {"of_name": "none", "new_name": "x"}) == 0
        assert rename.execute(session, {"of_name": "added", "new_name": "lost"}) == 1
        raise LookupError
    assert names_now() == ["kept"]
    with unit_of_work() as session:
        rename.execute(session, {"of_name": "kept", "new_name": "renamed"})
    assert names_now() == ["renamed"]
    with unit_of_work() as session, pytest.raises(KeyError, match="of_nane"):
        rename.execute(session, {"of_name": "renamed", "new_name": "y", "of_nane": "renamed"})


@pytest.mark.usefixtures("database")
def test_the_rules_of_units_and_the_errors_of_sqlalchemy_apply_to_prepared_writes() -> None:
    beat("kept")
    insert = PreparedInsert(Heartbeat)
    row = {"name": "kept", "at": clock.now()}
    with pytest.raises(IntegrityError), unit_of_work() as session:
        insert.execute(session, row)
    once = PreparedInsert(Heartbeat, unique=[Heartbeat.name])
    with unit_of_work() as session:
        assert [once.execute(session, {**row, "name": name}) for name in ("kept", "new", "new")] == [0, 1, 0]
        session.execute(delete(Heartbeat).where(Heartbeat.name == "new"))
    with pytest.raises(UnitError, match="neither writes nor locks"), read_only_unit() as session:
        insert.execute(session, {**row, "name": "other"})
    with pytest.raises(UnitError, match="outside a unit"):
        insert.execute(db.session(), {**row, "name": "other"})
    assert names_now() == ["kept"]


def test_a_connection_lost_in_a_prepared_write_fails_its_unit_as_unavailable_and_is_replaced(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    end_own_backend = PreparedStatement(
        update(BEATS).values(name=cast(func.pg_terminate_backend(func.pg_backend_pid()), BEATS.c.name.type))
    )
    with build_app(postgres_url).app_context():
        beat("kept")
        with pytest.raises(OperationalError) as caught, unit_of_work() as session:
            end_own_backend.execute(session, {})
        assert caught.value.connection_invalidated
        assert names_now() == ["kept"]


@pytest.mark.usefixtures("database")
def test_statements_stay_prepared_after_rollbacks() -> None:
    beat("a")
    for _ in range(3):
        with suppress(KeyError), unit_of_work() as session:
            for _ in range(8):  # psycopg would prepare this statement itself, and then deallocate everything
                session.execute(select(func.count()).select_from(BEATS))
            assert [row.name for row in NAMES.all(session, {})] == ["a"]
            raise KeyError
    assert names_now() == ["a"]
