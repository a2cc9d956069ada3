"""From the cart to the review, one action at a time, in a bounded number of steps. It never orders."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from app.ports.shopper import FailureCode, PurchaseFailed, PurchaseOutcomeUnknown
from shopper.flow import address, advice, choices, coupon, delivery, evidence, login, review, steps
from shopper.flow.address import FillAttempts
from shopper.flow.session import BrowserSession, assert_no_human_check, preferred_button
from shopper.flow.steps import NextClick
from shopper.page import autofill, breakdown, keywords, prices
from shopper.page.snapshot import PageButton, PageSnapshot
from shopper.page.tab import PageActionFailed

_MAX_STEPS = 30
# How long a click may take to show an effect, and a page to offer its next step: shops are slow.
_RESPONSE_SECONDS = 4
_STALL_SECONDS = 6
_MAX_SEEN_LENGTH = 40
_NOT_PLACE_ORDER = re.compile(
    r"histor|track|view|cancel|re-?order|my orders|all orders|return|gift|coupon|code|how to|terms|summary|edit|change"
    r"|re-?send|e-?mail|receipt|invoice",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _CheckoutProgress:
    clicked: dict[object, set[str]] = field(default_factory=dict)
    filling: FillAttempts = field(default_factory=FillAttempts)

    def candidates(self, snapshot: PageSnapshot, buttons: list[PageButton]) -> list[PageButton]:
        """Leave out what was clicked on this very page before without effect."""
        done = self.clicked.get(snapshot.fingerprint(), set())
        return [button for button in buttons if _without_digits(button.text) not in done]

    def remember(self, snapshot: PageSnapshot, button: PageButton) -> None:
        self.clicked.setdefault(snapshot.fingerprint(), set()).add(_without_digits(button.text))


def _without_digits(text: str) -> str:
    """Return a text without its numbers: some pages show clocks."""
    return re.sub(r"\d+", "", text)


def go_to_review(session: BrowserSession, snapshot: PageSnapshot) -> tuple[PageSnapshot, PageButton]:
    """Advance until only the order button is left to click; return it unclicked.

    Raises: PurchaseFailed; PurchaseOutcomeUnknown when the shop confirms an order that was not placed.
    """
    progress = _CheckoutProgress()
    for _ in range(_MAX_STEPS):
        assert_no_human_check(snapshot)
        is_past = is_order_confirmed(snapshot) or steps.is_past_order(session, snapshot)
        if is_past and order_button(snapshot) is None:
            raise _unexpected_confirmation()
        try:
            if _advance(session, snapshot, progress):
                snapshot = session.tab.take_snapshot()
                continue
        except PageActionFailed:
            session.tab.settle()
            snapshot = session.tab.take_snapshot()
            continue
        last = _last_button(session, snapshot, progress)
        if last is not None:
            delivery.assert_chosen(session, snapshot)
            return snapshot, last
        target = _onward_button(snapshot, progress)
        if target is None:
            later = session.tab.wait_for(_differs(snapshot), seconds=_STALL_SECONDS)
            if _state(later) != _state(snapshot):
                snapshot = later
                continue
            target = _advised_button(session, later, progress)
            snapshot = later
        progress.remember(snapshot, target)
        session.payment_sent = session.payment_sent or steps.sends_payment(snapshot, target)
        session.click(target, "continue")
        before = snapshot
        snapshot = session.tab.wait_for(_differs(before), seconds=_RESPONSE_SECONDS)
        # A list of the steps to come may have the words of the last one.
        if confirms_order(before, snapshot) and not steps.named_onward(snapshot):
            raise _unexpected_confirmation()
    raise PurchaseFailed(FailureCode.STUCK, "The checkout did not reach its review.")


def _last_button(session: BrowserSession, snapshot: PageSnapshot, progress: _CheckoutProgress) -> PageButton | None:
    """Return the button that orders, whatever its name. Raises: PurchaseFailed if one may order or lead on."""
    place = order_button(snapshot)
    if place is not None and _is_review(snapshot):
        return place
    target = _onward_button(snapshot, progress)
    click = NextClick.LEADS_ON if target is None else steps.consequence(session, snapshot, target)
    if target is not None and click is NextClick.LEADS_ON and _may_take_order(session, snapshot, target):
        click = NextClick.UNCERTAIN
    if target is None or click is NextClick.LEADS_ON:
        return None
    if click is NextClick.UNCERTAIN and not _can_be_reviewed(session, snapshot):
        if keywords.NEXT.search(target.text):
            return None
        raise _uncertain_failure(target)
    _assert_no_card_required(snapshot)
    return target


def _can_be_reviewed(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Return whether a page shows all that an order needs: total, goods and recipient, and no card."""
    with contextlib.suppress(PurchaseFailed):
        _assert_no_card_required(snapshot)
        review.read(session, snapshot)
        return True
    return False


