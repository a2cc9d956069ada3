"""Calls to the nodes and their price at public rates: per transfer, per pending movement, per hour without traffic.

Providers bill each call of a batch. A chain has its real pace while a request waits. After that, the blocks of the
seconds until each next check are mined together, so that an hour takes seconds.
"""

import dataclasses
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from solders.keypair import Keypair
from sqlalchemy import func, select, text

from app import wiring
from app.adapters.evm.chain import EvmChain
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as CLUSTERS
from app.config import Settings
from app.core import clock
from app.core.chains import ChainName, native
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.factory import create_app
from app.payments import jobs as payments
from app.ports.chain import Chain, WatchedAddress
from app.state import app_state
from app.wallets.core import lifecycle
from app.wallets.core.models import Transaction
from app.wallets.transactions import confirmation
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.exchange_counts import Observer, relay

_BLOCK_SECONDS = {ChainName.ETHEREUM: 12.0, ChainName.BASE: 2.0, ChainName.SOLANA: 0.4}
_SAFE_BLOCKS = {ChainName.ETHEREUM: 48, ChainName.BASE: 64}
"""How far `safe` is behind: one and a half epochs of Ethereum, and about two minutes of Base's batches."""
# alchemy.com/docs/reference/compute-unit-costs; 0.45 USD per million units (alchemy.com/pricing).
_ALCHEMY_UNITS = {
    "eth_chainId": 0, "eth_blockNumber": 10, "eth_feeHistory": 10, "eth_maxPriorityFeePerGas": 10, "eth_call": 26,
    "eth_sendRawTransaction": 40, "eth_getLogs": 60,
}  # fmt: skip
_ALCHEMY_OTHER, _USD_PER_ALCHEMY_UNIT = 20, 0.45e-6
# helius.dev/docs/billing/credits: a call that reads history costs 10; 49 USD a month for 10 million.
_HELIUS_HISTORY = {"getTransaction", "getBlock", "getBlocksWithLimit", "getSignaturesForAddress"}
_HELIUS_HISTORY_CREDITS, _USD_PER_HELIUS_CREDIT = 10, 4.9e-6
_TICK_SECONDS = 2.0
_WALLETS, _PENDING, _PENDING_WALLETS = 1000, 100, 10
_DAY_SECONDS = 86_400
_HOUR = f"an hour of {_WALLETS} wallets waiting for deposits"
_PROMISED = (("USDC transfer, until it is final", "units"), (_HOUR, "units"))
_MAX_UNITS = {ChainName.ETHEREUM: (600, 40_000), ChainName.BASE: (470, 40_000), ChainName.SOLANA: (48, 4_000)}
_RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_MOVE_BACK = (
    "UPDATE transactions SET next_check_at = next_check_at - :passed, created_at = created_at - :passed",
    "UPDATE signed_attempts SET sent_at = sent_at - :passed, created_at = created_at - :passed",
)
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}


