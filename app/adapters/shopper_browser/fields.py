"""What a form field is for, in the words of WHATWG's autofill tokens. Pure.

Asked in this order: autocomplete, type, label, placeholder, name, id. What a person reads beats what a programmer
wrote, for `line4` may well be labelled "City".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.adapters.shopper_browser import places
from app.adapters.shopper_browser.snapshot import Control
from app.ports.shopper import ShippingAddress

IGNORED = "ignored"
PASSWORD = "current-password"  # noqa: S105 - a token's name
USERNAME = "username"
QUANTITY = "quantity"

_STANDARD = frozenset(
    (
        "name", "given-name", "additional-name", "family-name", "honorific-prefix", "organization", "street-address",
        "address-line1", "address-line2", "address-line3", "address-level1", "address-level2", "country", "country-name",
        "postal-code", "tel", "tel-national", "email", "username", "current-password", "new-password", "one-time-code",
        "cc-name", "cc-number", "cc-exp", "cc-exp-month", "cc-exp-year", "cc-csc", "cc-type",
    )
)  # fmt: skip
_ALIAS = {"country-name": "country", "tel-national": "tel", "street-address": "address-line1"}

# The order decides: what is never ours first, then what is particular, then what is general.
_WORDS: tuple[tuple[str, str], ...] = (
    (
        IGNORED,
        r"coupon|voucher|promo|gift|discount|search|newsletter|comment|instruction|message|notes?\b|captcha|honeypot|birth|vat|tax id|fax|company website",
    ),
    ("one-time-code", r"(verification|one.?time|security|sms) code|\botp\b"),
    ("cc-csc", r"\bcvv|\bcvc|\bcsc\b|security code|card verification|prüfnummer"),
    ("cc-exp", r"expir|exp.? ?(date|month|year)|mm ?/ ?yy|gültig bis"),
    ("cc-number", r"card.?(number|no)|credit card|\bpan\b|kartennummer"),
    ("cc-name", r"name on card|card.?holder|karteninhaber"),
    (QUANTITY, r"\bq(uanti)?ty\b|\bquantity|\bmenge\b|\banzahl\b|\bquantité\b|how many"),
    ("email", r"e.?mail|courriel"),
    ("tel", r"phone|mobile|\btel\b|telefon|téléphone|cell"),
    ("organization", r"company|organi[sz]ation|business|firma|société"),
    ("honorific-prefix", r"\btitle\b|salutation|anrede|civilité"),
    ("given-name", r"(first|given|fore)[ _-]?name|\bfname\b|vorname|prénom|name_parts_0"),
    ("additional-name", r"middle[ _-]?(name|initial)"),
    ("family-name", r"(last|family|sur)[ _-]?name|\blname\b|nachname|\bnom\b(?! complet)|name_parts_1"),
    ("postal-code", r"\bzip|post(al)?[ _-]?code|\bpostcode|\bplz\b|postleitzahl|code postal|\bpin ?code\b"),
    ("country", r"country|\bland\b|\bpays\b|nation"),
    (
        "address-line2",
        r"(address|street|line)[ _-]?(line)?[ _-]?(2|two)\b|second line|apartment|apt\b|suite|unit\b|flat|building|adresszusatz|complément|line2",
    ),
    ("address-line3", r"(address|line)[ _-]?(line)?[ _-]?(3|three)\b|third line|line3"),
    ("address-level2", r"\bcity|\btown|suburb|locality|\bort\b|\bstadt\b|\bville\b"),
    ("address-level1", r"\bstate\b|province|county|region|bundesland|\bprefecture|département"),
    (
        "address-line1",
        r"address|street|\broad\b|straße|strasse|\brue\b|line[ _-]?1|first line|where.*(deliver|ship|send)",
    ),
    (
        "username",
        r"user[ _-]?name|\blogin\b|user ?id|account (name|id)|benutzername|identifiant|member (name|id)",
    ),
    ("name", r"full[ _-]?name|your name|\bname\b|recipient|ship to|empfänger|deliver to|addressee|contact"),
)
_PATTERNS = tuple((token, re.compile(pattern, re.IGNORECASE)) for token, pattern in _WORDS)

TYPEABLE = frozenset(
    (
        "text",
        "email",
        "tel",
        "number",
        "search",
        "url",
        "textarea",
        "select",
        "combobox",
        "password",
        "textbox",
    )
)


def token_of(control: Control) -> str | None:
    """Return what a field is for; None when nothing about it says so."""
    for part in reversed(control.autocomplete.lower().split()):
        if part in _STANDARD:
            return _ALIAS.get(part, part)
    if control.type == "password":
        return PASSWORD
    if control.type == "search":
        return IGNORED
    told = (control.label, control.placeholder, _last(control.name), control.id)
    for text in told:
        token = _by_words(text.replace("_", " ").replace("-", " ") if text is not control.label else text)
        if token is not None:
            return token
    return {"email": "email", "tel": "tel"}.get(control.type)


def is_of_card(control: Control) -> bool:
    """Tell whether a field wants something of a payment card."""
    return control.type in TYPEABLE and (token_of(control) or "").startswith("cc-")


def value_for(token: str, address: ShippingAddress, *, email: str | None) -> str | None:
    """Return what is to be typed into a field, or None when the caller has not said it."""
    given, family = split_name(address.name)
    values: Mapping[str, str | None] = {
        "name": address.name,
        "given-name": given,
        "family-name": family,
        "postal-code": address.zip,
        "address-line1": address.line1,
        "address-line2": address.line2,
        "address-level2": address.city,
        "address-level1": address.state,
        "country": address.country,
        "tel": address.phone,
        "email": address.email or email,
    }
    return values.get(token)


def split_name(name: str) -> tuple[str, str]:
    """Split a name at its last space; a single word is both."""
    given, _, family = name.strip().rpartition(" ")
    return (given or family, family)


def choose(control: Control, token: str, wanted: str, *, country: str | None) -> str | None:
    """Return the value of the option of a list that means what is wanted, or None."""
    names = spellings(token, wanted, country=country)
    usable = [option for option in control.options if not option.disabled]
    for option in usable:
        if places.matches(option.text, names) or option.value.strip().lower() in names:
            return option.value
    return None


def spellings(token: str, wanted: str, *, country: str | None) -> tuple[str, ...]:
    """Return how a shop may call a value, lower-case."""
    if token == "country":  # noqa: S105
        return places.country_names(wanted) or (wanted.lower(),)
    if token == "address-level1":  # noqa: S105
        return places.state_names(wanted, country)
    return (wanted.strip().lower(),)


def _by_words(text: str) -> str | None:
    return next((token for token, pattern in _PATTERNS if text and pattern.search(text)), None)


def _last(name: str) -> str:
    # `shippingAddress.postcode`, `shipping[postcode]`, `form-0-quantity`
    parts = [part for part in re.split(r"[.\[\]]+", name) if part]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", parts[-1]) if parts else ""
