"""Setup of deposit tests: a node, a chain with faults, and an agent without funds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flask import Flask
from sqlalchemy import func, select

from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.ports.chain import BlockRef, DepositScan, WatchedAddress
from app.wallets.core.models import FundingAllocation, FundingDeposit, Transaction
from app.wallets.deposits import scanner as deposits
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import CONFIRMATIONS, evm_chain, usdc
from tests.support.evm import await_mined, pay_from_a_contract
from tests.support.faults import FaultyChain

DEPTH = CONFIRMATIONS[ChainName.BASE]


class SpoilingChain(FaultyChain):
    """A chain that can report an additional deposit that cannot be stored."""

    adds_what_no_column_takes = False

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        scan = super().deposits(watched, cursor=cursor)
        if not self.adds_what_no_column_takes:
            return scan
        impossible = replace(scan.deposits[0], tx_hash="0x" + "0" * 64, block=BlockRef(1, None))  # type: ignore[arg-type]
        return replace(scan, deposits=(*scan.deposits, impossible))


@dataclass(frozen=True, slots=True)
class Stage:
    """A separate node, a chain with faults, and an agent without funds."""

    node: EvmNode
    chain: SpoilingChain
    agent: Agent
    app: Flask

    def ask(self, amount: str, currency: str = "USDC", agent: Agent | None = None) -> str:
        asking = agent or self.agent
        body = {"amount": amount, "currency": currency, "chain": "base"}
        answer = asking.post(f"{asking.wallet_url}/fund", body)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        request_id: str = answer.get_json()["funding_request_id"]
        return request_id

    def pay(self, dollars: float, agent: Agent | None = None) -> str:
        return self.node.fund_usdc((agent or self.agent).address, usdc(dollars))

    def find(self) -> int:
        return deposits.scan(ChainName.BASE)

    def settle(self) -> int:
        self.node.mine(DEPTH - 1)
        return self.find()

    def status(self, *request_ids: str) -> list[str]:
        return [self.agent.transaction(request_id)["status"] for request_id in request_ids]

    def credited(self) -> int:
        """Return how many base units were credited to funding requests."""
        with read_only_unit() as session:
            requested = select(Transaction.id).where(Transaction.kind.is_(None))
            return sum(
                session.scalars(select(FundingAllocation.units).where(FundingAllocation.transaction_id.in_(requested)))
            )

    def reorganise(self, depth: int, *again: str) -> None:
        """Replace the newest blocks by empty ones, and send these transactions again."""
        raws = [self.node.rpc("eth_getRawTransactionByHash", tx_hash) for tx_hash in again]
        self.node.reorg(depth)
        for tx_hash, raw in zip(again, raws, strict=True):
            self.node.rpc("eth_sendRawTransaction", raw)
            await_mined(self.node, tx_hash)

    def pay_wei(self, units: int) -> str:
        """Pay the wallet directly."""
        tx_hash = self.node.fund_eth(self.agent.address, units)
        await_mined(self.node, tx_hash)
        return tx_hash

    def pay_wei_from_a_contract(self, units: int) -> None:
        await_mined(self.node, pay_from_a_contract(self.node, {self.agent.address: units}))

    def found(self) -> int:
        with read_only_unit() as session:
            return session.scalar(select(func.count()).select_from(FundingDeposit)) or 0


@contextmanager
def deposit_stage(build_app: Callable[..., Flask], database_url: str, node: EvmNode) -> Iterator[Stage]:
    """Yield the stage in its application's context."""
    chain = SpoilingChain(evm_chain(node))
    app = build_app(database_url, chains={ChainName.BASE: chain})
    with app.app_context():
        yield Stage(node, chain, register(app.test_client()), app)
