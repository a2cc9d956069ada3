"""Setup of tests of one transfer: a node that can be stopped, a funded agent, and worker passes on demand."""

from __future__ import annotations

from dataclasses import dataclass, field

import time_machine
from flask import Flask
from sqlalchemy import select

from app.core import clock
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support.agents import Agent
from tests.support.faults import FaultyChain


@dataclass(frozen=True, slots=True)
class Stage:
    """A separate node, a funded agent, and the worker's pass."""

    node: EvmNode
    chain: FaultyChain
    agent: Agent
    app: Flask
    looks: list[int] = field(default_factory=list)

    def look(self, **how: int) -> confirmation.ConfirmationPass:
        """Run passes of the worker, each a minute later, when everything is due again."""
        self.looks.append(60)
        with time_machine.travel(clock.now().timestamp() + sum(self.looks), tick=True):
            return confirmation.confirm(ChainName.BASE, **how)

    def resume(self) -> None:
        """Mine what waits, and run a pass."""
        self.node.set_automine(on=True)
        self.node.mine(1)
        self.look()

    def hashes(self) -> list[str]:
        with read_only_unit() as session:
            return list(session.scalars(select(SignedAttempt.tx_hash).order_by(SignedAttempt.id)))

    def attempts(self) -> list[SignedAttempt]:
        """Return all signed attempts, oldest first."""
        with read_only_unit() as session:
            return list(session.scalars(select(SignedAttempt).order_by(SignedAttempt.id)))

    def row(self, transaction_id: str) -> Transaction:
        with read_only_unit() as session:
            row = session.get(Transaction, transaction_id)
            assert row is not None
            return row

    def paid_to(self, address: str, token: object = USDC) -> int:
        return next(amount.units for amount in self.chain.real.balances(address).amounts if amount.token == token)
