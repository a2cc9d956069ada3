"""The shipping address: a stored one chosen by name and postal code, or a form filled field by field."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.ports.shopper import FailureCode, PurchaseFailed, ShippingAddress
from shopper.flow.session import BrowserSession
from shopper.page import autofill, keywords
from shopper.page.autofill import PASSWORD, QUANTITY
from shopper.page.snapshot import FormControl, PageSnapshot
from shopper.page.tab import PageActionFailed

_ADDRESS_TOKENS = frozenset(
    ("postal-code", "address-line1", "address-level2", "name", "given-name", "family-name", "tel", "country")
)
_PLACE_TOKENS = frozenset(("postal-code", "address-line1", "address-level2"))
_NEVER_TYPED = frozenset((autofill.IGNORED, PASSWORD, QUANTITY, autofill.USERNAME, "one-time-code", "new-password"))
_SUBSCRIBE = re.compile(r"subscri|newsletter|search|apply|redeem", re.IGNORECASE)
_MAX_ATTEMPTS = 2


@dataclass(slots=True)
class FillAttempts:
    """Attempts per field, so that a field that keeps changing is not filled forever."""

    attempts: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def allow(self, control: FormControl) -> bool:
        """Count an attempt and return whether it is permitted."""
        key = (control.name, control.id, control.label)
        self.attempts[key] = self.attempts.get(key, 0) + 1
        return self.attempts[key] <= _MAX_ATTEMPTS


def choose_stored(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Choose the matching stored address; return whether something was clicked. Raises: PurchaseFailed."""
    if session.address_chosen or session.zip_entered:
        return False
    wanted = session.request.address
    cards = [
        button
        for button in snapshot.buttons
        if keywords.CHOOSE_ADDRESS.search(button.text) and _is_address(button.card, wanted)
    ]
    radios = [
        control for control in snapshot.controls if control.type == "radio" and _is_address(_text_of(control), wanted)
    ]
    lists = [
        control
        for control in snapshot.controls
        if control.type == "select" and any(_is_address(option.text, wanted) for option in control.options)
    ]
    fitting_cards = [button for button in cards if matches_address(button.card, wanted)]
    fitting_radios = [control for control in radios if matches_address(_text_of(control), wanted)]
    _assert_unambiguous(fitting_cards, (button.card for button in fitting_cards))
    _assert_unambiguous(fitting_radios, (_text_of(control) for control in fitting_radios))
    if fitting_cards:
        session.address_chosen = True
        session.click(fitting_cards[0], "choose_address")
        return True
    if fitting_radios:
        session.address_chosen = True
        if fitting_radios[0].checked:
            return False
        session.tab.check(fitting_radios[0])
        session.record_step("choose_address", f"stored address in {wanted.zip}", snapshot.path)
        return True
    for control in lists:
        options = [option for option in control.options if matches_address(option.text, wanted)]
        _assert_unambiguous(options, (option.text for option in options))
        if options:
            session.address_chosen = True
            session.tab.select(control, options[0].value)
            session.record_step("choose_address", f"stored address in {wanted.zip}", snapshot.path)
            return True
    return _open_new_address_form(session, snapshot) if cards or radios or lists else False


def fill(session: BrowserSession, snapshot: PageSnapshot, attempts: FillAttempts) -> bool:
    """Fill the fields of this page; return whether anything was typed.

    Raises: PurchaseFailed(address_incomplete) with the tokens that the page requires and the request lacks.
    """
    if session.address_chosen:
        return False
    typed = False
    missing: list[str] = []
    for control, token in autofill.tokens_of(_groups(session, snapshot)):
        session.address_asked = session.address_asked or token in _PLACE_TOKENS
        if token is None or token in _NEVER_TYPED or token.startswith("cc-") or control.type not in autofill.TYPEABLE:
            continue
        value = autofill.value_for(token, session.request.address, email=_email(session))
        if value is None:
            if (control.required or control.problem) and not _has_value(control):
                missing.append(token)
            continue
        if _already_set(control, token, value, session):
            session.zip_entered = session.zip_entered or token == "postal-code"  # noqa: S105
            continue
        if not attempts.allow(control):
            continue
        typed = _fill_field(session, control, token, value) or typed
        session.recipient_entered = session.recipient_entered or typed
        session.record_step("fill", token, snapshot.path)
        if control.type in {"select", "combobox"}:
            # Other fields depend on a country or a state: read them again before filling them.
            return True
    if missing:
        raise incomplete_address_failure(missing)
    return typed


