"""Requests to a service that limits them wait for their turn and are repeated, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Any

import pytest
from limits import parse
from structlog.testing import capture_logs

from app import wiring
from app.adapters.http_client import HttpClient
from app.adapters.rate_limited_http import RateLimitedClient, ServiceAccess
from app.capacity.limiter import RateLimiter
from app.core.chains import ETH, SOL, USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.errors import RateLimited
from app.ports.bridges import BridgeRequest
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import SwapRequest
from app.state import Ports
from tests.support.applications import settings_for
from tests.support.loopback_http import Reply, serve


def client(access: ServiceAccess | None = None, *, wait_seconds: float = 5) -> RateLimitedClient:
    return RateLimitedClient(
        "service", access or ServiceAccess(), "x-api-key", total_seconds=5, wait_seconds=wait_seconds
    )


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_request_is_repeated_after_the_requested_time(status: int) -> None:
    answers = [Reply(b"{}", status, {"Retry-After": "1"}), Reply(b"[1]")]
    with serve(lambda _asked: answers.pop(0)) as server, capture_logs():
        started = time.monotonic()
        assert client().post(server.url, b"{}").json() == [1]
        assert time.monotonic() - started >= 1
        assert len(server.asked) == 2


def test_an_absurd_time_to_wait_closes_a_service_for_two_hours_at_most() -> None:
    with (
        serve(lambda _asked: Reply(b"{}", 429, {"Retry-After": "999999999"})) as server,
        capture_logs(),
        pytest.raises(Unreachable, match="rate_limited") as failure,
    ):
        client().get(server.url)
    assert 7190 <= int(failure.value.details["retry_after_seconds"]) <= 7200


def test_a_service_that_keeps_refusing_is_asked_three_times() -> None:
    with serve(lambda _asked: Reply(b"{}", 429)) as server, capture_logs():
        with pytest.raises(Unreachable, match="rate_limited") as failure:
            client().get(server.url)
        assert len(server.asked) == 3
    assert failure.value.details == {"service": "service", "retry_after_seconds": "3"}


def test_a_503_without_a_time_is_the_callers_to_judge() -> None:
    with serve(lambda _asked: Reply(b"{}", 503)) as server:
        assert client().get(server.url).status == 503
        assert len(server.asked) == 1


def test_no_request_is_made_before_the_time_that_was_requested() -> None:
    with serve(lambda _asked: Reply(b"{}", 429, {"Retry-After": "60"})) as server, capture_logs():
        limited = client()
        for _ in range(3):
            with pytest.raises(Unreachable, match="rate_limited") as failure:
                limited.get(server.url)
            assert 55 <= int(failure.value.details["retry_after_seconds"]) <= 60
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "header", "value", "expected"),
    [
        (429, "Retry-After", lambda: "30", 30),
        (503, "Retry-After", lambda: formatdate(time.time() + 30, usegmt=True), 30),
        (429, "ratelimit-reset", lambda: "30", 30),
        (429, "x-ratelimit-reset", lambda: str(int(time.time()) + 30), 30),
        (429, "x-ratelimit-reset", lambda: str(int(time.time() + 30) * 1000), 30),
        # It states when a limit is reset, not that it is exceeded.
        (200, "ratelimit-reset", lambda: "30", 0),
        (429, "x-ratelimit-reset", lambda: "1, 1419704", 0),
        (429, "Retry-After", lambda: "soon", 0),
        (429, "Retry-After", lambda: "9" * 400, 0),
    ],
)
def test_the_requested_time_is_read_in_every_form(
    status: int, header: str, value: Callable[[], str], expected: int
) -> None:
    with serve(lambda _asked: Reply(b"{}", status, {header: value()})) as server:
        found = HttpClient(connect_seconds=5, total_seconds=5).get(server.url).retry_after_seconds
    assert expected - 2 <= found <= expected + 1 if expected else found == 0


def test_a_request_without_a_turn_is_not_sent() -> None:
    def await_permit(_seconds: float) -> None:
        raise RateLimited(retry_after_seconds=17)

    with serve(lambda _asked: Reply(b"{}")) as server:
        with pytest.raises(Unreachable, match="rate_limited") as failure:
            client(ServiceAccess("key", await_permit)).get(server.url)
        assert failure.value.details["retry_after_seconds"] == "17"
        assert server.asked == []


@pytest.mark.redis
def test_processes_share_the_limit_and_their_requests_wait(redis_url: str) -> None:
    service = new_id()
    limiters = [RateLimiter(redis_url), RateLimiter(redis_url)]

    def access(limiter: RateLimiter) -> ServiceAccess:
        return ServiceAccess(
            "key",
            lambda seconds: limiter.count_when_permitted("2 per second", "service", service, within_seconds=seconds),
        )

    clients = [client(access(limiter)) for limiter in limiters]
    times: list[float] = []

    def answer(_asked: object) -> Reply:
        times.append(time.monotonic())
        return Reply(b"{}")

    with serve(answer) as server:
        for number in range(6):
            clients[number % 2].get(server.url)
        assert server.asked[0].headers["x-api-key"] == "key"
    # Any three of them take more than the second in which two are permitted; 0.1 is for the way to the server.
    assert all(third - first > 0.9 for first, third in zip(times, times[2:], strict=False))
    for limiter in limiters:
        limiter._shared.storage.storage.close()


_SWAP = SwapRequest("9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM", TokenAmount(10**9, SOL), USDC, 50)
_OWNER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
_BRIDGE = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, _OWNER, _OWNER, TokenAmount(10**17, ETH))


@pytest.mark.redis
@pytest.mark.parametrize(
    ("service", "header", "limit"),
    [
        ("jupiter", "x-api-key", "30 per minute"),
        ("relay", "x-api-key", "50 per minute"),
        ("lifi", "x-lifi-api-key", "75 per 2 hours"),
    ],
)
def test_the_operator_s_key_and_the_documented_limit_reach_each_service(
    service: str, header: str, limit: str, redis_url: str
) -> None:
    limiter = RateLimiter(redis_url)
    counted = (parse(limit), service, "service")
    with serve(lambda _asked: Reply(b"{}", 400)) as server, capture_logs():
        fixed = {"network": "mainnet", "redis_url": redis_url, f"{service}_base_url": server.url}
        keyed = settings_for("sqlite://", **fixed, **{f"{service}_api_key": "operators-key"})
        keyless = settings_for("sqlite://", **fixed)
        # Each is a process of its own, and the counts are of all.
        assert _refusal_of_quote(wiring.build(keyed), service) == "quote_unavailable"
        limiter._shared.clear(*counted)
        while limiter._shared.hit(*counted):
            pass
        assert _refusal_of_quote(wiring.build(keyless), service) == "quote_rate_limited"
        assert [asked.headers[header] for asked in server.asked] == ["operators-key"]
    limiter._shared.clear(*counted)
    limiter._shared.storage.storage.close()


def _refusal_of_quote(ports: Ports, service: str) -> str:
    quote: Callable[[], object]
    if service == "jupiter":
        exchange: Any = ports.swap_exchanges[ChainName.SOLANA]
        quote, http = partial(exchange.quote, _SWAP), exchange._api._http
    else:
        bridges: Any = ports.bridges[ChainName.BASE, ChainName.ETHEREUM, ETH]
        (bridge,) = (each for each in bridges if each.name == service)
        quote, http = partial(bridge.quote, _BRIDGE), bridge._service._quotes
    with pytest.raises(Rejected) as refusal:
        quote()
    http._await_permit.func.__self__._shared.storage.storage.close()
    return refusal.value.reason
