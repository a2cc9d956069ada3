"""A browser without its sandbox runs only where a setting permits it, and never as root where that is avoidable."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.adapters.shopper import BrowserShopper
from shopper.process import unprivileged_user
from tests.browser.conftest import purchase
from tests.support.loopback_http import unused_url

ROOT = Path(__file__).resolve().parents[2]
# As Chromium on a host without user namespaces.
_NO_NAMESPACES = """#!/bin/sh
case "$*" in *--no-sandbox*) exec {browser} "$@" ;; esac
echo "No usable sandbox!" >&2
exit 1
"""
# Stands in for Python: accessible to every user, it checks what the browser process could do to its parent.
_INTERPRETER = """#!/bin/sh
test "$1" = -c && exit
read -r order
kind=exposed
if test "$(id -u)" -ge 60706 && touch "$TMPDIR/profile" && ! cat "/proc/$PPID/environ"; then kind=sandboxed; fi
echo "{\\"kind\\": \\"$kind\\"}"
"""


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _program(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_no_page_is_opened_when_a_required_sandbox_does_not_start(tmp_path: Path) -> None:
    shopper = BrowserShopper(
        _program(tmp_path, _NO_NAMESPACES.format(browser="false")), private=True, sandbox_required=True
    )
    with capture_logs() as lines:
        result = purchase(shopper, unused_url())
    assert result.failure_code == "browser_error"
    assert result.failed is not None
    assert "does not start with its sandbox" in result.failed.message
    assert result.handler.pages == 0
    assert [(line["event"], line["log_level"]) for line in lines] == [("browser_sandbox_unavailable", "error")]
    assert not shopper.is_sandboxed()


@pytest.mark.browser
def test_a_browser_without_its_sandbox_is_logged(browser: str, tmp_path: Path) -> None:
    program = _program(tmp_path, _NO_NAMESPACES.format(browser=browser))
    with capture_logs() as lines:
        result = purchase(BrowserShopper(program, private=True, sandbox_required=False), unused_url())
    assert result.failure_code in {"shop_unreachable", "product_not_found"}
    assert [(line["event"], line["log_level"]) for line in lines] == [("browser_without_sandbox", "warning")]


def test_root_starts_the_browser_process_as_a_user_that_cannot_read_the_parents_secrets(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", _program(public_folder, _INTERPRETER))
    shopper = BrowserShopper("/bin/sh", private=True, sandbox_required=True)
    # Only root can switch users: otherwise the process runs as the same user, and hardening protects the parent.
    assert shopper.is_sandboxed() == (os.geteuid() == 0)


def test_a_browser_inaccessible_to_other_users_runs_as_the_current_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert unprivileged_user.find_unprivileged_user(ROOT, _program(tmp_path, "#!/bin/sh\n")) is None
