"""Questions to the service's language model, for a checkout that the rules cannot continue.

It chooses among elements that cannot order, sign in, pay or leave the shop; the page may be hostile, and so its answer.
"""

from app.ports.shopper import ChoicePurpose, ElementCandidate, ElementQuestion
from shopper.flow.session import BrowserSession, find_same_button
from shopper.page import autofill, keywords, order_words, prices
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.process.protocol import MAX_CANDIDATE_TEXT, MAX_CANDIDATES

_NEVER = (
    keywords.PLACE_ORDER, keywords.EXTERNAL_PAYMENT, keywords.ADD_TO_CART, keywords.NOT_NEXT, keywords.REMOVE,
    keywords.EXTRAS, keywords.RECURRING,
)  # fmt: skip

_REGIONS = frozenset({"header", "nav", "footer", "aside", "banner", "navigation", "contentinfo"})


def ask(
    session: BrowserSession,
    snapshot: PageSnapshot,
    buttons: list[PageButton],
    *,
    is_untouched: bool,
    purpose: ChoicePurpose = ChoicePurpose.CONTINUE,
) -> PageButton | None:
    """Return the button that the model chose, as it is on the page now; None if there is none.

    `is_untouched` means that nothing was entered in this checkout.
    """

    def is_harmless(page: PageSnapshot, button: PageButton) -> bool:
        may_order = _may_order(session, page, is_untouched=is_untouched)
        return not may_order and _is_harmless(session, page, button)

    offered = [button for button in buttons if is_harmless(snapshot, button)]
    offered.sort(key=lambda button: (button.dialog, button.tag != "a", button.area), reverse=True)
    del offered[MAX_CANDIDATES:]
    if not offered:
        return None
    index = _index(session, snapshot, [_candidate(button) for button in offered], purpose)
    if index is None:
        return None
    chosen = offered[index]
    # The page may have changed since.
    now = session.tab.take_snapshot()
    found = find_same_button(chosen, now)
    return found if found is not None and is_harmless(now, found) else None


def ask_payment(session: BrowserSession, snapshot: PageSnapshot, options: list[FormControl]) -> FormControl | None:
    """Return the way to pay that the model chose, as it is on the page now; None if there is none."""
    offered = [option for option in options if option.label][:MAX_CANDIDATES]
    if len(offered) < 2:
        return None
    candidates = [ElementCandidate("option", _cut(option.label), _cut(option.card)) for option in offered]
    index = _index(session, snapshot, candidates, ChoicePurpose.PAYMENT)
    if index is None:
        return None
    now = session.tab.take_snapshot().controls
    return next((option for option in now if option == offered[index]), None)


def _index(
    session: BrowserSession, snapshot: PageSnapshot, candidates: list[ElementCandidate], purpose: ChoicePurpose
) -> int | None:
    question = ElementQuestion(_cut(snapshot.heading or snapshot.title), tuple(candidates), purpose)
    index = session.handler.choose(question)
    chosen = index if index is not None and 0 <= index < len(candidates) else None
    session.record_step("ask_model", "" if chosen is None else candidates[chosen].name, snapshot.path)
    return chosen


def _cut(text: str) -> str:
    return text[:MAX_CANDIDATE_TEXT]


def _may_order(session: BrowserSession, snapshot: PageSnapshot, *, is_untouched: bool) -> bool:
    """Return whether a button of this page could be the order button, although no rule knows it as one.

    No honest shop takes an order from a page without an amount, from a guest who has entered nothing, or while more
    than one step follows.
    """
    if (session.is_guest and is_untouched) or snapshot.steps_after > 1:
        return False
    return bool(prices.amounts(snapshot.text) or snapshot.amounts)


def _is_harmless(session: BrowserSession, snapshot: PageSnapshot, button: PageButton) -> bool:
    if not button.text.strip() or button.disabled or button.region in _REGIONS:
        return False
    names = (button.text, button.label)
    if any(pattern.search(name) for pattern in _NEVER for name in names) or prices.amounts(button.text):
        return False
    if any(order_words.names_order(name) for name in names):
        return False
    if button.href and not session.tab.is_allowed(button.href):
        return False
    return not any(
        control.form == button.form and (control.type == "password" or autofill.is_of_card(control))
        for control in snapshot.controls
    )


def _candidate(button: PageButton) -> ElementCandidate:
    role = "link" if button.tag == "a" else "button"
    return ElementCandidate(role, _cut(button.text), _cut(button.card))
