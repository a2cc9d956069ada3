"""Prices from GATEWAY_PRICES_URL: used by all processes, and never what would make calls cheap by mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from pydantic import ValidationError

from app.core import clock
from app.gateway.pricing import price_updates
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.pricing.rates import PricingMode
from app.status import doctor
from tests.support.applications import settings_for
from tests.support.gateway import gateway_stage
from tests.support.upstreams import chat_answer, misbehaving_upstream

NEW = {"input_usd_per_million": 2, "output_usd_per_million": 8.5}
LIST = {"openai": {"gpt-9": NEW, "gpt-5": {**NEW, "cache_read_usd_per_million": 0.5}}}


@pytest.fixture(autouse=True)
def _bundled_prices_afterwards() -> Iterator[None]:
    price_updates.use(b"")
    yield
    price_updates.use(b"")


def rates(name: str, table: str = "openai", **mode: Any) -> Any:
    return TokenPrices(table).rates_for(name, clock.now(), 1_000, PricingMode(**mode))


def test_a_list_replaces_the_prices_that_it_has_and_no_others() -> None:
    listed = {**LIST, "gemini": {"gemini-9-pro": NEW}, "openrouter": {"a/b": NEW}}
    price_updates.use(json.dumps(listed).encode())
    found, version = rates("gpt-5")
    assert (found.input, found.output, found.cache_read) == (2_000, 8_500, 500)
    assert version.startswith("prices/")
    assert len(version) <= 60
    for name, table in (
        ("gpt-9", "openai"), ("gpt-9-2027-01-01", "openai"), ("GPT-9", "openai"), ("gemini-9-pro", "google"),
        ("a/b:nitro", "openrouter"),
    ):  # fmt: skip
        assert (rates(name, table)[0].input, rates(name, table)[0].output) == (2_000, 8_500)
    # Surcharges apply to the new prices, and other models are as before.
    assert rates("gpt-5", tier="priority")[0].output == 8_500 * 5 / 2
    assert rates("gpt-9-pro")[1] == "fallback"
    assert rates("gpt-5-mini")[0].input == 250
    operator = TokenPrices("openai", models={"gpt-9": rates("gpt-5-mini")[0]})
    assert operator.rates_for("gpt-9", clock.now(), 1)[0].input == 250


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b"null", b"not JSON", b'{"openai": []}', b'{"openai": {"gpt-9": {}}}', b"\xff\xfe",
        b'{"openai": {"gpt-9": {"input_usd_per_million": NaN, "output_usd_per_million": 8}}}',
        b'{"openai": {"gpt-9": {"input_usd_per_million": 1e-400000, "output_usd_per_million": 8}}}',
        b'{"openai": {"gpt-9": {"input_usd_per_million": 9, "output_usd_per_million": 8,"output_usd_per_million": 0}}}',
        *(
            json.dumps(
                {provider: {model: {"input_usd_per_million": each_in, "output_usd_per_million": each_out}}}
            ).encode()
            for provider, model, each_in, each_out in (
                ("openai", "gpt-9", -1, 8), ("openai", "gpt-9", 0, 0), ("openai", "gpt-9", 2, 0),
                ("openai", "gpt-9", 0, 2),
                ("openai", "gpt-9", "2", 8), ("openai", "gpt-9", True, 8), ("openai", "gpt-9", None, 8),
                ("openai", "gpt-9", 1e9, 8), ("openai", "gpt-9", 2, 8.0000000001), ("openai", "gpt-9", 0.00001, 8),
                # A thousand times lower, as if the prices were per thousand tokens; and only one of the two.
                ("openai", "gpt-5", 0.00125, 0.01), ("openai", "gpt-5", 1.25, 0.01), ("openai", "gpt-5", 0, 10),
                ("openai", "gpt-5-2025-08-07", 0.00125, 0.01), ("anthropic", "claude-opus-5", 0.005, 0.025),
                ("gemini", "gemini-2.5-pro", 0.00125, 0.01), ("tomorrow", "gpt-9", 2, 8),
            )
        ),
        json.dumps({"openai": {"gpt-9": {**NEW, "input_usd_per_thousand": 1}}}).encode(),
        json.dumps({"openai": {"gpt-9": NEW, "gpt-5": {**NEW, "cache_read_usd_per_million": 0}}}).encode(),
    ],
)  # fmt: skip
def test_a_list_that_would_make_calls_cheap_is_refused_as_a_whole(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        price_updates.parse(content)


def test_a_refused_list_leaves_the_last_good_one_in_use_and_says_why(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    with gateway_stage(build_app, sqlite_url, gateway_prices_url=str(path)) as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer(tokens_in=1_000, tokens_out=100)))
        runner = stage.app.test_cli_runner()

        def charged() -> int:
            before = stage.spent_nanos()
            assert stage.chat(model="gpt-5").status_code == 200
            return stage.spent_nanos() - before

        assert charged() == 1_000 * 1_250 + 100 * 10_000
        shown = runner.invoke(args=["providers", "prices", "--refresh"])
        assert (shown.exit_code, "cannot be read (FileNotFoundError)" in shown.output) == (1, True)
        path.write_text(json.dumps(LIST))
        shown = runner.invoke(args=["providers", "prices", "--refresh"])
        assert (shown.exit_code, "In use: prices/" in shown.output) == (0, True)
        assert charged() == 1_000 * 2_000 + 100 * 8_500
        path.write_text(json.dumps({"openai": {"gpt-5": {**NEW, "output_usd_per_million": 0.008}}}))
        with stage.app.app_context():
            assert "less than a tenth" in str(price_updates.refresh())
            assert any("less than a tenth" in each.message for each in doctor.run_checks())
        assert charged() == 1_000 * 2_000 + 100 * 8_500
        listed = stage.agent.get("/v1/providers").get_json()["providers"]
        openai = next(each for each in listed if each["slug"] == "openai")
        assert openai["pricing"]["table"].startswith("openai prices/")
        assert stage.usage()[0]["model"] == "gpt-5"
        # Another process, which has not read the list, uses the stored one.
        price_updates.use(b"")
        assert charged() == 1_000 * 2_000 + 100 * 8_500


@pytest.mark.parametrize(("status", "size"), [(200, 0), (404, 0), (302, 0), (200, 3_000_000)])
def test_a_list_at_a_url_is_bounded(build_app: Callable[..., Flask], sqlite_url: str, status: int, size: int) -> None:
    body = json.dumps(LIST) + " " * size
    with misbehaving_upstream(lambda exchange: exchange.answer(body.encode(), status)) as upstream:
        url = f"{upstream.url}/prices.json"
        with gateway_stage(build_app, sqlite_url, gateway_prices_url=url) as stage, stage.app.app_context():
            problem = price_updates.refresh()
            assert (problem is None) == ((status, size) == (200, 0))
            assert set(price_updates.stored()) == {"accepted" if problem is None else "refused"}
            assert len(upstream.asked) == 1


def test_only_https_and_files_are_read() -> None:
    for url in ("http://prices.example/x.json", "prices.json", "file:///etc/passwd", "ftp://a.example/x"):
        with pytest.raises(ValidationError):
            settings_for("sqlite://", gateway_prices_url=url)
    for url in ("", "https://prices.example/x.json", "/etc/purser/prices.json"):
        assert settings_for("sqlite://", gateway_prices_url=url).gateway_prices_url == url
