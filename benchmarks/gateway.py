"""The gateway: requests a second beside the upstream itself and, where installed, LiteLLM; streams and their memory.

LiteLLM is no requirement of ours: `LITELLM=/path/to/litellm` names its program, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from benchmarks import figures, load, processes, stack
from benchmarks.figures import Promise
from benchmarks.load import Request, Result
from benchmarks.stack import ROOT, Parts
from tests.support.servers import free_port

CONNECTIONS = (1, 16, 64, 256)
_COMPARED = 16
_OPENING_SECONDS = 240.0
CHAT = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 100}
_CREDITS_USD = "100000"
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chats: where, and with which headers, one after the other for each connection."""

    name: str
    port: int
    path: str
    headers: Sequence[Mapping[str, str]]
    pid: int

    def lanes(self, connections: int) -> list[list[Request]]:
        """Return what each of so many connections asks."""
        return [[self.request(of=number)] for number in range(connections)]

    def request(self, *, stream: bool = False, of: int = 0) -> Request:
        """Return one chat."""
        headers = self.headers[of % len(self.headers)]
        return Request("POST", self.path, headers, {**CHAT, "stream": True} if stream else CHAT)


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians of a target's rounds; `processor_ms` is what the target itself spent on a chat."""

    per_second: float
    p50_ms: float
    p99_ms: float
    processor_ms: float
    failures: int


def measure(made: Parts, *, quick: bool) -> list[Promise]:
    """Take all figures of the gateway. Only what is compared runs at the same time: idle servers are not idle."""
    seconds, rounds = (0.5, 1) if quick else (3.0, 3)
    promises: list[Promise] = []
    with upstream() as standing:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://{_LOCAL}:{standing.port}/v1",
            "INITIAL_CREDITS_USD": _CREDITS_USD, "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        with contextlib.ExitStack() as running:
            many = running.enter_context(
                _service(made, "gateway, PostgreSQL", made.migrated("gateway", **settings), agents=_COMPARED)
            )
            one = replace(many, name="gateway, one agent", headers=many.headers[:1])
            others = [running.enter_context(_litellm(standing))] if os.environ.get("LITELLM") else []
            found = _rates([standing, many, one, *others], seconds=seconds, rounds=rounds)
            _first_bytes([standing, many, *others], times=5 if quick else 40)
            promises += _compared(found, many, others)
        with _service(made, "gateway, SQLite", made.migrated_sqlite("gateway", **settings)) as sqlite:
            _rates([standing, sqlite], seconds=seconds, rounds=rounds)
            _first_bytes([standing, sqlite], times=5 if quick else 40)
        # The kernel deals connections out unevenly, so one of the two processes gets more than half of them.
        unevenly = {**settings, "WEB_THREADS": "2200"}
        with _service(made, "gateway, PostgreSQL", made.migrated("streams", **unevenly)) as holding:
            promises += _streams(holding, 50 if quick else 2000, seconds=3 if quick else 30)
    return promises


def _compared(
    found: Mapping[tuple[str, int], Figures], mine: Target, others: Sequence[Target]
) -> list[Promise]:
    promises = []
    for other in others:
        ours, theirs = found[mine.name, _COMPARED], found[other.name, _COMPARED]
        if not theirs.per_second:
            raise RuntimeError(f"{other.name} answered nothing")
        promises += [
            figures.at_least(
                f"at {_COMPARED} connections, times {other.name}'s rate",
                ours.per_second / theirs.per_second, 5, "x",
            ),
            figures.at_most(
                f"at {_COMPARED} connections, part of {other.name}'s p50", ours.p50_ms / theirs.p50_ms, 0.25, ""
            ),
        ]  # fmt: skip
    return promises


def _rates(targets: Sequence[Target], *, seconds: float, rounds: int) -> dict[tuple[str, int], Figures]:
    figures.heading(
        "Chats: answered a second, p50 / p99 in ms, processor ms for each (medians of alternating rounds)"
    )
    found: dict[tuple[str, int], Figures] = {}
    for count in CONNECTIONS:
        results: dict[str, list[tuple[Result, float]]] = {target.name: [] for target in targets}
        for _ in range(rounds):
            for target in targets:
                before = processes.processor_seconds(target.pid)
                result = load.run(target.port, target.lanes(count), seconds=seconds)
                spent = processes.processor_seconds(target.pid) - before
                results[target.name].append((result, spent * 1000 / max(1, result.answered)))
        for name, all_of in results.items():
            taken = found[name, count] = Figures(
                figures.median([result.per_second for result, _ in all_of]),
                figures.median([result.p50_ms for result, _ in all_of]),
                figures.median([result.p99_ms for result, _ in all_of]),
                figures.median([processor_ms for _, processor_ms in all_of]),
                sum(sum(result.failures.values()) for result, _ in all_of),
            )
            told = f", {taken.failures} failures" if taken.failures else ""
            figures.note(
                f"{count:4} connections  {name:22} {taken.per_second:8.0f}/s  "
                f"{taken.p50_ms:7.1f} / {taken.p99_ms:7.1f}  {taken.processor_ms:6.2f} ms{told}"
            )
    return found


