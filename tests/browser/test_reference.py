"""The API reference at `/docs` in a real browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from playwright.sync_api import Browser, expect
from werkzeug.serving import make_server

pytestmark = pytest.mark.browser


@pytest.fixture
def url(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, build_app(sqlite_url), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_person_reads_an_operation_and_its_scripts_reach_nothing(chromium: Browser, url: str, scheme: str) -> None:
    page = chromium.new_context(color_scheme=scheme).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    problems: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url.removeprefix(url)))
    page.goto(f"{url}/docs")
    transfer = page.locator("#operations-wallets-transfer")
    transfer.click()
    for text in ("Idempotency-Key", "DAILY_LIMIT_EXCEEDED", '"amount"'):
        expect(transfer.get_by_text(text).first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Try it out")).to_have_count(0)
    assert sorted(asked) == sorted(
        ["/docs"]
        + [f"/static/{name}" for name in ("purser.css", "reference.js", "swagger-ui-bundle.js", "swagger-ui.css")]
    )
    assert problems == []
    # Another's script on this page would neither have the origin of the owners' pages nor reach them.
    assert page.evaluate("self.origin") == "null"
    refused = page.evaluate("fetch('/owner').then(() => 'allowed', () => 'refused')")
    assert refused == "refused"
    page.context.close()
