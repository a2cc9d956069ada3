"""A coupon code: entered once, in the field that the shop has for it, and judged by what the order costs then."""

import re
from collections.abc import Callable

from app.ports.shopper import PurchaseOutcomeUnknown
from shopper.flow import discounts, evidence, steps
from shopper.flow.session import BrowserSession, is_own_host
from shopper.flow.steps import NextClick
from shopper.page import keywords
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot

_RESPONSE_SECONDS = 8
_MAX_DISCLOSURES = 3
_MAX_SHOP_WORDS = 200
_COUPON = re.compile(
    r"coupon|voucher|promo(tion)?[ _-]?code|promo\b|discount|gutschein|rabatt|remise|code promo|réduction",
    re.IGNORECASE,
)
_ORDERS = re.compile(
    r"^\W*order\b|\b(and|&|\+) (order|pay)\b|bestellen\b|kaufen\b|\b(commander|acheter)\b", re.IGNORECASE
)
_APPLY = re.compile(
    r"^\W*(apply|redeem|use|add|activate|enter|validate|go|ok|einlösen|hinzufügen|anwenden|übernehmen|appliquer|utiliser|ajouter)"
    r"(\W+(it|now|(the |this )?code))?\W*$",
    re.IGNORECASE,
)


def enter(
    session: BrowserSession, snapshot: PageSnapshot, confirms_order: Callable[[PageSnapshot, PageSnapshot], bool]
) -> bool:
    """Enter the requested code if the page has a field for it, or open what hides one; return whether it did.

    Raises: PurchaseFailed(coupon_not_applied); PurchaseOutcomeUnknown if the page then confirms an order.
    """
    code = session.request.coupon_code
    if code is None or session.coupon_sent or not is_own_host(session, snapshot):
        return False
    if discount_nanos := discounts.shown_nanos(snapshot, code):
        # The shop kept it with the account's cart.
        session.coupon_sent, session.coupon_discount_nanos = True, discount_nanos
        return False
    fields = _find_fields(session, snapshot)
    # One outside of the page's content may start another order.
    inside = [field for field, button in fields if not button.region]
    if not inside and _open_disclosure(session, snapshot):
        return True
    if not fields:
        return False
    field = inside[0] if inside else fields[0][0]
    session.coupon_sent = True
    session.tab.fill(field, code)
    before = session.tab.take_snapshot()
    button = _apply_button(session, before, field)
    if button is None or button.disabled:
        raise discounts.not_applied("The shop's field for a coupon code has no button of its own that can be clicked.")
    session.tab.click_once(button)
    session.record_step("apply_coupon", button.text, before.path)
    session.tab.settle()
    after = session.tab.wait_for(
        lambda now: discounts.granted_nanos(before, now) > 0 or bool(_new_alerts(before, now)),
        seconds=_RESPONSE_SECONDS,
    )
    if confirms_order(before, after):
        raise PurchaseOutcomeUnknown("The shop shows a confirmation after the coupon code was entered.")
    session.coupon_discount_nanos = discounts.granted_nanos(before, after)
    if not session.coupon_discount_nanos:
        said = " ".join(_new_alerts(before, after))[:_MAX_SHOP_WORDS]
        raise discounts.not_applied(
            f"The shop did not apply the coupon code: no discount is shown. It says: {said or 'nothing'}.", quoted=said
        )
    return True


def _find_fields(session: BrowserSession, snapshot: PageSnapshot) -> list[tuple[FormControl, PageButton]]:
    """Return the fields for a code with their buttons: by name, id and the form's path first, by words last."""
    named, worded = [], []
    for control in snapshot.controls:
        button = _apply_button(session, snapshot, control) if control.type in {"text", "textbox"} else None
        if button is None or control.disabled:
            continue
        if _COUPON.search(f"{control.name} {control.id} {control.autocomplete} {button.action}"):
            named.append((control, button))
        elif _COUPON.search(f"{control.label} {control.placeholder}") or evidence.is_named(button, _COUPON):
            worded.append((control, button))
    return named + worded


def _apply_button(session: BrowserSession, snapshot: PageSnapshot, field: FormControl) -> PageButton | None:
    """Return the button that applies a code: named so, or the only one of the field's form."""
    own = [
        button
        for button in snapshot.buttons
        if button.form == field.form and not button.href and not button.sends_elsewhere and not _is_other(button)
    ]
    named = [button for button in own if evidence.is_named(button, _COUPON)] or [
        button for button in own if evidence.is_named(button, _APPLY)
    ]
    if len(named) == 1:
        return named[0]
    fields = [control for control in snapshot.controls if control.form == field.form]
    is_alone = field.form >= 0 and len(fields) == 1 and len(own) == 1
    return own[0] if is_alone and steps.consequence(session, snapshot, own[0]) is NextClick.LEADS_ON else None


def _is_other(button: PageButton) -> bool:
    """Return whether a button orders, pays, removes something or leads to the next step."""
    return evidence.is_named(
        button, keywords.PLACE_ORDER, keywords.EXTERNAL_PAYMENT, keywords.REMOVE, keywords.CHECKOUT, keywords.ADD_GOODS,
        keywords.EXTRAS, keywords.RECURRING, _ORDERS,
    )  # fmt: skip


def _open_disclosure(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Click what hides a field for a code, such as "Have a coupon?"; return whether there was one."""
    here = snapshot.url.partition("#")[0]
    for button in snapshot.buttons:
        key = (snapshot.path, button.text)
        if (
            evidence.is_named(button, _COUPON)
            and not (button.disabled or button.submits or _is_other(button))
            and button.region not in {"nav", "footer"}
            and (not button.href.startswith("http") or button.href.partition("#")[0] == here)
            and key not in session.coupon_disclosures
            and len(session.coupon_disclosures) < _MAX_DISCLOSURES
        ):
            session.coupon_disclosures.add(key)
            session.click(button, "open_coupon")
            return True
    return False


def _new_alerts(before: PageSnapshot, now: PageSnapshot) -> list[str]:
    known = _alerts(before)
    return [text for text in _alerts(now) if text not in known]


def _alerts(snapshot: PageSnapshot) -> list[str]:
    fields = [control for control in snapshot.controls if _COUPON.search(f"{control.name} {control.label}")]
    return [text for text in (*snapshot.alerts, *(field.problem for field in fields)) if text]
