"""Fixtures of the tests with a real browser: the shops, started once, and purchases in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from app.ports.shopper import (
    ElementQuestion,
    OrderConfirmation,
    OrderReview,
    Product,
    PurchaseFailed,
    PurchaseHandler,
    PurchaseOutcomeUnknown,
    PurchaseRequest,
    ShippingAddress,
    Shopper,
    ShoppingStep,
)
from sandbox.cache import Cache, Package
from shopper.flow import run as flow
from shopper.process import browser as browsers
from shopper.process import browser_discovery, egress
from shopper.process.egress import EgressProxy
from tests.support.looks import DESKTOP
from tests.support.shops.corner import Corner, corner_shop
from tests.support.shops.django_oscar import Oscar, oscar_shop

MINIMAL = ShippingAddress("Ada Buyer", "94107")
FULL = ShippingAddress(
    "Ada Buyer", "94107", "1 Main Street", None, "San Francisco", "California", "US", "+14155550100", None
)
AXE = Package(
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
_NO_BROWSER = "no browser: apt install chromium-headless-shell fonts-dejavu-core, or set BROWSER_EXECUTABLE"


@dataclass(slots=True)
class RecordingHandler:
    """Authorizes everything unless given a failure to raise, and records all calls."""

    refuses_order: PurchaseFailed | None = None
    refuses_product: PurchaseFailed | None = None
    pages: int = 0
    products: list[Product] = field(default_factory=list)
    reviews: list[OrderReview] = field(default_factory=list)
    steps: list[ShoppingStep] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    documents: list[str] = field(default_factory=list)
    questions: list[ElementQuestion] = field(default_factory=list)
    chooses: Callable[[ElementQuestion], int | None] = lambda _question: None

    def on_first_page(self) -> None:
        self.pages += 1

    def on_product(self, product: Product) -> None:
        self.products.append(product)
        if self.refuses_product:
            raise self.refuses_product

    def authorize_order(self, review: OrderReview) -> None:
        self.reviews.append(review)
        if self.refuses_order:
            raise self.refuses_order

    def choose(self, question: ElementQuestion) -> int | None:
        self.questions.append(question)
        return self.chooses(question)

    def on_step(self, step: ShoppingStep) -> None:
        self.steps.append(step)

    def on_screenshot(self, name: str, png: bytes) -> None:
        self.pictures[name] = png

    def on_page(self, document: str) -> None:
        self.documents.append(document)

    def heartbeat(self) -> None:
        """Ignore it."""


class CountingHandler(RecordingHandler):
    """Counts the orders that the shop has when an order is to be authorized."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__()
        self.count = count
        self.orders_before: list[int] = []

    def authorize_order(self, review: OrderReview) -> None:
        self.orders_before.append(self.count())
        super().authorize_order(review)


class SharedBrowserShopper:
    """Makes purchases as the browser process does, all in one browser, in a thread that Playwright owns."""

    def __init__(self, executable: str, folder: Path) -> None:
        self.confirmation_seconds = 2.0
        # The shops of the tests answer at once; what a page waits for is still waited for.
        self.quiet_ms = 50
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}

        def start() -> Browser:
            proxy = self._stack.enter_context(egress.serve(EgressProxy(private=True)))
            return self._stack.enter_context(
                browsers.launch_browser(executable, proxy=proxy, environment=environment, sandbox_required=False)
            )

        self._browser = self._thread.submit(start).result(60)

    def buy(self, request: PurchaseRequest, handler: PurchaseHandler) -> OrderConfirmation | OrderReview:
        """Make a purchase in its own profile, with shorter waits."""

        def run() -> OrderConfirmation | OrderReview:
            with browsers.new_context(self._browser) as context:
                return flow.run(
                    context, request, handler, confirmation_seconds=self.confirmation_seconds, quiet_ms=self.quiet_ms
                )

        return self._thread.submit(run).result(100)

    def close(self) -> None:
        self._thread.submit(self._stack.close).result(30)
        self._thread.shutdown()


@dataclass(slots=True)
class PurchaseResult:
    """The result of one purchase."""

    handler: RecordingHandler
    confirmation: OrderConfirmation | None = None
    review: OrderReview | None = None
    failed: PurchaseFailed | None = None
    outcome_unknown: PurchaseOutcomeUnknown | None = None

    @property
    def failure_code(self) -> str | None:
        return self.failed.code.value if self.failed else None


def purchase(shopper: Shopper, url: str, *, handler: RecordingHandler | None = None, **request: Any) -> PurchaseResult:
    """Make a purchase and return its result."""
    result = PurchaseResult(handler or RecordingHandler())
    try:
        ended = shopper.buy(replace(PurchaseRequest(url, FULL), **request), result.handler)
        if isinstance(ended, OrderConfirmation):
            result.confirmation = ended
        else:
            result.review = ended
    except PurchaseFailed as failure:
        result.failed = failure
    except PurchaseOutcomeUnknown as outcome_unknown:
        result.outcome_unknown = outcome_unknown
    return result


@pytest.fixture(scope="session")
def browser() -> str:
    """The path of a browser. With CI=true it must be there."""
    found = browser_discovery.find_browser(os.environ.get("BROWSER_EXECUTABLE", ""))
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(_NO_BROWSER)
        pytest.skip(_NO_BROWSER)
    return found


@pytest.fixture(scope="session")
def chromium(browser: str) -> Iterator[Browser]:
    """One browser for all tests of this process."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def shopper(browser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBrowserShopper]:
    """A shopper that may reach every address of this machine, without a process per purchase."""
    shared = SharedBrowserShopper(browser, tmp_path_factory.mktemp("browser"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def oscar(browser: str) -> Iterator[Oscar]:
    """django-oscar with guest checkout."""
    del browser
    with oscar_shop("--guests") as shop:
        yield shop


@pytest.fixture(scope="session")
def _corner(browser: str) -> Iterator[Corner]:
    del browser
    with corner_shop() as shop:
        yield shop


@pytest.fixture
def corner(_corner: Corner) -> Corner:
    """A shop of a different design, reset."""
    _corner.reset()
    return _corner


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's accessibility rules, from a pinned package."""
    return (Cache().files(AXE, {"axe.min.js"}) / "axe.min.js").read_text()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages that must neither log to the console nor send requests to other hosts."""
    opened: list[Page] = []
    problems: list[str] = []

    def open_page(
        *,
        script: bool = True,
        width: int = DESKTOP,
        scheme: Literal["light", "dark"] = "light",
        zone: str | None = None,
    ) -> Page:
        context = chromium.new_context(
            java_script_enabled=script, viewport={"width": width, "height": 860}, color_scheme=scheme, timezone_id=zone
        )
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: _record_message(message.type, message.text))
        page.on("request", lambda asked: _record_request(asked.url))
        opened.append(page)
        return page

    def _record_message(kind: str, text: str) -> None:
        # The console reports a refusal's status; that message is the browser's.
        if kind in ("error", "warning") and "the server responded with a status of" not in text:
            problems.append(text)

    def _record_request(url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "http://localhost:", "data:")):
            problems.append(url)

    yield open_page
    for page in opened:
        page.context.close()
    assert problems == []
