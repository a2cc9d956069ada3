"""A service with pages over real HTTP, wallets with given balances, and a transaction history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import time_machine
from flask import Flask
from werkzeug.serving import make_server

from app.approvals import service as approvals
from app.core import clock
from app.core.chains import ChainName, tokens
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import unit_of_work
from app.errors import ApprovalRequired
from app.events import feed
from app.idempotency.service import Claim
from app.ports.chain import Balances, ForeignToken, Terms
from app.ports.errors import Unreachable
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.approval_rules import ApprovalReason
from app.spending.policy import SpendingRequest
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import Transaction
from tests.support.movements import count_as
from workers import purchases

RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"


@dataclass(slots=True)
class StaticChain:
    """A chain with fixed balances; it can be made unreachable."""

    name: ChainName
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    unreachable: bool = False
    block_time: timedelta = timedelta(0)
    foreign: dict[str, list[ForeignToken]] = field(default_factory=dict)

    def balances(self, address: str) -> Balances:
        if self.unreachable:
            raise Unreachable("chain_unreachable")
        units = self.held.get(address, {})
        return Balances(tuple(TokenAmount(units.get(token.symbol, 0), token) for token in tokens(self.name)))

    def foreign_tokens(self, address: str, _scan_state: Terms) -> Sequence[ForeignToken]:
        if self.unreachable:
            raise Unreachable("chain_unreachable")
        return self.foreign.get(address, [])

    def explorer_url(self, tx_hash: str) -> str:
        return f"https://explorer.invalid/tx/{tx_hash}"


@dataclass(slots=True)
class World:
    """A running service and its test data."""

    app: Flask
    url: str
    chains: dict[ChainName, StaticChain]

    def register(self, **body: Any) -> dict[str, Any]:
        """Register an agent over the API."""
        with self.app.app_context():
            answer = self.app.test_client().post("/v1/agents/register", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.get_json()
        return made

    def register_long_ago(self, **body: Any) -> dict[str, Any]:
        """Register an agent with an early registration date."""
        with time_machine.travel(clock.now() - timedelta(days=26), tick=False):
            return self.register(**body)

    def call(self, made: dict[str, Any], method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Call the API as the agent."""
        with self.app.app_context():
            answer = self.app.test_client().open(path, method=method, json=body, headers={"X-API-Key": made["apiKey"]})
        return answer.status_code, answer.get_json()

    def attempt_payment(self, made: dict[str, Any], dollars: int) -> str:
        """Request a payment from the trading account, where the limits are checked first; return the code."""
        body = {
            "walletId": made["wallet"]["id"], "action": "withdraw", "amount": str(dollars), "destination": RECIPIENT,
        }  # fmt: skip
        code: str = self.call(made, "POST", "/v1/trading/perpdex", body)[1]["code"]
        return code

    def fund(self, made: dict[str, Any]) -> None:
        """Fund an agent's wallet with every token."""
        addresses = made["wallet"]["addresses"]
        self.chains[ChainName.ETHEREUM].held[addresses["ethereum"]] = {"ETH": 42 * 10**15}
        self.chains[ChainName.BASE].held[addresses["base"]] = {"ETH": 180 * 10**15, "USDC": 1_284_500_000}
        self.chains[ChainName.SOLANA].held[addresses["solana"]] = {"SOL": 3_251_000_000, "USDC": 75_250_000}

    def add_transaction(self, made: dict[str, Any], **facts: Any) -> None:
        """Add a transaction to a wallet's history."""
        wallet = made["wallet"]
        usual: dict[str, Any] = {
            "id": new_id(), "wallet_id": wallet["id"], "type": TransactionType.TRANSFER.value, "chain": "base",
            "from_address": wallet["addresses"]["base"], "to_address": RECIPIENT, "amount_units": 12_500_000,
            "currency": "USDC", "tx_hash": "0x" + new_id().replace("-", "") * 2, "cost_nanos": 12_500_000_000,
            "created_at": clock.now(), "checks": 0,
        }  # fmt: skip
        status = facts.pop("status", MovementStatus.CONFIRMED)
        values = {**usual, **facts}
        at = time_machine.travel(values["created_at"], tick=False)
        with self.app.app_context(), at, unit_of_work() as session:
            transaction = Transaction(**values)
            spending_accounts.lock_account(session, transaction.wallet_id)
            lifecycle.record(session, transaction, status=status)
            count_as(session, transaction.id, status, value_nanos=transaction.cost_nanos)

    def ask(self, made: dict[str, Any], dollars: int, *, to: str = RECIPIENT, note: str | None = None) -> str:
        """Request a transfer that the owner has to approve; return the id of the approval."""
        facts = {"chain": "base", "to": to, "amount": str(dollars), "currency": "USDC"}
        wallet_id, spending = made["wallet"]["id"], SpendingRequest(dollars * 10**9, to)
        needed = ApprovalRequired(
            reason=ApprovalReason.NEW_RECIPIENT.value, agent_id=made["agentId"], wallet_id=wallet_id,
            spending_request=spending,
        )  # fmt: skip
        with self.app.app_context():
            return approvals.request_approval(
                MovementKind.TRANSFER, needed, body=b"{}", facts=facts, note=note, claim=Claim.none()
            ).id

    def number_events(self) -> None:
        """Number the events as the worker does: the pages show numbered ones."""
        with self.app.app_context():
            feed.number_all()

    def charge_call(self, made: dict[str, Any], provider: str, nanos: int, at: datetime) -> None:
        """Charge a call to a provider."""
        with time_machine.travel(at, tick=False), self.app.app_context(), unit_of_work() as session:
            call = UsageCall(new_id(), provider, "some-model")
            usage.charge(session, made["agentId"], call, charge_id=new_id(), metered=MeteredUsage(nanos, 900, 300))

    def order(self, made: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Order in a web shop as the agent; return the response."""
        body = {
            "url": "https://shop.example/p/1", "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
            "max_total_usd": 40, **more,
        }  # fmt: skip
        with self.app.app_context():
            leases.record(ProcessKind.SHOPPER)
        status, answer = self.call(made, "POST", "/v1/gateway/shopping/buy", body)
        assert status == 202, answer
        ordered: dict[str, Any] = answer
        return ordered

    def buy(self, made: dict[str, Any], **more: Any) -> str:
        """Buy in a web shop as the agent; return the id of the purchase."""
        purchase_id: str = self.order(made, **more)["id"]
        with self.app.app_context():
            purchases.buy(purchase_id)
        return purchase_id

    def add_month_of_history(self, made: dict[str, Any]) -> None:
        """Add a month of history for the owner's page to show."""
        self.fund(made)
        mine, now = made["wallet"]["addresses"], clock.now()
        history: list[dict[str, Any]] = [
            {"type": "funding", "from_address": RECIPIENT, "to_address": mine["base"],
             "amount_units": 1_500_000_000, "cost_nanos": 0},
            {"status": MovementStatus.PENDING, "amount_units": 20_000_000, "cost_nanos": 20 * 10**9},
            {"type": "swap", "amount_units": 50_000_000, "output_currency": "ETH", "output_units": 16_400 * 10**12,
             "cost_nanos": 250_000_000},
            {"status": MovementStatus.FAILED, "tx_hash": None, "error": "insufficient_gas", "chain": "ethereum",
             "from_address": mine["ethereum"], "currency": "ETH", "amount_units": 10**18},
            {"type": "withdrawal", "chain": "solana", "currency": "SOL", "amount_units": 500_000_000,
             "from_address": mine["solana"], "to_address": mine["solana"], "cost_nanos": 4 * 10**9},
            {"type": "trading_query", "chain": "perpdex", "to_address": "perpdex", "amount_units": 0,
             "tx_hash": None, "cost_nanos": 0},
            {"amount_units": 7_250_000, "cost_nanos": 7_250_000_000},
            {"amount_units": 1_000_000, "cost_nanos": 10**9},
        ]  # fmt: skip
        for ago, facts in reversed(list(enumerate(history, 1))):
            at = now - timedelta(hours=ago)
            self.add_transaction(made, **{"created_at": at, "confirmed_at": at, **facts})
        with self.app.app_context(), unit_of_work() as session, time_machine.travel(now, tick=True):
            for dollars in (30, 20):
                reference = new_id()
                request = SpendingRequest(dollars * 10**9)
                spending_holds.hold(session, made["wallet"]["id"], request, reference=reference)
                spending_holds.spend(session, reference)
        for days, nanos in (
            (24, 210),
            (21, 480),
            (20, 90),
            (15, 700),
            (14, 350),
            (9, 820),
            (6, 130),
            (3, 610),
            (1, 90),
        ):
            self.charge_call(made, "openai" if days % 2 else "brave", nanos * 10**6, now - timedelta(days=days))


@contextmanager
def served(build: Callable[[dict[ChainName, Any]], Flask]) -> Iterator[World]:
    """Serve an application on loopback until the block ends."""
    chains = {name: StaticChain(name) for name in ChainName}
    app = build(chains)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield World(app, f"http://127.0.0.1:{server.server_port}", chains)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
