"""A shop with submissions of signed payments that arrive at the chain when a test says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import time_machine
from sqlalchemy import func, select

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ETH, USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import jobs as payment_jobs
from app.ports.errors import Unreachable
from app.wallets.core.models import SignedAttempt
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support.chains import ether
from tests.support.faults import FaultyChain
from tests.support.payments import Shop, shop


@dataclass(slots=True)
class Scene:
    """A shop with submissions that do not arrive at the node until `land`."""

    shop: Shop
    chain: FaultyChain
    name: ChainName
    looks: int = 0

    def hold(self) -> None:
        self.chain.raising("broadcast", "before", Unreachable("refused"))

    def land(self) -> None:
        """Let workers send again what has not arrived, and settle what has."""
        for _ in range(2):
            self.looks += 80
            with time_machine.travel(clock.now().timestamp() + self.looks, tick=True):
                confirmation.confirm(self.name)
                payment_jobs.resume_settlements(self.name)

    def submissions(self) -> int:
        with read_only_unit() as session:
            return session.scalar(select(func.count()).select_from(SignedAttempt)) or 0

    def received(self) -> int:
        return self.chain.real.balances(self.shop.recipient(self.name)).of(USDC).units


@contextmanager
def held_shop(build_app: Any, url: str, node: EvmNode, chain: EvmChain, **settings: Any) -> Iterator[Scene]:
    """Open a shop on Base that waits for no block; ether is cheap, so that a cent pays for every submission."""
    faulty = FaultyChain(chain)
    settings = {"base_stuck_blocks": 3, "confirmation_wait_seconds": "0", **settings}
    with shop(build_app, url, {ChainName.BASE: faulty}, prices={ETH: 500 * 10**9}, **settings) as made:
        node.fund_eth(made.settler(ChainName.BASE), ether(1))
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield Scene(made, faulty, ChainName.BASE)
