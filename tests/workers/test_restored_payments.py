"""What left wallets after a backup without their own nonces, or on Solana, is booked after the restore, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from eth_utils.crypto import keccak
from flask import Flask

from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.x402.payments import SignedAuthorization
from app.adapters.prices import MarketPriceFeed
from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.chains import ETH, SOL, ChainName, Token
from app.db.unit_of_work import unit_of_work
from app.payments import claimed_payments, treasury
from app.wallets.core.models import DepositCursor
from app.wallets.deposits.scan_states import Tier
from sandbox.jupiter import JupiterServer
from tests.support import backups
from tests.support.agents import Agent, register
from tests.support.buyers import keep, seller_on
from tests.support.drivers import ChainDriver, evm_driver, solana_driver
from tests.support.evm import await_mined
from tests.support.payments import facilitator_of
from tests.support.permit2 import settle_by_permit2
from tests.support.sellers import PAYEE
from tests.support.swaps import swap
from workers import sweeps

pytestmark = pytest.mark.chain


@dataclass
class Restorable:
    """A chain that continues, and the successive databases of a service that submits transfers on it."""

    driver: ChainDriver
    build: Callable[..., Flask]
    folder: Path
    url: str
    parts: dict[str, Any]

    @contextmanager
    def service(self, database_url: str) -> Iterator[Flask]:
        name, chain = self.driver.name, self.driver.chain
        app = self.build(
            database_url, settings={"allow_private_upstreams": True, "confirmation_wait_seconds": "5"},
            chains={name: chain}, facilitators={name: facilitator_of(chain)},
            public_upstream=HttpUpstream(connect_seconds=5, read_seconds=30), **self.parts,
        )  # fmt: skip
        with app.app_context():
            yield app

    def agent(self, app: Flask, *, native: float = 0, dollars: float = 50) -> Agent:
        agent = register(app.test_client())
        agent.unlimited()
        self.driver.fund(treasury.settler(self.driver.name))
        self.driver.fund(treasury.recipient(self.driver.name), native=0, dollars=1)
        self.driver.fund(self.driver.address(agent), native=native, dollars=dollars)
        return agent

    def dump(self) -> Path:
        return backups.dump(self.url, self.folder / "backup")

    @contextmanager
    def set_back(self, backup: Path, *agents: Agent) -> Iterator[tuple[Flask, list[Agent]]]:
        url = f"sqlite:///{self.folder / 'restored.sqlite'}"
        backups.restore(backup, url)
        with self.service(url) as app:
            yield app, [replace(agent, client=app.test_client()) for agent in agents]

    def send(self, agent: Agent, amount: str, currency: str = "USDC") -> dict[str, Any]:
        to, chain = self.driver.new_address(), self.driver.name.value
        sent: dict[str, Any] = agent.move(amount, currency, chain=chain, to=to).get_json()
        assert sent.get("status") == "confirmed", sent
        return sent

    def fetch(self, agent: Agent, url: str, *, wait: int = 5) -> dict[str, Any]:
        order = {"url": url + "/report", "max_amount_usd": 0.05}
        answer = agent.post(f"{agent.wallet_url}/x402/fetch", order, Prefer=f"wait={wait}").get_json()
        assert "payment" in answer, answer
        payment: dict[str, Any] = answer["payment"]
        return payment


@pytest.fixture(params=["base", "solana"])
def world(
    request: pytest.FixtureRequest, build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> Iterator[Restorable]:
    if request.param == "base":
        driver: ChainDriver = evm_driver(request.getfixturevalue("own_base_node"))
        yield Restorable(driver, build_app, tmp_path, sqlite_url, {})
        return
    with solana_driver(slot_ms=20) as on_solana:
        jupiter = JupiterServer(on_solana.node.url)
        jupiter.start()
        exchanges = {ChainName.SOLANA: JupiterExchange(on_solana.real, jupiter.url)}
        yield Restorable(on_solana, build_app, tmp_path, sqlite_url, {"swap_exchanges": exchanges})
        jupiter.stop()


only_base = pytest.mark.parametrize("world", ["base"], indirect=True)


def restored(app: Flask, *options: str) -> Result:
    return app.test_cli_runner().invoke(args=["restored", *options])


def booked(agent: Agent) -> dict[str, list[tuple[str, str, str]]]:
    """Return amount, currency and status of what was booked, by the hash."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for row in agent.history(kind="recovered", limit=100):
        found.setdefault(row["tx_hash"], []).append((row["amount"], row["currency"], row["status"]))
    return found


def hash_of(row: Mapping[str, Any]) -> str:
    return str(row["tx_hash"])


def assert_booked_once(world: Restorable, app: Flask, agent: Agent, *, hashes: set[str]) -> None:
    """Run the command again and again; nothing may be added, and the worker confirms each."""
    before = booked(agent)
    assert before.keys() == hashes
    world.driver.run_workers()
    for options in ([], ["--repair"], ["--max-lookups", "0"]):
        again = restored(app, *options)
        assert again.exit_code == 0, again.output
        assert ", booked" not in again.output
    after = booked(agent)
    assert {name: [(amount, of) for amount, of, _ in rows] for name, rows in after.items()} == {
        name: [(amount, of) for amount, of, _ in rows] for name, rows in before.items()
    }
    assert {status for rows in after.values() for *_, status in rows} <= {"confirmed"}
    assert sweeps.audit() == []


