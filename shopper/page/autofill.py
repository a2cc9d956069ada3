"""The purpose of a form field, as a WHATWG autofill token. No I/O.

Evidence in this order: autocomplete, a type of its own, a name or id that is such a token, label, placeholder, name, id.
A visible label beats any other name in the markup, for `line4` may be labelled "City". A type `tel` is the last evidence,
because it also brings up the keyboard for postal codes; words of coupons and newsletters exclude a field before its type.
"""

import re
from collections.abc import Mapping, Sequence

from app.ports.shopper import ShippingAddress
from shopper.page import regions
from shopper.page.snapshot import FormControl

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

# In order of precedence: what is never ours, then the specific, then the general.
_KEYWORDS: tuple[tuple[str, str], ...] = (
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
    ("username", r"user[ _-]?name|\blogin\b|user ?id|account (name|id)|benutzername|identifiant|member (name|id)"),
    ("name", r"full[ _-]?name|your name|\bname\b|recipient|ship to|empfänger|deliver to|addressee|contact"),
)
_PATTERNS = tuple((token, re.compile(pattern, re.IGNORECASE)) for token, pattern in _KEYWORDS)

TYPEABLE = frozenset(
    ("text", "email", "tel", "number", "search", "url", "textarea", "select", "combobox", "password", "textbox")
)


def token_of(control: FormControl) -> str | None:
    """Return the token of a field; None when nothing identifies it."""
    for part in reversed(control.autocomplete.lower().split()):
        if part in _STANDARD:
            return _ALIAS.get(part, part)
    if control.type in {"password", "search"}:
        return PASSWORD if control.type == "password" else IGNORED
    described = [
        _token_by_keywords(text)
        for text in (control.label, *(_plain(text) for text in (control.placeholder, _last(control.name), control.id)))
    ]
    if IGNORED not in described:
        if control.type == "email":
            return "email"
        for identifier in (_last(control.name), control.id):
            standard = _plain(identifier.lower()).replace(" ", "-")
            if standard in _STANDARD and "-" in standard:
                return _ALIAS.get(standard, standard)
    by_words = next((token for token in described if token is not None), None)
    return by_words or ("tel" if control.type == "tel" else None)


def _plain(identifier: str) -> str:
    return identifier.replace("_", " ").replace("-", " ")


def tokens_of(controls: Sequence[FormControl]) -> list[tuple[FormControl, str | None]]:
    """Return the fields of a form with their tokens. Where one is for the first name, "Name" is the last name."""
    found = [(control, token_of(control)) for control in controls]
    if not any(token == "given-name" for _, token in found):  # noqa: S105
        return found
    return [(control, "family-name" if token == "name" else token) for control, token in found]  # noqa: S105


def is_of_card(control: FormControl) -> bool:
    """Return whether a field belongs to a payment card."""
    return control.type in TYPEABLE and (token_of(control) or "").startswith("cc-")


def value_for(token: str, address: ShippingAddress, *, email: str | None) -> str | None:
    """Return the value for a field, or None if the request has none."""
    given_name, family = split_name(address.name)
    values: Mapping[str, str | None] = {
        "name": address.name,
        "given-name": given_name,
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
    given_name, _, family = name.strip().rpartition(" ")
    return (given_name or family, family)


def choose(control: FormControl, token: str, wanted: str, *, country: str | None) -> str | None:
    """Return the value of the list option that matches, or None."""
    names = spellings(token, wanted, country=country)
    usable = [option for option in control.options if not option.disabled]
    for option in usable:
        if regions.matches(option.text, names) or option.value.strip().lower() in names:
            return option.value
    return None


def spellings(token: str, wanted: str, *, country: str | None) -> tuple[str, ...]:
    """Return the spellings of a value, lower-case."""
    if token == "country":  # noqa: S105
        return regions.country_names(wanted) or (wanted.lower(),)
    if token == "address-level1":  # noqa: S105
        return regions.state_names(wanted, country)
    return (wanted.strip().lower(),)


def _token_by_keywords(text: str) -> str | None:
    return next((token for token, pattern in _PATTERNS if text and pattern.search(text)), None)


def _last(name: str) -> str:
    # `shippingAddress.postcode`, `shipping[postcode]`, `form-0-quantity`
    parts = [part for part in re.split(r"[.\[\]]+", name) if part]
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", parts[-1]) if parts else ""
