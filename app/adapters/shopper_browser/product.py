"""The product's page: what it is, what it costs, whether it can be had, and putting it into the cart."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from app.adapters.shopper_browser import extras, fields, money, signals
from app.adapters.shopper_browser.money import Amount
from app.adapters.shopper_browser.snapshot import Button, Control, Snapshot
from app.adapters.shopper_browser.tab import Gone
from app.adapters.shopper_browser.trip import Trip, assert_no_human_check
from app.ports.shopper import Failed, Product, Trouble

_MAX_CHOICES = 20
_MAX_LABEL = 40
_BAD_STATUS = 400
_CART_WORD = re.compile(r"cart|basket|bag|trolley|korb|panier|\badd\b", re.IGNORECASE)
_ADDED = re.compile(r"\badded\b|\bin (your|the) (cart|basket|bag)\b|hinzugefügt|ajouté", re.IGNORECASE)


def open_page(trip: Trip) -> Snapshot:
    """Load the product's page. Raises: Failed."""
    status = trip.tab.open(trip.errand.url)
    seen = trip.tab.look()
    if status >= _BAD_STATUS:
        raise Failed(Trouble.PRODUCT_NOT_FOUND, f"The shop answered {status} for the product's address.")
    assert_no_human_check(seen)
    return seen


def read(trip: Trip, seen: Snapshot) -> Product:
    """Read title, price and availability. Raises: Failed."""
    trip.learn(seen)
    offers = list(_offers(seen))
    for offer in offers:
        if code := str(offer.get("priceCurrency") or "").upper():
            trip.declared.add(code)
    availability = _availability(seen, offers)
    add = add_button(seen)
    if availability == "out_of_stock":
        raise Failed(Trouble.OUT_OF_STOCK, "The product is sold out.")
    if add is None:
        if signals.SOLD_OUT.search(seen.text):
            raise Failed(Trouble.OUT_OF_STOCK, "The product is sold out.")
        raise Failed(
            Trouble.NOT_A_PRODUCT,
            "The page has nothing to put into a cart; give the address of one product's page.",
        )
    if is_one_of_many(seen, add):
        raise Failed(
            Trouble.NOT_A_PRODUCT,
            "The page lists several articles, each with a button of its own; give the address of one product's page.",
        )
    empty = [field for field in _quantities(seen) if field.value.strip() in {"", "0"}]
    if len(empty) > 1:
        choices = tuple(field.label[:_MAX_LABEL] for field in empty)[:_MAX_CHOICES]
        raise Failed(
            Trouble.OPTIONS_REQUIRED,
            "The page sells several articles; it is not clear which one.",
            choices=choices,
        )
    amount, source = _price(seen, offers)
    if amount is None:
        raise Failed(Trouble.PRICE_UNKNOWN, "No price can be read on the product's page.")
    title = seen.heading or seen.title
    return Product(title[:200], trip.in_usd(amount, seen), availability, source)


def add_button(seen: Snapshot) -> Button | None:
    """Return the button that puts the product into the cart."""
    found = [
        button
        for button in seen.buttons
        if signals.ADD.search(button.text)
        and not signals.NOT_ADD.search(button.text)
        and button.region not in {"header", "nav", "footer"}
    ]
    # Other articles are shown below: the first of the same words is the page's own.
    preferred = [button for button in found if _CART_WORD.search(button.text)]
    buttons = [button for button in (preferred or found) if not button.disabled]
    if not buttons:
        return None
    in_forms = [button for button in buttons if button.tag != "a"]
    return (in_forms or buttons)[0]


def is_one_of_many(seen: Snapshot, add: Button) -> bool:
    """Tell whether a page is a list: other articles stand in it just as this one, and the heading is not this one's."""
    others = [
        button
        for button in seen.buttons
        if button.number != add.number
        and button.trail == add.trail
        and signals.ADD.search(button.text)
        and button.card != add.card
    ]
    return bool(others) and not (seen.heading and seen.heading in add.card)


