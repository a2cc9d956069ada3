"""Where it is sent: a stored address chosen by name and postal code, or the fields filled by what they are for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.adapters.shopper_browser import fields, signals
from app.adapters.shopper_browser.fields import PASSWORD, QUANTITY
from app.adapters.shopper_browser.snapshot import Control, Snapshot
from app.adapters.shopper_browser.tab import Gone
from app.adapters.shopper_browser.trip import Trip
from app.ports.shopper import Failed, ShippingAddress, Trouble

_ADDRESS_TOKENS = frozenset(
    ("postal-code", "address-line1", "address-level2", "name", "given-name", "family-name", "tel", "country")
)
_NEVER_TYPED = frozenset(
    (fields.IGNORED, PASSWORD, QUANTITY, fields.USERNAME, "one-time-code", "new-password")
)
_SUBSCRIBE = re.compile(r"subscri|newsletter|search|apply|redeem", re.IGNORECASE)
_MAX_TRIES = 2


@dataclass(slots=True)
class Filling:
    """What was typed so far, so that a field that keeps changing is not typed into for ever."""

    tries: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def may(self, control: Control) -> bool:
        """Count a try and tell whether it may be made."""
        key = (control.name, control.id, control.label)
        self.tries[key] = self.tries.get(key, 0) + 1
        return self.tries[key] <= _MAX_TRIES


def choose_stored(trip: Trip, seen: Snapshot) -> bool:
    """Choose the stored address that fits; tell whether something was pressed. Raises: Failed(address_mismatch)."""
    if trip.chose_address or trip.typed_zip:
        return False
    wanted = trip.errand.address
    cards = [
        button
        for button in seen.buttons
        if signals.CHOOSE_ADDRESS.search(button.text) and _is_address(button.card, wanted)
    ]
    radios = [
        control
        for control in seen.controls
        if control.type == "radio" and _is_address(_text_of(control), wanted)
    ]
    lists = [
        control
        for control in seen.controls
        if control.type == "select" and any(_is_address(option.text, wanted) for option in control.options)
    ]
    fitting_cards = [button for button in cards if fits(button.card, wanted)]
    fitting_radios = [control for control in radios if fits(_text_of(control), wanted)]
    _assert_one(fitting_cards, (button.card for button in fitting_cards))
    _assert_one(fitting_radios, (_text_of(control) for control in fitting_radios))
    if fitting_cards:
        trip.chose_address = True
        trip.press(fitting_cards[0], "choose_address")
        return True
    if fitting_radios:
        trip.chose_address = True
        if fitting_radios[0].checked:
            return False
        trip.tab.tick(fitting_radios[0])
        trip.note("choose_address", f"stored address in {wanted.zip}", seen.path)
        return True
    for control in lists:
        options = [option for option in control.options if fits(option.text, wanted)]
        _assert_one(options, (option.text for option in options))
        if options:
            trip.chose_address = True
            trip.tab.select(control, options[0].value)
            trip.note("choose_address", f"stored address in {wanted.zip}", seen.path)
            return True
    return _ask_for_new(trip, seen) if cards or radios or lists else False


def fill(trip: Trip, seen: Snapshot, filling: Filling) -> bool:
    """Type what is known into the fields of this page; tell whether anything was typed.

    Raises: Failed(address_incomplete) with the tokens that the page requires and the caller has not sent.
    """
    if trip.chose_address:
        return False
    groups = _groups(trip, seen)
    typed = False
    missing: list[str] = []
    for control in groups:
        token = fields.token_of(control)
        if (
            token is None
            or token in _NEVER_TYPED
            or token.startswith("cc-")
            or control.type not in fields.TYPEABLE
        ):
            continue
        value = fields.value_for(token, trip.errand.address, email=_email(trip))
        if value is None:
            if (control.required or control.problem) and not _has_value(control):
                missing.append(token)
            continue
        if _holds(control, token, value, trip):
            trip.typed_zip = trip.typed_zip or token == "postal-code"  # noqa: S105
            continue
        if not filling.may(control):
            continue
        typed = _put(trip, control, token, value) or typed
        trip.note("fill", token, seen.path)
        if control.type in {"select", "combobox"}:
            # Other fields follow from a country or a state: they are read anew before they are filled.
            return True
    if missing:
        raise incomplete(missing)
    return typed


def incomplete(missing: Iterable[str]) -> Failed:
    """Make the failure for what the caller has to add."""
    tokens = tuple(dict.fromkeys(missing))
    return Failed(
        Trouble.ADDRESS_INCOMPLETE,
        f"The shop wants more of the address than was sent, and stores none that fits: {', '.join(tokens)}.",
        missing=tokens,
    )


def unfilled(trip: Trip, seen: Snapshot) -> list[str]:
    """Return the tokens of empty address fields for which nothing was sent: what a page that does not move may want."""
    found = []
    for control in _groups(trip, seen):
        token = fields.token_of(control)
        if (
            token in _ADDRESS_TOKENS | {"address-level1", "email"}
            and not _has_value(control)
            and token is not None
        ) and fields.value_for(token, trip.errand.address, email=_email(trip)) is None:
            found.append(token)
    return found


def assert_shown(trip: Trip, seen: Snapshot) -> None:
    """See that the order would go to the right place. Raises: Failed(address_mismatch)."""
    wanted = trip.errand.address.zip
    if _has(seen.text, wanted):
        return
    typed = trip.typed_zip or any(_has(control.value, wanted) for control in seen.controls)
    # A page may ship to a stored address whatever stands in its fields: what it says in words is what counts.
    if typed and not trip.chose_address and not _codes_like(wanted, seen.text):
        return
    raise Failed(
        Trouble.ADDRESS_MISMATCH,
        f"The order would not certainly go to {wanted}: the shop's review does not show that postal code.",
    )


def fits(text: str, wanted: ShippingAddress) -> bool:
    """Tell whether a stored address is the wanted one: postal code, every word of the name, the street if sent."""
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


def _ask_for_new(trip: Trip, seen: Snapshot) -> bool:
    wanted = trip.errand.address
    if any(fields.token_of(control) == "postal-code" for control in _groups(trip, seen)):
        return False
    doors = [
        button for button in seen.buttons if signals.NEW_ADDRESS.search(button.text) and not button.disabled
    ]
    radios = [
        control
        for control in seen.controls
        if control.type == "radio" and signals.NEW_ADDRESS.search(control.label) and not control.checked
    ]
    if wanted.line1 and radios:
        trip.tab.tick(radios[0])
        return True
    if wanted.line1 and doors:
        trip.press(doors[0], "new_address")
        return True
    if any(
        control.type == "radio" and control.checked and signals.NEW_ADDRESS.search(control.label)
        for control in seen.controls
    ):
        return False
    raise Failed(
        Trouble.ADDRESS_MISMATCH,
        f"None of the shop's stored addresses is {wanted.name}, {wanted.zip}; send the whole address, or store it.",
    )


def _groups(trip: Trip, seen: Snapshot) -> list[Control]:
    """Return the fields of those forms that are about an address (or, for a guest, an e-mail)."""
    chosen: list[Control] = []
    for number in dict.fromkeys(control.form for control in seen.controls):
        members = [control for control in seen.controls if control.form == number and not control.disabled]
        tokens = {fields.token_of(control) for control in members}
        words = " ".join(button.text for button in seen.buttons if button.form == number)
        if number >= 0 and _SUBSCRIBE.search(words) and not tokens & _ADDRESS_TOKENS:
            continue
        if tokens & _ADDRESS_TOKENS or (trip.is_guest and "email" in tokens):
            chosen += members
    return chosen


def _put(trip: Trip, control: Control, token: str, value: str) -> bool:
    country = trip.errand.address.country
    try:
        if control.type == "select":
            option = fields.choose(control, token, value, country=country)
            if option is None:
                raise Failed(
                    Trouble.ADDRESS_MISMATCH,
                    f"The shop does not offer {value} as {token}.",
                    choices=_offered(control),
                )
            trip.tab.select(control, option)
        elif control.type == "combobox":
            if not trip.tab.pick(control, fields.spellings(token, value, country=country), value):
                raise Failed(Trouble.ADDRESS_MISMATCH, f"The shop does not offer {value} as {token}.")
        else:
            trip.tab.type(control, value)
    except Gone:
        return False
    return True


def _offered(control: Control) -> tuple[str, ...]:
    return tuple(option.text for option in control.options if option.value and not option.disabled)[:20]


def _holds(control: Control, token: str, value: str, trip: Trip) -> bool:
    if control.type == "select":
        option = fields.choose(control, token, value, country=trip.errand.address.country)
        return any(entry.selected and entry.value == option for entry in control.options)
    if control.type == "combobox":
        return control.value.strip().lower() in fields.spellings(
            token, value, country=trip.errand.address.country
        )
    if token == "tel":  # noqa: S105
        return re.sub(r"\D", "", control.value) == re.sub(r"\D", "", value)
    return control.value.strip().lower() == value.strip().lower()


def _has_value(control: Control) -> bool:
    if control.type == "select":
        return any(option.selected and option.value for option in control.options)
    return bool(control.value.strip())


def _email(trip: Trip) -> str | None:
    name = trip.errand.username or ""
    return name if "@" in name else None


def _text_of(control: Control) -> str:
    return f"{control.label} {control.card}"


def _is_address(text: str, wanted: ShippingAddress) -> bool:
    """Tell whether a text looks like an address: a postal code of the wanted one's shape, and words around it."""
    return len(text.split()) > 3 and (_has(text, wanted.zip) or bool(_codes_like(wanted.zip, text)))


def _codes_like(code: str, text: str) -> list[str]:
    shape = "".join(r"\d" if c.isdigit() else "[A-Za-z]" if c.isalpha() else r"[\s-]?" for c in code)
    found = re.findall(rf"(?<![\w.,$€£#/-]){shape}(?![\w.,/-]\w|\w)", text)
    return [other for other in found if other.lower() != code.lower()]


def _has(text: str, code: str) -> bool:
    plain = re.sub(r"\\?[\s-]+", r"[\\s-]*", re.escape(code))
    return re.search(rf"(?<!\w){plain}(?!\w)", text, re.IGNORECASE) is not None


def _assert_one(found: Sequence[object], texts: Iterable[str]) -> None:
    if len(found) > 1:
        choices = tuple(" ".join(text.split())[:120] for text in texts)
        if len(set(choices)) > 1:
            raise Failed(
                Trouble.ADDRESS_MISMATCH, "Several stored addresses fit; send line1 as well.", choices=choices
            )
