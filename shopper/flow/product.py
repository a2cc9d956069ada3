"""The product page: title, price, availability, options, and adding to the cart."""

import functools
import re

from app.ports.shopper import ChoicePurpose, FailureCode, Product, PurchaseFailed
from shopper.flow import advice, cart, evidence, extras, offer
from shopper.flow.session import BrowserSession, assert_no_human_check, find_same_button
from shopper.page import autofill, keywords, structured
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import PageActionFailed

_MAX_CHOICES = 20
_MAX_LABEL = 40
_ERROR_STATUS = 400
_CART_WORD = re.compile(r"cart|basket|bag|trolley|korb|panier|\badd\b", re.IGNORECASE)
_NEVER_ADDS = (keywords.PLACE_ORDER, keywords.CHECKOUT, keywords.UPDATE)
_ADDED = re.compile(r"\badded\b|\bin (your|the) (cart|basket|bag)\b|hinzugefügt|ajouté", re.IGNORECASE)


def open_page(session: BrowserSession) -> PageSnapshot:
    """Load the product page. Raises: PurchaseFailed."""
    status = session.tab.open(session.request.url)
    snapshot = session.tab.take_snapshot()
    if status >= _ERROR_STATUS:
        raise PurchaseFailed(FailureCode.PRODUCT_NOT_FOUND, f"The shop responded with {status} to the product's URL.")
    assert_no_human_check(snapshot)
    return snapshot


def read(session: BrowserSession, snapshot: PageSnapshot) -> Product:
    """Read title, price and availability. Raises: PurchaseFailed."""
    session.observe_currency(snapshot)
    offers = structured.offers(snapshot)
    for each in offers:
        if code := str(each.get("priceCurrency") or "").upper():
            session.declared.add(code)
    availability = offer.availability(snapshot, offers)
    add = _find_add_button(session, snapshot)
    if availability == "out_of_stock":
        raise PurchaseFailed(FailureCode.OUT_OF_STOCK, "The product is sold out.")
    if add is None:
        if offer.is_sold_out_in_data(snapshot) or keywords.SOLD_OUT.search(snapshot.text):
            raise PurchaseFailed(FailureCode.OUT_OF_STOCK, "The product is sold out.")
        add = session.cart_button = _advised_add_button(session, snapshot)
    if add is None:
        raise PurchaseFailed(
            FailureCode.NOT_A_PRODUCT, "The page has nothing to add to a cart; send the URL of one product's page."
        )
    if is_listing(snapshot, add):
        raise PurchaseFailed(
            FailureCode.NOT_A_PRODUCT,
            "The page lists several products, each with its own button; send the URL of one product's page.",
        )
    empty = [field for field in _quantities(snapshot) if field.value.strip() in {"", "0"}]
    if len(empty) > 1:
        choices = tuple(field.label[:_MAX_LABEL] for field in empty)[:_MAX_CHOICES]
        raise PurchaseFailed(
            FailureCode.OPTIONS_REQUIRED,
            "The page sells several products; it is not clear which one is meant.",
            choices=choices,
        )
    amount, source = offer.price(session, snapshot, offers)
    if amount is None:
        raise PurchaseFailed(FailureCode.PRICE_UNKNOWN, "No price can be read on the product's page.")
    title = snapshot.heading or snapshot.title
    return Product(title[:200], session.in_usd(amount, snapshot), availability, source)


def add_button(snapshot: PageSnapshot) -> PageButton | None:
    """Return the button that adds the product to the cart: of the form that asks how many, or by identifiers and words.

    Words of an order, or of buying with one click, are vetoes: with an account such a click may order.
    """
    with_quantity = {control.form for control in snapshot.controls if _is_quantity(control)} - {-1}
    usable = [button for button in snapshot.buttons if not evidence.is_named(button, keywords.NOT_ADD_TO_CART)]
    named = [button for button in usable if _is_named_add(button)]
    into_cart = [button for button in named if _CART_WORD.search(f"{button.text} {button.code}")]

    def asks_quantity(button: PageButton) -> bool:
        apart = not (button.region or button.in_list or button.toggles)
        return button.submits and apart and button.form in with_quantity

    offered = [button for button in usable if button in named or not evidence.is_named(button, *_NEVER_ADDS)]
    offered = offered if _has_offer(snapshot) else []
    found = evidence.by_structure(offered, structure=[asks_quantity], words=[_CART_WORD, keywords.ADD_TO_CART])
    if found in into_cart or (found and not any(button.form == found.form for button in into_cart)):
        return found
    # Other products are shown below: the first of equal buttons is the page's own.
    buttons = [button for button in (into_cart or named) if not button.disabled]
    by_name = next((button for button in buttons if button.tag != "a"), next(iter(buttons), None))
    return by_name if named else evidence.by_structure(offered, structure=[_sends_to_cart], words=[])


