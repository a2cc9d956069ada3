"""A database restored from a backup: what happened since is reconciled with the chains and never repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import time_machine
from click.testing import Result
from flask import Flask

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import claimed_payments, topups
from app.ports.chain import TransferIntent
from app.ports.errors import Unreachable
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.models import Nonce
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support import backups
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, evm_chain, fund
from tests.support.evm import Calls, Proxy, await_mined, chain_at, proxy, refuse
from tests.support.evm import sent as pay
from tests.support.fake_shopper import FakeShopper
from tests.support.faults import FaultyChain
from tests.support.gateway import SEARCH, provider_settings
from tests.support.payments import PRICE, by_hash, facilitator_of, person_with
from tests.support.servers import Postgres
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream
from workers import purchases, sweeps

BASE = ChainName.BASE
ELSEWHERE = "0x00000000000000000000000000000000C0FFEE01"
BUY = "/v1/gateway/shopping/buy"
ORDER: dict[str, Any] = {
    "url": "https://shop.example/p/1",
    "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
}


@dataclass
class World:
    """A chain and an upstream that continue, and the successive databases of the service."""

    node: EvmNode
    upstream: MisbehavingUpstream
    shopper: FakeShopper
    build: Callable[..., Flask]
    urls: tuple[str, ...] = ()
    chain: FaultyChain = field(init=False)

    def service(self, database_url: str) -> Flask:
        chain = self.chain = FaultyChain(chain_at(self.node, *self.urls, deposit_confirmations=5))
        return self.build(
            database_url, chains={BASE: chain}, facilitators={BASE: facilitator_of(chain)}, shopper=self.shopper,
            settings=provider_settings(
                self.upstream.url, base_stuck_blocks=3, confirmation_wait_seconds="0"
            ),
        )  # fmt: skip

    @contextmanager
    def opened(self, database_url: str, *, dollars: int = 100) -> Iterator[tuple[Flask, Agent]]:
        """Run the service with a funded agent without limits."""
        app = self.service(database_url)
        with app.app_context():
            agent = register(app.test_client())
            fund(self.node, agent.address, eth=1, dollars=dollars)
            agent.unlimited()
            yield app, agent

    @contextmanager
    def set_back(self, backup: Path, agent: Agent, database_url: str) -> Iterator[tuple[Flask, Agent]]:
        """Run the service on a restored backup, with the agent as its client."""
        backups.restore(backup, database_url)
        app = self.service(database_url)
        with app.app_context():
            yield app, replace(agent, client=app.test_client())

    def paid_and_bought(self) -> tuple[int, int, int]:
        return self.paid_to(RECIPIENT), self.paid_to(ELSEWHERE), len(self.shopper.requests)

    def paid_to(self, address: str) -> int:
        return self.chain.real.balances(address).of(USDC).units

    def pending(self, agent: Agent) -> dict[str, Any]:
        """Send a movement that is not mined."""
        self.node.set_automine(False)
        body: dict[str, Any] = agent.move("2", "USDC").get_json()
        self.node.rpc("anvil_dropTransaction", body["tx_hash"])
        return body

    def is_signed_again(self) -> None:
        """Have the worker replace what is pending; the replacement waits in the mempool."""

        def drop() -> None:
            raise Unreachable("dropped")

        self.chain.fail("rebroadcast", "before", drop, times=3)
        look(1)
        self.node.mine(4)
        assert look(2).replaced == 1

    def lands_at_a_higher_fee(self) -> None:
        """Have the worker replace what is pending, and mine it."""
        self.is_signed_again()
        self.lands()
        look(3)

    def lands(self) -> None:
        self.node.set_automine(True)
        self.node.mine(70)


@pytest.fixture
def world(own_base_node: EvmNode, build_app: Callable[..., Flask]) -> Iterator[World]:
    with misbehaving_upstream() as upstream:
        upstream.behave = lambda exchange: exchange.json({"results": []})
        yield World(own_base_node, upstream, FakeShopper(), build_app)


@pytest.fixture
def elsewhere(each_database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of the same kind."""
    server: Postgres | None = None
    if not each_database_url.startswith("sqlite"):
        server = request.getfixturevalue("postgres")
    name = f"{each_database_url.rpartition('/')[2].removesuffix('.sqlite')}_restored"
    yield backups.empty_database_like(each_database_url, server, tmp_path, name)
    if server is not None:
        server.drop_database(name)