def _uncertain_failure(target: PageButton) -> PurchaseFailed:
    return PurchaseFailed(
        FailureCode.STUCK,
        f'"{target.text[:_MAX_SEEN_LENGTH]}" may order, or lead to another step: the page asks for a '
        "payment or a name, shows a total, and neither its words nor its steps tell. It was not clicked, because the "
        "order was not authorized.",
        quoted=(target.text[:_MAX_SEEN_LENGTH],),
    )


def later_order_button(before: PageSnapshot, now: PageSnapshot, clicked: PageButton) -> PageButton | None:
    """Return the order button of the review to which the click of a button without such a name led; None otherwise.

    Without a name it is the one that submits a form of the next page to the checkout.
    """
    if (
        evidence.is_named(clicked, keywords.PLACE_ORDER)
        or _is_rejected(before, now)
        # A confirmation may offer another order.
        or _is_confirmation(before, now)
        or steps.has_confirmed_path(now)
    ):
        return None
    named = order_button(now)
    if named is not None:
        return named if order_button(before) is None else None
    target = steps.onward_button(now, list(now.buttons))
    is_next_page = now.path != before.path and target is not None and steps.enters_order(now, target)
    return target if is_next_page else None


def next_click(session: BrowserSession, snapshot: PageSnapshot) -> tuple[PageButton | None, PageButton | None]:
    """Return the button that orders and the one that leads on, without clicking. Raises: PurchaseFailed."""
    progress = _CheckoutProgress()
    return _last_button(session, snapshot, progress), _onward_button(snapshot, progress)


def _onward_button(snapshot: PageSnapshot, progress: _CheckoutProgress) -> PageButton | None:
    return steps.onward_button(snapshot, progress.candidates(snapshot, list(snapshot.buttons)))


def _state(snapshot: PageSnapshot) -> tuple[object, ...]:
    """Return what differs once a page has advanced: its text and its usable buttons."""
    buttons = ((_without_digits(button.text), button.disabled) for button in snapshot.buttons)
    return (snapshot.fingerprint(), tuple(buttons))


def _differs(before: PageSnapshot) -> Callable[[PageSnapshot], bool]:
    state = _state(before)
    return lambda now: _state(now) != state


def order_button(snapshot: PageSnapshot) -> PageButton | None:
    """Return the button that says, in its text or its accessible name, that it orders; None without a usable one."""
    found = [
        button
        for button in snapshot.buttons
        if evidence.is_named(button, keywords.PLACE_ORDER)
        and not _NOT_PLACE_ORDER.search(button.text)
        and not keywords.EXTERNAL_PAYMENT.search(button.text)
        and button.region not in {"header", "nav", "footer"}
        and not snapshot.is_left_by(button)
        and not login.signs_in(snapshot, button)
    ]
    return preferred_button(found)


def is_order_confirmed(snapshot: PageSnapshot) -> bool:
    """Return whether a page confirms an order."""
    return steps.describes_order(snapshot) or bool(
        keywords.ORDER_CONFIRMED.search(f"{snapshot.heading}\n{snapshot.title}")
        and not keywords.ORDER_REJECTED.search(snapshot.heading)
    )


def confirms_order(before: PageSnapshot, now: PageSnapshot) -> bool:
    """Return whether a page confirms the order: thanks that were not there before, and no order button."""
    if order_button(now) is not None or _is_rejected(before, now):
        return False
    if steps.describes_order(now) and not steps.describes_order(before):
        # Help on the page may have words of a failure.
        return True
    return not keywords.ORDER_REJECTED.search(_new_lines(before, now)) and _is_confirmation(before, now)


def _is_confirmation(before: PageSnapshot, now: PageSnapshot) -> bool:
    """Return whether a page has new thanks or new data of an order, whatever else it offers."""
    heading = now.heading if now.heading != before.heading else ""
    return steps.confirms_by_structure(before, now) or bool(
        keywords.ORDER_CONFIRMED.search(f"{_new_lines(before, now)}\n{heading}")
    )


def _new_lines(before: PageSnapshot, now: PageSnapshot) -> str:
    known = set(before.text.splitlines())
    return "\n".join(line for line in now.text.splitlines() if line not in known)


def _is_rejected(before: PageSnapshot, now: PageSnapshot) -> bool:
    """Return whether the heading or a new message of a page says that the order failed."""
    messages = [alert for alert in now.alerts if alert not in before.alerts]
    return any(keywords.ORDER_REJECTED.search(text) for text in [now.heading, *messages])


