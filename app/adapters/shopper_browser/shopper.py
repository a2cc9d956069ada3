"""The service's side of the browser: starts its process with nothing of ours in the environment, and ends it.

Answers its questions, and passes on its reports without the credentials that a hostile shop may have put into them.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.adapters.shopper_browser import messages
from app.adapters.shopper_browser.secrecy import Secrets
from app.core.unit_of_work import assert_no_unit
from app.ports.shopper import Bought, Errand, Failed, Product, Review, Sender, Step, Trouble, Unclear

_ROOT = Path(__file__).resolve().parents[3]
_PREFIX = "purser-shopper-"
_ALIVE_SECONDS = 5.0
_CHUNK = 65_536
# Not taken from a page: a username may be a part of them.
_OWN_WORDS = frozenset(
    {"kind", "trouble", "missing", "action", "name", "availability", "price_source", "png"}
)
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"


class BrowserShopper:
    """Runs errands, one at a time for each process that calls it."""

    def __init__(
        self,
        executable: str,
        *,
        private: bool,
        deadline_seconds: float = 150.0,
        reachable: Collection[str] = (),
    ) -> None:
        """Take the browser's path; `private` lets shops be on any address, `reachable` on these `host:port` besides."""
        self._executable = executable
        self._private = private
        self._deadline_seconds = deadline_seconds
        self._reachable = tuple(reachable)

    def buy(self, errand: Errand, sender: Sender) -> Bought | Review:
        """Run the errand. Raises: Failed, Unclear."""
        assert_no_unit()
        _clear_up_after_the_dead()
        with _folder() as folder, _process(folder) as child:
            conversation = _Conversation(child, errand, sender)
            try:
                assert child.stdin is not None  # noqa: S101 - asked for below
                messages.write(
                    child.stdin, "go",
                    errand=messages.errand_values(errand), browser=self._executable,
                    private=self._private, reachable=self._reachable, environment=_environment(folder),
                )  # fmt: skip
                return conversation.listen(deadline=time.monotonic() + self._deadline_seconds)
            except messages.Closed:
                raise conversation.broken(
                    Trouble.BROWSER_ERROR, "The browser's process ended early."
                ) from None


class _Conversation:
    """The parent's side of one errand. Once an order was allowed, every bad end is `Unclear`."""

    def __init__(self, child: subprocess.Popen[bytes], errand: Errand, sender: Sender) -> None:
        self._child = child
        self._sender = sender
        self._dry_run = errand.dry_run
        self._allowed = False
        self._secrets = Secrets(errand.password, errand.username)

    def broken(self, trouble: Trouble, message: str) -> Failed | Unclear:
        """Make the failure for an end that the child has not announced."""
        if self._allowed:
            return Unclear("The order button may have been pressed; then the browser was lost.")
        return Failed(trouble, message)

    def listen(self, *, deadline: float) -> Bought | Review:
        """Serve the child until it says how it ended. Raises: Failed, Unclear, Closed."""
        for line in self._lines(deadline):
            try:
                message = self._clean(messages.parse(line))
                if message["kind"] in {"bought", "reviewed"}:
                    return self._ended(message)
                self._hear(message)
            except (ValueError, KeyError, TypeError):
                raise self.broken(Trouble.BROWSER_ERROR, "The browser's process made no sense.") from None
        raise self.broken(Trouble.TIMEOUT, "The shop took too long.")

    def _ended(self, message: Mapping[str, Any]) -> Bought | Review:
        values = {name: value for name, value in message.items() if name != "kind"}
        if message["kind"] == "reviewed" and self._dry_run and not self._allowed:
            return Review(**values)
        if message["kind"] == "bought" and self._allowed:
            return Bought(**values)
        if message["kind"] == "bought":
            raise Unclear("The browser says that it has ordered, and was not allowed to.")
        raise ValueError("nobody asked for a mere review")

    def _hear(self, message: Mapping[str, Any]) -> None:
        values = {name: value for name, value in message.items() if name != "kind"}
        match message["kind"]:
            case "first_page":
                self._sender.first_page()
            case "stepped":
                self._sender.stepped(Step(**values))
            case "saw":
                self._sender.saw(str(values["name"]), messages.png_of(values["png"]))
            case "found":
                self._answer(lambda: self._sender.found(Product(**values)))
            case "may_order":
                self._answer(lambda: self._let_order(Review(**values)))
            case "failed":
                failure = messages.failure_of(values)
                raise self.broken(failure.trouble, failure.message) if self._allowed else failure
            case "unclear":
                raise Unclear(str(values["message"]))
            case _:
                raise ValueError("unknown message")

    def _let_order(self, review: Review) -> None:
        if self._allowed or self._dry_run:
            raise Failed(Trouble.BROWSER_ERROR, "The browser asked for an order that it may not make.")
        self._sender.may_order(review)
        self._allowed = True

    def _answer(self, ask: Any) -> None:
        assert self._child.stdin is not None  # noqa: S101 - asked for below
        try:
            ask()
        except Failed as refusal:
            messages.write(self._child.stdin, "stop", **messages.failure_values(refusal))
        else:
            messages.write(self._child.stdin, "go")

    def _lines(self, deadline: float) -> Iterator[bytes]:
        """Yield the child's lines until the deadline, telling the sender now and then that it goes on."""
        assert self._child.stdout is not None  # noqa: S101 - asked for below
        descriptor = self._child.stdout.fileno()
        os.set_blocking(descriptor, False)
        rest = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            told = time.monotonic()
            while (now := time.monotonic()) < deadline:
                if now - told >= _ALIVE_SECONDS:
                    self._sender.alive()
                    told = now
                if not selector.select(min(_ALIVE_SECONDS, deadline - now)):
                    continue
                chunk = os.read(descriptor, _CHUNK)
                if not chunk or len(rest) > messages.MAX_LINE:
                    raise messages.Closed
                rest += chunk
                *lines, last = rest.split(b"\n")
                rest = bytearray(last)
                yield from map(bytes, lines)

    def _clean(self, value: Any, *, name: str = "") -> Any:
        """Take the credentials out of everything that a page may have echoed; words of our own stay."""
        if isinstance(value, str):
            return value if name in _OWN_WORDS else self._secrets.hide(value)
        if isinstance(value, dict):
            return {key: self._clean(inner, name=key) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._clean(inner, name=name) for inner in value]
        return value


@contextmanager
def _process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**_environment(folder), "PYTHONPATH": str(_ROOT)}
    child = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "app.adapters.shopper_browser", str(os.getpid())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=_ROOT, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        # The browser is in the group, and so is Playwright's driver.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _environment(folder: Path) -> dict[str, str]:
    """Return all that the browser's process and the browser know of their surroundings."""
    return {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)}


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder for the browser's profile, gone at the end with all that was in it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        _remove(folder)


def _clear_up_after_the_dead() -> None:
    """Remove the profiles of processes that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not owner.isdigit():
            continue
        try:
            os.kill(int(owner), 0)
        except ProcessLookupError:
            _remove(folder)
        except OSError:
            continue


def _remove(folder: Path) -> None:
    # Processes of the browser that are ending may still write for a moment.
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
