"""A unit that locks rows against the documented order fails, on every database and before it waits for the lock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from sqlalchemy import create_engine, update
from structlog.testing import capture_logs

from app.core import clock
from app.core.identifiers import new_id
from app.credits.models import CreditAccount
from app.db import lock_order
from app.db.lock_order import LockRank, lock_rows
from app.db.unit_of_work import UnitError, guard, unit_of_work
from app.extensions import db
from app.identity.models import Agent
from app.spending import accounts as spending_accounts
from app.spending.models import SpendingAccount


def lock_agents() -> None:
    lock_rows(db.session(), Agent.id, Agent.id.in_([new_id()]))


def lock_accounts() -> None:
    spending_accounts.lock_accounts(db.session(), [new_id()])


def test_a_lower_rank_after_a_higher_one_is_refused(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    with build_app(each_database_url).app_context():
        with unit_of_work():
            lock_agents()
            lock_accounts()
            # Held already.
            lock_agents()
        with unit_of_work():
            lock_accounts()
            with pytest.raises(UnitError, match="AGENT must be locked before SPENDING_ACCOUNT"):
                lock_agents()
        with pytest.raises(UnitError, match="SPENDING_ACCOUNT must be locked before CREDIT_ACCOUNT"):
            lock_by_statements()
        with unit_of_work():
            lock_agents()


def lock_by_statements() -> None:
    with unit_of_work() as session:
        session.execute(update(CreditAccount).where(CreditAccount.id == new_id()).values(held_nanos=0))
        session.connection().exec_driver_sql("DELETE FROM spending_accounts WHERE wallet_id IS NULL")


@pytest.mark.postgres
def test_a_block_that_pays_more_wallets_than_a_statement_has_parameters_can_be_stored(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    wallet_ids = {new_id() for _ in range(70_000)}
    with build_app(postgres_url).app_context(), unit_of_work() as session:
        spending_accounts.lock_accounts(session, wallet_ids)


def test_on_a_public_network_a_wrong_order_is_logged_and_not_refused(app: Flask) -> None:
    engine = create_engine("sqlite://")
    guard(engine, refuses_wrong_lock_order=False)
    with app.app_context(), unit_of_work(), engine.connect() as connection, capture_logs() as logs:
        for table in ("wallets", "agents"):
            connection.exec_driver_sql(f"CREATE TABLE {table} (x INTEGER)")
            connection.exec_driver_sql(f"UPDATE {table} SET x=1")  # noqa: S608 - constants
    [entry] = logs
    assert entry["event"] == "wrong_lock_order"
    assert entry["problem"].startswith("AGENT must be locked before WALLET")


def test_rows_that_the_unit_inserted_need_no_order(app: Flask) -> None:
    now = clock.now()
    with app.app_context(), unit_of_work() as session:
        session.execute(update(CreditAccount).where(CreditAccount.id == new_id()).values(held_nanos=0))
        wallet_id = new_id()
        spending_accounts.open_account(session, wallet_id, new_id())
        spending_accounts.lock_account(session, wallet_id)
        session.execute(update(SpendingAccount).values(frozen_at=now).where(SpendingAccount.wallet_id == wallet_id))


@pytest.mark.parametrize(
    ("statement", "locked", "inserted"),
    [
        ("SELECT 1 FROM agents", (), ()),
        ("SELECT id \nFROM agents \nWHERE id = 1 ORDER BY id FOR NO KEY UPDATE", (LockRank.AGENT,), ()),
        ("SELECT id FROM services FOR KEY SHARE", (LockRank.SERVICE,), ()),
        ("SELECT id FROM services FOR UPDATE SKIP LOCKED", (), ()),
        ("UPDATE wallets SET transaction_count=1", (LockRank.WALLET,), ()),
        ("DELETE FROM transactions WHERE id IN (SELECT id FROM wallets)", (LockRank.TRANSACTION,), ()),
        ("INSERT INTO nonces (chain) VALUES (?)", (), (LockRank.NONCE,)),
        ("INSERT INTO nonces (a) VALUES (?) ON CONFLICT DO NOTHING", (), (LockRank.NONCE,)),
        ("INSERT INTO nonces (a) VALUES (?) ON CONFLICT (a) DO UPDATE SET a = 1", (LockRank.NONCE,), (LockRank.NONCE,)),
        (
            "WITH held AS (UPDATE credit_holds SET x=1 RETURNING x) UPDATE credit_accounts SET y=(SELECT x FROM held)",
            (LockRank.CREDIT_HOLD, LockRank.CREDIT_ACCOUNT),
            (),
        ),
        ("UPDATE heartbeats SET at=1", (), ()),
        (
            "WITH a AS (INSERT INTO nonces SELECT 1) INSERT INTO wallets SELECT 1 ON CONFLICT (x) DO UPDATE SET x=2",
            (LockRank.WALLET,),
            (LockRank.NONCE, LockRank.WALLET),
        ),
    ],
)
def test_the_locks_of_a_statement_are_read_from_its_text(
    statement: str, locked: tuple[LockRank, ...], inserted: tuple[LockRank, ...]
) -> None:
    assert lock_order.locks_of(statement) == (locked, inserted)


def test_every_ranked_table_exists_and_every_rank_is_used() -> None:
    assert set(lock_order.RANKS) <= set(db.metadata.tables)
    assert set(lock_order.RANKS.values()) == set(LockRank)
