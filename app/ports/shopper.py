"""Buying in a web shop for somebody, through a browser that nobody watches.

The shopper finds its way; whoever sent it decides about money. It asks before the order button is pressed and presses
it once at most: after `may_order` has returned, every ending but `Bought` may be an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Trouble(StrEnum):
    """Why a purchase came to no order. The names are the wire's."""

    OUT_OF_STOCK = "out_of_stock"
    NOT_A_PRODUCT = "not_a_product"
    PRODUCT_NOT_FOUND = "product_not_found"
    OPTIONS_REQUIRED = "options_required"
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
    """To whom and where. Name and postal code always; the rest where the shop stores no address that fits."""

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
class Errand:
    """What to buy. Without a username the shop is used as a guest, with one never."""

    url: str
    address: ShippingAddress
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    quantity: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    allowed_domains: tuple[str, ...] = ()
    """Further hosts that the pages may lead to; the host of `url` and its subdomains always are."""


@dataclass(frozen=True, slots=True)
class Product:
    """What the product's page says; `price_nanos` is for one piece, in US dollars."""

    title: str
    price_nanos: int
    availability: str
    price_source: str


@dataclass(frozen=True, slots=True)
class Review:
    """What the shop shows before the order: the total in nano-dollars, as it stands on the page."""

    total_nanos: int
    payment_method: str | None
    shipping_method: str | None
    payment_pending: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done, for people: no value that was typed is in it."""

    action: str
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Bought:
    """The shop has confirmed the order."""

    order_number: str | None
    total_nanos: int
    payment_method: str | None
    shipping_method: str | None
    payment_pending: bool = False
    """The shop still waits for its money: cash on delivery, an invoice, a transfer."""


class Failed(Exception):
    """It came to no order. After `may_order` returned this is never raised; see `Unclear`."""

    def __init__(
        self,
        trouble: Trouble,
        message: str,
        *,
        missing: tuple[str, ...] = (),
        choices: tuple[str, ...] = (),
    ) -> None:
        """Keep what a caller can act on: a sentence, missing address tokens, what could be chosen."""
        super().__init__(trouble.value)
        self.trouble = trouble
        self.message = message
        self.missing = missing
        self.choices = choices


class Unclear(Exception):
    """The order button may have been pressed and the shop's confirmation was not seen."""

    def __init__(self, message: str) -> None:
        """Keep a sentence that says what was seen last."""
        super().__init__("outcome_unknown")
        self.message = message


class Sender(Protocol):
    """Who sent the shopper. Each verb may raise `Failed`, which ends the errand."""

    def first_page(self) -> None:
        """Hear that a first page was read: from here on the errand costs."""
        ...

    def found(self, product: Product) -> None:
        """Hear what the product is, before anything is put into a cart."""
        ...

    def may_order(self, review: Review) -> None:
        """Return to let the order button be pressed, once."""
        ...

    def stepped(self, step: Step) -> None:
        """Hear what was done."""
        ...

    def saw(self, name: str, png: bytes) -> None:
        """Take a screenshot as evidence."""
        ...

    def alive(self) -> None:
        """Hear, every few seconds, that the errand goes on."""
        ...


class Shopper(Protocol):
    """Goes shopping, one errand at a time."""

    def buy(self, errand: Errand, sender: Sender) -> Bought | Review:
        """Run the errand; a dry run returns the review that it reached, and asks for nothing.

        Raises: Failed when it certainly came to no order; Unclear when it may have.
        """
        ...
