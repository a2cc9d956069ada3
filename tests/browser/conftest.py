"""What the tests with a real browser share: the shops, started once, and a customer's errand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from app.adapters.shopper_browser import browser as browsers
from app.adapters.shopper_browser import egress, programs
from app.adapters.shopper_browser import errand as errands
from app.adapters.shopper_browser.egress import Egress
from app.ports.shopper import (
    Bought,
    Errand,
    Failed,
    Product,
    Review,
    Sender,
    ShippingAddress,
    Shopper,
    Step,
    Unclear,
)
from tests.support.shops.corner import Corner, corner_shop
from tests.support.shops.django_oscar import Oscar, oscar_shop

MINIMAL = ShippingAddress("Ada Buyer", "94107")
FULL = ShippingAddress(
    "Ada Buyer", "94107", "1 Main Street", None, "San Francisco", "California", "US", "+14155550100", None
)
_MEND = "no browser: apt install chromium-headless-shell fonts-dejavu-core, or set BROWSER_EXECUTABLE"


@dataclass(slots=True)
class Witness:
    """Who sent the shopper: allows everything unless told otherwise, and remembers."""

    refuses: Failed | None = None
    refuses_product: Failed | None = None
    pages: int = 0
    products: list[Product] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)

    def first_page(self) -> None:
        self.pages += 1

    def found(self, product: Product) -> None:
        self.products.append(product)
        if self.refuses_product:
            raise self.refuses_product

    def may_order(self, review: Review) -> None:
        self.reviews.append(review)
        if self.refuses:
            raise self.refuses

    def stepped(self, step: Step) -> None:
        self.steps.append(step)

    def saw(self, name: str, png: bytes) -> None:
        self.pictures[name] = png

    def alive(self) -> None:
        """Hear it."""


class OneBrowser:
    """Runs errands as the browser's process does, all of them in one browser, in a thread that Playwright owns."""

    def __init__(self, executable: str, folder: Path) -> None:
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}

        def start() -> Browser:
            proxy = self._stack.enter_context(egress.serve(Egress(private=True)))
            return self._stack.enter_context(
                browsers.launched(executable, proxy=proxy, environment=environment)
            )

        self._browser = self._thread.submit(start).result(60)

    def buy(self, errand: Errand, sender: Sender) -> Bought | Review:
        """Run an errand in a profile of its own; nobody waits half a minute for a confirmation that never comes."""

        def run() -> Bought | Review:
            with browsers.visit(self._browser) as context:
                return errands.run(context, errand, sender, confirmation_seconds=2)

        return self._thread.submit(run).result(100)

    def close(self) -> None:
        self._thread.submit(self._stack.close).result(30)
        self._thread.shutdown()


@dataclass(slots=True)
class Trial:
    """An errand and how it ended."""

    witness: Witness
    bought: Bought | None = None
    review: Review | None = None
    failed: Failed | None = None
    unclear: Unclear | None = None

    @property
    def trouble(self) -> str | None:
        return self.failed.trouble.value if self.failed else None


def send(shopper: Shopper, url: str, *, witness: Witness | None = None, **errand: Any) -> Trial:
    """Send the shopper out and return how it ended."""
    trial = Trial(witness or Witness())
    try:
        ended = shopper.buy(replace(Errand(url, FULL), **errand), trial.witness)
        if isinstance(ended, Bought):
            trial.bought = ended
        else:
            trial.review = ended
    except Failed as failure:
        trial.failed = failure
    except Unclear as unclear:
        trial.unclear = unclear
    return trial


@pytest.fixture(scope="session")
def browser() -> str:
    """The path of a browser. With CI=true it must be there."""
    found = programs.find(os.environ.get("BROWSER_EXECUTABLE", ""))
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(_MEND)
        pytest.skip(_MEND)
    return found


@pytest.fixture(scope="session")
def shopper(browser: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBrowser]:
    """A shopper that may go anywhere on this machine, without processes of its own for each errand."""
    shared = OneBrowser(browser, tmp_path_factory.mktemp("browser"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def oscar(browser: str) -> Iterator[Oscar]:
    """A shop that nobody here wrote; guests are welcome, too."""
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
    """A shop of quite another build, as new."""
    _corner.reset()
    return _corner