def _first_bytes(targets: Sequence[Target], *, times: int) -> None:
    figures.heading("Time to the first streamed event (ms, in alternating rounds)")
    taken: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(times):
        for target in targets:
            began = time.perf_counter()
            with _open_stream(target) as connection:
                received = b""
                while b"data:" not in received:
                    if not (more := connection.recv(65_536)):
                        raise RuntimeError(f"{target.name} ended a stream without an event: {received!r}")
                    received += more
                taken[target.name].append((time.perf_counter() - began) * 1000)
    for name, all_of in taken.items():
        figures.note(f"{name:22} p50 {figures.median(all_of):6.1f}   highest {max(all_of):6.1f}")


def _streams(target: Target, wanted: int, *, seconds: float) -> list[Promise]:
    figures.heading(f"{wanted} streams of an event a second, held at once")
    before = sum(processes.memory(pid).proportional_mb for pid in processes.tree(target.pid))
    with contextlib.ExitStack() as held:
        watched = held.enter_context(selectors.DefaultSelector())
        began = time.monotonic()
        for _ in range(wanted):
            connection = held.enter_context(_open_stream(target))
            connection.settimeout(0)
            watched.register(connection, selectors.EVENT_READ)
            _read_events(watched, time.monotonic())
        # All of them have begun before the time counts in which they are held.
        started: set[socket.socket] = set()
        while len(started) < len(watched.get_map()) and time.monotonic() - began < _OPENING_SECONDS:
            started |= _read_events(watched, time.monotonic() + 1).keys()
        opening = time.monotonic() - began
        middle = _read_events(watched, time.monotonic() + seconds / 2)
        highest = sum(processes.memory(pid).proportional_mb for pid in processes.tree(target.pid))
        end = _read_events(watched, time.monotonic() + seconds / 2)
        alive = len(middle.keys() & end.keys())
    each = (highest - before) * 1024 / max(1, alive)
    count = sum(middle.values()) + sum(end.values())
    figures.note(
        f"{target.name}: {alive} of {wanted} had events in both halves of {seconds:g} s, "
        f"{count / wanted / seconds:.2f} a second each; {opening:.0f} s to open them; "
        f"{highest:.0f} MB with them, {before:.0f} MB before: {each:.0f} KB for each"
    )
    return [
        figures.at_least("streams held", alive, wanted, ""),
        figures.at_most("memory of all web processes with them", highest, 1024, "MB"),
    ]


def _read_events(watched: selectors.BaseSelector, until: float) -> Counter[socket.socket]:
    """Read what arrives until a moment; return the events of each stream. One that ended is watched no more."""
    events: Counter[socket.socket] = Counter()
    while True:
        left = until - time.monotonic()
        for key, _ in watched.select(max(0.0, left)):
            source = key.fileobj
            assert isinstance(source, socket.socket)
            arrived = source.recv(65_536)
            if not arrived:
                watched.unregister(source)
            elif found := arrived.count(b'"content"'):
                events[source] += found
        if left <= 0:
            return events


@contextlib.contextmanager
def _open_stream(target: Target) -> Iterator[socket.socket]:
    with socket.create_connection((_LOCAL, target.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(target.request(stream=True).encoded(target.port))
        yield connection


@contextlib.contextmanager
def _service(made: Parts, name: str, environment: Mapping[str, str], *, agents: int = 1) -> Iterator[Target]:
    with stack.running(made, environment) as service:
        keys: list[dict[str, str]] = []
        for _ in range(agents):
            status, body = service.call("POST", "/v1/keys", b"{}")
            assert status == HTTPStatus.CREATED, body
            keys.append({"X-API-Key": json.loads(body)["api_key"]})
        yield Target(name, service.port, "/v1/gateway/openai/chat/completions", keys, service.web)


@contextlib.contextmanager
def upstream() -> Iterator[Target]:
    """Run the upstream that answers at once."""
    port = free_port()
    # Its streams last until their reader goes, however long it takes to open all of them.
    lasting = str(int(_OPENING_SECONDS) * 2)
    command = [sys.executable, "-m", "benchmarks.upstream", str(port)]
    with _program(command, port, STREAM_SECONDS=lasting) as pid:
        yield Target("the upstream itself", port, "/v1/chat/completions", [{}], pid)


@contextlib.contextmanager
def _litellm(upstream: Target) -> Iterator[Target]:
    port = free_port()
    command = [
        os.environ["LITELLM"], "--model", "openai/gpt-5-mini", "--alias", "gpt-5-mini", "--host", _LOCAL,
        "--port", str(port), "--num_workers", "2", "--api_base", f"http://{_LOCAL}:{upstream.port}/v1",
        # On a busy machine its workers need longer to start than its supervisor waits for them by default.
        "--timeout_worker_healthcheck", "240",
    ]  # fmt: skip
    settings = {
        "OPENAI_API_KEY": "sk-benchmark", "LITELLM_MASTER_KEY": "sk-master", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    with _program(command, port, **settings) as pid:
        yield Target("LiteLLM", port, "/chat/completions", [{"Authorization": "Bearer sk-master"}], pid)


@contextlib.contextmanager
def _program(command: Sequence[str], port: int, **settings: str) -> Iterator[int]:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), **settings}
    if command[0] != sys.executable:
        del environment["PYTHONPATH"]
        environment["HOME"] = os.environ.get("HOME", "/")
    process = subprocess.Popen(  # noqa: S603 - the benchmark's own programs
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError), socket.create_connection((_LOCAL, port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
