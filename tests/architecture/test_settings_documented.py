"""The settings, `docs/configuration.md` and `.env.example` agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.config import Settings, UpstreamAccess
from launcher.settings import read_dotenv
from tests.support.applications import key_of

ROOT = Path(__file__).resolve().parents[2]
_REQUIRED = ("secret_key", "code_peppers", "encryption_keys")
_ROW = re.compile(r"^\| (`[A-Z0-9_]+`(?:, `[A-Z0-9_]+`)*) \| (.+?) \| (.+?) \|$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields | UpstreamAccess.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def _defaults(network: str) -> dict[str, str]:
    required: dict[str, Any] = {name: key_of("k") for name in _REQUIRED}
    settings = Settings(network=network, **required)
    values = {**dict(settings), **dict(settings.upstreams)}
    del values["upstreams"]
    return {name.upper(): "" if name in _REQUIRED else _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value().replace("postgresql+psycopg://", "postgresql://")
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None or value == () else str(value)


def _documented() -> dict[str, tuple[str, str]]:
    """Return meanings and defaults; a row of several settings has one default for all, or one for each."""
    text = (ROOT / "docs/configuration.md").read_text()
    rows: list[tuple[str, str, str]] = []
    for listed, meaning, shown in _ROW.findall(text):
        names, defaults = re.findall(r"`(\w+)`", listed), shown.split(", ")
        each = defaults if len(defaults) == len(names) else [shown] * len(names)
        rows += [(name, meaning, default) for name, default in zip(names, each, strict=True)]
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (meaning, default) for name, meaning, default in rows}


def _example() -> dict[str, str]:
    text = (ROOT / ".env.example").read_text()
    return dict(re.findall(r"^# ([A-Z0-9_]+)=(.*)$", text, re.MULTILINE))


def test_exactly_the_settings_are_documented() -> None:
    assert _documented().keys() == _defaults("sandbox").keys()


def test_the_example_has_exactly_the_settings() -> None:
    assert _example().keys() == _defaults("sandbox").keys()


def test_each_setting_has_a_reader_that_a_search_for_its_name_finds() -> None:
    folders = "app", "workers", "signer"
    sources = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    sources += (ROOT / "templates").rglob("*.html")
    code = "".join(path.read_text() for path in sources)
    named = "".join((ROOT / path).read_text() for path in ("app/gateway/providers/providers.toml", "gunicorn.conf.py"))
    readers = {*re.findall(r"\.(\w+)", code), *re.findall(r'"(\w+)"', named)}
    assert [name for name in _defaults("sandbox") if name.lower() not in readers] == []


def test_documented_defaults_are_the_real_ones() -> None:
    sandbox, mainnet = _defaults("sandbox"), _defaults("mainnet")
    for name, (_, shown) in _documented().items():
        if name != "NETWORK":
            expected = f"`{mainnet[name]}`" if mainnet[name] else ("required" if name.lower() in _REQUIRED else "none")
            assert shown.startswith(expected), name
        if mainnet[name] and not sandbox[name]:
            assert "off in the sandbox" in shown, name


def test_the_example_shows_the_defaults() -> None:
    expected = {**_defaults("mainnet"), "NETWORK": "sandbox"}
    assert _example() == expected


def test_a_copy_of_the_example_changes_nothing() -> None:
    assert read_dotenv(ROOT / ".env.example") == {}


def test_required_settings_are_refused_when_missing() -> None:
    required = {name.lower() for name, (_, default) in _documented().items() if default.startswith("required")}
    assert required == set(_REQUIRED)
    for missing in required:
        given: dict[str, Any] = {name: key_of("k") for name in required - {missing}}
        with pytest.raises(ValueError, match=missing.upper()):
            Settings(network="mainnet", **given)
