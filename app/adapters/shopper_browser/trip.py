"""What one errand knows while it is under way, and the few words that every part of it needs."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.adapters.shopper_browser import money, signals
from app.adapters.shopper_browser.money import Signs
from app.adapters.shopper_browser.snapshot import Button, Snapshot
from app.adapters.shopper_browser.tab import Gone, Tab
from app.ports.shopper import Errand, Failed, Product, Sender, Step, Trouble

_LONGEST_STEP = 80


@dataclass(slots=True)
class Trip:
    """An errand under way."""

    tab: Tab
    errand: Errand
    sender: Sender
    product: Product | None = None
    declared: set[str] = field(default_factory=set)
    language: str = ""
    signed_in: bool = False
    tried_to_sign_in: bool = False
    typed_zip: bool = False
    chose_address: bool = False
    goods_seen: bool = False
    quantity_in_cart: bool = False

    @property
    def is_guest(self) -> bool:
        """Tell whether the shop is used without an account."""
        return self.errand.username is None

    @property
    def goods_nanos(self) -> int:
        """Return what the goods must cost."""
        return self.product.price_nanos * self.errand.quantity if self.product else 0

    def press(self, button: Button, action: str) -> Snapshot:
        """Press a button, note it, and return what is there then. Raises: Gone."""
        path = self.tab.path
        try:
            self.tab.press(button)
        except Gone:
            # The page was drawn anew in between: the same button, if there is just one, is meant as well.
            again = same(button, self.tab.look())
            if again is None or again.number == button.number:
                raise
            self.tab.press(again)
        self.note(action, button.text, path)
        return self.tab.look()

    def note(self, action: str, text: str, path: str) -> None:
        """Note a step."""
        self.sender.stepped(Step(action, text[:_LONGEST_STEP], path[:_LONGEST_STEP]))

    def picture(self, name: str) -> None:
        """Keep a screenshot."""
        png = self.tab.screenshot()
        if png is not None:
            self.sender.saw(name, png)

    def learn(self, seen: Snapshot) -> None:
        """Remember what a page declares about its currency; it counts for the whole trip."""
        self.declared |= {
            code.upper() for code in (seen.declared.get("currency", ""), *seen.currencies) if code
        }
        self.language = seen.language or self.language

    def signs(self, seen: Snapshot) -> Signs:
        """Return what is known about the currency on a page."""
        return Signs(tuple(self.declared), seen.language or self.language, seen.host, seen.text)

    def in_usd(self, amount: money.Amount, seen: Snapshot) -> int:
        """Return an amount that is in US dollars. Raises: Failed for another or an unknown currency."""
        currency = money.resolve(amount.currency, self.signs(seen))
        if currency == money.USD:
            return amount.nanos
        if currency is None:
            raise Failed(
                Trouble.PRICE_UNKNOWN, "The shop shows a price whose currency cannot be told for certain."
            )
        raise Failed(
            Trouble.CURRENCY_UNSUPPORTED,
            f"The shop's prices are in {currency}; only US dollars are bought in.",
        )


def assert_no_human_check(seen: Snapshot) -> None:
    """Stop where a person is asked for. Raises: Failed(human_check)."""
    asked = any(
        signals.HUMAN_CHECK_HOSTS.search(frame.address) and frame.area > 2_000 for frame in seen.frames
    )
    if asked or signals.HUMAN_CHECK_TEXT.search(seen.text) or signals.HUMAN_CHECK_HOSTS.search(seen.host):
        raise Failed(
            Trouble.HUMAN_CHECK, "The shop asks for a person: a captcha or the bank's own confirmation."
        )


def same(button: Button, seen: Snapshot) -> Button | None:
    """Find a button again on a page that may have been drawn anew; None when there is no such or more than one."""
    kept = [other for other in seen.buttons if other.number == button.number]
    alike = kept or [
        other
        for other in seen.buttons
        if (other.text, other.tag, other.href, other.dialog, other.region, other.card)
        == (button.text, button.tag, button.href, button.dialog, button.region, button.card)
    ]
    found = alike[0] if len(alike) == 1 else None
    return found if found is not None and found.text == button.text and not found.disabled else None


def best(buttons: list[Button]) -> Button | None:
    """Return the one that is meant: in an open dialog first, buttons before links, the larger first."""
    usable = [button for button in buttons if not button.disabled]
    return max(
        usable,
        key=lambda b: (b.dialog, b.region not in {"footer", "aside"}, b.tag != "a", b.area),
        default=None,
    )