def look(minutes: int = 1) -> confirmation.ConfirmationPass:
    """Run the worker later, when everything is due."""
    with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
        return confirmation.confirm(BASE)


def top_up(agent: Agent, amount: str) -> str:
    body = {"wallet_id": agent.wallet_id, "chain": "base", "amount": amount}
    tx_hash: str = agent.post("/v1/credits/topup", body).get_json()["tx_hash"]
    return tx_hash


def restored(app: Flask, *options: str) -> Result:
    return app.test_cli_runner().invoke(args=["restored", *options])


def assert_booked_once(agent: Agent, app: Flask, expected: set[tuple[str, str, str]], *, spent: float) -> None:
    booked = agent.history(kind="recovered")
    assert {(each["tx_hash"], each["amount"], each["status"]) for each in booked} == expected
    assert restored(app, "--repair").exit_code == 0
    assert agent.history(kind="recovered") == booked
    assert agent.spent_this_month() == spent


def doctor(app: Flask) -> str:
    done = app.test_cli_runner().invoke(args=["doctor"])
    assert isinstance(done.exception, SystemExit | None), done.exception
    return str(done.output)


def known_at_the_backup(app: Flask, agent: Agent) -> dict[str, Any]:
    return {
        "balance": agent.get("/v1/balance").get_json(),
        "controls": agent.get(f"{agent.wallet_url}/controls").get_json(),
        "address": custody.signer_of(agent.wallet_id).evm_address,
        "audit": sweeps.audit(),
        "deeds": app.test_cli_runner().invoke(args=["audit", "verify"]).exit_code,
    }


def test_payments_and_purchases_after_the_backup_are_not_repeated(
    each_database_url: str, elsewhere: str, world: World, tmp_path: Path
) -> None:
    with world.opened(each_database_url) as (app, agent):
        leases.record(ProcessKind.SHOPPER)
        assert agent.move("1", "USDC").status_code == 200
        look()
        recipient = app.test_client().get(SEARCH).get_json()["payment"]["recipient"]
        stuck = world.pending(agent)
        order = agent.post(BUY, {**ORDER, "max_total_usd": 500}).get_json()
        before = known_at_the_backup(app, agent)
        backup = backups.dump(each_database_url, tmp_path / "backup")

        # After the backup the pending movement lands at a higher fee, and another movement, payment and order follow.
        world.lands_at_a_higher_fee()
        landed = agent.transaction(stuck["transaction_id"])
        unknown = agent.move("3", "USDC", to=ELSEWHERE).get_json()["tx_hash"]
        payment = pay(evm_chain(world.node), person_with(world.node), recipient, PRICE, token=USDC).tx_hash
        world.node.mine(6)
        assert app.test_client().get(SEARCH, headers=by_hash(payment, BASE)).status_code == 200
        purchases.buy(order["id"])
        topped_up = top_up(agent, "5")
        done_before = world.paid_and_bought()
    assert landed["status"] == "confirmed"
    assert landed["previous_hashes"] == [stuck["tx_hash"]]

    with world.set_back(backup, agent, elsewhere) as (app, agent):
        assert known_at_the_backup(app, agent) == before
        assert "transactions of 1 of our addresses that this database does not" in doctor(app)
        assert unknown in restored(app, "--dry-run").output
        done = restored(app)
        assert done.exit_code == 0, done.output
        assert f"{unknown}, 3 USDC to {ELSEWHERE}" in done.output
        assert f"after the backup by {landed['tx_hash']}" in done.output
        assert f"{topped_up}, 5 USDC to the treasury: credits may be owed" in done.output
        assert "that this database does not" not in doctor(app)

        look(5)
        found = agent.transaction(stuck["transaction_id"])
        assert (found["status"], found["tx_hash"]) == ("confirmed", landed["tx_hash"])
        # What was sent since the backup is in the history, and counts against the limits.
        assert_booked_once(
            agent, app, {(unknown, "3", "confirmed"), (topped_up, "5", "confirmed")}, spent=1 + 2 + 3 + 5
        )
        assert "before_restore" in app.test_client().get(SEARCH, headers=by_hash(payment, BASE)).text
        sweeps.sweep()
        assert agent.get("/v1/balance").get_json() == before["balance"]
        purchases.buy(order["id"])
        assert agent.get(f"/v1/gateway/shopping/purchases/{order['id']}").get_json()["status"] == "unknown"
        assert world.paid_and_bought() == done_before

        again = agent.move("4", "USDC", to=ELSEWHERE)
        assert again.status_code == 200
        look(7)
        assert agent.transaction(again.get_json()["transaction_id"])["status"] == "confirmed"
        assert sweeps.audit() == []


