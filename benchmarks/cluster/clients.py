"""Clients that keep a history, and probes that measure for how long the service cannot be used."""

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from benchmarks import soak_traffic
from benchmarks.cluster.history import Payment, Read, Write
from benchmarks.soak_traffic import Answer, Traffic
from benchmarks.upstream import CHAT

DAILY_LIMIT_USD = 2
_REGISTERS, _READERS = 2, 2
_PAYERS, _CALLERS, _PROBES = 2, 1, 3
_PAYMENTS_PER_AGENT = 12
_HIGHEST_LIMIT_USD = 1_000_000
"""A register's value is what its limit lacks to this: limits may be lowered as often as wanted, but not raised."""
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("weekly", "monthly", "per_tx")}
_OUTSIDE = "0x00000000000000000000000000000000C0FFEE01"
_PAUSE_SECONDS = 0.3
_PROBE_SECONDS = 0.25
_ATTEMPT_SECONDS = 3.0
_BETWEEN_ATTEMPTS_SECONDS = 0.25
_UNCERTAIN = (soak_traffic.BROKEN, *range(500, 600))
_CHAT_PATH = "/v1/gateway/openai/chat/completions"


@dataclass(frozen=True, slots=True)
class Operation:
    """A request that was repeated until it succeeded."""

    kind: str
    began: float
    seconds: float
    attempts: int


