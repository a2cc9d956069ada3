"""A shopper without a browser that behaves: it asks before it orders, presses once, and fails where it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.ports.shopper import Bought, Errand, Failed, Product, Review, Sender, Step, Trouble, Unclear

PNG = b"\x89PNG picture"


@dataclass(slots=True)
class FakeShopper:
    """Its shop sells one article; `pressed` counts the orders that the shop got."""

    price_nanos: int = 12_000_000_000
    shipping_nanos: int = 5_000_000_000
    pressed: int = 0
    errands: list[Errand] = field(default_factory=list)
    fails_before_page: Failed | None = None
    fails_before_order: Failed | None = None
    unclear: str | None = None
    breaks_after_order: bool = False
    asks_twice: bool = False
    orders_unasked: bool = False
    ignores_dry_run: bool = False
    confirms_nanos: int | None = None
    interrupted: Callable[[str], None] = lambda _where: None

    def buy(self, errand: Errand, sender: Sender) -> Bought | Review:
        self.errands.append(errand)
        if self.fails_before_page:
            raise self.fails_before_page
        self.interrupted("start")
        sender.first_page()
        sender.stepped(Step("open", "Pen", "/p/1"))
        sender.found(Product("Pen", self.price_nanos, "in_stock", "text"))
        sender.saw("product", PNG)
        if self.fails_before_order:
            raise self.fails_before_order
        total = self.price_nanos * errand.quantity + self.shipping_nanos
        self.interrupted("review")
        review = Review(total, "Pay on delivery", "Standard", payment_pending=True)
        if self.orders_unasked:
            raise Unclear("The shop shows a confirmation although the order button was not pressed.")
        if errand.dry_run and not self.ignores_dry_run:
            return review
        sender.may_order(review)
        self.interrupted("allowed")
        self.pressed += 1
        if self.asks_twice:
            sender.may_order(review)
        self.interrupted("pressed")
        if self.breaks_after_order:
            raise RuntimeError("the browser is gone")
        if self.unclear:
            raise Unclear(self.unclear)
        return Bought(
            "A-1", self.confirms_nanos or total, "Pay on delivery", "Standard", payment_pending=True
        )


def trouble(kind: Trouble, message: str = "It did not work.", **more: tuple[str, ...]) -> Failed:
    """Make a failure."""
    return Failed(kind, message, **more)