def test_a_movement_failed_by_a_worker_after_a_restore_is_found_on_the_chain(
    each_database_url: str, elsewhere: str, world: World, tmp_path: Path
) -> None:
    with world.opened(each_database_url) as (app, agent):
        stuck = world.pending(agent)
        backup = backups.dump(each_database_url, tmp_path / "backup")
        world.lands_at_a_higher_fee()
        assert world.paid_to(RECIPIENT) == 2_000_000
    with world.set_back(backup, agent, elsewhere) as (app, agent):
        look(3)
        assert agent.transaction(stuck["transaction_id"])["error"] == "slot_taken"
        assert agent.spent_this_month() == 0
        assert restored(app).exit_code == 0
        look(5)
        assert agent.transaction(stuck["transaction_id"])["status"] == "confirmed"
        assert agent.spent_this_month() == 2


def test_a_top_up_failed_by_a_worker_after_a_restore_gets_its_credits(
    world: World, sqlite_url: str, tmp_path: Path
) -> None:
    with world.opened(sqlite_url) as (app, agent):
        world.node.set_automine(False)
        topup = {"wallet_id": agent.wallet_id, "chain": "base", "amount": "5"}
        stuck = agent.post("/v1/credits/topup", topup).get_json()
        world.node.rpc("anvil_dropTransaction", stuck["tx_hash"])
        backup = backups.dump(sqlite_url, tmp_path / "backup")
        world.lands_at_a_higher_fee()
        assert world.paid_to(stuck["to"]) == 5_000_000
    with world.set_back(backup, agent, f"sqlite:///{tmp_path / 'restored.sqlite'}") as (app, agent):
        had = agent.get("/v1/balance").get_json()["credits_usd"]
        look(3)
        assert agent.transaction(stuck["transaction_id"])["error"] == "slot_taken"
        assert topups.grant_due(BASE) == 1
        assert restored(app, "--repair").exit_code == 0
        look(5)
        world.node.mine(70)
        look(7)
        assert agent.transaction(stuck["transaction_id"])["status"] == "confirmed"
        assert topups.grant_due(BASE) == 1
        assert agent.get("/v1/balance").get_json()["credits_usd"] == had + 5
        assert sweeps.audit() == []


def test_an_address_far_ahead_of_a_restored_database_can_send_once_its_nonces_are_advanced(
    each_database_url: str, world: World
) -> None:
    with world.opened(each_database_url, dollars=10) as (app, agent):
        world.node.rpc("anvil_setNonce", agent.address, hex(150))
        refused = agent.move("1", "USDC")
        assert refused.get_json()["details"]["reason"] == "chain_unreachable"
        found = restored(app, "--max-lookups", "2")
        assert "has sent 150 transactions that are not in this database" in found.output
        assert "and 148 more" in found.output
        moved = agent.move("1", "USDC")
        assert moved.status_code == 200
        with unit_of_work() as session:
            assert session.get_one(Nonce, ("base", agent.address)).next_nonce == 151
        await_mined(world.node, moved.get_json()["tx_hash"])
        assert app_state().ports.chains[BASE].transaction_counts([agent.address])[agent.address] == 151


def leaves_out_signatures(_calls: Calls, replies: Calls) -> Calls:
    """Respond like a node that returns no complete signatures."""
    for reply in replies:
        result = reply.get("result")
        for each in result.get("transactions", []) if isinstance(result, dict) else []:
            if isinstance(each, dict):
                each.pop("r")
                each["yParity"] = None
    return replies


@pytest.fixture
def node_proxy(world: World) -> Iterator[Proxy]:
    with proxy(world.node.url) as before_the_node:
        yield before_the_node


