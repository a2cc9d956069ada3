"""From the cart to the review: look, decide, do one thing, wait, a bounded number of times. It never orders."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from app.adapters.shopper_browser import address, extras, fields, login, money, review, signals
from app.adapters.shopper_browser.address import Filling
from app.adapters.shopper_browser.snapshot import Button, Control, Snapshot
from app.adapters.shopper_browser.tab import Gone
from app.adapters.shopper_browser.trip import Trip, assert_no_human_check, best
from app.ports.shopper import Failed, Trouble, Unclear

_MAX_STEPS = 30
# How long a press may take to show, and a page to offer what it lacks: shops are slow.
_ANSWER_SECONDS = 4
_PATIENCE_SECONDS = 6
_NOT_PLACE = re.compile(
    r"histor|track|view|cancel|re-?order|my orders|all orders|return|gift|coupon|code|how to|terms|summary|edit|change",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Progress:
    pressed: dict[object, set[str]] = field(default_factory=dict)
    filling: Filling = field(default_factory=Filling)

    def candidates(self, seen: Snapshot, buttons: list[Button]) -> list[Button]:
        """Leave out what was pressed on this very page before and did not help."""
        done = self.pressed.get(seen.fingerprint(), set())
        return [button for button in buttons if button.text not in done]

    def remember(self, seen: Snapshot, button: Button) -> None:
        self.pressed.setdefault(seen.fingerprint(), set()).add(button.text)


def go_to_review(trip: Trip, seen: Snapshot) -> tuple[Snapshot, Button]:
    """Go on until the order button is what is left to press; return it unpressed.

    Raises: Failed; Unclear when the shop confirms an order that nobody has placed.
    """
    progress = _Progress()
    for _ in range(_MAX_STEPS):
        assert_no_human_check(seen)
        if is_confirmed(seen) and place_button(seen) is None:
            raise Unclear("The shop shows a confirmation although the order button was not pressed.")
        try:
            if _advance(trip, seen, progress):
                seen = trip.tab.look()
                continue
        except Gone:
            trip.tab.settle()
            seen = trip.tab.look()
            continue
        place = place_button(seen)
        if place is not None and _is_review(seen):
            return seen, place
        target = _next_button(seen, progress)
        if target is None:
            before = _state(seen)
            later = trip.tab.wait_for(_differs(seen), seconds=_PATIENCE_SECONDS)
            if _state(later) == before:
                _give_up(trip, seen)
            seen = later
            continue
        progress.remember(seen, target)
        trip.press(target, "continue")
        seen = trip.tab.wait_for(_differs(seen), seconds=_ANSWER_SECONDS)
    raise Failed(Trouble.STUCK, "The checkout did not come to an end.")


def _state(seen: Snapshot) -> tuple[object, ...]:
    """Return what differs once a page has got on: what it shows, and what can be pressed."""
    buttons = ((re.sub(r"\d+", "", button.text), button.disabled) for button in seen.buttons)
    return (seen.fingerprint(), tuple(buttons))


def _differs(before: Snapshot) -> Callable[[Snapshot], bool]:
    state = _state(before)
    return lambda now: _state(now) != state


def place_button(seen: Snapshot) -> Button | None:
    """Return the order button, if the page has one that can be pressed."""
    found = [
        button
        for button in seen.buttons
        if signals.PLACE.search(button.text)
        and not _NOT_PLACE.search(button.text)
        and not signals.FOREIGN_PAYMENT.search(button.text)
        and button.region not in {"header", "nav", "footer"}
        and not button.href.rstrip("#").startswith("http")
    ]
    return best(found)


def is_confirmed(seen: Snapshot) -> bool:
    """Tell whether a page confirms an order."""
    return bool(
        signals.THANKS.search(f"{seen.heading}\n{seen.title}") and not signals.NOT_PLACED.search(seen.heading)
    )


def _advance(trip: Trip, seen: Snapshot, progress: _Progress) -> bool:
    """Do one thing that the page wants before it goes on; tell whether there was one."""
    if login.is_asked_for(trip, seen):
        login.sign_in(trip, seen)
        return True
    if trip.is_guest and _go_on_as_guest(trip, seen, progress):
        return True
    if address.choose_stored(trip, seen):
        return True
    if address.fill(trip, seen, progress.filling):
        trip.tab.settle()
        return True
    return (
        _refuse_extras(trip, seen, progress)
        or _choose_defaults(trip, seen, progress)
        or _accept_terms(trip, seen, progress)
    )


def _is_review(seen: Snapshot) -> bool:
    if money.total_of(money.labelled(seen.text)) is None and _onward(seen):
        return False
    _assert_payable(seen)
    return True


def _assert_payable(seen: Snapshot) -> None:
    card = any(fields.is_of_card(control) for control in seen.controls)
    framed = any(signals.CARD_HOSTS.search(frame.address) and frame.area > 2_000 for frame in seen.frames)
    if card or framed:
        raise Failed(
            Trouble.PAYMENT_DETAILS_REQUIRED,
            "The shop wants a card's number, and the account has no stored way to pay; store one in the shop.",
        )


def _choose_defaults(trip: Trip, seen: Snapshot, progress: _Progress) -> bool:
    """Choose the first way of shipping and a way of paying that needs no details, where none is chosen."""
    groups: dict[str, list[Control]] = {}
    for control in seen.controls:
        if control.type == "radio" and not control.disabled:
            groups.setdefault(control.group, []).append(control)
    wants_card = any(fields.is_of_card(control) for control in seen.controls)
    for members in groups.values():
        chosen = next((control for control in members if control.checked), None)
        pays = any(review.is_payment(control) for control in members)
        if chosen is not None and not (pays and wants_card and not signals.SAFE_PAYMENT.search(chosen.label)):
            continue
        usable = [control for control in members if not signals.FOREIGN_PAYMENT.search(control.label)]
        if pays:
            safe = [control for control in usable if signals.SAFE_PAYMENT.search(control.label)]
            usable = safe or ([] if chosen is not None else usable)
        target = next((control for control in usable if progress.filling.may(control)), None)
        if target is not None and target is not chosen:
            trip.tab.tick(target)
            trip.note("choose", target.label or target.value, seen.path)
            return True
    return False


def _refuse_extras(trip: Trip, seen: Snapshot, progress: _Progress) -> bool:
    for control in extras.to_refuse(seen):
        if progress.filling.may(control):
            trip.tab.untick(control)
            trip.note("refuse", control.label or control.name, seen.path)
            return True
    return False


def _accept_terms(trip: Trip, seen: Snapshot, progress: _Progress) -> bool:
    for control in seen.controls:
        if control.type != "checkbox" or control.checked or control.disabled:
            continue
        text = f"{control.label} {control.name}"
        if (
            signals.TERMS.search(text)
            and not signals.NOT_TERMS.search(text)
            and progress.filling.may(control)
        ):
            trip.tab.tick(control)
            trip.note("accept", control.label or control.name, seen.path)
            return True
    return False


def _go_on_as_guest(trip: Trip, seen: Snapshot, progress: _Progress) -> bool:
    if not seen.passwords and not signals.GUEST.search(seen.text):
        return False
    for control in seen.controls:
        if (
            control.type == "radio"
            and signals.GUEST.search(control.label)
            and not control.checked
            and progress.filling.may(control)
        ):
            trip.tab.tick(control)
            return True
    doors = [
        button
        for button in seen.buttons
        if signals.GUEST.search(button.text) and button.region not in {"nav", "footer"}
    ]
    target = best(progress.candidates(seen, doors))
    if target is None:
        return False
    if address.fill(trip, seen, progress.filling):
        return True
    progress.remember(seen, target)
    trip.press(target, "as_guest")
    return True


def _next_button(seen: Snapshot, progress: _Progress) -> Button | None:
    usable = _usable(seen)
    onward = _onward(seen)
    doors = [
        button
        for button in usable
        if signals.CHECKOUT.search(button.text) and not signals.NOT_NEXT.search(button.text)
    ]
    # "Complete checkout" orders: that is pressed in one place alone, after it was allowed.
    doors = [
        button
        for button in doors
        if not signals.PLACE.search(button.text) and not signals.FOREIGN_PAYMENT.search(button.text)
    ]
    carts = [
        button
        for button in usable
        if signals.VIEW_CART.search(button.text) and not signals.ADD.search(button.text)
    ]
    in_checkout = any(
        fields.token_of(control) in {"postal-code", "address-line1", "address-level2"}
        for control in seen.controls
    )
    submits = [button for button in onward if button.submits or button.tag != "a"]
    ranked = [submits, onward, doors, carts] if in_checkout else [doors, submits, onward, carts]
    for buttons in ranked:
        target = best(progress.candidates(seen, buttons))
        if target is not None:
            return target
    return None


def _usable(seen: Snapshot) -> list[Button]:
    return [
        button for button in seen.buttons if not button.disabled and button.region not in {"nav", "footer"}
    ]


def _onward(seen: Snapshot) -> list[Button]:
    """Return the buttons that lead to the next step and do not order."""
    return [
        button
        for button in _usable(seen)
        if signals.NEXT.search(button.text)
        and not signals.NOT_NEXT.search(button.text)
        and not signals.PLACE.search(button.text)
    ]


def _give_up(trip: Trip, seen: Snapshot) -> NoReturn:
    """Say why there is nothing left to press. Raises: Failed always."""
    _assert_payable(seen)
    missing = address.unfilled(trip, seen)
    if missing and not trip.chose_address:
        raise address.incomplete(missing)
    if trip.tried_to_sign_in is False and not trip.is_guest and seen.passwords:
        raise Failed(
            Trouble.LOGIN_FAILED, "The shop asks for a log-in in a form that could not be understood."
        )
    said = next((line for line in seen.alerts if len(line) < 200), "")
    raise Failed(Trouble.STUCK, f"The checkout does not go on{': ' + said if said else ''}.")
