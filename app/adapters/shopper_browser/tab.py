"""One tab of the browser: snapshots of it, and the few things that are done to it.

No text that Playwright puts into its errors leaves this file: they quote what was typed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Dialog, Locator, Page, Request
from playwright.sync_api import Error as PlaywrightError

from app.adapters.shopper_browser import signals, snapshot
from app.adapters.shopper_browser.snapshot import Button, Control, Snapshot
from app.ports.shopper import Failed, Trouble

_ACTION_MS = 8_000
_TRIAL_MS = 2_500
_LOAD_MS = 20_000
_QUIET_MS = 250
_SETTLE_SECONDS = 8.0
# What a page may still be drawn from. A call that is held open for longer is waiting for something else.
_AWAITED = frozenset({"document", "xhr", "fetch", "script"})
_LONGEST_CALL_SECONDS = 5.0
_POLL_SECONDS = 0.25
# Resolves when nothing in the document has changed for a while.
_STILL = """([quiet, most]) => new Promise((resolve) => {
  let timer = setTimeout(done, quiet);
  const last = setTimeout(done, most);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, quiet); });
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  function done() { clearTimeout(timer); clearTimeout(last); watcher.disconnect(); resolve(true); }
})"""
# Marks the fields that hold one of the texts, for a picture.
_HIDE = """(secrets) => document.querySelectorAll("input,textarea").forEach((field) =>
  field.toggleAttribute("data-purser-hidden", secrets.some((secret) => (field.value || "").includes(secret))))"""


class Gone(Exception):
    """The page could not be worked with; says nothing more, for Playwright's texts hold what was typed."""


