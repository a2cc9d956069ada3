"""The state of one purchase in the browser, and helpers that all its steps share."""

from dataclasses import dataclass, field

from app.ports.shopper import FailureCode, Product, PurchaseFailed, PurchaseHandler, PurchaseRequest, ShoppingStep
from shopper.page import keywords, prices
from shopper.page.prices import CurrencyHints
from shopper.page.snapshot import PageButton, PageSnapshot
from shopper.page.tab import BrowserTab, PageActionFailed, is_allowed_url
from shopper.process import recorded_page
from shopper.process.redaction import PersonalDataRedactor

_MAX_STEP_LENGTH = 80


@dataclass(slots=True)
class BrowserSession:
    """A purchase in progress."""

    tab: BrowserTab
    request: PurchaseRequest
    handler: PurchaseHandler
    product: Product | None = None
    declared: set[str] = field(default_factory=set)
    language: str = ""
    signed_in: bool = False
    sign_in_attempted: bool = False
    zip_entered: bool = False
    address_chosen: bool = False
    address_asked: bool = False
    recipient_entered: bool = False
    payment_sent: bool = False
    payment_asked: bool = False
    """Whether a language model was asked for a payment."""
    cart_link: PageButton | None = None
    """The link that counts what is in the cart."""
    cart_button: PageButton | None = None
    """The button that a language model chose to add the product."""
    goods_verified: bool = False
    quantity_in_cart: bool = False
    coupon_sent: bool = False
    """Whether the coupon code was entered, or the shop has it already."""
    coupon_discount_nanos: int = 0
    coupon_reduction_nanos: int = 0
    """The discount, where the shop subtracts it from the price of the goods."""
    coupon_disclosures: set[tuple[str, str]] = field(default_factory=set)
    delivery_chosen: str | None = None
    delivery_offered: dict[str, None] = field(default_factory=dict)
    """The names of the delivery methods that were offered, in their order."""

    @property
    def is_guest(self) -> bool:
        """Return whether the shop is used without an account."""
        return self.request.username is None

    @property
    def goods_nanos(self) -> int:
        """Return the expected cost of the goods."""
        full_nanos = self.product.price_nanos * self.request.quantity if self.product else 0
        return max(0, full_nanos - self.coupon_reduction_nanos)

    def click(self, button: PageButton, action: str) -> PageSnapshot:
        """Click a button, record it, and return the page after. Raises: PageActionFailed."""
        path = self.tab.path
        try:
            self.tab.click(button)
        except PageActionFailed:
            # The page was redrawn in between: the same button is meant, if there is just one.
            again = find_same_button(button, self.tab.take_snapshot())
            if again is None or again.number == button.number:
                raise
            self.tab.click(again)
        self.record_step(action, button.text, path)
        return self.tab.take_snapshot()

    def record_step(self, action: str, text: str, path: str) -> None:
        """Record a step."""
        self.handler.on_step(ShoppingStep(action, text[:_MAX_STEP_LENGTH], path[:_MAX_STEP_LENGTH]))

    def capture(self, name: str) -> None:
        """Take a screenshot."""
        png = self.tab.screenshot()
        if png is not None:
            self.handler.on_screenshot(name, png)

    def capture_failure(self, name: str) -> None:
        """Take a screenshot, and record the page's document without what was typed and without persons."""
        self.capture(name)
        document = self.tab.document()
        if document is not None:
            self.handler.on_page(recorded_page.sanitize(document, PersonalDataRedactor(self.request).redact))

    def observe_currency(self, snapshot: PageSnapshot) -> None:
        """Record what a page declares about its currency; it counts for the whole purchase."""
        self.declared |= {
            code.upper() for code in (snapshot.declared.get("currency", ""), *snapshot.currencies) if code
        }
        self.language = snapshot.language or self.language

    def currency_hints(self, snapshot: PageSnapshot) -> CurrencyHints:
        """Return what is known about the currency on a page."""
        return CurrencyHints(tuple(self.declared), snapshot.language or self.language, snapshot.host, snapshot.text)

    def in_usd(self, amount: prices.PageAmount, snapshot: PageSnapshot) -> int:
        """Return an amount that is in US dollars. Raises: PurchaseFailed for another or an unknown currency."""
        currency = prices.resolve(amount.currency, self.currency_hints(snapshot))
        if currency == prices.USD:
            return amount.nanos
        if currency is None:
            raise PurchaseFailed(
                FailureCode.PRICE_UNKNOWN, "The shop shows a price in a currency that cannot be determined."
            )
        raise PurchaseFailed(
            FailureCode.CURRENCY_UNSUPPORTED,
            f"The shop's prices are in {currency}; only purchases in US dollars are supported.",
        )


def is_own_host(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Return whether a page is the shop's own; codes and passwords are not for the other domains that are allowed."""
    return is_allowed_url(snapshot.url, start=session.request.url, allowed=())


def assert_no_human_check(snapshot: PageSnapshot) -> None:
    """Stop when the shop asks for a person. Raises: PurchaseFailed(human_check)."""
    asked = any(keywords.HUMAN_CHECK_HOSTS.search(frame.address) and frame.area > 2_000 for frame in snapshot.frames)
    if asked or keywords.HUMAN_CHECK_TEXT.search(snapshot.text) or keywords.HUMAN_CHECK_HOSTS.search(snapshot.host):
        raise PurchaseFailed(
            FailureCode.HUMAN_CHECK, "The shop asks for a person: a captcha or the bank's own confirmation."
        )


def find_same_button(button: PageButton, snapshot: PageSnapshot) -> PageButton | None:
    """Find a button again on a page that may have been redrawn; None unless there is exactly one."""
    candidates = [other for other in snapshot.buttons if other.number == button.number]
    alike = candidates or [
        other
        for other in snapshot.buttons
        if (other.text, other.tag, other.href, other.dialog, other.region, other.card)
        == (button.text, button.tag, button.href, button.dialog, button.region, button.card)
    ]
    found = alike[0] if len(alike) == 1 else None
    return found if found is not None and found.text == button.text and not found.disabled else None


def preferred_button(buttons: list[PageButton]) -> PageButton | None:
    """Return the most likely button: in an open dialog first, buttons before links, the larger first."""
    usable = [button for button in buttons if not button.disabled]
    return max(
        usable, key=lambda b: (b.dialog, b.region not in {"footer", "aside"}, b.tag != "a", b.area), default=None
    )
