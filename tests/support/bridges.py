"""Helpers for bridge tests: request a bridge, run the workers, read the legs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import time_machine

from app.core import clock
from app.core.chains import ChainName
from app.wallets.bridges import advance as bridge_steps
from app.wallets.transactions import confirmation
from sandbox.bridges import BridgeServer
from tests.support.agents import Agent


def bridge(agent: Agent, source: str, destination: str, amount: object, coin: str = "USDC", **more: Any) -> Any:
    """Request a bridge; headers are given by their names."""
    headers = {name: more.pop(name) for name in [*more] if name[0].isupper()}
    body = {
        "source_chain": source, "destination_chain": destination, "token": coin, "amount": amount, **more,
    }  # fmt: skip
    return agent.post(f"{agent.wallet_url}/bridge", body, **headers)


@contextmanager
def running_bridges(**urls: str) -> Iterator[BridgeServer]:
    """Run the stand-ins for the services that bridges depend on."""
    server = BridgeServer(urls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Workers:
    """The workers' polls of a wallet's bridges, each a minute later, when everything is due again."""

    def __init__(self, agent: Agent, *chains: ChainName) -> None:
        self.agent = agent
        self.chains = chains
        self.seconds = 0

    def look(self, times: int = 1, *, seconds: int = 61) -> None:
        for _ in range(times):
            self.seconds += seconds
            with time_machine.travel(clock.now().timestamp() + self.seconds, tick=True):
                for chain in self.chains:
                    confirmation.confirm(chain)
                bridge_steps.advance_due()

    def finish(self, transaction_id: str, *, looks: int = 8) -> dict[str, Any]:
        """Poll until it has ended, and return the transaction."""
        for _ in range(looks):
            row = self.agent.transaction(transaction_id)
            if row["status"] != "pending":
                return row
            self.look()
        return self.agent.transaction(transaction_id)


def legs_of(row: dict[str, Any]) -> dict[str, str]:
    """Return the statuses of a bridge's legs."""
    return {leg["leg"]: leg["status"] for leg in row["legs"]}