def _unexpected_confirmation() -> PurchaseOutcomeUnknown:
    return PurchaseOutcomeUnknown("The shop shows a confirmation although the order button was not clicked.")


def _advance(session: BrowserSession, snapshot: PageSnapshot, progress: _CheckoutProgress) -> bool:
    """Do one thing that the page requires; return whether there was one."""
    if login.is_required(session, snapshot):
        login.sign_in(session, snapshot)
        return True
    if coupon.enter(session, snapshot, confirms_order):
        return True
    if session.is_guest and _continue_as_guest(session, snapshot, progress):
        return True
    if address.choose_stored(session, snapshot):
        return True
    if address.fill(session, snapshot, progress.filling):
        session.tab.settle()
        return True
    return (
        choices.decline_extras(session, snapshot, progress.filling)
        or delivery.choose(session, snapshot, progress.filling)
        or choices.choose_defaults(session, snapshot, progress.filling)
        or choices.accept_terms(session, snapshot, progress.filling)
    )


def _is_review(snapshot: PageSnapshot) -> bool:
    if prices.total_of(breakdown.labelled_amounts(snapshot)) is None and steps.named_onward(snapshot):
        return False
    _assert_no_card_required(snapshot)
    return True


def _assert_no_card_required(snapshot: PageSnapshot) -> None:
    card = any(autofill.is_of_card(control) for control in snapshot.controls)
    framed = any(keywords.CARD_HOSTS.search(frame.address) and frame.area > 2_000 for frame in snapshot.frames)
    if card or framed:
        raise PurchaseFailed(
            FailureCode.PAYMENT_DETAILS_REQUIRED,
            "The shop requires a card number, and the account has no stored payment method; store one in the shop.",
        )


def _continue_as_guest(session: BrowserSession, snapshot: PageSnapshot, progress: _CheckoutProgress) -> bool:

    def leads_guests(button: PageButton) -> bool:
        # Any button of a guest's checkout may have such an identifier; next to a password it makes the choice.
        return bool(keywords.GUEST_CODE.search(f"{button.path} {button.code if snapshot.passwords else ''}"))

    for control in snapshot.controls:
        is_guest = keywords.GUEST_CODE.search(control.value) or keywords.GUEST.search(control.label)
        if control.type == "radio" and is_guest and not control.checked and progress.filling.allow(control):
            session.tab.check(control)
            return True
    buttons = [button for button in snapshot.buttons if button.region not in {"nav", "footer"}]
    target = evidence.best(
        progress.candidates(snapshot, buttons),
        structure=[leads_guests],
        words=[keywords.GUEST],
        never=[keywords.PLACE_ORDER],
    )
    if target is None:
        return False
    if address.fill(session, snapshot, progress.filling):
        return True
    progress.remember(snapshot, target)
    session.click(target, "as_guest")
    return True


def _advised_button(session: BrowserSession, snapshot: PageSnapshot, progress: _CheckoutProgress) -> PageButton:
    """Return the button that a language model chooses where no rule does. Raises: PurchaseFailed."""
    _assert_nothing_missing(session, snapshot)
    is_untouched = not progress.filling.attempts and not session.zip_entered and not session.address_chosen
    buttons = progress.candidates(snapshot, list(snapshot.buttons))
    chosen = advice.ask(session, snapshot, buttons, is_untouched=is_untouched)
    if chosen is not None:
        return chosen
    raise PurchaseFailed(
        FailureCode.STUCK, "The checkout does not continue: no button to the next step or to the order was found."
    )


def _assert_nothing_missing(session: BrowserSession, snapshot: PageSnapshot) -> None:
    """Raise the failure that explains why there is nothing left to click, if there is one."""
    _assert_no_card_required(snapshot)
    missing = address.empty_fields(session, snapshot)
    if missing and not session.address_chosen:
        raise address.incomplete_address_failure(missing)
    if session.sign_in_attempted is False and not session.is_guest and snapshot.passwords:
        raise PurchaseFailed(
            FailureCode.LOGIN_FAILED, "The shop asks to sign in with a form that could not be understood."
        )
    if session.is_guest and any(login.signs_in(snapshot, button) for button in snapshot.buttons):
        raise PurchaseFailed(
            FailureCode.LOGIN_FAILED, "The shop sells only to customers with an account; send its credentials."
        )


def _may_take_order(session: BrowserSession, snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button called "checkout" may order: its form asks who orders, and a total is shown."""
    is_known = session.recipient_entered or session.zip_entered
    total = prices.total_of(breakdown.order_rows(snapshot, session.goods_nanos))
    return is_known and total is not None and steps.submits_recipient(snapshot, button)
