"""Memory of everything that `./run` starts, the sandbox aside, for each size of a host (setting HOST_MEMORY)."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path

from app.core import host
from benchmarks import idle, load_generator, processes, thresholds
from benchmarks.idle import LauncherRun
from benchmarks.load_generator import Request
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold
from benchmarks.upstream import CHAT, running_upstream

_MEGABYTES = {"512MB": 512, "1GB": 1024, "4GB": 4096}
_SYSTEM_MB = 100
"""What the operating system keeps for itself."""
_CHAT_PATH = "/v1/gateway/openai/chat/completions"
_SERVICE = ("launcher", "redis", "web", "worker", "scheduler", "shopper")
_STREAMS_PER_THREAD = 0.5
_AGENTS = 8
_LARGE_BODY = 8 * 2**20
_SAMPLE_SECONDS = 0.25


class _Peak(threading.Thread):
    """Samples the service's memory until it is stopped; keeps the sample with the largest total, in MB by process."""

    def __init__(self, run: LauncherRun) -> None:
        super().__init__()
        self._run = run
        self._ended = threading.Event()
        self.highest: Counter[str] = Counter()

    def run(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            sample: Counter[str] = Counter()
            for pid in processes.tree(self._run.process.pid):
                with contextlib.suppress(OSError, KeyError):
                    megabytes = processes.memory(pid).proportional_mb
                    sample[idle.name_of(pid)] += megabytes  # type: ignore[assignment] # not integers
            sample = Counter({name: sample[name] for name in _SERVICE})
            self.highest = max(self.highest, sample, key=lambda each: each.total())

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Run each size under calls, as many streams as half its threads, and large bodies."""
    thresholds.print_heading("Small hosts: proportional memory of the service under load (MB)")
    promises = []
    for size, megabytes in _MEGABYTES.items():
        peak, note = _measure_size(infrastructure, size, seconds=1 if quick else 10)
        found = ", ".join(f"{name} {value:.0f}" for name, value in peak.items() if value)
        thresholds.print_note(f"{size:5} {peak.total():5.0f} MB: {found}; {note}")
        promises.append(
            thresholds.at_most(f"memory of the service on a host of {size}", peak.total(), megabytes - _SYSTEM_MB, "MB")
        )  # fmt: skip
    return promises


def _measure_size(infrastructure: Infrastructure, size: str, *, seconds: float) -> tuple[Counter[str], str]:
    sizes = host.defaults(size)
    streams = int(sizes["web_concurrency"] * sizes["web_threads"] * _STREAMS_PER_THREAD)
    folder = infrastructure.folder / size
    folder.mkdir()
    with contextlib.ExitStack() as running:
        upstream = running.enter_context(running_upstream())
        database = infrastructure.database.create_database(f"host_{size.lower()}")
        settings = {
            "HOST_MEMORY": size, "DATABASE_URL": database, "INITIAL_CREDITS_USD": "100000",
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"{upstream.url}/v1",
        }  # fmt: skip
        run = running.enter_context(idle.running_launcher(Path(folder), **settings))
        run.await_welcome()
        keys = [_registered(run.port) for _ in range(_AGENTS)]
        peak = _Peak(run)
        running.callback(peak.stop)
        peak.start()
        calls = [[Request("POST", _CHAT_PATH, keys[number % _AGENTS], CHAT)] for number in range(32)]
        result = load_generator.run(run.port, calls, seconds=seconds)
        opened = [running.enter_context(_open_stream(run.port, keys[number % _AGENTS])) for number in range(streams)]
        begun = sum(connection.recv(12).endswith(b"200") for connection in opened)
        statuses = _send_large_bodies(run.port, keys)
        time.sleep(seconds)
        return peak.highest, (
            f"{result.per_second:.0f} chats a second, {begun} of {streams} streams, bodies of 8 MiB: "
            + ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
        )


def _registered(port: int) -> dict[str, str]:
    status, body = _sent(port, "/v1/agents/register", b"{}", {})
    if status != http.HTTPStatus.CREATED:
        raise RuntimeError(f"registration: {status} {body!r}")
    return {"X-API-Key": str(json.loads(body)["apiKey"])}


def _open_stream(port: int, key: dict[str, str]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(Request("POST", _CHAT_PATH, key, {**CHAT, "stream": True}).encoded(port))
    return connection


def _send_large_bodies(port: int, keys: list[dict[str, str]]) -> Counter[int]:
    """Send large bodies concurrently, one from each agent; return the statuses."""
    body = json.dumps({**CHAT, "user": "A" * _LARGE_BODY}).encode()
    found: Counter[int] = Counter()

    def send(key: dict[str, str]) -> None:
        found[_sent(port, _CHAT_PATH, body, key)[0]] += 1

    threads = [threading.Thread(target=send, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _sent(port: int, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