def incomplete_address_failure(missing: Iterable[str]) -> PurchaseFailed:
    """Return the failure that names what the caller has to add."""
    tokens = tuple(dict.fromkeys(missing))
    return PurchaseFailed(
        FailureCode.ADDRESS_INCOMPLETE,
        f"The shop needs more of the address than was sent, and stores none that matches: {', '.join(tokens)}.",
        missing=tokens,
    )


def empty_fields(session: BrowserSession, snapshot: PageSnapshot) -> list[str]:
    """Return the tokens of empty address fields for which nothing was sent."""
    found = []
    for control, token in autofill.tokens_of(_groups(session, snapshot)):
        if (
            token in _ADDRESS_TOKENS | {"address-level1", "email"} and not _has_value(control) and token is not None
        ) and autofill.value_for(token, session.request.address, email=_email(session)) is None:
            found.append(token)
    return found


def assert_address_shown(session: BrowserSession, snapshot: PageSnapshot) -> None:
    """Check that the review shows the right address, unless nothing is sent anywhere.

    Raises: PurchaseFailed(address_mismatch).
    """
    wanted = session.request.address.zip
    if _has(snapshot.text, wanted) or not _is_delivered(session, snapshot):
        return
    typed = session.zip_entered or any(_has(control.value, wanted) for control in snapshot.controls)
    # A page may ship to a stored address whatever its fields contain: only its text counts.
    if typed and not session.address_chosen and not _codes_like(wanted, snapshot.text):
        return
    raise PurchaseFailed(
        FailureCode.ADDRESS_MISMATCH,
        f"The order might not be sent to {wanted}: the shop's review does not show that postal code.",
    )


