"""Two concurrent passes that replace the same movement, on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import func, select, text, update

from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.ports.chain import SignedTransaction
from app.wallets.core import lifecycle
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import open_transactions, replacement
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import evm_chain, fund
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain

_WAITS_FOR_A_LOCK = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def test_concurrent_passes_replace_a_movement_once(
    postgres_url: str, build_app: Callable[..., Flask], own_base_node: EvmNode
) -> None:
    chain = evm_chain(own_base_node)
    app = build_app(postgres_url, chains={ChainName.BASE: chain}, settings={"confirmation_wait_seconds": "0"})
    with app.app_context():
        agent = register(app.test_client())
        fund(own_base_node, agent.address, eth=1, dollars=100)
        own_base_node.set_automine(False)
        agent.move("2", "USDC")
        (movement,), _unreadable = open_transactions.due(ChainName.BASE, clock.now() + timedelta(hours=1))
        done: list[bool] = []

        def second_pass() -> None:
            with app.app_context():
                done.append(replacement.replace_stuck(chain, movement))

        late = threading.Thread(target=second_pass)
        with db.engine.connect() as outside, unit_of_work() as session:
            # The first pass has locked the row and signed, but not committed.
            session.execute(
                update(Transaction).where(Transaction.id == movement.id).values(fee_cap_units=Transaction.fee_cap_units)
            )
            other = SignedTransaction("0x" + "22" * 32, b"\x02", movement.nonce, None, movement.latest.terms)
            lifecycle.add_attempt(session, movement.id, ChainName.BASE, other)
            session.flush()
            late.start()

            def waits() -> bool:
                waiting = bool(outside.execute(_WAITS_FOR_A_LOCK).scalar())
                outside.rollback()
                return waiting

            wait_until(waits, what="the second pass at the row's lock")
        late.join()

        assert done == [False]
        with read_only_unit() as session:
            assert session.scalar(select(func.count()).select_from(SignedAttempt)) == 2