def _is_named_add(button: PageButton) -> bool:
    coded = keywords.ADD_TO_CART_CODE.search(button.code) and not evidence.is_named(button, *_NEVER_ADDS)
    named = coded or keywords.ADD_TO_CART.search(button.text)
    return bool(named) and button.region not in {"header", "nav", "footer"}


def _is_quantity(control: FormControl) -> bool:
    return control.type == "number" or autofill.token_of(control) == autofill.QUANTITY


def _sends_to_cart(button: PageButton) -> bool:
    apart = not (button.region or button.in_list or button.toggles)
    return button.submits and apart and bool(keywords.CART_PATH.search(button.action))


def _find_add_button(session: BrowserSession, snapshot: PageSnapshot) -> PageButton | None:
    found = add_button(snapshot)
    if found is None and session.cart_button is not None:
        return find_same_button(session.cart_button, snapshot)
    return found


def _advised_add_button(session: BrowserSession, snapshot: PageSnapshot) -> PageButton | None:
    """Return the button that a language model chooses. Without an account none of them can order."""
    if not session.is_guest or not _has_offer(snapshot):
        return None
    buttons = [
        button
        for button in snapshot.buttons
        if button.tag != "a" and not (button.region or button.in_list or button.toggles)
    ]
    return advice.ask(session, snapshot, buttons, is_untouched=True, purpose=ChoicePurpose.ADD_TO_CART)


def _has_offer(snapshot: PageSnapshot) -> bool:
    return bool(structured.offers(snapshot) or snapshot.declared.get("price"))


def is_listing(snapshot: PageSnapshot, add: PageButton) -> bool:
    """Return whether a page lists several products, and its heading is not this one's."""
    others = [
        button
        for button in snapshot.buttons
        if button.number != add.number
        and button.trail == add.trail
        and _is_named_add(button)
        and button.card != add.card
    ]
    return bool(others) and not (snapshot.heading and snapshot.heading in add.card)