def test_movements_unknown_to_all_nodes_after_a_restore_are_reported_and_quarantined(
    world: World, node_proxy: Proxy, sqlite_url: str, tmp_path: Path
) -> None:
    with world.opened(sqlite_url) as (app, agent):
        stuck = world.pending(agent)
        backup = backups.dump(sqlite_url, tmp_path / "backup")
        world.lands_at_a_higher_fee()
    world.urls = (node_proxy.url,)
    with world.set_back(backup, agent, f"sqlite:///{tmp_path / 'restored.sqlite'}") as (app, agent):
        node_proxy.after = refuse("eth_getTransactionCount", "header not found")
        silent = restored(app)
        assert (silent.exit_code, "base: cannot be read" in silent.output) == (1, True), silent.output
        assert "could not be compared with the database" in doctor(app)

        node_proxy.after = leaves_out_signatures
        incomplete = restored(app)
        assert incomplete.exit_code == 1, incomplete.output
        assert "signed bytes" in incomplete.output
        assert "restored --dry-run" in doctor(app)
        look(3)
        assert agent.transaction(stuck["transaction_id"])["status"] == "pending"

        node_proxy.after = lambda _calls, replies: replies
        result = restored(app, "--repair")
        assert result.exit_code == 0, result.output
        look(5)
        assert agent.transaction(stuck["transaction_id"])["status"] == "confirmed"


@pytest.mark.parametrize("knew", ["that it has landed", "that it waits"])
def test_a_running_pass_does_not_settle_a_quarantined_movement(
    world: World, node_proxy: Proxy, sqlite_url: str, tmp_path: Path, knew: str
) -> None:
    with world.opened(sqlite_url) as (app, agent):
        stuck = world.pending(agent)
        backup = backups.dump(sqlite_url, tmp_path / "backup")
        world.is_signed_again()
    world.urls = (node_proxy.url,)
    with world.set_back(backup, agent, f"sqlite:///{tmp_path / 'restored.sqlite'}") as (app, agent):
        node_proxy.after = leaves_out_signatures

        def hold_back() -> None:
            if knew == "that it waits":
                world.lands()
            incomplete = restored(app, "--repair")
            assert "signed bytes" in incomplete.output, incomplete.output

        if knew == "that it has landed":
            world.lands()
        world.chain.fail("outcomes", "after", hold_back)
        look(3)
        for minutes in (5, 7):
            look(minutes)
            assert agent.transaction(stuck["transaction_id"])["status"] == "pending"
        # Nor does it prevent the replacement of what is stuck behind it.
        world.pending(agent)
        world.is_signed_again()
        world.node.set_automine(True)
        node_proxy.after = lambda _calls, replies: replies
        result = restored(app, "--repair")
        assert result.exit_code == 0, result.output
        look(9)
        assert agent.transaction(stuck["transaction_id"])["status"] == "confirmed"


def test_reconciliation_during_operation_adopts_only_what_is_unknown(
    world: World, sqlite_url: str, tmp_path: Path
) -> None:
    with world.opened(sqlite_url) as (app, agent):
        stuck = world.pending(agent)
        backup = backups.dump(sqlite_url, tmp_path / "backup")
        world.is_signed_again()
    with world.set_back(backup, agent, f"sqlite:///{tmp_path / 'restored.sqlite'}") as (app, agent):
        assert restored(app).exit_code == 0
        world.lands()
        look(3)
        assert agent.transaction(stuck["transaction_id"])["error"] == "slot_taken"
        leases.record(ProcessKind.SHOPPER)
        order = agent.post(BUY, {**ORDER, "max_total_usd": 50}).get_json()
        with read_only_unit() as session:
            drawn = claimed_payments.restore_cutoff(session)
        assert "1 transactions were executed or replaced by bytes" in doctor(app)
        repaired = restored(app, "--repair")
        assert repaired.exit_code == 0, repaired.output
        assert "a worker settles it" in repaired.output
        look(5)
        assert agent.transaction(stuck["transaction_id"])["status"] == "confirmed"
        assert "executed or replaced" not in doctor(app)
        assert agent.get(f"/v1/gateway/shopping/purchases/{order['id']}").get_json()["status"] == "queued"
        with read_only_unit() as session:
            assert claimed_payments.restore_cutoff(session) == drawn


def test_a_nonce_used_by_another_transaction_is_reported_to_the_operator(each_database_url: str, world: World) -> None:
    with world.opened(each_database_url, dollars=10) as (app, agent):
        world.pending(agent)
        owner, chain = custody.signer_of(agent.wallet_id), evm_chain(world.node)
        draft = chain.draft(TransferIntent(agent.address, ELSEWHERE, TokenAmount(1, USDC)))
        other = chain.sign(draft, owner, sequence=0)
        chain.broadcast(other.raw)
        world.lands()
        found = restored(app)
        assert found.exit_code == 1
        assert f"another transaction used its nonce: {other.tx_hash}; check whether" in found.output
