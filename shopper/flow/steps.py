"""Which button leads on, and whether clicking it may order: by the structure of the page first, by words last.

A button is clicked during the checkout only if something shows that it leads to another step. Whatever its name is, one
that may order is clicked once, after the order was authorized.
"""

import re
from enum import Enum, auto

from shopper.flow import evidence, review
from shopper.flow.session import BrowserSession
from shopper.page import autofill, keywords, prices, structured
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot

_PLACE_TOKENS = frozenset({"postal-code", "address-line1", "address-level2"})
_ASKED_TOKENS = _PLACE_TOKENS | {"name", "given-name", "family-name", "tel", "country", "address-level1"}
# The addresses (URLs) of shops are English where their pages are not.
_CONFIRMED_PATH = re.compile(
    r"(^|[/_-])(thank-?you|thanks|success|order-?(confirm(ed|ation)|received|complete[d]?|placed)|confirmed|receipt)([/_.-]|$)",
    re.IGNORECASE,
)
_DECIMAL = re.compile(r"(?<![\d.,])\d{1,9}[.,]\d\d(?![\d.,]*\d)")
_NEVER_ONWARD = (
    keywords.NOT_NEXT, keywords.REMOVE, keywords.UPDATE, keywords.EXTRAS, keywords.RECURRING, keywords.EXTERNAL_PAYMENT,
    keywords.ADD_GOODS, keywords.ACCEPT_COOKIES,
)  # fmt: skip
_ONWARD_WORDS = (keywords.NEXT, keywords.CHECKOUT, keywords.VIEW_CART)


class NextClick(Enum):
    """What the click of a button may do."""

    LEADS_ON = auto()
    MAY_ORDER = auto()
    UNCERTAIN = auto()


def consequence(session: BrowserSession, snapshot: PageSnapshot, button: PageButton) -> NextClick:
    """Return what clicking a button of the checkout that is not called an order button may do.

    No honest shop orders from a page without the price, without a recipient, while two more steps follow, or before
    its disabled order button can be clicked. A page that asks for nothing any more, for everything together, or for
    something else after the payment was chosen, may order. Once the payment was sent, neither a name nor a list of
    steps shows that a page without questions does not order: both may lie.
    """
    if snapshot.is_left_by(button) or not _is_recipient_known(session, snapshot) or not _shows_price(session, snapshot):
        return NextClick.LEADS_ON
    asked = [control for control in snapshot.controls if _is_asked(control, button)]
    pays = any(review.is_payment(control) for control in asked)
    places = any(autofill.token_of(control) in _PLACE_TOKENS for control in asked)
    if session.payment_sent and not asked:
        return NextClick.MAY_ORDER
    if (
        snapshot.steps_after > 1
        or any(_is_order_button_to_come(other) for other in snapshot.buttons)
        or evidence.is_named(button, keywords.NAMED_STEP, keywords.CHECKOUT, keywords.VIEW_CART)
    ):
        return NextClick.LEADS_ON
    if not asked or (session.payment_sent and not pays) or (pays and (places or snapshot.steps_after == 0)):
        return NextClick.MAY_ORDER
    return NextClick.UNCERTAIN if pays else NextClick.LEADS_ON


