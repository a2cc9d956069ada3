"""The default of Jupiter's URL: never a stand-in with real money, never the internet from the sandbox."""

from __future__ import annotations

import pytest

from tests.support.applications import settings_for

URL = "sqlite:///unused.sqlite"


@pytest.mark.parametrize(
    ("network", "expected"),
    [("sandbox", "http://127.0.0.1:18549"), ("testnet", "https://api.jup.ag"), ("mainnet", "https://api.jup.ag")],
)
def test_the_default_follows_the_network(network: str, expected: str) -> None:
    assert settings_for(URL, network=network, price_overrides="").jupiter_url == expected


def test_the_configured_url_overrides_the_default() -> None:
    assert settings_for(URL, jupiter_base_url="http://127.0.0.1:9").jupiter_url == "http://127.0.0.1:9"
