"""A shop in Finnish, of which the shopper knows no word, with proper ARIA, autofill tokens and structured data.

Server-rendered, one form per step: product, cart, address, delivery, payment, review, confirmation.
"""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

from solana_node.loopback_server import LoopbackHandler, LoopbackServer

STEPS = ("Osoite", "Toimitus", "Maksu", "Yhteenveto", "Kuitti")
_FIELDS = (
    ("s1", "Sähköposti", "email"), ("s2", "Nimi", "shipping name"), ("s3", "Katu", "shipping address-line1"),
    ("s4", "Paikkakunta", "shipping address-level2"), ("s5", "Postinumero", "shipping postal-code"),
)  # fmt: skip
_DELIVERIES = ("Nouto", "Kuriiri")
_PAYMENTS = ("Kortti", "Lasku")


@dataclass(slots=True)
class Wording:
    """How the shop differs from its usual self."""

    order: str = "Tilaa"
    order_label: str = ""
    """An accessible name of the order button."""
    onward: str = "Jatka"
    review: str = "Yhteenveto"
    """The heading of the last step."""
    shows_steps: bool = True
    offer_price: str = "12.00"
    """In the structured data of the product."""
    visible_price: str = "12.00 $"
    before_add: str = ""
    """Markup before the button that adds the product to the cart."""
    extra: str = ""
    """Markup in every step of the checkout."""
    stays_on_product: bool = False
    """Adding to the cart changes nothing but the number in the header, which the link of the cart has no path for."""
    offers_sign_in: bool = False
    left_in_cart: int = 0
    """How many cups an earlier visit left in the cart of the account."""
    removes: str = "a-button"
    """How a line of the cart is removed: `a-button`, `a-quantity`, or `nothing` although there is a button."""
    lists: bool = False
    """Delivery is a list, and the review requires a consent."""
    done_path: str = "/kiitos"
    describes_order: bool = True
    """The confirmation has the order as structured data."""
    orders_at_payment: bool = False
    """There is no review: the payment's button orders."""
    shows_total_at_payment: bool = True
    fee: int = 0
    """Added in the review."""
    reviews_with_fields: bool = False
    """The review asks for a comment and a consent."""