class Clients:
    """Threads that send, repeat what had no certain answer, and record everything."""

    def __init__(self, port: int, traffic: Traffic, *, seed: int) -> None:
        """Take the router's port, and the traffic whose faucet funds the wallets."""
        self._port, self._traffic, self._seed = port, traffic, seed
        self._stop = threading.Event()
        self._serial = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self.writes: defaultdict[str, list[Write]] = defaultdict(list)
        self.reads: defaultdict[str, list[Read]] = defaultdict(list)
        self.registers: dict[str, Any] = {}
        self.payments: list[Payment] = []
        self.calls: set[str] = set()
        """The ids of calls that succeeded."""
        self.registered: dict[str, str] = {}
        """The keys of all agents by id."""
        self.operations: list[Operation] = []
        self.unexpected: list[str] = []

    def prepare(self) -> None:
        """Register the agents of the registers and of the probes."""
        for _ in range(_REGISTERS):
            agent = self._register()
            limits = {**_UNLIMITED, "daily_limit_usd": _HIGHEST_LIMIT_USD}
            self._until_ok(partial(self._send, agent, "PUT", _controls(agent), limits))
            self.registers[agent["agentId"]] = agent
        self._prober = self._register()

    def start(self) -> None:
        """Start."""
        for agent in self.registers.values():
            self._run(self._write, agent)
            for _ in range(_READERS):
                self._run(self._read, agent)
        for number in range(_PAYERS):
            self._run(self._pay, number)
        for _ in range(_CALLERS):
            self._run(self._call)
        self._run(self._register_agents)
        for _ in range(_PROBES):
            self._run(self._probe, "read", self._read_once)
            self._run(self._probe, "write", self._write_once)
        self._run(self._probe, "report", self._report_once)

    def stop(self) -> None:
        """Let all finish."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def final(self, agent: Any) -> int:
        """Return what a register holds."""
        return self._value(self._until_ok(lambda: self._send(agent, "GET", _controls(agent))))

    def _run(self, act: Callable[..., None], *arguments: Any) -> None:
        def repeat() -> None:
            try:
                act(*arguments)
            except Exception as error:  # a thread must not end unnoticed
                self.unexpected.append(f"{act.__name__}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=repeat)
        thread.start()
        self._threads.append(thread)

    def _write(self, agent: Any) -> None:
        for value in itertools.count(1):
            if self._stop.wait(_PAUSE_SECONDS):
                return
            began = time.monotonic()
            body = {"daily_limit_usd": _HIGHEST_LIMIT_USD - value}
            answer = self._send(agent, "PUT", _controls(agent), body)
            ended = time.monotonic()
            is_acknowledged = answer.status == HTTPStatus.OK
            self.writes[agent["agentId"]].append(Write(value, began, ended, is_acknowledged))
            if not is_acknowledged and answer.status not in _UNCERTAIN:
                self._note("write", answer)

    def _read(self, agent: Any) -> None:
        while not self._stop.wait(_PAUSE_SECONDS / 2):
            began = time.monotonic()
            answer = self._send(agent, "GET", _controls(agent))
            if answer.status == HTTPStatus.OK:
                self.reads[agent["agentId"]].append(Read(self._value(answer), began, time.monotonic()))

    def _pay(self, number: int) -> None:
        draw = random.Random(f"{self._seed} payer {number}")
        while not self._stop.is_set():
            agent = self._register()
            wallet = agent["wallet"]
            limits = {**_UNLIMITED, "daily_limit_usd": DAILY_LIMIT_USD}
            self._until_ok(partial(self._send, agent, "PUT", _controls(agent), limits))
            for currency, amount in (("ETH", "1"), ("USDC", "100")):
                self._traffic.give(wallet["addresses"]["base"], "base", currency, amount)
            for _ in range(_PAYMENTS_PER_AGENT):
                if self._stop.wait(draw.random()):
                    return
                self._pay_once(agent, draw)

    def _pay_once(self, agent: Any, draw: random.Random) -> None:
        serial = next(self._serial)
        # Each amount is used once; about ten of them reach the limit.
        units = draw.randrange(150, 250) * 1000 + serial % 1000 + serial // 1000 * 1_000_000_000
        key, wallet = f"cluster-{self._seed}-{serial}", agent["wallet"]["id"]
        body = {"chain": "base", "to": _OUTSIDE, "currency": "USDC", "amount": f"{units / 1_000_000:.6f}"}
        headers = {"Idempotency-Key": key, **({"Prefer": "respond-async"} if draw.random() < 0.5 else {})}  # noqa: PLR2004
        found: set[str] = set()
        again = draw.randrange(3)
        while not self._stop.is_set() or not again:
            answer = self._send(agent, "POST", f"/v1/wallets/{wallet}/transfer", body, headers)
            if answer.status == HTTPStatus.OK:
                found.add(answer.json()["transaction_id"])
                if not again:
                    break
                again -= 1
            elif answer.status == HTTPStatus.FORBIDDEN and b"DAILY_LIMIT_EXCEEDED" in answer.body:
                break
            elif b"_FAILED" in answer.body or answer.status not in (*_UNCERTAIN, HTTPStatus.CONFLICT):
                # The deposit may not be there yet.
                if b"TRANSFER_FAILED" not in answer.body:
                    self._note("pay", answer)
                break
            elif self._stop.wait(0.5):
                break
        self.payments.append(Payment(key, wallet, units, frozenset(found)))

    def _call(self) -> None:
        agent = self._register()
        while not self._stop.wait(_PAUSE_SECONDS):
            answer = self._send(agent, "POST", _CHAT_PATH, CHAT)
            if answer.status == HTTPStatus.OK:
                self.calls.add(answer.headers["X-Gateway-Request-Id"])
            elif answer.status not in _UNCERTAIN:
                self._note("call", answer)

    def _register_agents(self) -> None:
        while not self._stop.wait(3 * _PAUSE_SECONDS):
            self._register()

    def _register(self) -> Any:
        agent = self._until_ok(lambda: self._send(None, "POST", "/v1/agents/register", {"name": "cluster"})).json()
        self.registered[agent["agentId"]] = agent["apiKey"]
        return agent

    def _probe(self, kind: str, act: Callable[[], Answer]) -> None:
        """Perform one operation after another: a crowd that repeats would prolong what it measures."""
        while not self._stop.wait(_PROBE_SECONDS):
            self._operate(kind, act)

    def _operate(self, kind: str, act: Callable[[], Answer]) -> None:
        began = time.monotonic()
        for attempt in itertools.count(1):
            answer = act()
            if answer.status == HTTPStatus.OK:
                self.operations.append(Operation(kind, began, time.monotonic() - began, attempt))
                break
            if answer.status not in _UNCERTAIN:
                self._note(f"probe of a {kind}", answer)
                break
            if self._stop.wait(_BETWEEN_ATTEMPTS_SECONDS):
                break

    def _read_once(self) -> Answer:
        return self._send(self._prober, "GET", "/v1/balance", seconds=_ATTEMPT_SECONDS)

    def _write_once(self) -> Answer:
        return self._send(self._prober, "POST", _CHAT_PATH, CHAT, seconds=_ATTEMPT_SECONDS)

    def _report_once(self) -> Answer:
        return self._send(self._prober, "GET", "/v1/usage/sums?group_by=provider", seconds=_ATTEMPT_SECONDS)

    def _until_ok(self, send: Callable[[], Answer]) -> Answer:
        while (answer := send()).status not in (HTTPStatus.OK, HTTPStatus.CREATED):
            if answer.status not in _UNCERTAIN:
                self._note("setup", answer)
            if self._stop.wait(0.5):
                time.sleep(0.5)
        return answer

    def _send(
        self, agent: Any, method: str, path: str, body: Any = None, headers: Any = None, *, seconds: float = 15.0
    ) -> Answer:
        sent = {**({"X-API-Key": agent["apiKey"]} if agent else {}), **(headers or {})}
        return soak_traffic.send(self._port, method, path, body, sent, seconds=seconds)

    def _note(self, what: str, answer: Answer) -> None:
        text = answer.body[:300].decode(errors="replace")
        self.unexpected.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {what}: {answer.status} {text}")

    @staticmethod
    def _value(answer: Answer) -> int:
        return _HIGHEST_LIMIT_USD - int(answer.json()["controls"]["daily_limit_usd"])


def _controls(agent: Any) -> str:
    return f"/v1/wallets/{agent['wallet']['id']}/controls"
