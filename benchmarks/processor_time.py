"""`python -m benchmarks.processor_time`: where the processor time of a request goes, by layer of the code.

One thread of one process, without gunicorn: the time of a request is measured first, and then divided in the
proportions of a profile, which itself costs time. Waiting is not counted.
"""

import contextlib
import cProfile
import json
import os
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from werkzeug.test import EnvironBuilder, run_wsgi_app

from app.config import Settings
from app.extensions import db
from app.factory import create_app
from benchmarks import report, stack, thresholds
from benchmarks.upstream import CHAT, running_upstream

_WARM_UP, _TIMED, _PROFILED = 30, 200, 150
# The first match decides. What matches none is attributed to its callers.
_LAYERS = {
    "SQLAlchemy": ("/sqlalchemy/", "/flask_sqlalchemy/"),
    "Database driver": ("/psycopg/", "psycopg_binary", "sqlite3"),
    "Redis, rate limits": ("/redis/", "/limits/", "/flask_limiter/", "/app/capacity/", "/app/identity/limits"),
    "Exchange with the upstream": ("/app/adapters/upstream_http/", "/http/client", "/urllib3/"),
    "Gateway: request, price, relay": ("/app/gateway/", "/app/forwarding/", "/app/catalog/"),
    "Ledger, units of work": ("/app/usage/", "/app/credits/", "/app/db/"),
    "Logging, metrics": ("/structlog/", "/logging/", "/app/observability/", "/prometheus_client/"),
    "Other application code": ("/app/",),
    "Flask, Werkzeug, marshmallow": ("/flask/", "/werkzeug/", "/flask_smorest/", "/marshmallow/", "/webargs/"),
}
_REST = "Rest"
_Function = tuple[str, int, str]
_Send = Callable[[str, str, Any, Mapping[str, str]], tuple[str, bytes]]


def main() -> int:
    """Profile each kind of request and print a table."""
    with stack.start_infrastructure() as made, running_upstream() as upstream:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"{upstream.url}/v1",
            "BRAVE_API_KEY": "benchmark", "BRAVE_BASE_URL": f"{upstream.url}/res/v1", "INITIAL_CREDITS_USD": "100000",
            "ALLOW_PRIVATE_UPSTREAMS": "1",
        }  # fmt: skip
        chat = ("POST", "/v1/gateway/openai/chat/completions", CHAT)
        found: dict[str, dict[str, float]] = {}
        with _client(made.migrated("profile", **settings)) as send:
            agent = json.loads(send("POST", "/v1/agents/register", {}, {})[1])
            key = {"X-API-Key": agent["apiKey"]}
            for name, request in {
                "Chat": chat,
                "Fixed price": ("GET", "/v1/gateway/brave/web/search?q=agents", None),
                "Balance": ("GET", "/v1/balance", None),
                "Wallet": ("GET", f"/v1/wallets/{agent['wallet']['id']}", None),
                "Health": ("GET", "/v1/health", None),
            }.items():
                found[name] = _profile(send, request, key)
        with _client(made.migrated_sqlite("profile", **settings)) as send:
            agent = json.loads(send("POST", "/v1/agents/register", {}, {})[1])
            found["Chat, SQLite"] = _profile(send, chat, {"X-API-Key": agent["apiKey"]})
    for name, shares in found.items():
        thresholds.print_heading(f"{name}: {sum(shares.values()):.2f} ms of processor time")
        for layer, spent in sorted(shares.items(), key=lambda row: -row[1]):
            thresholds.print_note(f"{layer:32} {spent:6.3f}")
        report.keep_profile(name, shares)
    return 0


@contextlib.contextmanager
def _client(environment: Mapping[str, str]) -> Iterator[_Send]:
    """Create an application in this process, with its log discarded; yield a function that sends a request."""
    app = create_app(Settings(**stack.settings_of(environment)))

    def send(method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[str, bytes]:
        builder = EnvironBuilder(path, method=method, headers=headers.items(), json=body)
        pieces, status, _ = run_wsgi_app(app, builder.get_environ(), buffered=True)
        return status, b"".join(pieces)

    sys.stdout.flush()
    shown, discarded = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(discarded, 1)
    try:
        yield send
    finally:
        with app.app_context():
            db.engine.dispose()
        os.dup2(shown, 1)


def _profile(send: _Send, request: tuple[str, str, Any], headers: Mapping[str, str]) -> dict[str, float]:
    """Return milliseconds by layer."""

    def repeat(times: int) -> float:
        began = time.process_time()
        for _ in range(times):
            status, body = send(*request, headers)
            if not status.startswith("200"):
                raise RuntimeError(f"{request}: {status} {body!r}")
        return (time.process_time() - began) / times

    repeat(_WARM_UP)
    each = repeat(_TIMED)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(repeat, _PROFILED)
    shares = _by_layer(pstats.Stats(profile))
    total = sum(shares.values())
    return {layer: each * 1000 * spent / total for layer, spent in shares.items()}


def _by_layer(stats: pstats.Stats) -> dict[str, float]:
    """Sum the time of functions by layer; library functions count for the layer that calls them."""
    functions: dict[_Function, Any] = stats.stats  # type: ignore[attr-defined] # not in typeshed
    spent: dict[str, float] = defaultdict(float)
    for function, (_, _, own_time, _, callers) in functions.items():
        if layer := _layer(function):
            spent[layer] += own_time
            continue
        for caller, (_, _, time_for_caller, _) in callers.items():
            spent[_owner(caller, functions)] += time_for_caller
    return dict(spent)


def _owner(function: _Function, functions: Mapping[_Function, Any]) -> str:
    """Return the layer of a function, or of the callers that use it most."""
    seen = set()
    while not (layer := _layer(function)):
        seen.add(function)
        callers = {caller: row[3] for caller, row in functions[function][4].items() if caller not in seen}
        if not callers:
            return _REST
        function = max(callers, key=lambda caller: callers[caller])
    return layer


def _layer(function: _Function) -> str | None:
    file, _, name = function
    place = name if file == "~" else file
    return next((layer for layer, parts in _LAYERS.items() if any(part in place for part in parts)), None)


if __name__ == "__main__":
    sys.exit(main())
