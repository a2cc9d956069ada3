"""Pages of other origins that call the API with `fetch` in a real browser, which enforces CORS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Browser, Page

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.core.chains import ChainName
from tests.support.agents import register
from tests.support.gateway import QUESTION, SEARCH, provider_settings
from tests.support.loopback_http import Reply, serve
from tests.support.owner_world import served
from tests.support.payments import facilitator_of
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream

pytestmark = pytest.mark.browser

_FETCH = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        return {status: answer.status, headers: Object.fromEntries(answer.headers), body: await answer.text()};
    } catch (error) {
        return {error: error.name};
    }
}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A service that allows one origin, and pages of that origin and of another."""

    url: str
    key: str
    upstream: MisbehavingUpstream
    allowed: Page
    other: Page

    def fetch(self, page: Page, path: str, **options: Any) -> dict[str, Any]:
        fetched: dict[str, Any] = page.evaluate(_FETCH, [self.url + path, options])
        return fetched


@pytest.fixture
def scene(chromium: Browser, build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Scene]:
    blank = Reply(b"<!doctype html><title>A page</title>", headers={"Content-Type": "text/html"})
    with (
        serve(lambda _asked: blank) as allowed,
        serve(lambda _asked: blank) as other,
        misbehaving_upstream(lambda exchange: exchange.json({}, 200, ("X-Upstream", "1"))) as upstream,
    ):
        settings = {"cors_allowed_origins": allowed.url, **provider_settings(upstream.url)}
        chain = EvmChain(
            ChainName.BASE,
            DEPLOYMENTS["sandbox", ChainName.BASE],
            rpc_urls=["http://127.0.0.1:1"],
            deposit_confirmations=1,
        )
        app = build_app(sqlite_url, settings=settings, facilitators={ChainName.BASE: facilitator_of(chain)})
        with served(lambda _chains: app) as running:
            with app.app_context():
                key = register(app.test_client()).key
            context = chromium.new_context()
            pages = [context.new_page(), context.new_page()]
            for page, server in zip(pages, (allowed, other), strict=True):
                page.goto(server.url)
            yield Scene(running.url, key, upstream, *pages)
            context.close()


def test_a_page_of_an_allowed_origin_calls_with_a_key_and_reads_the_terms_of_a_402(scene: Scene) -> None:
    keyed = {"X-API-Key": scene.key, "X-Stainless-Lang": "js"}
    answer = scene.fetch(scene.allowed, SEARCH, headers=keyed)
    assert (answer["status"], answer["body"]) == (200, "{}")
    assert {"x-upstream", "x-gateway-request-id", "x-request-id"} <= answer["headers"].keys()

    bearer = {"Authorization": f"Bearer {scene.key}", "Content-Type": "application/json"}
    deleted = scene.fetch(scene.allowed, "/v1/wallets/unknown", method="DELETE", headers=bearer)
    assert deleted["status"] in (401, 404)

    terms = scene.fetch(scene.allowed, SEARCH)
    assert terms["status"] == 402
    assert {"payment-required", "x-payment-amount"} <= terms["headers"].keys()
    wrong = scene.fetch(scene.allowed, "/v1/balance", headers={"X-API-Key": "ak_wrong"})
    assert (wrong["status"], '"UNAUTHORIZED"' in wrong["body"]) == (401, True)
    assert [asked.method for asked in scene.upstream.asked] == ["GET"]


def test_pages_of_other_origins_and_requests_with_cookies_read_nothing(scene: Scene) -> None:
    failed = {"error": "TypeError"}
    keyed = {"X-API-Key": scene.key}
    assert scene.fetch(scene.other, "/v1/health") == failed
    assert scene.fetch(scene.other, SEARCH, headers=keyed) == failed
    assert scene.fetch(scene.other, "/v1/gateway/openai/chat/completions", method="POST", body=str(QUESTION),
                       headers={**keyed, "Content-Type": "application/json"}) == failed  # fmt: skip
    assert scene.fetch(scene.allowed, SEARCH, headers=keyed, credentials="include") == failed
    assert scene.fetch(scene.allowed, "/device") == failed
    assert scene.upstream.asked == []  # the browser stopped at the preflight
