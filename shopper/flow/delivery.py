"""The delivery method that was requested by name: chosen among those that the shop offers, or the purchase ends."""

import re
from collections.abc import Sequence

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow import review, steps
from shopper.flow.address import FillAttempts
from shopper.flow.session import BrowserSession
from shopper.flow.steps import NextClick
from shopper.page import autofill, breakdown, keywords, prices
from shopper.page.prices import AmountKind
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot

_MAX_CHOICES = 20
_MAX_NAME = 80


def choose(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Choose the requested method if the page offers it and has not chosen it; return whether it did."""
    wanted = session.request.delivery_method
    if wanted is None:
        return False
    for members in _radio_groups(snapshot, wanted):
        found = best_match(wanted, [control.label for control in members])
        _offer(session, [control.label for control in members])
        if found is not None and _choose_radio(session, snapshot, members[found], attempts):
            return True
    for control in snapshot.controls:
        if control.type == "select" and not control.disabled and _is_delivery_list(control):
            options = [option for option in control.options if option.value and not option.disabled]
            found = best_match(wanted, [option.text for option in options])
            _offer(session, [option.text for option in options])
            if found is None:
                continue
            is_kept = options[found].selected
            may_select = not is_kept and attempts.allow(control)
            session.delivery_chosen = options[found].text[:_MAX_NAME] if is_kept or may_select else None
            if may_select:
                session.tab.select(control, options[found].value)
                session.record_step("choose", options[found].text, snapshot.path)
                return True
    return _click_method(session, snapshot, wanted)


def assert_chosen(session: BrowserSession, snapshot: PageSnapshot) -> None:
    """Check that the order is delivered as requested. Raises: PurchaseFailed(delivery_method_not_offered)."""
    wanted = session.request.delivery_method
    if wanted is None:
        return
    shown = review.shipping_method(snapshot)
    is_as_chosen = shown is None or best_match(wanted, [shown]) is not None
    if session.delivery_chosen is not None and is_as_chosen:
        return
    labels = [row.label for row in breakdown.labelled_amounts(snapshot) if row.kind is AmountKind.SHIPPING]
    if session.delivery_chosen is None and any(
        best_match(wanted, [name]) is not None for name in [shown or "", *labels]
    ):
        # The shop has only this one.
        session.delivery_chosen = wanted
        return
    raise PurchaseFailed(
        FailureCode.DELIVERY_METHOD_NOT_OFFERED,
        f'The shop offers no single delivery method called "{wanted}"'
        + (f', and its review shows "{shown}"' if shown else "")
        + ". Nothing was ordered.",
        quoted=(shown or "",),
        choices=tuple(session.delivery_offered)[:_MAX_CHOICES],
    )


def best_match(wanted: str, names: Sequence[str]) -> int | None:
    """Return the index of the only name that equals, begins with, or contains a text, without regard to spelling."""
    text, spelled = _plain(wanted), [_plain(name) for name in names]
    for matches in (str.__eq__, str.startswith, str.__contains__):
        found = [index for index, name in enumerate(spelled) if text and matches(name, text)]
        if found:
            # A widget may repeat the field that it draws.
            return found[0] if len({spelled[index] for index in found}) == 1 else None
    return None


def _plain(text: str) -> str:
    """Return the letters and digits of a text: "Pick-up" is "pickup"."""
    return re.sub(r"[\W_]+", "", text).casefold()


def _radio_groups(snapshot: PageSnapshot, wanted: str) -> list[list[FormControl]]:
    """Return the groups of delivery methods; where none is called so, those with the requested name."""
    groups: dict[str, list[FormControl]] = {}
    for control in snapshot.controls:
        if control.type == "radio" and not control.disabled and not review.is_payment(control):
            groups.setdefault(control.group, []).append(control)
    named = [members for members in groups.values() if any(_is_delivery(control) for control in members)]
    return named or [
        members for members in groups.values() if best_match(wanted, [control.label for control in members]) is not None
    ]


def _is_delivery(control: FormControl) -> bool:
    about = f"{control.group} {control.id} {control.label}".replace("_", " ").replace("-", " ")
    return bool(keywords.SHIPPING.search(about)) and not keywords.ADDRESS.search(f"{control.group} {control.label}")


def _is_delivery_list(control: FormControl) -> bool:
    return (
        autofill.token_of(control) is None
        and not review.is_payment(control)
        and bool(keywords.SHIPPING.search(f"{control.label} {control.name} {control.id}".replace("_", " ")))
    )


def _choose_radio(session: BrowserSession, snapshot: PageSnapshot, target: FormControl, attempts: FillAttempts) -> bool:
    may_check = not target.checked and attempts.allow(target)
    # A page that does not keep the choice would deliver by another method.
    session.delivery_chosen = target.label[:_MAX_NAME] if target.checked or may_check else None
    if not may_check:
        return False
    session.tab.check(target)
    session.record_step("choose", target.label, snapshot.path)
    return True


def _click_method(session: BrowserSession, snapshot: PageSnapshot, wanted: str) -> bool:
    """Click the button of the method, where each has an own one next to its price."""
    alike: dict[str, list[PageButton]] = {}
    for button in snapshot.buttons:
        if keywords.NEXT.search(button.text) and not (button.disabled or button.region):
            alike.setdefault(button.text, []).append(button)
    for buttons in alike.values():
        if len(buttons) < 2 or not all(prices.amounts(button.card) for button in buttons):
            continue
        names = [" ".join(button.card.replace(button.text, " ").split()) for button in buttons]
        found = best_match(wanted, names)
        _offer(session, names)
        if found is not None and steps.consequence(session, snapshot, buttons[found]) is NextClick.LEADS_ON:
            session.click(buttons[found], "choose")
            session.delivery_chosen = names[found][:_MAX_NAME]
            return True
    return False


def _offer(session: BrowserSession, names: Sequence[str]) -> None:
    """Keep the names of a page's methods, for the failure."""
    session.delivery_offered.update(dict.fromkeys(" ".join(name.split())[:_MAX_NAME] for name in names if name))
