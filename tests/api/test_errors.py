"""Every error has the same body; health reports the state of the dependencies."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from gunicorn.http.errors import NoMoreData
from werkzeug.test import TestResponse

from app.config import Settings
from app.core import identifiers
from app.db import leases
from app.errors import STATUS, Overloaded, RateLimited
from server.client_socket import ConnectionShed, MalformedBody
from server.hooks import ShedReason
from tests.support.agents import Agent
from tests.support.applications import RecordingQueue, make_app, settings_for
from tests.support.logs import written_logs

_MEBIBYTE = 1024 * 1024
DEAD_POSTGRES = "postgresql://purser:canary-password@127.0.0.1:1/purser"


def assert_failure(answer: TestResponse, status: int, code: str) -> dict[str, Any]:
    """Check the body of an error exactly."""
    assert answer.status_code == status, answer.get_data(as_text=True)
    assert answer.content_type == "application/json"
    body: dict[str, Any] = answer.get_json()
    assert body["code"] == code
    assert set(body) in ({"error", "code", "request_id"}, {"error", "code", "details", "request_id"})
    assert isinstance(body["error"], str)
    assert body["error"]
    assert body["request_id"] == answer.headers["X-Request-Id"]
    assert identifiers.parse_id(body["request_id"]) == body["request_id"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return body


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_an_unknown_route_is_a_json_error_for_every_client(method: str, agent: Agent) -> None:
    for path in ("/v1/nothing", "/v2/wallets", "/v1", "/v1/wallets/", "/wallets", "/%00", "/v1/wallets/x/y/z", "/é"):
        for headers in ({}, agent.headers(), {"Accept": "*/*"}, {"Accept": "text/html, application/json"}):
            answer = agent.client.open(path, method=method, headers=headers, data=b"{")
            assert_failure(answer, 404, "NOT_FOUND")
    # What prefers HTML below /v1 is a badly configured program: the API has no pages.
    answer = agent.client.open("/v1/nothing", method=method, headers={"Accept": "text/html"})
    assert_failure(answer, 404, "NOT_FOUND")


_BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "title", "back"),
    [
        ("/nothing", 404, "Page not found", 'href="/"'),
        ("/docs/nothing", 404, "Page not found", 'href="/"'),
        ("/owner/nothing", 404, "Page not found", 'href="/owner"'),
        ("/owner/sign-out", 405, "This is not a page", 'href="/owner"'),
    ],
)
def test_a_browser_gets_an_error_as_a_page_with_a_way_back(
    client: FlaskClient, path: str, status: int, title: str, back: str
) -> None:
    answer = client.get(path, headers=_BROWSER)
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert f"<h1>{title}</h1>" in answer.text
    assert back in answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Accept" in answer.vary
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert client.get(path).mimetype == "application/json"
    assert "Accept" in client.get(path).vary


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (RateLimited(retry_after_seconds=7), 429, "Too many requests"),
        (Overloaded(retry_after_seconds=7), 503, "The service is busy"),
        (RuntimeError("secret"), 500, "Something went wrong on our side"),
    ],
)
def test_a_browser_gets_failures_of_the_service_as_pages(
    sqlite_url: str, error: Exception, status: int, title: str
) -> None:
    app = make_app(settings_for(sqlite_url))

    @app.get("/failing")
    def fail() -> str:
        raise error

    app.config["PROPAGATE_EXCEPTIONS"] = False
    page = app.test_client().get("/failing", headers=_BROWSER)
    assert (page.status_code, page.mimetype) == (status, "text/html")
    assert f"<h1>{title}</h1>" in page.text
    assert "secret" not in page.text
    assert page.headers.get("Retry-After") == (None if status == 500 else "7")
    # What the operator needs to find the failure.
    assert (page.headers["X-Request-Id"] in page.text) == (status >= 500)
    answer = app.test_client().get("/failing", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.mimetype) == (status, "application/json")


def test_a_wrong_method_lists_the_allowed_ones(agent: Agent) -> None:
    for path, wrong, right in (
        ("/v1/health", "POST", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/wallets", "DELETE", {"GET", "POST", "HEAD", "OPTIONS"}),
        ("/v1/agents/register", "GET", {"POST", "OPTIONS"}),
        (agent.wallet_url, "PATCH", {"GET", "DELETE", "HEAD", "OPTIONS"}),
        (f"{agent.wallet_url}/controls", "POST", {"GET", "PUT", "HEAD", "OPTIONS"}),
        (f"{agent.wallet_url}/transfer", "GET", {"POST", "OPTIONS"}),
    ):
        answer = agent.client.open(path, method=wrong, headers=agent.headers())
        assert_failure(answer, 405, "METHOD_NOT_ALLOWED")
        assert set(answer.headers["Allow"].split(", ")) == right


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "FOO", "PROPFIND"])
def test_unknown_methods_are_not_allowed(method: str, client: FlaskClient) -> None:
    assert_failure(client.open("/v1/health", method=method), 405, "METHOD_NOT_ALLOWED")


def test_head_is_get_without_a_body_and_options_lists_the_methods(agent: Agent) -> None:
    for path, status in (("/v1/health", 200), (agent.wallet_url, 200), ("/v1/wallets/x", 404), ("/v1/nothing", 404)):
        got = agent.get(path)
        head = agent.client.head(path, headers=agent.headers())
        assert (head.status_code, head.data) == (status, b"")
        assert head.content_type == got.content_type == "application/json"
    options = agent.client.options("/v1/health")
    assert options.status_code == 204
    assert {"GET", "HEAD", "OPTIONS"} <= set(options.headers["Allow"].split(", "))


def test_a_body_of_exactly_a_mebibyte_is_read_and_one_more_byte_is_not(agent: Agent) -> None:
    for surplus, status in ((0, 201), (1, 413)):
        raw = b'{"name": "x"}'.ljust(_MEBIBYTE + surplus)
        answer = agent.client.post("/v1/wallets", data=raw, headers=agent.headers())
        assert answer.status_code == status
    assert_failure(answer, 413, "PAYLOAD_TOO_LARGE")


def test_a_body_of_unknown_length_is_not_read_beyond_a_mebibyte(agent: Agent) -> None:
    for size, status in ((100, 201), (_MEBIBYTE + 1, 413)):
        answer = agent.client.post(
            "/v1/wallets",
            input_stream=io.BytesIO(b'{"name": "x"}'.ljust(size)),
            headers=agent.headers(Transfer_Encoding="chunked"),
            environ_overrides={"wsgi.input_terminated": True},
        )
        assert answer.status_code == status, answer.get_data(as_text=True)


class _Broken(io.RawIOBase):
    """A body that raises an error of the server when it is read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: object) -> int:
        raise self._error


