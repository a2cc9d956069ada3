"""Shows what the shopper's rules read in a recorded page: `python -m shopper.replay PAGE.html --goods 12.00`.

The page has no scripts and may load nothing. Nothing on it is clicked.
"""

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext

from app.core import money
from app.core.order_amounts import adds_up
from app.ports.shopper import (
    ElementQuestion,
    OrderReview,
    Product,
    PurchaseFailed,
    PurchaseRequest,
    ShippingAddress,
    ShoppingStep,
)
from shopper.flow import checkout, product, steps
from shopper.flow.session import BrowserSession
from shopper.page import autofill, breakdown, keywords, prices, structured
from shopper.page.snapshot import PageSnapshot
from shopper.page.tab import BrowserTab
from shopper.process import browser, browser_discovery

_ORIGIN = "http://recorded.invalid"
_WORDS = {
    "order": keywords.PLACE_ORDER, "continue": keywords.NEXT, "named step": keywords.NAMED_STEP,
    "checkout": keywords.CHECKOUT, "cart": keywords.VIEW_CART, "add": keywords.ADD_TO_CART,
}  # fmt: skip


class _NoPurchase:
    """A handler of a purchase that is not made."""

    def on_first_page(self) -> None: ...

    def on_product(self, product: Product) -> None: ...

    def authorize_order(self, review: OrderReview) -> None: ...

    def choose(self, question: ElementQuestion) -> int | None: ...

    def on_step(self, step: ShoppingStep) -> None: ...

    def on_screenshot(self, name: str, png: bytes) -> None: ...

    def on_page(self, document: str) -> None: ...

    def heartbeat(self) -> None: ...


def read(context: BrowserContext, document: str, *, goods_nanos: int) -> str:
    """Return what the rules read in a recorded page, as lines."""
    path = re.search(r'data-path="([^"]*)"', document)
    url = f"{_ORIGIN}{path[1] if path and path[1].startswith('/') else '/'}"
    context.route("**/*", lambda route: route.fulfill(body=document, content_type="text/html; charset=utf-8"))
    tab = BrowserTab(context, start=url, allowed_domains=())
    tab.open(url)
    request = PurchaseRequest(url, ShippingAddress("", ""))
    session = BrowserSession(tab, request, _NoPurchase(), Product("", goods_nanos, "", ""), recipient_entered=True)
    return "\n".join(_lines(session, tab.take_snapshot()))


def _lines(session: BrowserSession, snapshot: PageSnapshot) -> Iterator[str]:
    yield f"page {snapshot.path}: {snapshot.heading or snapshot.title} (language {snapshot.language or 'unknown'})"
    if snapshot.steps_after >= 0:
        yield f"steps after this one: {snapshot.steps_after}"
    for alert in snapshot.alerts:
        yield f"alert: {alert}"
    for control in snapshot.controls:
        state = [word for word in ("required", "checked", "filled", "disabled") if getattr(control, word)]
        problem = f", problem: {control.problem}" if control.problem else ""
        yield (
            f"field {control.type} {control.label or control.name!r}: "
            f"{autofill.token_of(control) or 'unknown'} {' '.join(state)}{problem}"
        )
    for button in snapshot.buttons:
        names = [name for name, words in _WORDS.items() if words.search(f"{button.text} {button.label}")]
        place = button.region or ("list" if button.in_list else "toggle" if button.toggles else "content")
        click = "" if button.region else f", click {steps.consequence(session, snapshot, button).name.lower()}"
        yield f"button {button.tag} {button.text!r} in {place}: words {', '.join(names) or 'none'}{click}"
    rows = breakdown.order_rows(snapshot, session.goods_nanos)
    for row in rows:
        yield f"amount {money.usd_string(row.amount.nanos)} {row.amount.currency}: {row.kind.value} {row.label!r}"
    yield from _decisions(session, snapshot, rows)


def _decisions(session: BrowserSession, snapshot: PageSnapshot, rows: list[prices.LabelledAmount]) -> Iterator[str]:
    total = prices.total_of(rows)
    if total is None:
        yield "total: none; no known label, and no row is the sum of the others with the goods"
    else:
        amounts = breakdown.order_amounts(rows, total, session.goods_nanos)
        disagree = "; several totals disagree" if breakdown.disagreeing_totals(rows, amounts) else ""
        yield f"total: {money.usd_string(total.nanos)}, adds up: {adds_up(amounts, total.nanos)}{disagree}"
    add, named = product.add_button(snapshot), checkout.order_button(snapshot)
    yield f"adds to the cart: {add.text if add else 'none'}"
    yield f"called an order button: {named.text if named else 'none'}"
    yield f"order in structured data: {structured.order_number(snapshot) or 'none'}"
    try:
        last, onward = checkout.next_click(session, snapshot)
        yield f"orders: {last.text if last else 'none'}"
        yield f"leads on: {onward.text if onward else 'none; no words of a step, and not one button by structure'}"
    except PurchaseFailed as failure:
        yield f"{failure.code.value}: {failure.message}"


def _launched(executable: str, folder: str) -> AbstractContextManager[Browser]:
    environment = {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder}
    # Nothing may be reached: the document is given to the browser.
    return browser.launch_browser(
        executable, proxy="http://127.0.0.1:9", environment=environment, sandbox_required=False
    )


def main() -> None:
    """Read the file that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m shopper.replay", description=__doc__)
    parser.add_argument("page", type=Path, help="the file that `flask purchases page` wrote")
    parser.add_argument("--goods", type=Decimal, default=Decimal(0), help="price of the goods in US dollars")
    parser.add_argument("--browser", default="", help="the executable of a browser")
    options = parser.parse_args()
    executable = browser_discovery.find_browser(options.browser)
    if executable is None:
        sys.exit("no browser: install chromium-headless-shell, or name one by --browser")
    with (
        tempfile.TemporaryDirectory() as folder,
        _launched(executable, folder) as running,
        browser.new_context(running) as context,
    ):
        sys.stdout.write(read(context, options.page.read_text(), goods_nanos=int(options.goods * 10**9)) + "\n")


if __name__ == "__main__":
    main()
