"""Purchases in web shops, made by an unattended browser.

The shopper navigates; the handler decides about money. The shopper asks before it clicks the order button and clicks
it once at most: after `authorize_order` has returned, every end but an `OrderConfirmation` may be an order.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Protocol

from app.core.order_amounts import OrderAmount


class FailureCode(StrEnum):
    """Why a purchase ended without an order. The values are part of the API."""

    OUT_OF_STOCK = "out_of_stock"
    NOT_A_PRODUCT = "not_a_product"
    PRODUCT_NOT_FOUND = "product_not_found"
    OPTIONS_REQUIRED = "options_required"
    COUPON_NOT_APPLIED = "coupon_not_applied"
    DELIVERY_METHOD_NOT_OFFERED = "delivery_method_not_offered"
    ADDRESS_INCOMPLETE = "address_incomplete"
    ADDRESS_MISMATCH = "address_mismatch"
    LOGIN_FAILED = "login_failed"
    LIMIT_EXCEEDED = "limit_exceeded"
    PRICE_UNKNOWN = "price_unknown"
    CURRENCY_UNSUPPORTED = "currency_unsupported"
    CART_MISMATCH = "cart_mismatch"
    PAYMENT_DETAILS_REQUIRED = "payment_details_required"
    HUMAN_CHECK = "human_check"
    LEFT_DOMAIN = "left_domain"
    SHOP_UNREACHABLE = "shop_unreachable"
    STUCK = "stuck"
    BROWSER_ERROR = "browser_error"
    TIMEOUT = "timeout"
    OUTCOME_UNKNOWN = "outcome_unknown"


@dataclass(frozen=True, slots=True)
class ShippingAddress:
    """The recipient. Name and postal code always; the rest when the shop stores no matching address."""

    name: str
    zip: str
    line1: str | None = None
    line2: str | None = None
    city: str | None = None
    state: str | None = None
    country: str | None = None
    phone: str | None = None
    email: str | None = None


@dataclass(frozen=True, slots=True)
class PurchaseRequest:
    """What to buy. Without a username the shop is used as a guest; with one, never."""

    url: str
    address: ShippingAddress = field(repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    quantity: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    coupon_code: str | None = field(default=None, repr=False)
    delivery_method: str | None = None
    """The name, or a part of the name, of one of the shop's methods."""
    allowed_domains: tuple[str, ...] = ()
    """Further hosts that the pages may lead to; the host of `url` and its subdomains always are."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product, as its page shows it; `price_nanos` is for one unit, in US dollars."""

    title: str
    price_nanos: int
    availability: str
    price_source: str


@dataclass(frozen=True, slots=True)
class OrderReview:
    """The review that the shop shows before the order; `total_nanos` is in US dollars."""

    total_nanos: int
    payment_method: str | None
    shipping_method: str | None
    payment_pending: bool = False
    amounts: tuple[OrderAmount, ...] = ()


@dataclass(frozen=True, slots=True)
class ShoppingStep:
    """A step of the browser, for people; it contains nothing that was typed."""

    action: str
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class OrderConfirmation:
    order_number: str | None
    total_nanos: int
    payment_method: str | None
    shipping_method: str | None
    payment_pending: bool = False
    """The shop has not been paid yet: cash on delivery, an invoice, a transfer."""
    amounts: tuple[OrderAmount, ...] = ()


@dataclass(frozen=True, slots=True)
class ElementCandidate:
    """A button, a link or an option that the shopper may choose: its role, its name, and text around it."""

    role: str
    name: str
    text: str


class ChoicePurpose(StrEnum):
    CONTINUE = "continue"
    ADD_TO_CART = "add_to_cart"
    PAYMENT = "payment"


@dataclass(frozen=True, slots=True)
class ElementQuestion:
    """Which element to choose, if the rules find none. All texts are the shop's, without personal data."""

    page: str
    candidates: tuple[ElementCandidate, ...]
    purpose: ChoicePurpose = ChoicePurpose.CONTINUE


@dataclass(eq=False, repr=False)
class PurchaseFailed(Exception):
    """Nothing was ordered. Never raised after `authorize_order` has returned; see `PurchaseOutcomeUnknown`.

    `quoted` are the parts of the message that a page contains; `is_permanent`: the operator has to act.
    """

    code: FailureCode
    message: str
    _: KW_ONLY
    missing: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    quoted: tuple[str, ...] = ()
    is_permanent: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.code.value)


class PurchaseOutcomeUnknown(Exception):
    """The order button may have been clicked and the shop's confirmation was not seen."""

    def __init__(self, message: str, *, quoted: tuple[str, ...] = ()) -> None:
        super().__init__("outcome_unknown")
        self.message = message
        self.quoted = quoted


class PurchaseHandler(Protocol):
    """The decisions about one purchase, and its records. Each method may raise `PurchaseFailed`, which ends it."""

    def on_first_page(self) -> None:
        """Record that a first page was read: from here on the price is not refunded."""

    def on_product(self, product: Product) -> None:
        """Record the product, before anything is added to a cart."""

    def authorize_order(self, review: OrderReview) -> None:
        """Authorize one click of the order button by returning."""

    def choose(self, question: ElementQuestion) -> int | None:
        """Return the index of the candidate to click, or None. Never decides about money."""

    def on_step(self, step: ShoppingStep) -> None:
        """Record a step."""

    def on_screenshot(self, name: str, png: bytes) -> None:
        """Store a screenshot as evidence."""

    def on_page(self, document: str) -> None:
        """Store the page on which the purchase failed: HTML without scripts, what was typed, and persons."""

    def heartbeat(self) -> None:
        """Renew the worker's lease; called every few seconds."""


class Shopper(Protocol):
    """Makes purchases, one at a time."""

    def buy(self, request: PurchaseRequest, handler: PurchaseHandler) -> OrderConfirmation | OrderReview:
        """Make a purchase, or return the review of a dry run. Raises: PurchaseFailed, PurchaseOutcomeUnknown."""

    def is_sandboxed(self) -> bool:
        """Start a browser and return whether its sandbox works on this machine, for the current user."""
