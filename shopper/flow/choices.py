"""Choices of the checkout that the request leaves open: delivery, payment, extras, and the shop's terms."""

from shopper.flow import advice, extras, review
from shopper.flow.address import FillAttempts
from shopper.flow.session import BrowserSession
from shopper.page import autofill, keywords, prices
from shopper.page.snapshot import FormControl, ListOption, PageSnapshot


def choose_defaults(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Choose the first shipping method and a payment method that needs no details, if none is chosen."""
    return _choose_radio(session, snapshot, attempts) or _choose_in_list(session, snapshot, attempts)


def decline_extras(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Untick a box of an extra that was not requested; return whether there was one."""
    for control in extras.unwanted_boxes(session, snapshot):
        if attempts.allow(control):
            session.tab.uncheck(control)
            session.record_step("refuse", control.label or control.name, snapshot.path)
            return True
    return False


def accept_terms(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Tick a box that the shop requires, or that names its terms; return whether there was one."""
    for control in snapshot.controls:
        if control.type != "checkbox" or control.checked or control.disabled:
            continue
        text = f"{control.label} {control.name}"
        unwanted = (keywords.NOT_TERMS, keywords.EXTRAS, keywords.RECURRING)
        if any(words.search(text) for words in unwanted) or prices.amounts(text):
            continue
        if (control.required or keywords.TERMS.search(text)) and attempts.allow(control):
            session.tab.check(control)
            session.record_step("accept", control.label or control.name, snapshot.path)
            return True
    return False


def _choose_radio(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    groups: dict[str, list[FormControl]] = {}
    for control in snapshot.controls:
        if control.type == "radio" and not control.disabled:
            groups.setdefault(control.group, []).append(control)
    wants_card = any(autofill.is_of_card(control) for control in snapshot.controls)
    for members in groups.values():
        chosen = next((control for control in members if control.checked), None)
        pays = any(review.is_payment(control) for control in members)
        if chosen is not None and not (pays and wants_card and not keywords.OFFLINE_PAYMENT.search(chosen.label)):
            continue
        usable = [control for control in members if not keywords.EXTERNAL_PAYMENT.search(control.label)]
        if pays:
            coded = [control for control in usable if keywords.OFFLINE_PAYMENT_CODE.search(control.value)]
            safe = coded or [control for control in usable if keywords.OFFLINE_PAYMENT.search(control.label)]
            # One that asks for no card number, whatever it is called.
            others = [
                control for control in usable if control is not chosen and not keywords.CARD.search(control.label)
            ]
            usable = safe or (usable if chosen is None else others)
            if not safe and chosen is None and not session.payment_asked:
                session.payment_asked = True
                advised = advice.ask_payment(session, snapshot, others)
                usable = [advised] if advised is not None else usable
        target = next((control for control in usable if attempts.allow(control)), None)
        if target is not None and target is not chosen:
            session.tab.check(target)
            session.record_step("choose", target.label or target.value, snapshot.path)
            return True
    return False


def _choose_in_list(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Choose in a required list that nothing else fills: a payment that is known, or else the first option."""
    for control in snapshot.controls:
        is_open = control.type == "select" and control.required and not control.disabled
        if not is_open or autofill.token_of(control) is not None or any(_is_chosen(o) for o in control.options):
            continue
        usable = [
            option
            for option in control.options
            if option.value
            and not option.disabled
            and not any(
                words.search(option.text)
                for words in (keywords.EXTERNAL_PAYMENT, keywords.CARD, keywords.EXTRAS, keywords.RECURRING)
            )
        ]
        known = [option for option in usable if keywords.OFFLINE_PAYMENT.search(option.text)]
        if usable and attempts.allow(control):
            target = (known or usable)[0]
            session.tab.select(control, target.value)
            session.record_step("choose", target.text, snapshot.path)
            return True
    return False


def _is_chosen(option: ListOption) -> bool:
    return option.selected and bool(option.value)