def enters_order(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button of a checkout's page submits a form to the checkout."""
    return bool(
        button.submits and keywords.CHECKOUT_PATH.search(snapshot.path) and keywords.CHECKOUT_PATH.search(button.action)
    )


def sends_payment(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button submits the choice of a payment."""
    return any(review.is_payment(control) and _is_asked(control, button) for control in snapshot.controls)


def onward_button(snapshot: PageSnapshot, candidates: list[PageButton]) -> PageButton | None:
    """Return the button that leads on; None if nothing tells which.

    It leads to the checkout, or belongs to what a checkout asks; else it has words of a next step; else it is the
    only one.
    """
    apart = {button.number for button in candidates if _may_lead_on(snapshot, button)}

    def enters_checkout(button: PageButton) -> bool:
        path = button.action if button.submits else button.path
        return button.number in apart and bool(keywords.CHECKOUT_PATH.search(path))

    def asks(button: PageButton) -> bool:
        fields = any(_is_asked(control, button) for control in snapshot.controls)
        return button.number in apart and button.tag != "a" and fields

    is_entered = bool(keywords.CHECKOUT_PATH.search(snapshot.path))
    # The form of a review of the product asks for a name, too.
    asks_recipient = any(autofill.token_of(control) in _PLACE_TOKENS for control in snapshot.controls)
    forms = [lambda button: button.submits and asks(button), asks] if is_entered or asks_recipient else []
    named = [button for button in candidates if button.region not in {"nav", "footer"}]
    return (
        evidence.best(
            [button for button in named if not _orders_by_name(snapshot, button)],
            structure=forms if is_entered else [enters_checkout, *forms],
            words=_ONWARD_WORDS if asks_recipient else (keywords.CHECKOUT, *_ONWARD_WORDS),
            never=(keywords.NOT_NEXT, keywords.EXTERNAL_PAYMENT),
        )
        or _only([button for button in candidates if asks(button)])
        or _only([button for button in candidates if button.number in apart and button.tag != "a"])
    )


def named_onward(snapshot: PageSnapshot) -> list[PageButton]:
    """Return the buttons with words of a next step, which do not say that they order."""
    return [
        button
        for button in snapshot.buttons
        if keywords.NEXT.search(button.text)
        and not keywords.NOT_NEXT.search(button.text)
        and not evidence.is_named(button, keywords.PLACE_ORDER)
        and not (button.disabled or button.region in {"nav", "footer"})
    ]


def describes_order(snapshot: PageSnapshot) -> bool:
    """Return whether a page is the confirmation of an order by its structured data."""
    return structured.order_number(snapshot) is not None


def is_past_order(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Return whether a page has the address (URL) of a confirmation, whatever it says about the payment."""
    return has_confirmed_path(snapshot) and _is_recipient_known(session, snapshot)


def has_confirmed_path(snapshot: PageSnapshot) -> bool:
    """Return whether a page has the address (URL) of a confirmation."""
    return bool(_CONFIRMED_PATH.search(snapshot.path))


def confirms_by_structure(before: PageSnapshot, now: PageSnapshot) -> bool:
    """Return whether a page confirms an order by its data or its address (URL), and asks for nothing any more."""
    if describes_order(now):
        return not describes_order(before)
    return bool(
        has_confirmed_path(now)
        and not has_confirmed_path(before)
        and not any(control.problem or control.type == "radio" for control in now.controls)
        and not (set(now.alerts) - set(before.alerts))
    )


def _only(buttons: list[PageButton]) -> PageButton | None:
    return buttons[0] if len(buttons) == 1 else None


def _orders_by_name(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button says that it orders: such a click is never one that only leads on."""
    return evidence.is_named(button, keywords.PLACE_ORDER) and not snapshot.is_left_by(button)


def _may_lead_on(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button may lead on by its structure alone."""
    named = f"{button.text} {button.label}"
    if button.disabled or button.region or button.toggles or button.in_list or not named.strip():
        return False
    if evidence.is_named(button, *_NEVER_ONWARD) or _orders_by_name(snapshot, button):
        return False
    fields = [control for control in snapshot.controls if control.form == button.form >= 0]
    ignored = [control for control in fields if autofill.token_of(control) == autofill.IGNORED]
    return not any(control.type == "password" for control in fields) and (not fields or fields != ignored)


def _is_asked(control: FormControl, button: PageButton) -> bool:
    """Return whether a field belongs to a button, and is more than a consent, a code or a comment."""
    if control.disabled or (button.form >= 0 and control.form != button.form):
        return False
    token = autofill.token_of(control)
    if control.type == "radio" or token in _ASKED_TOKENS or autofill.is_of_card(control):
        return True
    ignored = token in {autofill.IGNORED, autofill.QUANTITY} or control.type not in autofill.TYPEABLE
    return control.form == button.form and control.required and not ignored


def _is_recipient_known(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    return (
        session.zip_entered
        or session.address_chosen
        or session.recipient_entered
        or (not session.is_guest and session.request.address.zip in snapshot.text)
    )


def _shows_price(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    texts = [snapshot.text, *(row.amount for row in snapshot.amounts)]
    shown = [amount.nanos for text in texts for amount in prices.amounts(text)]
    # Amounts without a currency are no prices, but a page that shows them may order.
    shown += [prices.parse_decimal(number) or 0 for number in _DECIMAL.findall(snapshot.text)]
    return any(nanos >= session.goods_nanos - session.coupon_discount_nanos for nanos in shown)


def _is_order_button_to_come(button: PageButton) -> bool:
    named = evidence.is_named(button, keywords.PLACE_ORDER)
    return named and button.disabled and not (button.region or button.in_list)


def submits_recipient(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button called "checkout" is not the one that leads to it: its form asks who orders."""
    asks = any(
        autofill.token_of(control) in _ASKED_TOKENS for control in snapshot.controls if control.form == button.form >= 0
    )
    named = evidence.is_named(button, keywords.CHECKOUT)
    return asks and named and not evidence.is_named(button, keywords.NAMED_STEP)