def test_payments_that_others_submitted_and_swaps_are_booked_once_and_count(world: Restorable) -> None:
    native, amount = world.driver.native.symbol, "0.01" if world.driver.name is ChainName.BASE else "0.2"
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        poor, rich = world.agent(app), world.agent(app, native=1)
        known = world.send(poor, "1")
        world.driver.run_workers()
        counted = poor.spent_this_month()
        backup = world.dump()
        relayed, paid = world.send(poor, "3"), world.fetch(poor, seller.url)
        fee = float(relayed["gas_fee"])
        own = world.send(rich, "2"), world.send(rich, amount, native)
        swapped = [
            swap(rich, given, wanted, units, chain=world.driver.name.value).get_json()
            for given, wanted, units in (("USDC", native, "5"), (native, "USDC", amount))
        ]
    with world.set_back(backup, poor, rich) as (app, [poor, rich]):
        dry = restored(app, "--dry-run")
        assert hash_of(relayed) in dry.output
        assert booked(poor) == booked(rich) == {}
        done = restored(app)
        assert done.exit_code == 0, done.output
        # Before any worker ran, too.
        assert poor.spent_this_month() == pytest.approx(counted + 3 + fee + 0.01, abs=0.31)
        assert rich.spent_this_month() > 2 + 5 + 2 * float(amount) * world.driver.native_usd - 0.01
        assert_booked_once(world, app, poor, hashes={hash_of(relayed), hash_of(paid)})
        assert_booked_once(
            world, app, rich,
            hashes={hash_of(row) for row in (*own, *swapped)} | booked(rich).keys() - {hash_of(known)},
        )  # fmt: skip
        assert hash_of(known) not in booked(poor)
        units = {float(value) for rows in booked(poor).values() for value, *_ in rows}
        assert units in ({3, fee, 0.01}, {3 + fee, 0.01})
        assert ("5", "USDC", "confirmed") in booked(rich)[hash_of(swapped[0])]
        assert (amount, native, "confirmed") in booked(rich)[hash_of(swapped[1])]


def test_a_signed_payment_that_the_backup_knows_is_not_booked_again(world: Restorable) -> None:
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        agent = world.agent(app)
        kept: list[Mapping[str, Any]] = []
        seller.behave = keep(kept)
        assert world.fetch(agent, seller.url, wait=1)["state"] == "pending"
        backup = world.dump()
        landed = seller.settle(kept[0])
    with world.set_back(backup, agent) as (app, [agent]):
        for _ in range(2):
            done = restored(app)
            assert (done.exit_code, landed in done.output) == (0, False), done.output
            world.driver.run_workers(minutes=3)
        assert booked(agent) == {}
        assert agent.spent_this_month() == 0.01
        assert [row["tx_hash"] for row in agent.history()] == [landed]


