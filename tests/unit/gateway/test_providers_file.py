"""A providers file extends the built-in table and must not allow more than it states."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.errors import RouteNotAllowed
from app.gateway.pricing.quotes import FixedPrice, PricedRequest
from app.gateway.providers.table import Provider
from app.gateway.validation import rules as request_rules
from tests.support.provider_rows import table


def row(tmp_path: Path, slug: str, text: str) -> Provider:
    path = tmp_path / "providers.toml"
    path.write_text(text, "utf-8")
    return table(path).find(slug)


def test_a_wide_route_does_not_override_the_prices_of_narrower_ones(tmp_path: Path) -> None:
    openai = row(tmp_path, "openai", '[providers.openai.routes]\n"POST {path**}" = "0.001"\n"POST {a}" = "0.002"\n')
    assert openai.match("POST", "chat/completions").route.text == "POST chat/completions"
    assert openai.match("POST", "responses").route.text == "POST responses"
    assert openai.match("POST", "fine_tuning/jobs").route.rule == FixedPrice(1_000_000)
    assert openai.match("POST", "batches").route.rule == FixedPrice(2_000_000)


def test_of_equally_narrow_routes_the_operators_applies(tmp_path: Path) -> None:
    brave = row(tmp_path, "brave", '[providers.brave.routes]\n"GET {web|news}/search" = "0.003"\n')
    assert brave.match("GET", "web/search").route.rule == FixedPrice(3_000_000)
    assert brave.match("GET", "images/search").route.rule == FixedPrice(5_000_000)


def test_a_wide_method_does_not_override_the_price_of_a_narrower_one(tmp_path: Path) -> None:
    alchemy = row(tmp_path, "alchemy", '[providers.alchemy.methods]\n"alchemy_{Name}" = "0.00001"\n')
    request = PricedRequest(at=datetime.now(UTC), methods=("alchemy_simulateExecution",))
    assert next(iter(alchemy.routes.values())).rule.quote(request).worst_case.cost_nanos == 2_000_000


def test_refused_fields_are_added_to_the_built_in_ones(tmp_path: Path) -> None:
    openai = row(tmp_path, "openai", '[providers.openai]\nrefused_fields = ["metadata"]\n')
    for body in ({"metadata": {"a": "b"}}, {"previous_response_id": "resp_1"}, {"background": True}):
        with pytest.raises(RouteNotAllowed):
            request_rules.check_fields(openai.refused_fields, openai.limits, body)


@pytest.mark.parametrize("name", ["file_id ", "tools.file_id", "file_*", "", "a b=c", "{}"])
def test_an_impossible_field_name_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="refused_fields"):
        row(tmp_path, "exa", f'[providers.exa]\nrefused_fields = ["{name}"]\n')
