"""Reports of unexpected errors to Sentry, with nothing of the request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import brotli
import pytest
import sentry_sdk
from flask import Flask

from app.observability import telemetry
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.waiting import wait_until
from workers.context import job


@pytest.fixture
def reports() -> Iterator[tuple[str, list[bytes]]]:
    """The DSN of a local stand-in for Sentry, and the reports that it received."""
    bodies: list[bytes] = []

    def accept(asked: Asked) -> Reply:
        assert asked.headers["Content-Encoding"] == "br"
        bodies.append(brotli.decompress(asked.body))
        return Reply(b"")

    with serve(accept) as server:
        yield f"{server.url.replace('//', '//public@')}/1", bodies
        sentry_sdk.get_client().close()
        sentry_sdk.get_global_scope().set_client(None)


def test_an_error_report_contains_nothing_of_the_request(
    build_app: Callable[..., Flask], sqlite_url: str, reports: tuple[str, list[bytes]]
) -> None:
    address, bodies = reports
    app = build_app(sqlite_url, settings={"sentry_dsn": address}, reused=False)

    def fail(_code: str) -> str:
        secret = "canary-of-a-variable"
        raise ZeroDivisionError(f"canary-of-a-message {secret}")

    app.add_url_rule("/broken/<_code>", view_func=fail)
    app.testing = False
    app.config["PROPAGATE_EXCEPTIONS"] = False
    answer = app.test_client().get(
        "/broken/canary-of-a-path?q=canary-of-a-query", headers={"X-API-Key": "canary-of-a-key"}
    )
    assert answer.status_code == 500
    sentry_sdk.flush(5)
    wait_until(lambda: bool(bodies), what="an error report")
    text = b"".join(bodies).decode(errors="replace")
    event = json.loads(text.splitlines()[2])
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["tags"]["route"] == "/broken/<_code>"
    assert event["tags"]["request_id"] == answer.get_json()["request_id"]
    # The failing line of code is reported; the values of variables are not.
    assert not [word for word in ("path", "query", "key", "message canary") if f"canary-of-a-{word}" in text]


def test_errors_of_owner_pages_are_reported(
    build_app: Callable[..., Flask], sqlite_url: str, reports: tuple[str, list[bytes]]
) -> None:
    address, bodies = reports
    app = build_app(sqlite_url, settings={"sentry_dsn": address}, reused=False)

    def fail() -> str:
        raise ZeroDivisionError

    # The endpoint's name makes it a page of that blueprint and its error handlers.
    app.add_url_rule("/device/broken", endpoint="owner_entrance.broken", view_func=fail)
    answer = app.test_client().get("/device/broken")
    assert (answer.status_code, answer.mimetype) == (500, "text/html")
    sentry_sdk.flush(5)
    assert b"/device/broken" in b"".join(bodies)


def test_an_error_of_a_job_is_reported_before_its_process_ends(
    build_app: Callable[..., Flask], sqlite_url: str, reports: tuple[str, list[bytes]]
) -> None:
    address, bodies = reports
    app = build_app(sqlite_url, settings={"sentry_dsn": address})

    @job
    def fail() -> None:
        raise ZeroDivisionError

    with app.app_context(), pytest.raises(ZeroDivisionError):
        fail()
    # A work-horse process would have exited by now, with all its threads.
    assert b"ZeroDivisionError" in b"".join(bodies)


def test_without_a_dsn_nothing_is_reported() -> None:
    telemetry.init_error_reports("", network="sandbox")
    telemetry.report(ZeroDivisionError("not reported"))
    assert not sentry_sdk.get_client().is_active()