@pytest.mark.parametrize("error", [MalformedBody(), NoMoreData(), OSError()], ids=repr)
def test_malformed_chunks_are_invalid_input(error: Exception, agent: Agent) -> None:
    answer = agent.client.post(
        "/v1/wallets",
        headers=agent.headers(Transfer_Encoding="chunked"),
        environ_overrides={"wsgi.input": _Broken(error), "wsgi.input_terminated": True},
    )
    assert_failure(answer, 400, "INVALID_INPUT")


@pytest.mark.parametrize("path", ["/v1/wallets", "/v1/device/claim", "/v1/agents/register"])
def test_a_body_without_memory_for_it_is_overloaded_with_retry_after(path: str, agent: Agent) -> None:
    def send(why: ShedReason) -> TestResponse:
        return agent.client.post(
            path,
            headers=agent.headers(Transfer_Encoding="chunked"),
            environ_overrides={"wsgi.input": _Broken(ConnectionShed(why)), "wsgi.input_terminated": True},
        )

    refused = send(ShedReason.BODY_MEMORY_EXHAUSTED)
    assert_failure(refused, 503, "OVERLOADED")
    assert int(refused.headers["Retry-After"]) >= 1
    assert_failure(send(ShedReason.SLOW_SENDER), 408, "REQUEST_TIMEOUT")


