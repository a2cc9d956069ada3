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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from benchmarks import figures, load, processes, stack
from benchmarks.figures import Promise
from benchmarks.load import Request, Result
from benchmarks.stack import ROOT, Parts
from tests.support.servers import free_port

CONNECTIONS = (1, 16, 64, 256)
_CHAT = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 100}
_CREDITS_USD = "100000"
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chats: where, and with which headers."""

    name: str
    port: int
    path: str
    headers: Mapping[str, str]
    pid: int | None = None

    def request(self, *, stream: bool = False) -> Request:
        """Return one chat."""
        return Request("POST", self.path, self.headers, {**_CHAT, "stream": True} if stream else _CHAT)


def measure(made: Parts, *, quick: bool) -> list[Promise]:
    """Take all figures of the gateway."""
    seconds, rounds = (0.5, 1) if quick else (3.0, 3)
    with contextlib.ExitStack() as running:
        upstream = running.enter_context(_upstream())
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://{_LOCAL}:{upstream.port}/v1",
            "INITIAL_CREDITS_USD": _CREDITS_USD, "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        ours = [
            _service(running, made, "gateway, PostgreSQL", made.migrated("gateway", **settings)),
            _service(running, made, "gateway, SQLite", made.migrated_sqlite("gateway", **settings)),
        ]
        others = [running.enter_context(_litellm(upstream))] if os.environ.get("LITELLM") else []
        found = _rates([upstream, *ours, *others], seconds=seconds, rounds=rounds)
        _first_bytes([upstream, *ours, *others], times=5 if quick else 40)
        promises = _streams(ours[0], 50 if quick else 2000, seconds=3 if quick else 30)
        if others:
            mine, theirs = found[ours[0].name, 16], found[others[0].name, 16]
            promises += [
                figures.at_least("at 16 connections, times LiteLLM's rate", mine[0] / theirs[0], 5, "x"),
                figures.at_most("at 16 connections, part of LiteLLM's p50", mine[1] / theirs[1], 0.25, ""),
            ]
        return promises


def _rates(
    targets: Sequence[Target], *, seconds: float, rounds: int
) -> dict[tuple[str, int], tuple[float, float]]:
    figures.heading(
        "Chats through the gateway: answered a second, p50 / p99 in ms (medians of alternating rounds)"
    )
    found: dict[tuple[str, int], tuple[float, float]] = {}
    for count in CONNECTIONS:
        results: dict[str, list[Result]] = {target.name: [] for target in targets}
        for _ in range(rounds):
            for target in targets:
                lanes = [[target.request()]] * count
                results[target.name].append(load.run(target.port, lanes, seconds=seconds))
        for name, all_of in results.items():
            rate = figures.median([result.per_second for result in all_of])
            p50 = figures.median([result.p50_ms for result in all_of])
            p99 = figures.median([result.p99_ms for result in all_of])
            failures = sum(sum(result.failures.values()) for result in all_of)
            found[name, count] = (rate, p50)
            told = f", {failures} failures" if failures else ""
            figures.note(f"{count:4} connections  {name:22} {rate:8.0f}/s  {p50:7.1f} / {p99:7.1f}{told}")
    return found


def _first_bytes(targets: Sequence[Target], *, times: int) -> None:
    figures.heading("Time to the first streamed event (ms)")
    for target in targets:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            with _open_stream(target) as connection:
                received = b""
                while b"data:" not in received:
                    received += connection.recv(65_536)
                taken.append((time.perf_counter() - began) * 1000)
        ordered = sorted(taken)
        figures.note(f"{target.name:22} p50 {ordered[len(ordered) // 2]:6.1f}   highest {ordered[-1]:6.1f}")


def _streams(target: Target, wanted: int, *, seconds: float) -> list[Promise]:
    figures.heading(f"{wanted} streams of an event a second, held at once")
    assert target.pid is not None
    before = sum(processes.memory(pid).proportional_mb for pid in processes.tree(target.pid))
    with contextlib.ExitStack() as held:
        watched = selectors.DefaultSelector()
        events: dict[socket.socket, int] = {}
        for _ in range(wanted):
            connection = held.enter_context(_open_stream(target))
            connection.settimeout(0)
            events[connection] = 0
            watched.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + seconds
        highest = 0.0
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in watched.select(min(left, 1.0)):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                arrived = source.recv(65_536)
                events[source] += arrived.count(b'"content"')
                if not arrived:
                    watched.unregister(source)
            if highest == 0.0 and left < seconds / 2:
                highest = sum(processes.memory(pid).proportional_mb for pid in processes.tree(target.pid))
        alive = sum(1 for count in events.values() if count)
    each = (highest - before) * 1024 / max(1, alive)
    figures.note(
        f"{target.name}: {alive} of {wanted} had events, {sum(events.values()) / wanted / seconds:.2f} events a second "
        f"each; {highest:.0f} MB with {alive} streams, {before:.0f} MB before: {each:.0f} KB for each"
    )
    return [
        figures.at_least("streams held", alive, wanted, ""),
        figures.at_most("memory of all web processes with them", highest, 1024, "MB"),
    ]


@contextlib.contextmanager
def _open_stream(target: Target) -> Iterator[socket.socket]:
    with socket.create_connection((_LOCAL, target.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(target.request(stream=True).encoded(target.port))
        yield connection


def _service(running: contextlib.ExitStack, made: Parts, name: str, environment: Mapping[str, str]) -> Target:
    service = running.enter_context(stack.running(made, environment))
    status, body = service.call("POST", "/v1/keys", b"{}")
    assert status == HTTPStatus.CREATED, body
    key = json.loads(body)["api_key"]
    return Target(name, service.port, "/v1/gateway/openai/chat/completions", {"X-API-Key": key}, service.web)


@contextlib.contextmanager
def _upstream() -> Iterator[Target]:
    port = free_port()
    with _program([sys.executable, "-m", "benchmarks.upstream", str(port)], port):
        yield Target("the upstream itself", port, "/v1/chat/completions", {})


@contextlib.contextmanager
def _litellm(upstream: Target) -> Iterator[Target]:
    port = free_port()
    command = [
        os.environ["LITELLM"], "--model", "openai/gpt-5-mini", "--alias", "gpt-5-mini", "--host", _LOCAL,
        "--port", str(port), "--num_workers", "2", "--api_base", f"http://{_LOCAL}:{upstream.port}/v1",
    ]  # fmt: skip
    with _program(command, port, OPENAI_API_KEY="sk-benchmark", LITELLM_LOCAL_MODEL_COST_MAP="True"):
        yield Target("LiteLLM", port, "/chat/completions", {"Authorization": "Bearer none"})


@contextlib.contextmanager
def _program(command: Sequence[str], port: int, **settings: str) -> Iterator[None]:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), **settings}
    if command[0] != sys.executable:
        del environment["PYTHONPATH"]
        environment["HOME"] = os.environ.get("HOME", "/")
    process = subprocess.Popen(  # noqa: S603 - the benchmark's own programs
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection((_LOCAL, port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