def add_to_cart(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    """Choose options and quantity and add the product to the cart; return the page after. Raises: PurchaseFailed."""
    snapshot = _choose_requested(session, snapshot)
    snapshot = extras.choose_one_time_purchase(session, snapshot)
    snapshot = _set_quantity(session, snapshot)
    for _attempt in range(2):
        button = _find_add_button(session, snapshot)
        if button is None:
            raise PurchaseFailed(FailureCode.OUT_OF_STOCK, "With these options the product is not available.")
        # The chosen options may change the price.
        session.product = read(session, snapshot)
        session.handler.on_product(session.product)
        before = snapshot
        snapshot = session.click(button, "add_to_cart")
        snapshot = session.tab.wait_for(functools.partial(_page_changed, before), seconds=6)
        problem = _requires_options(before, snapshot)
        if problem is None:
            session.cart_link = cart.counting_link(before, snapshot)
            return snapshot
        chosen = _choose_by_title(session, snapshot)
        if chosen is None:
            raise PurchaseFailed(
                FailureCode.OPTIONS_REQUIRED, f"The shop says: {problem}", choices=_choices(snapshot), quoted=(problem,)
            )
        snapshot = chosen
    raise PurchaseFailed(
        FailureCode.OPTIONS_REQUIRED, "The shop requires an option to be chosen.", choices=_choices(snapshot)
    )


def _page_changed(before: PageSnapshot, now: PageSnapshot) -> bool:
    return now.path != before.path or now.text != before.text or now.alerts != before.alerts or bool(_problems(now))


def _problems(snapshot: PageSnapshot) -> list[str]:
    return [control.problem for control in snapshot.controls if control.problem and control.problem != "invalid"]


def _requires_options(before: PageSnapshot, snapshot: PageSnapshot) -> str | None:
    if snapshot.path != before.path:
        return None
    new = [line for line in snapshot.alerts if line not in before.alerts]
    if any(_ADDED.search(line) for line in new):
        return None
    asked = [line for line in new if keywords.OPTION_REQUIRED.search(line)]
    new_lines = set(snapshot.text.splitlines()) - set(before.text.splitlines())
    asked += [line for line in new_lines if keywords.OPTION_REQUIRED.search(line) and len(line) < 160]
    invalid = [
        control.problem
        for control in snapshot.controls
        if control.problem and control.type in {"select", "radio", "combobox"} and add_button(snapshot)
    ]
    return next(iter([*asked, *invalid]), None)


def _choose_requested(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    for name, value in session.request.options.items():
        chosen = _choose(session, snapshot, name, value)
        if chosen is None:
            raise PurchaseFailed(
                FailureCode.OPTIONS_REQUIRED, f"The page offers no {name} called {value}.", choices=_choices(snapshot)
            )
        snapshot = chosen
    # A list with the first entry "choose" and one real entry offers no choice.
    return snapshot


def _choose(session: BrowserSession, snapshot: PageSnapshot, name: str, value: str) -> PageSnapshot | None:
    wanted = value.strip().lower()
    try:
        for control in snapshot.controls:
            about = f"{control.label} {control.name} {control.group}".lower()
            if control.type == "select" and (name.lower() in about or not name):
                for option in control.options:
                    if wanted in {option.text.lower(), option.value.lower()} or option.text.lower().startswith(
                        f"{wanted} "
                    ):
                        session.tab.select(control, option.value)
                        session.record_step("choose", f"{name}: {value}", snapshot.path)
                        return session.tab.take_snapshot()
            if control.type == "radio" and wanted in {control.label.lower(), control.value.lower()}:
                session.tab.check(control)
                session.record_step("choose", f"{name}: {value}", snapshot.path)
                return session.tab.take_snapshot()
            if (
                control.type == "combobox"
                and name.lower() in about
                and session.tab.select_custom(control, (wanted,), value)
            ):
                session.record_step("choose", f"{name}: {value}", snapshot.path)
                return session.tab.take_snapshot()
        for button in snapshot.buttons:
            if button.text.lower() == wanted and not button.disabled and button.region == "":
                return session.click(button, "choose")
    except PageActionFailed:
        return None
    return None


def _choose_by_title(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot | None:
    """Choose the variant with the name that ends the product's title: "Table lamp - White"."""
    title = snapshot.heading.lower()
    for control in snapshot.controls:
        if control.type == "select" and autofill.token_of(control) != autofill.QUANTITY:
            for option in control.options:
                if option.value and option.text and title.endswith(option.text.lower()):
                    return _choose(session, snapshot, "", option.text)
        if control.type == "radio" and control.label and title.endswith(control.label.lower()):
            return _choose(session, snapshot, "", control.label)
    for button in snapshot.buttons:
        text = button.text.lower()
        if len(text) > 1 and title.endswith(text) and title != text and button.region == "":
            return session.click(button, "choose")
    return None


def _choices(snapshot: PageSnapshot) -> tuple[str, ...]:
    found: list[str] = []
    for control in snapshot.controls:
        label = control.label or control.group or control.name
        if control.type == "select" and autofill.token_of(control) not in {autofill.QUANTITY, "country"}:
            found += [
                f"{label}: {option.text}"[:80] for option in control.options if option.value and not option.disabled
            ]
        elif control.type == "radio":
            named = re.fullmatch(r"radios|group \d+", control.group) is None
            found.append((f"{control.group}: {control.label}" if named else control.label)[:80])
    return tuple(found)[:_MAX_CHOICES]


def _quantities(snapshot: PageSnapshot) -> list[FormControl]:
    usable = [
        control
        for control in snapshot.controls
        if control.type in {"number", "text", "select"} and not control.disabled
    ]
    named = [control for control in usable if autofill.token_of(control) == autofill.QUANTITY]
    add = add_button(snapshot)
    adjacent = [
        control
        for control in usable
        if add and control.type == "number" and control.form == add.form and (add.form >= 0 or control.value == "1")
    ]
    return named or (adjacent if len(adjacent) == 1 else [])


def _set_quantity(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    wanted = str(session.request.quantity)
    found = _quantities(snapshot)
    if not found:
        # It is set in the cart instead.
        session.quantity_in_cart = session.request.quantity != 1
        return snapshot
    target = found[0]
    if target.value.strip() == wanted:
        return snapshot
    try:
        if target.type == "select":
            value = next((option.value for option in target.options if wanted in {option.value, option.text}), None)
            if value is None:
                raise PurchaseFailed(
                    FailureCode.OPTIONS_REQUIRED, f"The shop does not sell {wanted} units in one order."
                )
            session.tab.select(target, value)
        else:
            session.tab.fill(target, wanted)
            session.tab.settle()
    except PageActionFailed:
        raise PurchaseFailed(FailureCode.STUCK, "The quantity could not be set.") from None
    return session.tab.take_snapshot()