def _is_delivered(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Return whether the order may be sent to an address: one was asked, or the review has words or a code of one."""
    return bool(
        session.address_asked
        or session.address_chosen
        or keywords.DELIVERY.search(snapshot.text)
        or _codes_like(session.request.address.zip, snapshot.text)
    )


def matches_address(text: str, wanted: ShippingAddress) -> bool:
    """Return whether a stored address matches: postal code, every word of the name, the street if sent."""
    words = text.lower()
    if not _has(text, wanted.zip) or not all(
        re.search(rf"\b{re.escape(part)}\b", words) for part in wanted.name.lower().split()
    ):
        return False
    if wanted.line1 is None:
        return True
    street = " ".join(wanted.line1.lower().split())
    # Whole words: "2 Main Street" is not a part of "12 Main Street".
    return re.search(rf"(?<!\w){re.escape(street)}(?!\w)", " ".join(words.split())) is not None


def _open_new_address_form(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    wanted = session.request.address
    if any(autofill.token_of(control) == "postal-code" for control in _groups(session, snapshot)):
        return False
    new_address_buttons = [
        button for button in snapshot.buttons if keywords.NEW_ADDRESS.search(button.text) and not button.disabled
    ]
    radios = [
        control
        for control in snapshot.controls
        if control.type == "radio" and keywords.NEW_ADDRESS.search(control.label) and not control.checked
    ]
    if wanted.line1 and radios:
        session.tab.check(radios[0])
        return True
    if wanted.line1 and new_address_buttons:
        session.click(new_address_buttons[0], "new_address")
        return True
    if any(
        control.type == "radio" and control.checked and keywords.NEW_ADDRESS.search(control.label)
        for control in snapshot.controls
    ):
        return False
    raise PurchaseFailed(
        FailureCode.ADDRESS_MISMATCH,
        f"None of the shop's stored addresses is {wanted.name}, {wanted.zip}; send the whole address, or store it.",
    )


def _groups(session: BrowserSession, snapshot: PageSnapshot) -> list[FormControl]:
    """Return the fields of address forms (or, for a guest, with an email)."""
    chosen: list[FormControl] = []
    for number in dict.fromkeys(control.form for control in snapshot.controls):
        members = [control for control in snapshot.controls if control.form == number and not control.disabled]
        tokens = {autofill.token_of(control) for control in members}
        words = " ".join(button.text for button in snapshot.buttons if button.form == number)
        if number >= 0 and _SUBSCRIBE.search(words) and not tokens & _ADDRESS_TOKENS:
            continue
        if tokens & _ADDRESS_TOKENS or (session.is_guest and "email" in tokens):
            chosen += members
    return chosen


def _fill_field(session: BrowserSession, control: FormControl, token: str, value: str) -> bool:
    country = session.request.address.country
    try:
        if control.type == "select":
            option = autofill.choose(control, token, value, country=country)
            if option is None:
                raise PurchaseFailed(
                    FailureCode.ADDRESS_MISMATCH,
                    f"The shop does not offer {value} as {token}.",
                    choices=_option_texts(control),
                )
            session.tab.select(control, option)
        elif control.type == "combobox":
            if not session.tab.select_custom(control, autofill.spellings(token, value, country=country), value):
                raise PurchaseFailed(FailureCode.ADDRESS_MISMATCH, f"The shop does not offer {value} as {token}.")
        else:
            session.tab.fill(control, value)
    except PageActionFailed:
        return False
    return True


def _option_texts(control: FormControl) -> tuple[str, ...]:
    return tuple(option.text for option in control.options if option.value and not option.disabled)[:20]


def _already_set(control: FormControl, token: str, value: str, session: BrowserSession) -> bool:
    if control.type == "select":
        option = autofill.choose(control, token, value, country=session.request.address.country)
        return any(entry.selected and entry.value == option for entry in control.options)
    if control.type == "combobox":
        return control.value.strip().lower() in autofill.spellings(
            token, value, country=session.request.address.country
        )
    if token == "tel":  # noqa: S105
        return re.sub(r"\D", "", control.value) == re.sub(r"\D", "", value)
    return control.value.strip().lower() == value.strip().lower()


def _has_value(control: FormControl) -> bool:
    if control.type == "select":
        return any(option.selected and option.value for option in control.options)
    return bool(control.value.strip())


def _email(session: BrowserSession) -> str | None:
    name = session.request.username or ""
    return name if "@" in name else None


def _text_of(control: FormControl) -> str:
    return f"{control.label} {control.card}"


def _is_address(text: str, wanted: ShippingAddress) -> bool:
    """Return whether a text looks like an address: a postal code of the same shape, with words around it."""
    return len(text.split()) > 3 and (_has(text, wanted.zip) or bool(_codes_like(wanted.zip, text)))


def _codes_like(code: str, text: str) -> list[str]:
    shape = "".join(r"\d" if c.isdigit() else "[A-Za-z]" if c.isalpha() else r"[\s-]?" for c in code)
    found = re.findall(rf"(?<![\w.,$€£#/-]){shape}(?![\w.,/-]\w|\w)", text)
    return [other for other in found if other.lower() != code.lower()]


def _has(text: str, code: str) -> bool:
    plain = re.sub(r"\\?[\s-]+", r"[\\s-]*", re.escape(code))
    return re.search(rf"(?<!\w){plain}(?!\w)", text, re.IGNORECASE) is not None


def _assert_unambiguous(found: Sequence[object], texts: Iterable[str]) -> None:
    if len(found) > 1:
        choices = tuple(" ".join(text.split())[:120] for text in texts)
        if len(set(choices)) > 1:
            raise PurchaseFailed(
                FailureCode.ADDRESS_MISMATCH, "Several stored addresses match; send line1 as well.", choices=choices
            )
