"""Settings that would open a door are refused at the start, and their values are never shown."""

import pytest

from app.config import Settings
from tests.support.applications import key_of

LONG = "s" * 32


@pytest.fixture(autouse=True)
def _what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_PEPPERS", key_of("p1"))
    monkeypatch.setenv("ENCRYPTION_KEYS", key_of("k1"))


@pytest.mark.parametrize("fallbacks", ["x", f"{LONG},short", "an-old-secret,with-a-comma-in-it"])
def test_a_fallback_that_could_be_guessed_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, fallbacks: str
) -> None:
    monkeypatch.setenv("SECRET_KEY", LONG)
    monkeypatch.setenv("SECRET_KEY_FALLBACKS", fallbacks)
    with pytest.raises(SystemExit, match="SECRET_KEY_FALLBACKS") as refusal:
        Settings.load()
    assert fallbacks not in str(refusal.value).replace("SECRET_KEY_FALLBACKS", "")


def test_fallbacks_are_believed_after_the_secret_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "n" * 32)
    monkeypatch.setenv("SECRET_KEY_FALLBACKS", f" {LONG} ,{'t' * 40}")
    assert Settings.load().secret_key_list() == ("n" * 32, LONG, "t" * 40)