@only_base
@pytest.mark.parametrize("is_known", [True, False])
def test_a_payment_by_permit2_is_booked_unless_the_backup_knows_it(
    world: Restorable,
    is_known: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        agent = world.agent(app)
        seller.offer()["extra"]["assetTransferMethod"] = "permit2"
        seller.terms["extensions"] = {"eip2612GasSponsoring": {"info": {"version": "1"}}}
        kept: list[Mapping[str, Any]] = []
        seller.behave = keep(kept)
        backup = None if is_known else world.dump()
        assert world.fetch(agent, seller.url, wait=1)["state"] == "pending"
        backup = backup or world.dump()
        landed = settle_by_permit2(world.driver.node, kept[0])
    with world.set_back(backup, agent) as (app, [agent]):
        assert restored(app).exit_code == 0
        assert booked(agent).keys() == (set() if is_known else {landed})
        world.driver.run_workers(minutes=3)
        assert_booked_once(world, app, agent, hashes=set() if is_known else {landed})
        [row] = agent.history()
        assert (row["tx_hash"], row["to_address"], row.get("network_fee")) == (landed, PAYEE, None)
        assert agent.spent_this_month() == 0.01


def submit(world: Restorable, to: str | None, data: bytes) -> str:
    """Send a call from an account of somebody else."""
    node = world.driver.node
    sent = {"from": node.rpc("eth_accounts")[1], "data": "0x" + data.hex(), "gas": hex(600_000)}
    tx_hash = str(node.rpc("eth_sendTransaction", sent if to is None else {**sent, "to": to}))
    await_mined(node, tx_hash)
    return tx_hash


def word(value: str | int) -> bytes:
    return (int(value, 16) if isinstance(value, str) else value).to_bytes(32, "big")


@only_base
def test_what_strangers_log_in_the_name_of_a_wallet_is_not_booked(world: Restorable) -> None:
    usdc = world.driver.node.deployment.usdc
    with world.service(world.url) as app:
        agent = world.agent(app)
        backup = world.dump()
    submit(
        world,
        usdc,
        keccak(text="transferFrom(address,address,uint256)")[:4] + word(agent.address) + word(PAYEE) + word(0),
    )
    # A contract that logs, while it is deployed, that the wallet has paid with another token.
    topics = (word(PAYEE), word(agent.address), keccak(text="Transfer(address,address,uint256)"))
    log = b"".join(b"\x7f" + each for each in topics) + bytes.fromhex("60206000a300")
    faked = submit(world, None, b"\x7f" + word(10**9) + bytes.fromhex("600052") + log)
    [logged] = world.driver.node.rpc("eth_getTransactionReceipt", faked)["logs"]
    assert logged["topics"][1] == "0x" + word(agent.address).hex()
    world.driver.fund(agent.address, native=0.1, dollars=0.01)
    with world.set_back(backup, agent) as (app, [agent]):
        done = restored(app)
        assert (done.exit_code, ", booked" in done.output) == (0, False), done.output
        assert agent.history() == []
        assert agent.spent_this_month() == 0


@only_base
def test_of_two_payments_in_one_transaction_only_the_unknown_one_is_booked(world: Restorable) -> None:
    usdc = world.driver.node.deployment.usdc
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        agent = world.agent(app)
        kept: list[Mapping[str, Any]] = []
        seller.behave = keep(kept)
        assert world.fetch(agent, seller.url, wait=1)["state"] == "pending"
        backup = world.dump()
        seller.offer()["amount"] = "20000"
        assert world.fetch(agent, seller.url + "/more", wait=1)["state"] == "pending"
    both = [(usdc, False, SignedAuthorization.of_payload(each["payload"]).call()) for each in kept]
    landed = submit(world, MULTICALL3, contracts.AGGREGATE.encode(both))
    with world.set_back(backup, agent) as (app, [agent]):
        assert restored(app).exit_code == 0
        world.driver.run_workers(minutes=3)
        assert_booked_once(world, app, agent, hashes={landed})
        assert booked(agent) == {landed: [("0.02", "USDC", "confirmed")]}
        assert {row["tx_hash"] for row in agent.history()} == {landed}
        assert agent.spent_this_month() == pytest.approx(0.03)


class _DyingPrices:
    """Prices that end the process at one of its reads."""

    def __init__(self, reads: int) -> None:
        self.left = reads
        self.real = MarketPriceFeed([], [], overrides={ETH: 3000 * 10**9, SOL: 150 * 10**9})

    def nanos_per_token(self, token: Token) -> int | None:
        self.left -= 1
        if self.left == 0:
            raise SystemExit(9)
        return self.real.nanos_per_token(token)


def test_a_run_that_dies_before_any_of_its_bookings_is_completed_by_the_next(world: Restorable) -> None:
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        agent = world.agent(app, native=1)
        backup = world.dump()
        hashes = {hash_of(world.send(agent, "2")), hash_of(world.send(agent, "0.01", world.driver.native.symbol))}
        hashes |= {hash_of(world.fetch(agent, seller.url))}
    world.parts["prices"] = prices = _DyingPrices(0)
    with world.set_back(backup, agent) as (app, [agent]):
        found = []
        for reads in (1, 2, 2, 3):
            prices.left = reads
            done = restored(app)
            found.append((done.exit_code, len(booked(agent))))
        assert found[:2] == [(9, 0), (9, 1)]
        prices.left = -1
        assert restored(app).exit_code == 0
        assert_booked_once(world, app, agent, hashes=hashes)


@only_base
def test_what_landed_since_the_last_scan_or_the_restore_is_read(world: Restorable) -> None:
    world.driver.real.block_time = timedelta(seconds=2)
    with world.service(world.url) as app:
        agent = world.agent(app)
        backup = world.dump()
        sent = world.send(agent, "3")
    world.driver.node.mine(600)
    head = world.driver.real.head().number
    with world.set_back(backup, agent) as (app, [agent]):

        def run(*, scanned: int, hours: int = 0) -> bool:
            with unit_of_work() as session:
                session.merge(DepositCursor(chain="base", tier=Tier.ALL.value, block_number=scanned))
                claimed_payments.set_restore_cutoff(session, clock.now() - timedelta(hours=hours))
            return hash_of(sent) in restored(app, "--dry-run").output

        # The scans of a running service go on: what was signed before the backup may land at any time.
        assert run(scanned=head) is False
        assert run(scanned=head, hours=1) is True
        assert run(scanned=head - 500) is True
        assert restored(app).exit_code == 0
        assert {hash_of(row) for row in agent.history()} == {hash_of(sent)}


def test_two_runs_at_once_book_each_payment_once(world: Restorable) -> None:
    with world.service(world.url) as app, seller_on(world.driver) as seller:
        agent = world.agent(app)
        backup = world.dump()
        hashes = {hash_of(world.send(agent, "2")), hash_of(world.fetch(agent, seller.url))}
    with world.set_back(backup, agent) as (app, [agent]):
        with ThreadPoolExecutor(3) as pool:
            codes = list(pool.map(lambda _: restored(app, "--repair").exit_code, range(3)))
        assert codes == [0, 0, 0]
        assert_booked_once(world, app, agent, hashes=hashes)