BROKEN = [
    b"{", b"}", b"nul", b"{'name': 'x'}", b'{"name": "x",}', b'{"name": NaN}', b'{"name": 1e99999999999999999999}',
    b"\xff", b"\x00", b'{"name": "\xc3\x28"}', b"[" * 200_000, b'{"a":' * 50_000, b"9" * 100_000, b'"x"', b"[]",
    b"true", '{"name": "∀"}'.encode("utf-16-le") + ("[" * 3000).encode("utf-16-le"), "[∀".encode("utf-32"),
    b'{"name": "x"} {}',
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/wallets", "/v1/agents/register", "/v1/keys", "/v1/device/claim"])
def test_an_unreadable_body_is_invalid_input(path: str, agent: Agent) -> None:
    for raw in BROKEN:
        for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
            headers = agent.headers(Content_Type=content_type)
            answer = agent.client.post(path, data=raw, headers=headers)
            assert_failure(answer, 400, "INVALID_INPUT")
    assert agent.get("/v1/wallets").get_json()["pagination"]["total"] == 1


def test_all_invalid_keys_are_refused_alike(agent: Agent) -> None:
    seen = set()
    other_ending = "A" if agent.key[-1] != "A" else "B"
    for key in (
        None, "", " ", "ak_", agent.key[:-1], agent.key[:-1] + other_ending, agent.key + "x", agent.key.upper(),
        "gw" + agent.key[2:], "ak_" + "A" * 43, "Bearer " + agent.key, "x" * 10_000, "ключ", "%00", agent.id,
    ):  # fmt: skip
        headers = {} if key is None else {"X-API-Key": key}
        answer = agent.client.get("/v1/wallets", headers=headers)
        seen.add(assert_failure(answer, 401, "UNAUTHORIZED")["error"])
        assert answer.headers["WWW-Authenticate"].startswith("ApiKey")
    assert len(seen) == 1
    assert "X-API-Key" in seen.pop()


def test_every_response_has_a_unique_request_id_that_is_logged(agent: Agent) -> None:
    with written_logs() as lines:
        answers = [
            agent.get("/v1/health"),
            agent.get("/v1/nothing"),
            agent.get("/v1/wallets", limit=0),
            agent.client.get("/v1/health", headers={"X-Request-Id": "mine"}),
        ]
        logged = {line["request_id"]: line for line in lines() if line["event"] == "request"}
    ids = [answer.headers["X-Request-Id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert "mine" not in ids
    for answer, request_id in zip(answers, ids, strict=True):
        assert logged[request_id]["status"] == answer.status_code


def test_an_unexpected_error_is_logged_and_not_exposed(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, reused=False)

    def crash() -> str:
        raise RuntimeError("the canary of the error")

    app.add_url_rule("/v1/crash", view_func=crash)
    with written_logs() as lines:
        answer = app.test_client().get("/v1/crash")
        logged = [line for line in lines() if line["event"] == "request_failed"]
    body = assert_failure(answer, 500, "INTERNAL_ERROR")
    assert "canary" not in answer.get_data(as_text=True)
    assert "details" not in body
    (line,) = logged
    assert line["request_id"] == body["request_id"]
    assert "the canary of the error" in line["exception"]


@pytest.mark.parametrize(("code", "status"), sorted(STATUS.items()))
def test_every_code_has_an_error_status(code: str, status: int) -> None:
    assert 400 <= status < 600
    assert code == code.upper()


def test_health_is_ok_and_reports_a_silent_worker(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    queue = RecordingQueue()
    app = build_app(sqlite_url, queue=queue)
    client = app.test_client()
    silent = client.get("/v1/health")
    assert silent.status_code == 200
    assert set(silent.get_json()) == {"status", "version", "checks"}
    assert silent.get_json()["checks"] == {"database": "ok", "redis": "ok", "worker": "silent"}
    with app.app_context():
        leases.record()
    assert client.get("/v1/health").get_json()["checks"]["worker"] == "ok"
    queue.away = True
    away = client.get("/v1/health")
    assert (away.status_code, away.get_json()["status"]) == (200, "ok")
    assert away.get_json()["checks"] == {"database": "ok", "redis": "unreachable", "worker": "ok"}


def test_without_the_database_health_is_degraded_and_requests_are_overloaded(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    app = build_app(sqlite_url)
    client = app.test_client()
    path = sqlite_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE heartbeats RENAME TO gone")
        connection.execute("ALTER TABLE api_keys RENAME TO gone_too")
    connection.close()
    answer = client.get("/v1/health")
    assert (answer.status_code, answer.get_json()["status"]) == (503, "degraded")
    assert answer.get_json()["checks"]["database"] == "unreachable"
    key = {"X-API-Key": "ak_" + "A" * 43}
    failed = client.get("/v1/wallets", headers=key)
    assert "api_keys" not in assert_failure(failed, 503, "OVERLOADED")["error"]
    assert int(failed.headers["Retry-After"]) >= 1
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE gone RENAME TO heartbeats")
        connection.execute("ALTER TABLE gone_too RENAME TO api_keys")
    connection.close()
    assert client.get("/v1/health").status_code == 200


def test_an_unreachable_database_degrades_health_without_exposing_its_password() -> None:
    away = make_app(settings_for(DEAD_POSTGRES))
    with written_logs() as lines:
        answer = away.test_client().get("/v1/health")
        failed = away.test_client().get("/v1/wallets", headers={"X-API-Key": "ak_" + "A" * 43})
        live = away.test_client().get("/v1/health/live")
        written = json.dumps(lines())
    assert (answer.status_code, answer.get_json()["checks"]["database"]) == (503, "unreachable")
    assert_failure(failed, 503, "OVERLOADED")
    assert (live.status_code, live.get_json()) == (200, {"status": "ok"})
    assert "database_unavailable" in written
    assert "canary-password" not in written


def test_a_doubled_slash_is_another_path_without_redirect(client: FlaskClient) -> None:
    answer = client.get("/v1//wallets/x", headers={"Host": "purser.test"})
    assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    assert "Location" not in answer.headers


def test_invalid_settings_are_listed_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETWORK", "foonet")
    monkeypatch.setenv("INITIAL_CREDITS_USD", "secretish")
    with pytest.raises(SystemExit) as refused:
        Settings.load()
    assert "NETWORK:" in str(refused.value)
    assert "INITIAL_CREDITS_USD:" in str(refused.value)
    assert "secretish" not in str(refused.value)
    assert "foonet" not in str(refused.value)