def put_into_cart(trip: Trip, seen: Snapshot) -> Snapshot:
    """Choose options and quantity and put the product into the cart; return what is there then. Raises: Failed."""
    seen = _choose_asked(trip, seen)
    seen = extras.choose_once(trip, seen)
    seen = _set_quantity(trip, seen)
    for _attempt in range(2):
        button = add_button(seen)
        if button is None:
            raise Failed(Trouble.OUT_OF_STOCK, "With these options the product cannot be had.")
        # With the options chosen the price may be another one.
        trip.product = read(trip, seen)
        trip.sender.found(trip.product)
        before = seen
        seen = trip.press(button, "add_to_cart")
        seen = trip.tab.wait_for(functools.partial(_reacted, before), seconds=6)
        problem = _asks_for_options(before, seen)
        if problem is None:
            return seen
        chosen = _choose_by_title(trip, seen)
        if chosen is None:
            raise Failed(Trouble.OPTIONS_REQUIRED, f"The shop says: {problem}", choices=_choices(seen))
        seen = chosen
    raise Failed(Trouble.OPTIONS_REQUIRED, "The shop wants an option to be chosen.", choices=_choices(seen))


def _reacted(before: Snapshot, now: Snapshot) -> bool:
    return (
        now.path != before.path
        or now.text != before.text
        or now.alerts != before.alerts
        or bool(_problems(now))
    )


def _problems(seen: Snapshot) -> list[str]:
    return [control.problem for control in seen.controls if control.problem and control.problem != "invalid"]


def _asks_for_options(before: Snapshot, seen: Snapshot) -> str | None:
    if seen.path != before.path:
        return None
    new = [line for line in seen.alerts if line not in before.alerts]
    if any(_ADDED.search(line) for line in new):
        return None
    asked = [line for line in new if signals.PLEASE_CHOOSE.search(line)]
    fresh = set(seen.text.splitlines()) - set(before.text.splitlines())
    asked += [line for line in fresh if signals.PLEASE_CHOOSE.search(line) and len(line) < 160]
    invalid = [
        control.problem
        for control in seen.controls
        if control.problem and control.type in {"select", "radio", "combobox"} and add_button(seen)
    ]
    return next(iter([*asked, *invalid]), None)


def _choose_asked(trip: Trip, seen: Snapshot) -> Snapshot:
    for name, value in trip.errand.options.items():
        chosen = _choose(trip, seen, name, value)
        if chosen is None:
            raise Failed(
                Trouble.OPTIONS_REQUIRED, f"The page offers no {name} called {value}.", choices=_choices(seen)
            )
        seen = chosen
    # A list whose first entry says "choose" and that holds one real entry leaves no choice.
    return seen


def _choose(trip: Trip, seen: Snapshot, name: str, value: str) -> Snapshot | None:
    wanted = value.strip().lower()
    try:
        for control in seen.controls:
            about = f"{control.label} {control.name} {control.group}".lower()
            if control.type == "select" and (name.lower() in about or not name):
                for option in control.options:
                    if wanted in {
                        option.text.lower(),
                        option.value.lower(),
                    } or option.text.lower().startswith(f"{wanted} "):
                        trip.tab.select(control, option.value)
                        trip.note("choose", f"{name}: {value}", seen.path)
                        return trip.tab.look()
            if control.type == "radio" and wanted in {control.label.lower(), control.value.lower()}:
                trip.tab.tick(control)
                trip.note("choose", f"{name}: {value}", seen.path)
                return trip.tab.look()
            if (
                control.type == "combobox"
                and name.lower() in about
                and trip.tab.pick(control, (wanted,), value)
            ):
                trip.note("choose", f"{name}: {value}", seen.path)
                return trip.tab.look()
        for button in seen.buttons:
            if button.text.lower() == wanted and not button.disabled and button.region == "":
                return trip.press(button, "choose")
    except Gone:
        return None
    return None


def _choose_by_title(trip: Trip, seen: Snapshot) -> Snapshot | None:
    """Choose the variant whose name ends the product's title: "Desk lamp - White"."""
    title = seen.heading.lower()
    for control in seen.controls:
        if control.type == "select" and fields.token_of(control) != fields.QUANTITY:
            for option in control.options:
                if option.value and option.text and title.endswith(option.text.lower()):
                    return _choose(trip, seen, "", option.text)
        if control.type == "radio" and control.label and title.endswith(control.label.lower()):
            return _choose(trip, seen, "", control.label)
    for button in seen.buttons:
        text = button.text.lower()
        if len(text) > 1 and title.endswith(text) and title != text and button.region == "":
            return trip.press(button, "choose")
    return None


