"""A small shop: one page drawn by JavaScript over a JSON API, unusual words, one-page checkout.

"Trolley", "Sign in" in a dialog, "Your details", radio buttons of its own, "Pay $17.00" to order.
A test reads `orders` and sets `Behaviour` to make it odd.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

from solana_node.loopback_server import LoopbackHandler, LoopbackServer

PASSWORD = "tulip-harbour-42"
PAGE = (Path(__file__).parent / "corner.html").read_text()


@dataclass(slots=True)
class Behaviour:
    """Defects that a test configures."""

    symbol: str = "$"
    """The sign before amounts."""
    code: str = "USD"
    """The currency in the page's JSON-LD; empty for no JSON-LD at all."""
    colours: tuple[str, ...] = ()
    price: Decimal = Decimal("12.00")
    shipping: Decimal = Decimal("5.00")
    hides_total: bool = False
    raises_price: Decimal = Decimal(0)
    """Added to the price once something is in the cart."""
    asks_for_card: bool = False
    asks_for_captcha: bool = False
    number: str | None = "PX-20931"
    confirms: bool = True
    needs_phone: bool = False
    prefilled_name: str = ""
    ignores_address: str = ""
    """Ships to this postal code regardless of the form."""
    offers_guests_after_refusal: bool = True
    echoes_password: bool = False
    several_products: bool = False
    cookie_banner: bool = True
    redirects_to: str = ""
    adds_insurance: bool = False
    """Ticked by default."""
    recurring: str = ""
    """The checkout's text about the next delivery."""
    recalculates: bool = False
    """The checkout recalculates and shows its total every second."""
    checkout_word: str = "Go to checkout"
    """The text of the button that leads from the cart to the checkout."""
    other_word: str = ""
    """The text of a second button in the cart, which does nothing."""
    order_word: str = ""
    """The text of the order button, instead of the shop's own."""
    opens_drawer: bool = False
    """The cart's button opens a panel that only leads to the cart."""
    response_delay: float = 0.0
    """Seconds that every response takes once something is in the cart."""


@dataclass(slots=True)
class Session:
    """A visitor."""

    user: str | None = None
    password: str = ""
    cart: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Corner:
    """The running shop."""

    url: str = ""
    behaviour: Behaviour = field(default_factory=Behaviour)
    orders: list[dict[str, Any]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    left_in_cart: dict[str, dict[str, int]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    quoted: Decimal = Decimal(0)
    """The last total that was quoted."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_work: int = 0
    most_at_work: int = 0
    hold_orders: threading.Event = field(default_factory=threading.Event)

    @property
    def product(self) -> str:
        return f"{self.url}/item/pen-holder"

    def reset(self) -> None:
        self.behaviour = Behaviour()
        for past in (self.orders, self.logins, self.left_in_cart, self.sessions):
            past.clear()
        self.hold_orders.set()

    def insurance(self, body: dict[str, Any]) -> Decimal:
        return Decimal("2.99") if body.get("insured") else Decimal(0)

    def settings(self, session: Session) -> dict[str, Any]:
        odd = self.behaviour
        price = odd.price + (odd.raises_price if session.cart else 0)
        return {
            "symbol": odd.symbol, "code": odd.code, "colours": odd.colours, "price": f"{price:.2f}",
            "card": odd.asks_for_card, "person": odd.asks_for_captcha, "phone": odd.needs_phone,
            "prefilled": odd.prefilled_name, "guests": odd.offers_guests_after_refusal, "several": odd.several_products,
            "cookies": odd.cookie_banner, "user": session.user, "cart": sum(session.cart.values()),
            "echo": session.password if odd.echoes_password else "", "insured": odd.adds_insurance,
            "again": odd.recurring, "live": odd.recalculates, "onward": odd.checkout_word, "other": odd.other_word,
            "order": odd.order_word, "drawer": odd.opens_drawer,
        }  # fmt: skip

    def quote(self, session: Session, insured: Decimal = Decimal(0)) -> dict[str, Any]:
        odd = self.behaviour
        price = odd.price + odd.raises_price
        goods = sum((price if key == "pen-holder" else Decimal(740)) * count for key, count in session.cart.items())
        self.quoted = total = goods + odd.shipping + insured
        money = {
            "goods": f"{goods:.2f}",
            "shipping": f"{odd.shipping:.2f}",
            "total": "" if odd.hides_total else f"{total:.2f}",
        }
        return {**money, "lines": session.cart, "ships_to": odd.ignores_address}

    def call(  # noqa: PLR0911 - one answer for each path
        self, path: str, session: Session, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        match path:
            case "/api/settings":
                return 200, self.settings(session)
            case "/api/sign-in":
                self.logins.append((body["user"], body["password"]))
                if body["password"] != PASSWORD:
                    return 403, {"problem": "These details were not recognised"}
                session.user, session.password = body["user"], body["password"]
                for key, count in self.left_in_cart.pop(body["user"], {}).items():
                    session.cart[key] = session.cart.get(key, 0) + count
                return 200, {}
            case "/api/put":
                session.cart[body["item"]] = session.cart.get(body["item"], 0) + int(body["count"])
                return 200, {}
            case "/api/take-out":
                session.cart.pop(body["item"], None)
                return 200, {}
            case "/api/quote":
                return 200, self.quote(session, self.insurance(body))
            case "/api/order":
                return self.order(session, body)
        return 404, {}

    def order(self, session: Session, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.orders.append(
                {**body, "user": session.user, "cart": dict(session.cart), **self.quote(session, self.insurance(body))}
            )
            session.cart.clear()
        self.hold_orders.wait(30)
        if not self.behaviour.confirms:
            return 500, {}
        return 200, {"number": self.behaviour.number}


@contextmanager
def corner_shop() -> Iterator[Corner]:
    """Serve the shop until the block ends."""
    shop = Corner()
    shop.hold_orders.set()

    class Handler(LoopbackHandler):
        def do_GET(self) -> None:
            if shop.behaviour.redirects_to and self.path.startswith("/item"):
                self.reply(302, b"", headers={"Location": shop.behaviour.redirects_to})
            elif self.path.startswith(("/item/pen-holder", "/pay", "/trolley")):
                self.reply(200, PAGE.encode(), content_type="text/html; charset=utf-8")
            else:
                self.reply(404, b"<h1>Not here</h1>", content_type="text/html")

        def do_POST(self) -> None:
            body = json.loads(self.read_body() or b"{}")
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get("visit")
            token = cookie.value if cookie else secrets.token_hex(8)
            session = shop.sessions.setdefault(token, Session())
            status, answer = shop.call(self.path, session, body)
            time.sleep(0.05 + (shop.behaviour.response_delay if session.cart else 0))
            self.reply(status, json.dumps(answer).encode(), headers={"Set-Cookie": f"visit={token}; Path=/; HttpOnly"})

    server = LoopbackServer(Handler)
    shop.url = server.url
    server.start()
    try:
        yield shop
    finally:
        shop.hold_orders.set()
        server.stop()