class Tab:
    """The one tab; pages that a shop opens besides are closed."""

    def __init__(self, context: BrowserContext, *, start: str, allowed_domains: tuple[str, ...]) -> None:
        """Open the tab; `start` names the host that it must stay on, besides the allowed ones."""
        self._start = start
        self._allowed = allowed_domains
        self.page: Page = context.new_page()
        self.page.set_default_timeout(_ACTION_MS)
        self.page.on("dialog", self._dismiss)
        context.on("page", lambda page: page.close() if page is not self.page else None)
        self._calls: dict[Request, float] = {}
        self._answered = 0.0
        self.page.on("request", self._note_call)
        self.page.on("requestfinished", self._note_answer)
        self.page.on("requestfailed", self._note_answer)
        self._secrets: tuple[str, ...] = ()

    def hide(self, *secrets: str) -> None:
        """Keep texts out of screenshots from here on."""
        self._secrets = tuple(secret for secret in secrets if secret)

    def open(self, url: str) -> int:
        """Load an address and return the status. Raises: Failed when the shop does not answer."""
        try:
            response = self.page.goto(url, timeout=_LOAD_MS, wait_until="load")
        except PlaywrightError:
            # A page whose last picture is late is a page all the same.
            if self._text_length() == 0:
                raise Failed(Trouble.SHOP_UNREACHABLE, "The shop's page could not be loaded.") from None
            response = None
        self.settle()
        return response.status if response is not None else 200

    def look(self) -> Snapshot:
        """Return the page as data. Raises: Failed(left_domain), Gone."""
        seen = None
        for _ in range(4):
            try:
                seen = snapshot.read(self.page.evaluate(snapshot.SCRIPT))
                break
            except PlaywrightError:
                # It is being replaced by the next one.
                self._wait_for_load()
        if seen is None:
            raise Gone
        if not self.is_allowed(seen.url):
            raise Failed(
                Trouble.LEFT_DOMAIN,
                f"The shop led to {seen.host}, which is neither the shop's own host nor an allowed domain.",
            )
        return seen

    @property
    def path(self) -> str:
        """Return the path of the page that is shown."""
        return urlsplit(self.page.url).path or "/"

    def is_allowed(self, url: str) -> bool:
        """Tell whether a page may be worked with."""
        return may_visit(url, start=self._start, allowed=self._allowed)

    def settle(self) -> None:
        """Wait until the page has loaded, has no call open and nothing in it moves, for a bounded time."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        self._wait_for_load()
        while True:
            left_ms = max(500, min(4_000, int((deadline - time.monotonic()) * 1000)))
            try:
                self.page.evaluate(_STILL, [_QUIET_MS, left_ms])
            except PlaywrightError:
                self._wait_for_load()
            now = time.monotonic()
            # An answer that came just now may not have been drawn yet.
            if now > deadline or not (self._awaits() or self._answered > now - _QUIET_MS / 1000):
                return

    def press(self, target: Button | Control) -> None:
        """Press something and let the page settle. Raises: Gone when it is not there any more."""
        self._press(self._locate(target.number))
        self.settle()

    def make_ready(self, target: Button) -> None:
        """See that a button could be pressed, without pressing it. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            locator.click(trial=True, timeout=_TRIAL_MS)
        except PlaywrightError:
            raise Gone from None

    def press_once(self, target: Button) -> None:
        """Press the order button: one event, whatever comes of it. What the page shows next decides."""
        with contextlib.suppress(PlaywrightError):
            self.page.locator(_marked(target.number)).click(timeout=_ACTION_MS, no_wait_after=True)

    def type(self, target: Control, text: str) -> None:
        """Put a text into a field. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            locator.fill(text)
        except PlaywrightError:
            try:
                locator.click(timeout=2_000)
                self.page.keyboard.insert_text(text)
            except PlaywrightError:
                raise Gone from None
        self._change(locator)

    def select(self, target: Control, value: str) -> None:
        """Choose an entry of a native list. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            locator.select_option(value=value)
        except PlaywrightError:
            raise Gone from None
        self.settle()

    def pick(self, target: Control, names: tuple[str, ...], say: str) -> bool:
        """Choose an entry of a list that the page draws itself; tell whether there was one of these names."""
        box = self._locate(target.number)
        try:
            box.click()
            if target.type == "combobox" and box.evaluate("e => e.tagName") == "INPUT":
                box.fill(say)
            self.settle()
            options = self.page.locator("[role=option]")
            texts = [text.strip() for text in options.all_inner_texts()]
            for index, text in enumerate(texts):
                if text.lower() in names:
                    options.nth(index).click()
                    self.settle()
                    return True
            self.page.keyboard.press("Escape")
        except PlaywrightError:
            raise Gone from None
        return False

    def tick(self, target: Control) -> None:
        """Choose a radio button or tick a box, by its label where it is hidden. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            if locator.evaluate("e => e.tagName") != "INPUT":
                locator.click(timeout=3_000)
            elif not locator.is_checked():
                try:
                    locator.check(timeout=2_000)
                except PlaywrightError:
                    locator.evaluate("e => (e.labels && e.labels[0] ? e.labels[0] : e).click()")
        except PlaywrightError:
            raise Gone from None
        self.settle()

    def untick(self, target: Control) -> None:
        """Take the tick out of a box. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            if locator.evaluate("e => e.tagName") != "INPUT":
                locator.click(timeout=3_000)
            else:
                locator.evaluate(
                    "e => { if (e.checked) (e.labels && e.labels[0] && !e.offsetParent ? e.labels[0] : e).click() }"
                )
        except PlaywrightError:
            raise Gone from None
        self.settle()

    def enter(self, target: Control) -> None:
        """Press Enter in a field. Raises: Gone."""
        locator = self._locate(target.number)
        try:
            locator.press("Enter")
        except PlaywrightError:
            raise Gone from None
        self.settle()

    def wait_for(self, condition: Callable[[Snapshot], bool], *, seconds: float) -> Snapshot:
        """Look again and again until the condition holds or the time is over; return the last look."""
        deadline = time.monotonic() + seconds
        while True:
            seen = self.look()
            if condition(seen) or time.monotonic() > deadline:
                return seen
            self.page.wait_for_timeout(_POLL_SECONDS * 1000)

    def refuse_cookies(self) -> None:
        """Press a banner about cookies away, refusing where that is offered."""
        for words in (signals.REFUSE_COOKIES, signals.ACCEPT_COOKIES):
            for button in self.look().buttons:
                if (
                    words.search(button.text)
                    and len(button.text) < 40
                    and signals.COOKIES.search(button.around)
                    and not button.href
                ):
                    with contextlib.suppress(Gone):
                        self.press(button)
                    return

    def screenshot(self) -> bytes | None:
        """Return a picture of the whole page on which nothing secret is seen; None when there is none to be had."""
        try:
            self.page.evaluate(_HIDE, list(self._secrets))
            mask = [self.page.locator("input[type=password], [data-purser-hidden]")]
            mask += [self.page.get_by_text(secret) for secret in self._secrets]
            height = min(4_000, int(self.page.evaluate("document.documentElement.scrollHeight")))
            return self.page.screenshot(
                mask=mask, timeout=_ACTION_MS, animations="disabled", full_page=True,
                clip={"x": 0, "y": 0, "width": 1280, "height": max(600, height)},
            )  # fmt: skip
        except (PlaywrightError, ValueError):
            return None

    def _press(self, locator: Locator) -> None:
        try:
            locator.click(timeout=4_000)
        except PlaywrightError:
            try:
                # Something lies over it.
                locator.dispatch_event("click", timeout=2_000)
            except PlaywrightError:
                raise Gone from None

    def _locate(self, number: int) -> Locator:
        """Return an element that a snapshot has numbered. Raises: Gone at once when the page has it no more."""
        locator = self.page.locator(_marked(number))
        try:
            if locator.count() == 1:
                return locator
        except PlaywrightError:
            raise Gone from None
        raise Gone

    def _awaits(self) -> bool:
        since = time.monotonic() - _LONGEST_CALL_SECONDS
        return any(begun > since for begun in self._calls.values())

    def _note_call(self, call: Request) -> None:
        if call.resource_type in _AWAITED:
            self._calls[call] = time.monotonic()

    def _note_answer(self, call: Request) -> None:
        if self._calls.pop(call, None) is not None:
            self._answered = time.monotonic()

    def _change(self, locator: Locator) -> None:
        try:
            locator.dispatch_event("change", timeout=1_000)
            locator.evaluate("e => e.blur()", timeout=1_000)
        except PlaywrightError:
            return

    def _text_length(self) -> int:
        try:
            return int(self.page.evaluate("document.body ? document.body.innerText.length : 0"))
        except PlaywrightError:
            return 0

    def _wait_for_load(self) -> None:
        for state in ("domcontentloaded", "load"):
            try:
                self.page.wait_for_load_state(state, timeout=_ACTION_MS)
            except PlaywrightError:
                return

    @staticmethod
    def _dismiss(dialog: Dialog) -> None:
        # "Really remove this?" is a question of ours; all others are answered with no.
        try:
            if dialog.type == "confirm" and signals.REMOVE.search(dialog.message[:60]):
                dialog.accept()
            else:
                dialog.dismiss()
        except PlaywrightError:
            return


def _marked(number: int) -> str:
    return f'[data-purser="{number}"]'


def may_visit(url: str, *, start: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a page is the shop's: of the host that was started from, its subdomains, or an allowed domain."""
    parts, begun = urlsplit(url), urlsplit(start)
    host, own = (parts.hostname or "").lower(), (begun.hostname or "").lower()
    if parts.scheme not in {"http", "https"} or (begun.scheme == "https" and parts.scheme != "https"):
        return False
    # "www.shop.example" is "shop.example", too; but a list of domains that names the one does not name the other.
    if not allowed and own.count(".") > 1:
        own = own.removeprefix("www.")
    if host == own or host.endswith("." + own):
        return parts.port == begun.port or parts.port in {None, 443}
    return any(host == domain or host.endswith("." + domain) for domain in allowed)