def _choices(seen: Snapshot) -> tuple[str, ...]:
    found: list[str] = []
    for control in seen.controls:
        label = control.label or control.group or control.name
        if control.type == "select" and fields.token_of(control) not in {fields.QUANTITY, "country"}:
            found += [
                f"{label}: {option.text}"[:80]
                for option in control.options
                if option.value and not option.disabled
            ]
        elif control.type == "radio":
            named = re.fullmatch(r"radios|group \d+", control.group) is None
            found.append((f"{control.group}: {control.label}" if named else control.label)[:80])
    return tuple(found)[:_MAX_CHOICES]


def _quantities(seen: Snapshot) -> list[Control]:
    return [
        control
        for control in seen.controls
        if control.type in {"number", "text", "select"}
        and fields.token_of(control) == fields.QUANTITY
        and not control.disabled
    ]


def _set_quantity(trip: Trip, seen: Snapshot) -> Snapshot:
    wanted = str(trip.errand.quantity)
    found = _quantities(seen)
    if not found:
        # Then it is set in the cart.
        trip.quantity_in_cart = trip.errand.quantity != 1
        return seen
    target = found[0]
    if target.value.strip() == wanted:
        return seen
    try:
        if target.type == "select":
            value = next(
                (option.value for option in target.options if wanted in {option.value, option.text}), None
            )
            if value is None:
                raise Failed(Trouble.OPTIONS_REQUIRED, f"The shop does not sell {wanted} pieces at once.")
            trip.tab.select(target, value)
        else:
            trip.tab.type(target, wanted)
            trip.tab.settle()
    except Gone:
        raise Failed(Trouble.STUCK, "The quantity could not be set.") from None
    return trip.tab.look()


def _availability(seen: Snapshot, offers: list[dict[str, Any]]) -> str:
    said = " ".join(
        [str(offer.get("availability") or "") for offer in offers] or [seen.declared.get("availability", "")]
    )
    if re.search(r"OutOfStock|SoldOut|Discontinued|out.of.stock", said, re.IGNORECASE):
        return "out_of_stock"
    return (
        "in_stock" if re.search(r"InStock|LimitedAvailability|in.stock", said, re.IGNORECASE) else "unknown"
    )


def _price(seen: Snapshot, offers: list[dict[str, Any]]) -> tuple[Amount | None, str]:
    """Return the price and where it was read: what machines are told first, then what people see."""
    prices = {
        (money.plain(str(offer.get("price") or "")), str(offer.get("priceCurrency") or "").upper())
        for offer in offers
    }
    prices = {(nanos, code) for nanos, code in prices if nanos is not None and code}
    visible = _visible_price(seen)
    if len(prices) == 1:
        nanos, code = prices.pop()
        # Where people see another figure, they pay that one.
        if nanos is not None and (visible is None or visible.nanos == nanos):
            return Amount(nanos, code), "json-ld"
    declared, currency = (
        money.plain(seen.declared.get("price", "")),
        seen.declared.get("currency", "").upper(),
    )
    if declared is not None and currency and (visible is None or visible.nanos == declared):
        return Amount(declared, currency), "markup"
    return visible, "text"


def _visible_price(seen: Snapshot) -> Amount | None:
    for after_heading in (True, False):
        for price in seen.prices:
            if price.struck or price.after_heading is not after_heading:
                continue
            if re.search(
                r"\b(was|rrp|save|from|shipping|delivery|over|per month|/mo)\b", price.text, re.IGNORECASE
            ):
                continue
            found = money.amounts(price.text)
            if found:
                return found[0]
    return None


def _offers(seen: Snapshot) -> Iterator[dict[str, Any]]:
    for text in seen.json_ld:
        try:
            parsed = json.loads(text)
        except ValueError:
            continue
        yield from _offers_in(parsed, depth=0)


def _offers_in(node: Any, *, depth: int) -> Iterator[dict[str, Any]]:
    if depth > 8:
        return
    if isinstance(node, list):
        for inner in node:
            yield from _offers_in(inner, depth=depth + 1)
    elif isinstance(node, dict):
        if str(node.get("@type")) == "Offer" or ("price" in node and "priceCurrency" in node):
            yield node
        else:
            for name in ("@graph", "offers", "mainEntity", "hasVariant"):
                if name in node:
                    yield from _offers_in(node[name], depth=depth + 1)
