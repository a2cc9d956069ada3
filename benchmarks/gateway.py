"""Calls through the gateway, compared with other gateways and the upstream itself; memory of held streams."""

import contextlib
import http.client
import json
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coincurve import PrivateKey

from app.adapters.vault import evm_address
from benchmarks import competitors, processes, report, rounds, stack, thresholds
from benchmarks.load_generator import Request
from benchmarks.rounds import Load, Plans, Table
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold
from benchmarks.upstream import CHAT, Upstream, running_upstream
from tests.support.payments import EvmPayer, signed_headers

_CHATS = "/v1/gateway/openai/chat/completions"
_SEARCH = "/v1/gateway/brave/web/search?q=agents"
_AGENTS = 16
_MANY_AGENTS = 200
_COMPARED = 16
_OPENING_SECONDS = 240.0
_LOCAL = "127.0.0.1"
_OURS = "Purser, PostgreSQL"
_WEI = 10**18
_PAYMENTS_PER_SECOND = 8
"""At most, of one connection: a payment waits for a block."""
_TOOL_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city and its country."},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}
_LONG_CHAT = {
    **CHAT,
    "messages": [{"role": "user", "content": "A line of the long prompt. " * 760}],
    "tools": [
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": _TOOL_SCHEMA}} for number in range(6)
    ],
}


@dataclass(frozen=True, slots=True)
class ChatTarget:
    """A server of chat completions, and the headers that connections use in turn."""

    name: str
    port: int
    path: str
    headers: Sequence[Mapping[str, str]]
    processes: Mapping[str, int]

    def load(self) -> Load:
        """Return the load of chats."""
        return Load(self.name, self.port, self._plans, self.processes)

    def request(self, *, stream: bool = False, connection: int = 0) -> Request:
        """Return one chat."""
        headers = self.headers[connection % len(self.headers)]
        return Request("POST", self.path, headers, {**CHAT, "stream": True} if stream else CHAT)

    def _plans(self, connections: int) -> Plans:
        return [[self.request(connection=number)] for number in range(connections)]


@dataclass(frozen=True, slots=True)
class _Scale:
    """How much is measured."""

    seconds: float
    rounds: int
    connections: tuple[int, ...]
    first_events: int
    streams: int
    held_seconds: float


