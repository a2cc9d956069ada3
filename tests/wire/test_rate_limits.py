"""Rate limits over several processes, which count in Redis, and each for itself while Redis is away."""

from __future__ import annotations

import base64
import http.client
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.support.servers import free_port, redis_server
from tests.support.services import web_service

pytestmark = pytest.mark.redis

PROCESSES = 4
PER_KEY = 20
LIMITS = {
    "rate_limit_per_key": f"{PER_KEY} per hour",
    "registration_rate_limit": "2 per minute;3 per hour",
    "keyless_rate_limit": "6 per hour",
    "x402_miss_limit": "4 per hour",
    "openai_api_key": "sk-x",
}


def test_limits_apply_to_all_processes_together_and_to_each_without_redis(sqlite_url: str) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(ExitStack())
        settings = {**LIMITS, "redis_url": redis.enter_context(redis_server(port=free_port()))}
        service = stack.enter_context(web_service(sqlite_url, settings, workers=PROCESSES, threads=20))

        def send(path: str, body: object = None, **headers: str) -> tuple[int, Any, Any]:
            # A connection each, which the system gives to any process.
            with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)) as connection:
                sent = {"Content-Type": "application/json"} | {
                    name.replace("_", "-"): value for name, value in headers.items()
                }
                connection.request("POST", path, json.dumps(body or {}), sent)
                answer = connection.getresponse()
                return answer.status, answer, json.loads(answer.read())

        def statuses(number: int, request: Callable[[], tuple[int, Any, Any]]) -> Counter[int]:
            with ThreadPoolExecutor(8) as threads:
                answers = list(threads.map(lambda _: request(), range(number)))
            for status, answer, _ in answers:
                if status == 429:
                    assert 0 < int(answer.headers["Retry-After"]) <= 3600
            return Counter(status for status, _, _ in answers)

        key = send("/v1/agents/register")[2]["apiKey"]
        assert statuses(9, lambda: send("/v1/agents/register")) == {201: 1, 429: 8}

        def authenticated() -> tuple[int, Any, Any]:
            return send("/v1/agents/claim-code", X_API_Key=key)

        assert statuses(3 * PER_KEY, authenticated) == {201: PER_KEY, 429: 2 * PER_KEY}

        # These count failures only, after the response: concurrent ones may all be accepted.
        call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "x"}]}
        paid = base64.b64encode(json.dumps({"x402Version": 2, "payload": {}}).encode()).decode()
        path = "/v1/gateway/openai/chat/completions"
        failed = Counter(send(path, call, PAYMENT_SIGNATURE=paid)[0] for _ in range(8))
        assert failed == {402: 4, 429: 4}
        assert Counter(send(path, call)[0] for _ in range(4)) == {429: 4}

        redis.close()
        while_away = statuses(PROCESSES * PER_KEY + 40, authenticated)
        assert while_away.keys() <= {201, 429}
        assert while_away[429] > 0
