"""The npm package in a real browser, without a bundler, from a page of an allowed origin and of another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Browser
from standardwebhooks import Webhook

from tests.support import typescript_package
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.owner_world import served

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_CALL = """async ([baseUrl, body, headers, secret]) => {
    const { Purser, ConnectionFailed, NotFound } = await import("/dist/index.js");
    const purser = new Purser({ baseUrl, maxRetries: 0 });
    try {
        const made = await purser.register({ name: "page" });
        const missing = await purser.getTransaction({ transaction_id: "none" }).catch((error) => error);
        const { wallets } = await purser.listWallets();
        const event = await purser.verifyWebhook(body, headers, secret);
        return [wallets[0].id === made.wallet.id, missing instanceof NotFound, event.type];
    } catch (error) {
        return error instanceof ConnectionFailed ? error.code : String(error);
    }
}"""


def test_a_page_loads_the_package_and_calls_the_service(
    chromium: Browser, build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    package = typescript_package.install(tmp_path / "empty")
    root = package / "node_modules" / "purser-sdk"

    def answer(asked: Asked) -> Reply:
        path = root / asked.target.lstrip("/")
        if path.suffix == ".js":
            return Reply(path.read_bytes(), headers={"Content-Type": "text/javascript"})
        return Reply(b"<!doctype html><title>A page</title>", headers={"Content-Type": "text/html"})

    body, now = '{"type": "webhook.test"}', datetime.now(UTC)
    signature = Webhook(_SECRET).sign("msg_1", now, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    with serve(answer) as allowed, serve(answer) as other:
        app = build_app(sqlite_url, settings={"cors_allowed_origins": allowed.url})
        with served(lambda _chains: app) as running:
            results: list[Any] = []
            context = chromium.new_context()
            for server in (allowed, other):
                page = context.new_page()
                page.goto(server.url)
                results.append(page.evaluate(_CALL, [running.url, body, headers, _SECRET]))
            context.close()
    assert results == [[True, True, "webhook.test"], "CONNECTION_FAILED"]