class _Meter:
    """The calls on one chain, and what its provider counts for them."""

    def __init__(self, name: ChainName) -> None:
        self._name = name
        self.calls: Counter[str] = Counter()
        self.units = 0

    @property
    def usd(self) -> float:
        """Return the price."""
        return self.units * (_USD_PER_HELIUS_CREDIT if self._name is ChainName.SOLANA else _USD_PER_ALCHEMY_UNIT)

    def observer(self) -> Observer:
        """Return the observer of one connection, which reads complete requests."""
        received = b""

        def observe(data: bytes) -> None:
            nonlocal received
            received += data
            head, found, body = received.partition(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            if found and len(body) >= length:
                received = body[length:]
                asked = json.loads(body[:length])
                for call in asked if isinstance(asked, list) else [asked]:
                    self._count(call)

        return observe

    def _count(self, call: dict[str, Any]) -> None:
        self.calls[call["method"]] += 1
        if self._name is not ChainName.SOLANA:
            self.units += _ALCHEMY_UNITS.get(call["method"], _ALCHEMY_OTHER)
        elif call["method"] in _HELIUS_HISTORY or "searchTransactionHistory': True" in str(call):
            self.units += _HELIUS_HISTORY_CREDITS
        else:
            self.units += 1


@dataclasses.dataclass(slots=True)
class _Scene:
    """A chain of its own behind a relay that counts, and an application on it."""

    name: ChainName
    node: EvmNode | SolanaNode
    meter: _Meter
    app: Flask
    figures: dict[str, float] = dataclasses.field(default_factory=dict)

    @contextmanager
    def measuring(self, what: str, *, times: float = 1, parts: float = 1) -> Iterator[None]:
        """Count the calls of a block, `times` as often and shared by so many `parts`."""
        self.meter.calls.clear()
        self.meter.units = 0
        yield
        count, units = (value * times / parts for value in (self.meter.calls.total(), self.meter.units))
        usd = self.meter.usd * times / parts
        thresholds.print_note(f"{what:52} {count:10,.2f} {units:12,.2f} {usd:12.8f}")
        self.figures[what] = units

    def mine(self, seconds: float) -> None:
        """Add the blocks of a time."""
        blocks = max(1, round(seconds / _BLOCK_SECONDS[self.name]))
        self.node.mine(blocks) if isinstance(self.node, EvmNode) else self.node.advance(blocks)

    def fund(self, wallet: dict[str, Any]) -> None:
        """Give a wallet coins and tokens."""
        address = wallet["addresses"][self.name.value]
        if isinstance(self.node, EvmNode):
            self.node.set_automine(True)
            self.node.fund_eth(address, 10**18)
            self.node.fund_usdc(address, 10**8)
            self.node.set_automine(False)
        else:
            self.node.airdrop(address, 10**10)
            self.node.mint_usdc(address, 10**8)
            self.node.advance(40)


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Count the calls on each chain."""
    del quick
    promises: list[Threshold] = []
    for name in ChainName:
        with _scene(infrastructure, name) as scene, scene.app.app_context():
            thresholds.print_heading(f"{name}: calls, provider's units, USD")
            client, wallet = _agent(scene)
            for symbol in (native(name).symbol, "USDC"):
                with scene.measuring(f"{symbol} transfer, until it is final"):
                    _transfer(scene, client, wallet, symbol)
            _measure_pending(scene)
            _measure_hour(scene)
            db.engine.dispose()
        for (figure, unit), limit in zip(_PROMISED, _MAX_UNITS[name], strict=True):
            promises.append(thresholds.at_most(f"{name}: {figure}", scene.figures[figure], limit, unit))
    return promises


@contextmanager
def _scene(made: Infrastructure, name: ChainName) -> Iterator[_Scene]:
    meter = _Meter(name)
    node: EvmNode | SolanaNode = (
        SolanaNode(slot_ms=400)
        if name is ChainName.SOLANA
        else EvmNode(name.value, slots_in_an_epoch=_SAFE_BLOCKS[name])
    )
    with node, relay(node.url, sent=meter.observer) as port:
        settings = {f"{name.name}_RPC_URL": f"http://127.0.0.1:{port}", "LOG_LEVEL": "ERROR"}
        settings["PRICE_OVERRIDES"] = "ETH:3000,SOL:150"
        chosen = Settings(**stack.settings_of(made.migrated(f"rpc_{name.value}", **settings)))
        ports = wiring.build(chosen)
        chains = {**ports.chains, name: _with_real_pace(ports.chains[name], port)}
        ports = dataclasses.replace(ports, chains=MappingProxyType(chains), faucet=None)
        if isinstance(node, EvmNode):
            node.mine(2 * _SAFE_BLOCKS[name])
        yield _Scene(name, node, meter, create_app(chosen, ports=ports))


def _with_real_pace(chain: Chain, port: int) -> Chain:
    urls, pace = [f"http://127.0.0.1:{port}"], _BLOCK_SECONDS[chain.name]
    if isinstance(chain, EvmChain):
        deployment = dataclasses.replace(chain.deployment, block_seconds=pace)
        depth = 2 if chain.name is ChainName.ETHEREUM else 5
        return EvmChain(chain.name, deployment, rpc_urls=urls, deposit_confirmations=depth)
    return SolanaChain(dataclasses.replace(CLUSTERS["sandbox"], block_seconds=pace), rpc_urls=urls)


def _agent(scene: _Scene) -> tuple[FlaskClient, dict[str, Any]]:
    client = scene.app.test_client()
    made = client.post("/v1/agents/register", json={}).get_json()
    client.environ_base["HTTP_X_API_KEY"] = made["apiKey"]
    wallet: dict[str, Any] = made["wallet"]
    client.put(f"/v1/wallets/{wallet['id']}/controls", json=_UNLIMITED)
    scene.fund(wallet)
    return client, wallet


def _transfer(scene: _Scene, client: FlaskClient, wallet: dict[str, Any], symbol: str) -> None:
    """Send a transfer that lands after half a block time, and follow it until its block is final."""
    answers: list[Any] = []
    sending = threading.Thread(target=lambda: answers.append(_send(scene, client, wallet, symbol)))
    sending.start()
    started, is_mined = time.monotonic(), False
    next_tick = started + _TICK_SECONDS
    while sending.is_alive() or not is_mined:
        time.sleep(0.05)
        now = time.monotonic()
        if not is_mined and now - started >= _BLOCK_SECONDS[scene.name] / 2 + 0.3:
            scene.mine(0)
            is_mined = True
        if now >= next_tick:
            next_tick += _TICK_SECONDS
            confirmation.confirm(scene.name)
    sending.join()
    _follow(scene, until_seconds=_DAY_SECONDS)
    thresholds.print_note(f"    answered {answers[0]} after {time.monotonic() - started:.1f} s")


def _send(scene: _Scene, client: FlaskClient, wallet: dict[str, Any], symbol: str, **headers: str) -> str:
    recipient = str(Keypair().pubkey()) if scene.name is ChainName.SOLANA else _RECIPIENT
    body = {"chain": scene.name.value, "to": recipient, "amount": "0.01", "currency": symbol}
    answer = client.post(f"/v1/wallets/{wallet['id']}/transfer", json=body, headers=headers)
    return str(answer.get_json().get("status", answer.get_data(as_text=True)))


def _follow(scene: _Scene, *, until_seconds: float, mines: bool = True) -> float:
    """Run the passes of the worker until nothing is due, and return the seconds that it would have taken."""
    passed = 0.0
    while passed < until_seconds and (delay := _seconds_to_next_check()) is not None:
        delay = max(delay, _TICK_SECONDS / 2)  # the scheduler's mean delay
        passed += delay
        if mines:
            scene.mine(delay)
        _pass_time(delay)
        confirmation.confirm(scene.name)
    return passed


def _seconds_to_next_check() -> float | None:
    with read_only_unit() as session:
        due = session.scalar(select(func.min(Transaction.next_check_at)))
    return None if due is None else max(0.0, (due - clock.now()).total_seconds())


def _pass_time(seconds: float) -> None:
    """Move all times back, as if so many seconds had passed."""
    with unit_of_work() as session:
        for statement in _MOVE_BACK:
            session.execute(text(statement), {"passed": timedelta(seconds=seconds)})


def _measure_pending(scene: _Scene) -> None:
    if isinstance(scene.node, SolanaNode):
        scene.node.faults(drop=100_000)
    agents = [_agent(scene) for _ in range(_PENDING_WALLETS)]
    senders = [agent for agent in agents for _ in range(_PENDING // _PENDING_WALLETS)]
    for some, which in ((senders[:1], "alone"), (senders[1:], f"of {_PENDING} of {_PENDING_WALLETS} wallets")):
        for client, wallet in some:
            _send(scene, client, wallet, "USDC", Prefer="respond-async")
        for _ in range(2):
            _pass_time(30)
            confirmation.confirm(scene.name)
        # Soon after a broadcast, which does not count, and late enough to be due.
        _pass_time(14)
        with scene.measuring(f"a pending movement {which}, one poll", parts=len(some)):
            confirmation.confirm(scene.name)
    with scene.measuring("a pending movement of these, until it expires or for an hour", parts=_PENDING):
        # Where no block is made, nothing is replaced.
        _follow(scene, until_seconds=3600, mines=scene.name is ChainName.SOLANA)


def _measure_hour(scene: _Scene) -> None:
    """Measure an hour in which wallets wait for deposits that do not come."""
    chain = app_state().ports.chains[scene.name]
    addresses = [_address(scene.name) for _ in range(_WALLETS)]
    states = {address: chain.scan_state(addresses[0]) for address in addresses}
    cursor = None
    scans = 3600 / _scan_seconds(scene.name)
    for is_measured in (False, True):
        scene.mine(60)
        watched = [WatchedAddress(address, state) for address, state in states.items()]
        if not is_measured:
            found = chain.deposits(watched, cursor=cursor)
            cursor, states = found.cursor, {**states, **found.scan_states}
            continue
        with scene.measuring(_HOUR, times=scans):
            chain.deposits(watched, cursor=cursor)
    with scene.measuring("an hour of gas reserve checks", times=60):
        payments.check_gas_reserves()


def _scan_seconds(name: ChainName) -> float:
    pause = lifecycle.scan_pause(name, timedelta(days=1)).total_seconds()
    return max(pause, _TICK_SECONDS)


def _address(name: ChainName) -> str:
    key = Keypair()
    return str(key.pubkey()) if name is ChainName.SOLANA else "0x" + bytes(key.pubkey())[:20].hex()
