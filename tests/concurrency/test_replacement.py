"""Two passes that want to sign the same slot again at the same moment, on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import func, select, text, update

from app.core import clock
from app.core.chains import ChainName
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.ports.chain import Signed
from app.wallets import open_movements, replacement, settlement
from app.wallets.models import SignedAttempt, Transaction
from app.wallets.open_movements import OpenMovement
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import evm_chain, fund
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain

_WAITS_FOR_A_LOCK = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def test_a_slot_that_another_pass_signs_at_the_same_moment_is_not_signed_twice(
    postgres_url: str, build_app: Callable[..., Flask], own_base_node: EvmNode
) -> None:
    chain = evm_chain(own_base_node)
    app = build_app(postgres_url, chains={ChainName.BASE: chain}, settings={"confirmation_wait_seconds": "0"})
    with app.app_context():
        agent = register(app.test_client())
        fund(own_base_node, agent.address, eth=1, dollars=100)
        own_base_node.set_automine(False)
        agent.move("2", "USDC")
        (movement,) = open_movements.due(ChainName.BASE, clock.now() + timedelta(hours=1))
        assert isinstance(movement, OpenMovement)
        done: list[bool] = []

        def second_pass() -> None:
            with app.app_context():
                done.append(replacement.replace(chain, movement))

        late = threading.Thread(target=second_pass)
        with db.engine.connect() as outside, unit_of_work() as session:
            # The first pass has the row and has signed; it has not committed yet.
            session.execute(
                update(Transaction)
                .where(Transaction.id == movement.id)
                .values(fee_cap_units=Transaction.fee_cap_units)
            )
            other = Signed("0x" + "22" * 32, b"\x02", movement.nonce, None, movement.latest.terms)
            session.add(settlement.attempt_row(movement.id, ChainName.BASE, other))
            session.flush()
            late.start()

            def waits() -> bool:
                waiting = bool(outside.execute(_WAITS_FOR_A_LOCK).scalar())
                outside.rollback()
                return waiting

            wait_until(waits, what="the second pass at the row's lock")
        late.join()

        assert done == [False]
        with reading() as session:
            assert session.scalar(select(func.count()).select_from(SignedAttempt)) == 2
