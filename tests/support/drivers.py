"""A chain as the parameter of a test: what a scenario on every chain has to know of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import time_machine

from app.core import clock
from app.core.chains import ETH, SOL, USDC, ChainName, Token
from app.core.identifiers import new_id
from app.payments import treasury
from app.ports.errors import OutcomeUnknown
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import evm_chain, fund
from tests.support.evm import chain_at
from tests.support.faults import FaultyChain
from tests.support.payments import facilitator_of
from tests.support.solana import fund_solana, running_solana, solana_address, solana_chain
from workers import confirmations

# Past the blockhash, and as long as an index of addresses may be late.
EXPIRED_SLOTS = 1_600


def fresh_address() -> str:
    """Return an unused EVM address."""
    return "0x" + new_id().replace("-", "") + "c0ffee00"


@dataclass(slots=True, kw_only=True)
class ChainDriver:
    """A chain with its node, its adapter and the faults of that."""

    name: ClassVar[ChainName]
    native: ClassVar[Token]
    native_usd: ClassVar[int]
    # What a first transfer of USDC to an address counts besides its amount.
    rent_usd: ClassVar[float] = 0
    least_fee: ClassVar[float] = 1e-18
    node: Any
    real: Any
    chain: FaultyChain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = FaultyChain(self.real)

    def address(self, agent: Agent) -> str:
        return agent.address

    def new_address(self) -> str:
        return fresh_address()

    def fund(self, address: str, *, native: float = 1, dollars: float = 0) -> None:
        fund(self.node, address, eth=native, dollars=dollars)

    def balances(self, address: str) -> tuple[int, int]:
        """Return (units of the native token, micro-USDC)."""
        found = self.real.balances(address)
        return found.of(self.native).units, found.of(USDC).units

    def dollars(self, address: str) -> int:
        return self.balances(address)[1]

    def run_workers(self, *, minutes: int = 1) -> None:
        """Let the workers confirm movements, minutes later."""
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            confirmations.confirm(self.name.value)

    def is_hash(self, text: str) -> bool:
        return text.startswith("0x")

    def lose_answers(self) -> None:
        """Let the node execute the next transaction and lose its response."""
        self.chain.raising("broadcast", "after", OutcomeUnknown("timeout"))

    def miss_broadcast(self) -> None:
        """Let the node lose the next transaction."""
        self.node.set_automine(False)

    def reset(self) -> None:
        """End the faults of the node, and let it include what it holds back."""
        self.node.set_automine(True)
        self.node.mine(1)

    def nearly_expire(self) -> None:
        """Let signed payments expire by the clock of the newest block, not by one that is final."""
        self.node.rpc("evm_increaseTime", 700)
        self.node.mine(2)

    def expire(self) -> None:
        """Let signed payments expire, in a finalized block."""
        self.node.rpc("evm_increaseTime", 700)
        self.node.mine(80)


class EvmDriver(ChainDriver):
    """Base."""

    name, native, native_usd = ChainName.BASE, ETH, 3000


class SolanaDriver(ChainDriver):
    """Solana."""

    name, native, native_usd, rent_usd, least_fee = ChainName.SOLANA, SOL, 150, 0.305892, 0.000005

    def address(self, agent: Agent) -> str:
        return agent.solana_address

    def new_address(self) -> str:
        return solana_address()

    def fund(self, address: str, *, native: float = 1, dollars: float = 0) -> None:
        fund_solana(self.node, address, sol=native, dollars=dollars)

    def is_hash(self, text: str) -> bool:
        return 86 <= len(text) <= 88

    def lose_answers(self) -> None:
        self.node.faults(http_after={"sendTransaction": [503, 503, 503]})

    def miss_broadcast(self) -> None:
        self.node.faults(drop=1)

    def reset(self) -> None:
        self.node.faults()

    def nearly_expire(self) -> None:
        # An index of addresses may be late.
        self.node.advance(400)

    def expire(self) -> None:
        self.node.advance(EXPIRED_SLOTS)


def evm_driver(node: EvmNode, *urls: str) -> EvmDriver:
    """Return the driver of a node, behind other addresses than the node's own when some are given."""
    return EvmDriver(node=node, real=chain_at(node, *urls) if urls else evm_chain(node))


@contextmanager
def solana_driver(*, slot_ms: int) -> Iterator[SolanaDriver]:
    """Run a node with slots that pass automatically, or with `slot_ms=0` only by `advance`."""
    with running_solana(slot_ms=slot_ms) as node:
        yield SolanaDriver(node=node, real=solana_chain(node))


@contextmanager
def sponsored_on(
    build_app: Callable[..., Any], database_url: str, driver: ChainDriver, *, dollars: float, **settings: Any
) -> Iterator[Agent]:
    """Build an application that submits transfers on a chain, with an agent that has dollars alone there."""
    chains, facilitators = {driver.name: driver.chain}, {driver.name: facilitator_of(driver.chain)}
    app = build_app(database_url, settings=settings, chains=chains, facilitators=facilitators)
    with app.app_context():
        driver.fund(treasury.settler(driver.name))
        agent = register(app.test_client())
        driver.fund(driver.address(agent), native=0, dollars=dollars)
        yield agent


def driver_of(request: pytest.FixtureRequest) -> ChainDriver:
    """Return the driver of the chain that a fixture's parameter names: Base with its own node, the shared Solana."""
    if request.param == "base":
        return evm_driver(request.getfixturevalue("own_base_node"))
    node = request.getfixturevalue("solana_node")
    return SolanaDriver(node=node, real=solana_chain(node))


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent with funds on one chain."""

    agent: Agent
    driver: ChainDriver

    @property
    def address(self) -> str:
        return self.driver.address(self.agent)

    def send(self, amount: object, currency: str, to: str, **headers: str) -> Any:
        return self.agent.move(amount, currency, chain=self.driver.name.value, to=to, **headers)

    def order(self, body: Mapping[str, Any]) -> Any:
        """Make a transfer of these fields."""
        return self.agent.post(f"{self.agent.wallet_url}/transfer", body)


@contextmanager
def stage_on(
    build_app: Callable[..., Any], database_url: str, driver: ChainDriver, *, native: float = 1, dollars: float = 100
) -> Iterator[Stage]:
    """Build an application on a chain, with an agent that has funds there."""
    app = build_app(database_url, chains={driver.name: driver.chain})
    with app.app_context():
        agent = register(app.test_client())
        driver.fund(driver.address(agent), native=native, dollars=dollars)
        yield Stage(agent, driver)
    driver.reset()
