"""One browser tab: snapshots of it, and actions on it.

No text of a Playwright error leaves this file: it quotes what was typed.
"""

import contextlib
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Dialog, Locator, Page, Request
from playwright.sync_api import Error as PlaywrightError

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.page import keywords, snapshot
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot

_ACTION_MS = 8_000
_TRIAL_MS = 2_500
_LOAD_MS = 20_000
QUIET_MS = 250
"""How long nothing may change on a page before it is read."""
_SETTLE_SECONDS = 8.0
# Requests that may still change the page. One that is open for longer is a long poll.
_AWAITED_RESOURCE_TYPES = frozenset({"document", "xhr", "fetch", "script"})
_MAX_REQUEST_SECONDS = 5.0
_POLL_SECONDS = 0.25
# Second levels of countries: below "co.uk" are domains of third parties.
_SHARED_LABELS = frozenset(
    {
        "ac", "co", "com", "edu", "go", "gob", "gov", "gv", "ltd", "me", "ne", "net", "nom", "or", "org", "plc", "sch",
    }
)  # fmt: skip
# Resolves when nothing in the document has changed for a while.
_WAIT_UNTIL_STILL_SCRIPT = """([quiet, most]) => new Promise((resolve) => {
  let timer = setTimeout(done, quiet);
  const last = setTimeout(done, most);
  const watcher = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(done, quiet); });
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  function done() { clearTimeout(timer); clearTimeout(last); watcher.disconnect(); resolve(true); }
})"""
# Whether a visible region says that it is being changed, or shows a progress without an end. What is given up is not
# waited for again.
_IS_BUSY_SCRIPT = """(givesUp) => {
  const ignored = (window[Symbol.for("data-purser-busy")] ||= new WeakSet());
  const BUSY = "[aria-busy=true],[role=progressbar]:not([aria-valuenow]),progress:not([value])";
  const busy = [...document.querySelectorAll(BUSY)]
    .filter((element) => !ignored.has(element) && !element.closest("[aria-hidden=true]") && element.checkVisibility());
  if (givesUp) busy.forEach((element) => ignored.add(element));
  return busy.length > 0;
}"""
# Marks the fields that contain one of the texts, for a screenshot.
# Case is ignored: some shops show codes in capitals.
_MASK_SCRIPT = """(secrets) => document.querySelectorAll("input,textarea").forEach((field) =>
  field.toggleAttribute("data-purser-hidden", secrets.some((secret) =>
    (field.value || "").toLowerCase().includes(secret.toLowerCase()))))"""


class PageActionFailed(Exception):
    """An action on the page failed; without details, because Playwright's texts quote what was typed."""