_FULL = _Scale(2.0, 3, (1, 16, 64), 40, 2000, 15.0)
_QUICK = _Scale(0.5, 1, (16,), 5, 50, 3.0)


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Run the gateway benchmarks. Only servers that are compared run at the same time."""
    scale = _QUICK if quick else _FULL
    promises: list[Threshold] = []
    with running_upstream() as upstream:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"{upstream.url}/v1",
            "BRAVE_API_KEY": "benchmark", "BRAVE_BASE_URL": f"{upstream.url}/res/v1",
            "INITIAL_CREDITS_USD": "100000", "ALLOW_PRIVATE_UPSTREAMS": "1",
        }  # fmt: skip
        settlement_key = PrivateKey()
        paid = {"X402_SETTLEMENT_KEY_EVM": "0x" + settlement_key.secret.hex()}
        infrastructure.nodes["base"].fund_eth(evm_address(settlement_key), _WEI)
        environment = infrastructure.migrated("gateway", **settings, **paid)
        with stack.running_service(infrastructure, environment) as service:
            promises += _compare_chats(infrastructure, service, upstream, scale)
            promises += _other_chats(infrastructure, service, scale)
            promises += _other_calls(infrastructure, service, upstream, scale)
        promises += _sqlite(infrastructure, infrastructure.migrated_sqlite("gateway", **settings), scale)
        # The kernel distributes connections unevenly: one of the two processes gets more than half of them.
        environment = infrastructure.migrated("streams", **settings, WEB_THREADS="2200")
        with stack.running_service(infrastructure, environment) as service:
            promises += _hold_streams(_target(service, "streams", {}, agents=1), scale)
    return promises


def _target(service: Service, name: str, others: Mapping[str, int], *, agents: int) -> ChatTarget:
    return ChatTarget(name, service.port, _CHATS, _keys(service, agents), {"web": service.web, **others})


def _keys(service: Service, count: int) -> list[dict[str, str]]:
    return [{"X-API-Key": _created(service, "/v1/keys", {})["api_key"]} for _ in range(count)]


def _compare_chats(
    infrastructure: Infrastructure, service: Service, upstream: Upstream, scale: _Scale
) -> list[Threshold]:
    thresholds.print_heading(f"Chats, on PostgreSQL and through other gateways: {_method(scale)}")
    database = {"database": infrastructure.database.pid}
    ours = _target(service, _OURS, database, agents=_AGENTS)
    one = ChatTarget("Purser, one agent for all", ours.port, ours.path, ours.headers[:1], ours.processes)
    itself = ChatTarget("the upstream itself", upstream.port, "/v1/chat/completions", [{}], {"web": upstream.pid})
    folder = Path(infrastructure.folder)
    with competitors.running_competitors(upstream.port, folder) as running:
        others = [
            ChatTarget(each.name, each.port, each.path, [each.headers or {}], {"web": each.pid}) for each in running
        ]
        targets = [ours, one, *others, itself]
        found = _rates([target.load() for target in targets], scale)
        first = _first_events([ours, *others, itself], scale)
    at_compared = found[_OURS][_COMPARED]
    promises = [
        thresholds.at_least(f"chats, {_COMPARED} connections", at_compared.alone_per_second, 1000, "/s"),
        thresholds.at_most(
            "processor time of the web processes for a chat", at_compared.processor_ms["web"], 0.9, "ms"
        ),
        thresholds.at_most("processor time of PostgreSQL for a chat", at_compared.processor_ms["database"], 0.8, "ms"),
        thresholds.at_most("first streamed event, p50", first[_OURS], 4, "ms"),
    ]
    if len(scale.connections) > 1:
        promises += [
            thresholds.at_least("chats, 64 connections", found[_OURS][64].alone_per_second, 1500, "/s"),
            thresholds.at_most("a chat, 1 connection, p50", found[_OURS][1].p50_ms, 2.2, "ms"),
        ]
    if theirs := found.get("LiteLLM", {}).get(_COMPARED):
        promises += [
            thresholds.at_least(
                "times the rate of LiteLLM without a database", at_compared.per_second / theirs.per_second, 5, "x"
            ),
            thresholds.at_most("part of LiteLLM's p50", at_compared.p50_ms / theirs.p50_ms, 0.25, "x"),
        ]
    return promises


def _other_chats(infrastructure: Infrastructure, service: Service, scale: _Scale) -> list[Threshold]:
    """Compare chats of other kinds with the plain one, by the processor time of the web processes."""
    thresholds.print_heading(f"Chats of other kinds, on PostgreSQL: {_method(scale)}")
    roots = {"web": service.web, "database": infrastructure.database.pid}
    keys = _keys(service, _MANY_AGENTS)

    def load(name: str, path: str, body: Any, agents: int = _AGENTS) -> Load:
        def plans(connections: int) -> Plans:
            # Each connection uses keys that no other one uses, in turn.
            turns = max(1, agents // connections)
            return [
                [Request("POST", path, keys[(turn * connections + number) % agents], body) for turn in range(turns)]
                for number in range(connections)
            ]

        return Load(name, service.port, plans, roots)

    call = {"service": "openai", "path": "chat/completions", "method": "POST", "body": json.dumps(CHAT)}
    message = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "call_service", "arguments": call}
    }  # fmt: skip
    plain, *others = loads = [
        load("Plain chat", _CHATS, CHAT),
        load(f"Chat, {_MANY_AGENTS} agents in turn", _CHATS, CHAT, _MANY_AGENTS),
        load("Chat, six tools and a prompt of 20 kB", _CHATS, _LONG_CHAT),
        load("Chat, by call_service of MCP", "/mcp", message),
    ]
    found = _rates(loads, replace(scale, connections=(_COMPARED,)))
    cost = found[plain.name][_COMPARED].processor_ms["web"]
    return [
        thresholds.at_most(
            f"{other.name}: times a plain one", found[other.name][_COMPARED].processor_ms["web"] / cost, 1.5, "x"
        )
        for other in others
    ]


def _other_calls(
    infrastructure: Infrastructure, service: Service, upstream: Upstream, scale: _Scale
) -> list[Threshold]:
    thresholds.print_heading(f"Other calls, on PostgreSQL: {_method(scale)}")
    roots = {"web": service.web, "database": infrastructure.database.pid}
    seller = _created(service, "/v1/agents/register", {})
    offer = {
        "name": "Weather", "description": "Current weather.", "category": "weather", "price_per_call_usd": 0.01,
        "base_url": f"{upstream.url}/weather",
    }  # fmt: skip
    sold = _created(service, "/v1/services", offer, **{"X-API-Key": seller["apiKey"]})
    keys = [{"X-API-Key": _created(service, "/v1/agents/register", {})["apiKey"]} for _ in range(_AGENTS)]

    def load(name: str, path: str) -> Load:
        def plans(connections: int) -> Plans:
            return [[Request("GET", path, keys[number % len(keys)])] for number in range(connections)]

        return Load(name, service.port, plans, roots)

    fixed = load("Call with a fixed price", _SEARCH)
    found = _rates([fixed, load("Call of a registered service", f"/v1/proxy/{sold['id']}/today")], scale)
    payer = EvmPayer(infrastructure.nodes["base"], dollars=1000)
    terms = service.payment_terms(_SEARCH, infrastructure.nodes["base"].chain_id)

    def payments(connections: int) -> Plans:
        each = round(scale.seconds * _PAYMENTS_PER_SECOND)
        signed = (signed_headers(terms, payer.authorize(terms)) for _ in iter(int, 1))
        return [[Request("GET", _SEARCH, next(signed)) for _ in range(each)] for _ in range(connections)]

    node = stack.node_process(infrastructure.nodes["base"])
    paid = Load("Call paid by x402, a block a second", service.port, payments, {**roots, "node": node})
    _rates([paid], replace(scale, connections=(_COMPARED,)))
    rate = found[fixed.name][_COMPARED].alone_per_second
    return [thresholds.at_least(f"calls with a fixed price, {_COMPARED} connections", rate, 800, "/s")]


def _sqlite(infrastructure: Infrastructure, environment: Mapping[str, str], scale: _Scale) -> list[Threshold]:
    thresholds.print_heading(f"Chats, on SQLite: {_method(scale)}")
    with stack.running_service(infrastructure, environment) as service:
        target = _target(service, "Purser, SQLite", {}, agents=_AGENTS)
        found = _rates([target.load()], scale)
        _first_events([target], scale)
    rate = found[target.name][_COMPARED].alone_per_second
    return [thresholds.at_least(f"chats on SQLite, {_COMPARED} connections", rate, 750, "/s")]


def _rates(loads: Sequence[Load], scale: _Scale) -> Table:
    found = rounds.measure(loads, connections=scale.connections, rounds=scale.rounds, seconds=scale.seconds)
    if scale.rounds > 1:
        report.keep_table(found)
    return found


def _method(scale: _Scale) -> str:
    return f"medians of {scale.rounds} alternating rounds of {scale.seconds:g} s"


def _first_events(targets: Sequence[ChatTarget], scale: _Scale) -> dict[str, float]:
    """Return the median times to the first streamed event, in milliseconds."""
    thresholds.print_note("time to the first streamed event, in alternating rounds:")
    taken: dict[str, list[float]] = {}
    for _ in range(scale.first_events):
        for target in targets:
            began = time.perf_counter()
            with _open_stream(target) as connection:
                received = b""
                # The connection of an error stays open.
                while b"data:" not in received and not received.startswith(b"HTTP/1.1 5"):
                    if not (more := connection.recv(65_536)):
                        break
                    received += more
            if b"data:" in received:
                taken.setdefault(target.name, []).append((time.perf_counter() - began) * 1000)
    for target in targets:
        if target.name not in taken:
            thresholds.print_note(f"  {target.name:30} ends streams without an event")
    for name, all_of in taken.items():
        thresholds.print_note(f"  {name:30} p50 {thresholds.median(all_of):6.1f}   highest {max(all_of):6.1f} ms")
    return {name: thresholds.median(all_of) for name, all_of in taken.items()}


def _hold_streams(target: ChatTarget, scale: _Scale) -> list[Threshold]:
    count, seconds = scale.streams, scale.held_seconds
    thresholds.print_heading(f"{count} concurrent streams of an event a second")
    before = _memory(target)
    with contextlib.ExitStack() as open_streams:
        watched = open_streams.enter_context(selectors.DefaultSelector())
        began = time.monotonic()
        for _ in range(count):
            connection = open_streams.enter_context(_open_stream(target))
            connection.settimeout(0)
            watched.register(connection, selectors.EVENT_READ)
            _read_events(watched, time.monotonic())
        # Timing starts once all of them have begun.
        started: set[socket.socket] = set()
        while len(started) < len(watched.get_map()) and time.monotonic() - began < _OPENING_SECONDS:
            started |= _read_events(watched, time.monotonic() + 1).keys()
        opening = time.monotonic() - began
        middle = _read_events(watched, time.monotonic() + seconds / 2)
        highest = _memory(target)
        end = _read_events(watched, time.monotonic() + seconds / 2)
        alive = len(middle.keys() & end.keys())
    events = sum(middle.values()) + sum(end.values())
    thresholds.print_note(
        f"{alive} had events in both halves of {seconds:g} s, {events / count / seconds:.2f} a second each; "
        f"{opening:.0f} s to open them; {highest:.0f} MB with them, {before:.0f} MB before: "
        f"{(highest - before) * 1024 / max(1, alive):.0f} KB for each"
    )
    return [
        thresholds.at_least("streams held", alive, count, ""),
        thresholds.at_most("memory of all web processes with them", highest, 1024, "MB"),
    ]


def _memory(target: ChatTarget) -> float:
    return sum(processes.memory(pid).proportional_mb for pid in processes.tree(target.processes["web"]))


def _read_events(watched: selectors.BaseSelector, until: float) -> Counter[socket.socket]:
    """Read until the deadline; return the number of events of each stream."""
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
def _open_stream(target: ChatTarget) -> Iterator[socket.socket]:
    with socket.create_connection((_LOCAL, target.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(target.request(stream=True).encoded(target.port))
        yield connection


def _created(service: Service, path: str, body: object, **headers: str) -> dict[str, Any]:
    status, answer = service.call("POST", path, json.dumps(body).encode(), **headers)
    if status != http.HTTPStatus.CREATED:
        raise RuntimeError(f"{path}: {status} {answer!r}")
    return dict(json.loads(answer))