@dataclass(slots=True)
class Foreign:
    """The running shop."""

    url: str = ""
    wording: Wording = field(default_factory=Wording)
    orders: list[dict[str, str]] = field(default_factory=list)
    visits: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def product(self) -> str:
        return f"{self.url}/tuote/kuppi"

    def reset(self) -> None:
        self.wording = Wording()
        self.orders.clear()
        self.visits.clear()

    def post(self, path: str, visit: dict[str, str], sent: dict[str, str]) -> str:
        """Handle a form and return the path of the next page."""
        if path == "/ostoskori/lisaa":
            sent = {**sent, "maara": str(int(sent["maara"]) + int(visit.get("maara", 0)))}
        visit.update(sent)
        if path == "/ostoskori/poista":
            if sent.get("maara", "0") == "0" and self.wording.removes != "nothing":
                visit.pop("maara", None)
            return "/ostoskori"
        if path == "/login":
            if self.wording.left_in_cart:
                visit["maara"] = str(self.wording.left_in_cart)
            return "/tuote/kuppi"
        if path == "/checkout/maksu" and (sent.get("payment") == "Kortti" or "payment" not in sent):
            return "/checkout/maksu"
        follow = {
            "/ostoskori/lisaa": "/tuote/kuppi" if self.wording.stays_on_product else "/ostoskori",
            "/checkout/osoite": "/checkout/toimitus",
            "/checkout/toimitus": "/checkout/maksu", "/checkout/maksu": "/checkout/yhteenveto",
        }  # fmt: skip
        if path == "/checkout/yhteenveto" or (path == "/checkout/maksu" and self.wording.orders_at_payment):
            self.orders.append(dict(visit))
            return self.wording.done_path
        return follow.get(path, "/ostoskori")

    def page(self, path: str, visit: dict[str, str]) -> str | None:
        pages = {
            "/tuote/kuppi": self._product, "/ostoskori": self._cart, "/checkout/osoite": self._address,
            "/checkout/toimitus": self._delivery, "/checkout/maksu": self._payment,
            "/checkout/yhteenveto": self._review, self.wording.done_path: self._done, "/login": self._sign_in,
        }  # fmt: skip
        return pages[path](visit) if path in pages else None

    def _frame(self, heading: str, body: str, visit: dict[str, str], *, step: int = -1) -> str:
        steps = "".join(
            f"<li{' aria-current=step' if number == step else ''}>{name}</li>" for number, name in enumerate(STEPS)
        )
        shown = f"<ol>{steps}</ol>" if step >= 0 and self.wording.shows_steps else ""
        extra = self.wording.extra if step >= 0 else ""
        sign_in = "<a href=/login>Tunnukset</a>" if self.wording.offers_sign_in and "user" not in visit else ""
        return (
            f"<!doctype html><html lang=fi><title>Kauppa</title>"
            f"<header><a href=/>Etusivu</a> <a href=/ostoskori>Kori {visit.get('maara', 0)}</a>{sign_in}"
            f"<form role=search><input type=search aria-label=Haku><button>Hae</button></form></header>"
            f"<main>{shown}<h1>{heading}</h1>{extra}{body}</main>"
            f"<footer><form><input type=email aria-label=Uutiskirje><button>Tilaa uutiskirje</button></form></footer>"
        )

    def _product(self, visit: dict[str, str]) -> str:
        offer = {
            "@type": "Offer", "price": self.wording.offer_price, "priceCurrency": "USD",
            "availability": "https://schema.org/InStock",
        }  # fmt: skip
        data = {"@context": "https://schema.org", "@type": "Product", "name": "Kuppi", "offers": offer}
        return self._frame(
            "Kuppi",
            f"<p>{self.wording.visible_price}</p><form method=post action=/ostoskori/lisaa>"
            f"<label>Määrä <input name=maara type=number value=1 min=1></label>{self.wording.before_add}"
            "<button>Lisää koriin</button></form>"
            f'<script type="application/ld+json">{json.dumps(data)}</script>',
            visit,
        )

    def _cart(self, visit: dict[str, str]) -> str:
        if "maara" not in visit:
            return self._frame("Kori", "<p>Kori on tyhjä.</p>", visit)
        removal = "<button>Poista</button>"
        if self.wording.removes == "a-quantity":
            removal = f"<input type=number name=maara value={visit['maara']} aria-label=Kpl>"
        return self._frame(
            "Kori",
            f"<table><tr><td><a href=/tuote/kuppi>Kuppi</a></td><td>{12 * int(visit['maara'])}.00 $</td><td>"
            f"<form method=post action=/ostoskori/poista>{removal}</form></td></tr></table>"
            "<a href=/tuote/kuppi>Lisää ostoksia</a> <a href=/checkout/osoite>Kassalle</a>",
            visit,
        )

    def _sign_in(self, visit: dict[str, str]) -> str:
        return self._frame(
            "Tunnukset",
            "<form method=post action=/login><label>Tunnus <input name=user autocomplete=username></label>"
            "<label>Salasana <input type=password name=secret autocomplete=current-password></label>"
            "<button>Sisään</button></form>",
            visit,
        )

    def _totals(self, visit: dict[str, str], *, fee: int = 0) -> str:
        goods = 12 * int(visit["maara"])
        post = {"Nouto": 0, "Kuriiri": 5}.get(visit.get("toimitus", ""), 0)
        rows = (("Kuppi", goods), ("Välisumma", goods), ("Toimituskulut", post + fee), ("Yhteensä", goods + post + fee))
        return "<table>" + "".join(f"<tr><th>{name}<td>{amount}.00 $" for name, amount in rows) + "</table>"

    def _form(self, step: int, inside: str, button: str, *, label: str = "") -> str:
        path = ("osoite", "toimitus", "maksu", "yhteenveto")[step]
        named = f' aria-label="{html.escape(label)}"' if label else ""
        return f"<form method=post action=/checkout/{path}>{inside}<button{named}>{button}</button></form>"

    def _address(self, visit: dict[str, str]) -> str:
        inside = "".join(
            f'<p><label>{label} <input name={name} autocomplete="{token}" required></label></p>'
            for name, label, token in _FIELDS
        )
        inside += (
            '<p><label>Maa <select name=s6 autocomplete="shipping country" required><option value="">-'
            "<option value=FI>Suomi<option value=US>Yhdysvallat</select></label></p>"
        )
        return self._frame("Osoite", self._form(0, inside, self.wording.onward), visit, step=0)

    def _choices(self, title: str, name: str, choices: tuple[str, ...]) -> str:
        return (
            f"<fieldset><legend>{title}</legend>"
            + "".join(
                f"<label><input type=radio name={name} value={choice} required>{choice}</label>" for choice in choices
            )
            + "</fieldset>"
        )

    def _delivery(self, visit: dict[str, str]) -> str:
        inside = self._choices("Toimitus", "toimitus", _DELIVERIES)
        if self.wording.lists:
            options = "".join(f"<option>{delivery}</option>" for delivery in _DELIVERIES)
            inside = f"<label>Tapa <select name=toimitus required><option value=''>-</option>{options}</select></label>"
        return self._frame("Toimitus", self._form(1, inside, self.wording.onward) + self._totals(visit), visit, step=1)

    def _payment(self, visit: dict[str, str]) -> str:
        inside = self._choices("Maksu", "payment", _PAYMENTS)
        inside += "<p id=kortti hidden><label>Kortin numero <input autocomplete=cc-number></label></p>"
        script = (
            "<script>document.querySelectorAll('[name=payment]').forEach((choice) => choice.onchange = () => {"
            "document.getElementById('kortti').hidden = choice.value !== 'Kortti'; });</script>"
        )
        totals = self._totals(visit) if self.wording.shows_total_at_payment else "<p>12.00 $</p>"
        return self._frame("Maksu", self._form(2, inside, self.wording.onward) + totals + script, visit, step=2)

    def _review(self, visit: dict[str, str]) -> str:
        who = html.escape(", ".join(visit.get(name, "") for name, _, _ in _FIELDS[1:]))
        inside = (
            "<label>Viesti <textarea name=notes></textarea></label>"
            "<label><input type=checkbox name=terms checked>Ehdot</label>"
            if self.wording.reviews_with_fields
            else ""
        )
        if self.wording.lists:
            inside += "<label><input type=checkbox name=ok required>Hyväksyn</label>"
        order = self._form(3, inside, self.wording.order, label=self.wording.order_label)
        return self._frame(
            self.wording.review, f"<p>{who}</p>{self._totals(visit, fee=self.wording.fee)}{order}", visit, step=3
        )

    def _done(self, visit: dict[str, str]) -> str:
        data = {"@context": "https://schema.org", "@type": "Order", "orderNumber": "FI-2041"}
        shown = json.dumps(data) if self.wording.describes_order else "{}"
        return self._frame(
            "Valmis", f'<p>Kiva juttu.</p><script type="application/ld+json">{shown}</script>', visit, step=4
        )


@contextmanager
def foreign_shop() -> Iterator[Foreign]:
    """Serve the shop until the block ends."""
    shop = Foreign()

    class Handler(LoopbackHandler):
        def _visit(self) -> tuple[str, dict[str, str]]:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get("visit")
            token = cookie.value if cookie else secrets.token_hex(8)
            return token, shop.visits.setdefault(token, {})

        def do_GET(self) -> None:
            token, visit = self._visit()
            page = shop.page(self.path.partition("?")[0], visit)
            headers: dict[str, Any] = {"Set-Cookie": f"visit={token}; Path=/"}
            self.reply(
                200 if page else 404, (page or "-").encode(), content_type="text/html; charset=utf-8", headers=headers
            )

        def do_POST(self) -> None:
            _, visit = self._visit()
            sent = dict(parse_qsl(self.read_body().decode()))
            self.reply(303, b"", headers={"Location": shop.post(self.path, visit, sent)})

    server = LoopbackServer(Handler)
    shop.url = server.url
    server.start()
    try:
        yield shop
    finally:
        server.stop()