class BrowserTab:
    """The only tab; further pages that a shop opens are closed."""

    def __init__(
        self, context: BrowserContext, *, start: str, allowed_domains: tuple[str, ...], quiet_ms: int = QUIET_MS
    ) -> None:
        """Open the tab; `start` names the host that it must stay on, along with the allowed ones."""
        self._quiet_ms = quiet_ms
        self._start = start
        self._allowed = allowed_domains
        self.page: Page = context.new_page()
        self.page.set_default_timeout(_ACTION_MS)
        self.page.on("dialog", self._dismiss)
        context.on("page", lambda page: page.close() if page is not self.page else None)
        self._pending_requests: dict[Request, float] = {}
        self._last_response_at = 0.0
        self.page.on("request", self._on_request)
        self.page.on("requestfinished", self._on_response)
        self.page.on("requestfailed", self._on_response)
        self._masked_texts: tuple[str, ...] = ()

    def mask(self, *secrets: str) -> None:
        """Keep texts out of later screenshots."""
        self._masked_texts = tuple(secret for secret in secrets if secret)

    def open(self, url: str) -> int:
        """Load a URL and return the status. Raises: PurchaseFailed when the shop does not respond."""
        try:
            response = self.page.goto(url, timeout=_LOAD_MS, wait_until="load")
        except PlaywrightError:
            # A page that lacks only its last image is usable.
            if self._text_length() == 0:
                raise PurchaseFailed(FailureCode.SHOP_UNREACHABLE, "The shop's page could not be loaded.") from None
            response = None
        self.settle()
        return response.status if response is not None else 200

    def take_snapshot(self) -> PageSnapshot:
        """Return the page as data. Raises: PurchaseFailed(left_domain), PageActionFailed."""
        taken = None
        for _ in range(4):
            try:
                taken = snapshot.parse_snapshot(self.page.evaluate(snapshot.SCRIPT))
                break
            except PlaywrightError:
                # The page is being replaced by the next one.
                self._wait_for_load()
        if taken is None:
            raise PageActionFailed
        if not self.is_allowed(taken.url):
            raise PurchaseFailed(
                FailureCode.LEFT_DOMAIN,
                f"The shop led to {taken.host}, which is neither the shop's own host nor an allowed domain.",
                quoted=(str(taken.host),),
            )
        return taken

    @property
    def path(self) -> str:
        """Return the path of the current page."""
        return urlsplit(self.page.url).path or "/"

    def is_allowed(self, url: str) -> bool:
        """Return whether a page belongs to the shop."""
        return is_allowed_url(url, start=self._start, allowed=self._allowed)

    def settle(self) -> None:
        """Wait until the page has loaded, has no open request, is still and not busy, for a bounded time."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        self._wait_for_load()
        while True:
            left_ms = max(500, min(4_000, int((deadline - time.monotonic()) * 1000)))
            try:
                self.page.evaluate(_WAIT_UNTIL_STILL_SCRIPT, [self._quiet_ms, left_ms])
            except PlaywrightError:
                self._wait_for_load()
            now = time.monotonic()
            is_over = now > deadline
            is_busy = self._is_busy(gives_up=is_over)
            # A response that has just arrived may not have been drawn yet.
            has_arrived = self._last_response_at > now - self._quiet_ms / 1000
            if is_over or not (is_busy or has_arrived or self._has_pending_requests()):
                return

    def click(self, target: PageButton | FormControl) -> None:
        """Click something and let the page settle. Raises: PageActionFailed when it is gone."""
        self._click(self._locate(target.number))
        self.settle()

    def assert_clickable(self, target: PageButton) -> None:
        """Check that a button could be clicked, without clicking it. Raises: PageActionFailed."""
        locator = self._locate(target.number)
        try:
            locator.click(trial=True, timeout=_TRIAL_MS)
        except PlaywrightError:
            raise PageActionFailed from None

    def click_once(self, target: PageButton) -> None:
        """Click the order button with one event. What the page shows next decides the outcome."""
        with contextlib.suppress(PlaywrightError):
            self.page.locator(_selector(target.number)).click(timeout=_ACTION_MS, no_wait_after=True)

    def fill(self, target: FormControl, text: str) -> None:
        """Enter a text in a field. Raises: PageActionFailed."""
        locator = self._locate(target.number)
        try:
            locator.fill(text)
        except PlaywrightError:
            try:
                locator.click(timeout=2_000)
                self.page.keyboard.insert_text(text)
            except PlaywrightError:
                raise PageActionFailed from None
        self._dispatch_change(locator)

    def select(self, target: FormControl, value: str) -> None:
        """Choose an option of a native list. Raises: PageActionFailed."""
        locator = self._locate(target.number)
        try:
            locator.select_option(value=value)
        except PlaywrightError:
            raise PageActionFailed from None
        self.settle()

    def select_custom(self, target: FormControl, names: tuple[str, ...], option_text: str) -> bool:
        """Choose an option of a list that the page draws itself; return whether one had such a name."""
        box = self._locate(target.number)
        try:
            box.click()
            if target.type == "combobox" and box.evaluate("e => e.tagName") == "INPUT":
                box.fill(option_text)
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
            raise PageActionFailed from None
        return False

    def check(self, target: FormControl) -> None:
        """Choose a radio button or tick a box, by its label if it is hidden. Raises: PageActionFailed."""
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
            raise PageActionFailed from None
        self.settle()

    def uncheck(self, target: FormControl) -> None:
        """Untick a box. Raises: PageActionFailed."""
        locator = self._locate(target.number)
        try:
            if locator.evaluate("e => e.tagName") != "INPUT":
                locator.click(timeout=3_000)
            else:
                locator.evaluate(
                    "e => { if (e.checked) (e.labels && e.labels[0] && !e.offsetParent ? e.labels[0] : e).click() }"
                )
        except PlaywrightError:
            raise PageActionFailed from None
        self.settle()

    def submit_by_enter(self, target: FormControl) -> None:
        """Click Enter in a field. Raises: PageActionFailed."""
        locator = self._locate(target.number)
        try:
            locator.press("Enter")
        except PlaywrightError:
            raise PageActionFailed from None
        self.settle()

    def wait_for(self, condition: Callable[[PageSnapshot], bool], *, seconds: float) -> PageSnapshot:
        """Take snapshots until the condition holds or the time is over; return the last one."""
        deadline = time.monotonic() + seconds
        while True:
            current = self.take_snapshot()
            if condition(current) or time.monotonic() > deadline:
                return current
            self.page.wait_for_timeout(_POLL_SECONDS * 1000)

    def dismiss_cookie_banner(self) -> None:
        """Dismiss a cookie banner, refusing if that is offered."""
        for words in (keywords.REJECT_COOKIES, keywords.ACCEPT_COOKIES):
            for button in self.take_snapshot().buttons:
                if (
                    words.search(button.text)
                    and len(button.text) < 40
                    and keywords.COOKIES.search(button.around)
                    and not button.href
                ):
                    with contextlib.suppress(PageActionFailed):
                        self.click(button)
                    return

    def screenshot(self) -> bytes | None:
        """Return a screenshot of the whole page with secrets masked; None when there is none."""
        try:
            self.page.evaluate(_MASK_SCRIPT, list(self._masked_texts))
            mask = [self.page.locator("input[type=password], [data-purser-hidden]")]
            mask += [self.page.get_by_text(secret) for secret in self._masked_texts]
            height = min(4_000, int(self.page.evaluate("document.documentElement.scrollHeight")))
            return self.page.screenshot(
                mask=mask, timeout=_ACTION_MS, animations="disabled", full_page=True,
                clip={"x": 0, "y": 0, "width": 1280, "height": max(600, height)},
            )  # fmt: skip
        except (PlaywrightError, ValueError):
            return None

    def document(self) -> str | None:
        """Return the document of the page with what was computed of its looks; None when there is none."""
        try:
            return str(self.page.evaluate(snapshot.DOCUMENT_SCRIPT))
        except PlaywrightError:
            return None

    def _click(self, locator: Locator) -> None:
        try:
            locator.click(timeout=4_000)
        except PlaywrightError:
            try:
                # Something covers it.
                locator.dispatch_event("click", timeout=2_000)
            except PlaywrightError:
                raise PageActionFailed from None

    def _locate(self, number: int) -> Locator:
        """Return an element by its number in a snapshot. Raises: PageActionFailed when it is gone."""
        locator = self.page.locator(_selector(number))
        try:
            if locator.count() == 1:
                return locator
        except PlaywrightError:
            raise PageActionFailed from None
        raise PageActionFailed

    def _is_busy(self, *, gives_up: bool) -> bool:
        try:
            return bool(self.page.evaluate(_IS_BUSY_SCRIPT, gives_up))
        except PlaywrightError:
            return False

    def _has_pending_requests(self) -> bool:
        since = time.monotonic() - _MAX_REQUEST_SECONDS
        return any(begun > since for begun in self._pending_requests.values())

    def _on_request(self, call: Request) -> None:
        if call.resource_type in _AWAITED_RESOURCE_TYPES:
            self._pending_requests[call] = time.monotonic()

    def _on_response(self, call: Request) -> None:
        if self._pending_requests.pop(call, None) is not None:
            self._last_response_at = time.monotonic()

    def _dispatch_change(self, locator: Locator) -> None:
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
        # "Really remove this?" is caused by our own action; every other dialog is dismissed.
        try:
            if dialog.type == "confirm" and keywords.REMOVE.search(dialog.message[:60]):
                dialog.accept()
            else:
                dialog.dismiss()
        except PlaywrightError:
            return


def _selector(number: int) -> str:
    return f'[data-purser="{number}"]'


def is_allowed_url(url: str, *, start: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a URL is the shop's: on the start's host, its subdomains, or an allowed domain."""
    parts, begun = urlsplit(url), urlsplit(start)
    host, own = (parts.hostname or "").lower(), (begun.hostname or "").lower()
    if parts.scheme not in {"http", "https"} or (begun.scheme == "https" and parts.scheme != "https"):
        return False
    # "www.shop.example" covers "shop.example" here; in a list of allowed domains it does not.
    if not allowed:
        own = _without_www(own)
    if host == own or host.endswith("." + own):
        return parts.port == begun.port or parts.port in {None, 443}
    return any(host == domain or host.endswith("." + domain) for domain in allowed)


def _without_www(host: str) -> str:
    """Return a host without "www.", unless others have domains below the rest, such as "co.uk"."""
    rest = host.removeprefix("www.")
    label, _, top = rest.partition(".")
    return host if not top or (len(top) == 2 and label in _SHARED_LABELS) else rest
