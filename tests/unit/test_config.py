"""Insecure settings prevent the start, and their values are never shown."""

import stat
from pathlib import Path

import pytest

from app.config import Settings
from app.core import host
from app.core.chains import ChainName
from app.forwarding.call import MAX_BODY_BYTES
from app.gateway.providers import configured
from server.pool import ResourcePool, ResourceUse
from tests.support.applications import key_of, make_app, settings_for

LONG = "s" * 32


@pytest.fixture(autouse=True)
def _required_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_PEPPERS", key_of("p1"))
    monkeypatch.setenv("ENCRYPTION_KEYS", key_of("k1"))


@pytest.mark.parametrize("fallbacks", ["x", f"{LONG},short", "an-old-secret,with-a-comma-in-it"])
def test_a_guessable_secret_key_fallback_prevents_the_start(monkeypatch: pytest.MonkeyPatch, fallbacks: str) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    monkeypatch.setenv("SECRET_KEY_FALLBACKS", fallbacks)
    with pytest.raises(SystemExit, match="SECRET_KEY_FALLBACKS") as refusal:
        Settings.load()
    assert fallbacks not in str(refusal.value).replace("SECRET_KEY_FALLBACKS", "")


def test_fallbacks_follow_the_secret_key_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "n" * 32)
    monkeypatch.setenv("SECRET_KEY_FALLBACKS", f" {LONG} ,{'t' * 40}")
    assert Settings.load().secret_key_list() == ("n" * 32, LONG, "t" * 40)


def test_other_users_of_the_machine_cannot_read_a_new_database(tmp_path: Path) -> None:
    make_app(settings_for(f"sqlite:///{tmp_path}/var/purser.sqlite"))
    assert stat.S_IMODE((tmp_path / "var").stat().st_mode) == 0o700


def test_deposits_of_a_chain_without_confirmations_of_its_own_are_not_settled_after_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    settings = Settings.load()
    found = {name: settings.confirmations(name, of_deposits=True) for name in (ChainName.ETHEREUM, ChainName.BASE)}
    assert found == {ChainName.ETHEREUM: 2, ChainName.BASE: 5}
    with pytest.raises(KeyError):
        settings.confirmations(ChainName.SOLANA, of_deposits=True)


@pytest.mark.parametrize(
    "name",
    ["REGISTRATION_RATE_LIMIT", "RATE_LIMIT_PER_KEY", "QUOTE_RATE_LIMIT", "KEYLESS_RATE_LIMIT", "X402_MISS_LIMIT",
     "DEVICE_MISS_LIMIT"],
)  # fmt: skip
def test_a_malformed_rate_limit_prevents_the_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    for unreadable in ("5 pr minute", "five per minute", "-1 per minute", "5 per minute;60"):
        monkeypatch.setenv(name, unreadable)
        with pytest.raises(SystemExit, match=name):
            Settings.load()
    for readable in ("", "5 per hour"):
        monkeypatch.setenv(name, readable)
        assert (getattr(Settings.load(), name.lower()) or "") == readable


def test_a_host_s_memory_sets_defaults_that_single_settings_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    monkeypatch.setenv("HOST_MEMORY", "512MB")
    monkeypatch.setenv("DATABASE_POOL_SIZE", "9")
    sized = Settings.load()
    assert (sized.web_concurrency, sized.web_threads, sized.database_pool_size) == (1, 400, 9)
    monkeypatch.setenv("HOST_MEMORY", "2GB")
    with pytest.raises(SystemExit, match=r"HOST_MEMORY: .*'512MB', '1GB' or '4GB'"):
        Settings.load()


@pytest.mark.parametrize("host_memory", ["", "512MB", "1GB", "4GB"])
def test_the_largest_body_fits_into_the_memory_of_every_size(host_memory: str) -> None:
    bodies = ResourcePool.for_bodies(host.defaults(host_memory)["web_body_memory_mb"])
    assert bodies.acquire(ResourceUse.BODY, "account", MAX_BODY_BYTES)


def test_keys_and_addresses_of_services_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    monkeypatch.setenv("GROQ_API_KEY", "gsk-canary-key")
    monkeypatch.setenv("GROQ_BASE_URL", "https://groq.example/canary-path/")
    monkeypatch.setenv("EXA_BASE_URL", "")
    settings = Settings.load()
    row = configured.load_table(settings).find("groq")
    assert (row.api_key, row.base_url) == ("gsk-canary-key", "https://groq.example/canary-path")
    assert configured.load_table(settings).find("exa").base_url == "https://api.exa.ai"
    assert {"gsk-canary-key", "canary-path"} <= settings.secret_texts()
    assert "canary" not in repr(settings)
    monkeypatch.setenv("GROQ_BASE_URL", "ftp://canary.example")
    with pytest.raises(SystemExit, match="GROQ_BASE_URL: it must look like") as refusal:
        Settings.load()
    assert "canary" not in str(refusal.value)
