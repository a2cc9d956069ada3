"""Concurrent request bodies built to cost memory and processor time: memory of the web processes, `/v1/health`."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from multiprocessing.sharedctypes import Synchronized

from benchmarks import processes, stack, thresholds
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold
from benchmarks.upstream import CHAT, running_upstream

_CONCURRENT = 64
_MEBIBYTE = 2**20
_LARGEST = 32 * _MEBIBYTE
_KEYLESS = 256 * 1024
_CHAT = "/v1/gateway/openai/chat/completions"
_TIMEOUT_SECONDS = 300
_GROWTH = 1.5
_HEALTH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of body and the route it is sent to."""

    name: str
    path: str
    body: Callable[[], bytes]
    has_key: bool = False


def _repeated(unit: bytes, size: int) -> Callable[[], bytes]:
    """Return a factory of a chat with a field `x` that is a list of as many units as fit."""
    return lambda: b'{"model":"gpt-5","x":[' + unit * ((size - 40) // len(unit)) + b"0]}"


def _filled(unit: bytes, size: int) -> Callable[[], bytes]:
    """Return a factory of a list with the most values that are accepted, padded with one long string."""

    def make() -> bytes:
        values = unit * (300_000 // (unit.count(b",") + unit.count(b":") + unit.count(b"[") + unit.count(b"{")))
        head = b'{"model":"gpt-5","max_tokens":10,"messages":[],"x":[' + values + b'"'
        return head + b"A" * (size - len(head) - 3) + b'"]}'

    return make


def _emoji(size: int) -> Callable[[], bytes]:
    """Return a factory of one string that needs four bytes per character in memory."""
    return lambda: b'{"model":"gpt-5","x":"' + b"A" * (size - 40) + "😀".encode() + b'"}'


def _long_name(size: int) -> Callable[[], bytes]:
    """Return a factory of an object with one long name and an emoji, which makes its string wide."""
    return lambda: b'{"' + b"A" * (size - 40) + '":"😀"}'.encode()


_ATTACKS = (
    Attack("fractions, 4 MiB, no key", _CHAT, _repeated(b"1.5,", 4 * _MEBIBYTE)),
    Attack("fractions, 256 KiB, no key", _CHAT, _repeated(b"1.5,", _KEYLESS)),
    Attack("one string, 256 KiB, no key", _CHAT, _emoji(_KEYLESS)),
    Attack("objects, 1 MiB, registration", "/v1/agents/register", _repeated(b"{},", _MEBIBYTE)),
    Attack("objects, 256 KiB, gateway key", "/v1/keys", _repeated(b"{},", _KEYLESS)),
    Attack("fractions, 32 MiB, free key", _CHAT, _repeated(b"1.5,", _LARGEST), has_key=True),
    Attack("most objects and a string, 32 MiB, free key", _CHAT, _filled(b'{"":0},', _LARGEST), has_key=True),
    Attack("most fractions and a string, 32 MiB, free key", _CHAT, _filled(b"1.5,", _LARGEST), has_key=True),
    Attack("one string with an emoji, 32 MiB, free key", _CHAT, _emoji(_LARGEST), has_key=True),
    Attack("one string with an emoji, 8 MiB, free key", _CHAT, _emoji(_LARGEST // 4), has_key=True),
    Attack("one long name and an emoji, 32 MiB, free key", _CHAT, _long_name(_LARGEST), has_key=True),
)


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Send each kind of body from many connections concurrently."""
    thresholds.print_heading(
        f"Hostile bodies, {_CONCURRENT} concurrent: memory of the web processes (MB), /v1/health (s)"
    )
    thresholds.print_note(f"{'':46} {'peak':>6} {'after':>6} {'growth':>6} {'health':>7} {'CPU s':>6}  answers")
    growths, healths = [], []
    with running_upstream() as running_stack:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://127.0.0.1:{running_stack.port}/v1",
            "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        with stack.running_service(infrastructure, infrastructure.migrated("hostile", **settings)) as service:
            headers = _warm(service)
            idle = _resident(service)
            with _sample_service(service) as seen:
                time.sleep(3)
            thresholds.print_note(f"{'idle':46} {idle:6.0f} {'':6} {'':6} {seen['health']:7.2f}")
            for attack in _ATTACKS[:: 4 if quick else 1]:
                peak, after, health, spent, answers = _run_attack(service, attack, headers)
                growths.append(peak / idle)
                healths.append(health)
                thresholds.print_note(
                    f"{attack.name:46} {peak:6.0f} {after:6.0f} {peak / idle:6.2f} {health:7.2f} {spent:6.1f}  "
                    + ", ".join(f"{count} x {status}" for status, count in sorted(answers.items()))
                )
    return [
        thresholds.at_most(
            f"{_CONCURRENT} concurrent hostile bodies: growth of the web processes", max(growths), _GROWTH, "x"
        ),
        thresholds.at_most(
            f"{_CONCURRENT} concurrent hostile bodies: /v1/health within", max(healths), _HEALTH_SECONDS, "s"
        ),
    ]


def _warm(service: Service) -> Mapping[str, str]:
    """Create a key, and warm both processes up before the idle measurement."""
    status, body = service.call("POST", "/v1/keys", b"{}")
    assert status == HTTPStatus.CREATED, body
    headers = {"X-API-Key": json.loads(body)["api_key"]}
    for _ in range(40):
        service.call("POST", _CHAT, json.dumps(CHAT).encode(), **headers)
        service.call("GET", "/v1/health")
    return headers


def _resident(service: Service) -> float:
    found = 0.0
    for pid in processes.tree(service.web):
        with suppress(OSError, KeyError):
            found += processes.memory(pid).resident_mb
    return found


def _run_attack(
    service: Service, attack: Attack, headers: Mapping[str, str]
) -> tuple[float, float, float, float, Counter[str]]:
    body = attack.body()
    answers: Counter[str] = Counter()
    sent = headers if attack.has_key else {}
    began = processes.processor_seconds(service.web)
    with _sample_service(service) as seen:
        senders = [
            threading.Thread(target=_send, args=(service, attack, body, sent, answers)) for _ in range(_CONCURRENT)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    return (seen["peak"], _resident(service), seen["health"], processes.processor_seconds(service.web) - began, answers)


def _send(service: Service, attack: Attack, body: bytes, headers: Mapping[str, str], answers: Counter[str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=_TIMEOUT_SECONDS)
    try:
        # The server may refuse and close while the body is being sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", attack.path, body, {"Content-Type": "application/json", **headers})
        answers[str(connection.getresponse().status)] += 1
    except (OSError, http.client.HTTPException):
        answers["no answer"] += 1
    finally:
        connection.close()


@contextmanager
def _sample_service(service: Service) -> Iterator[dict[str, float]]:
    """Record the highest memory and the slowest `/v1/health` while the block lasts."""
    seen = {"peak": 0.0, "health": 0.0}
    # In a separate process: the sending threads would delay it.
    slowest = multiprocessing.Value("d", 0.0)
    asking = multiprocessing.Process(target=_request_health, args=(service.port, slowest), daemon=True)
    asking.start()
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            seen["peak"] = max(seen["peak"], _resident(service))

    looking = threading.Thread(target=sample)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()
        asking.kill()
        asking.join()
        seen["health"] = slowest.value


def _request_health(port: int, slowest: Synchronized[float]) -> None:
    while True:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/v1/health")
            is_well = connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            is_well = False
        finally:
            connection.close()
        slowest.value = max(slowest.value, time.monotonic() - began if is_well else float("inf"))
        time.sleep(0.05)
