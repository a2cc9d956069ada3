"""Wire fields: the only place where exact values meet JSON, and the only place where a float may appear."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from email_validator import EmailNotValidError, validate_email
from flask.json.provider import DefaultJSONProvider
from marshmallow import ValidationError, fields

from app.core import addresses, clock, money
from app.web.parsing import JsonNumber

_MAX_USD = 1_000_000_000
_REFUSED_ADDRESSES = (
    "Refused are domains without a dot, and special-use ones: "
    "`.test`, `.invalid`, `.local`, `.localhost`, `.onion`, `.arpa`."
)
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MAX_NAME_LETTERS = 100
_MAX_UNIT_BITS = 256
_MAX_HOST_LETTERS = 253
_MAX_COUNT = 10**18


# marshmallow's own sentences speak of "fields"; ours follow the name of the field that they are about.
fields.Field.default_error_messages.update(
    required="is required", null="must not be null", validator_failed="is not valid"
)


class Text(fields.String):
    """A text that every database and terminal can hold: no control characters, no lone surrogates."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> str:
        if not isinstance(value, str):
            msg = "must be a string"
            raise ValidationError(msg)
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
            msg = "must not contain control characters"
            raise ValidationError(msg)
        return str(super()._deserialize(value, attr, data, **kwargs))


class Name(Text):
    """A name of 1 to 100 characters after trimming; null and blank count as absent."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> Any:
        name = super()._deserialize(value, attr, data, **kwargs).strip()
        if len(name) > _MAX_NAME_LETTERS:
            msg = "must have at most 100 characters"
            raise ValidationError(msg)
        if any(letter in _DIRECTION_MARKS for letter in name):
            raise ValidationError("must not contain marks that change the direction of text")
        return name if any(unicodedata.category(letter)[0] in "LNPS" for letter in name) else None


class Email(Text):
    """A syntactically valid e-mail address, lower-cased, without a DNS look-up; null and blank count as absent."""

    def __init__(self, **options: Any) -> None:
        """Take what every field takes; the description says what is refused, too."""
        metadata = options.pop("metadata", None) or {}
        described = " ".join(filter(None, (metadata.get("description"), _REFUSED_ADDRESSES)))
        super().__init__(metadata={**metadata, "description": described}, **options)

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> Any:
        text = super()._deserialize(value, attr, data, **kwargs).strip()
        if not text:
            return None
        try:
            parsed = validate_email(text, check_deliverability=False, test_environment=False)
        except EmailNotValidError:
            msg = "must be an e-mail address"
            raise ValidationError(msg) from None
        return parsed.normalized.lower()


class Flag(fields.Field[bool]):
    """True or false, and nothing that merely resembles them: 0 and 1 are numbers."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any
    ) -> bool:
        if not isinstance(value, bool):
            raise ValidationError("must be true or false")
        return value


class Amount(fields.Field[str]):
    """A token amount: a decimal string; a JSON number is taken by its digits. Checked against the token later."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any
    ) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, JsonNumber):
            return value.text
        if isinstance(value, bool) or not isinstance(value, int):
            msg = 'must be a decimal string such as "12.5"'
            raise ValidationError(msg)
        return _digits(value)


def _digits(value: int) -> str:
    if value.bit_length() > _MAX_UNIT_BITS:
        msg = "is larger than any balance can be"
        raise ValidationError(msg)
    return str(value)


class Usd(fields.Field[int]):
    """US dollars: a JSON number outside, integer nano-dollars inside. A double's noise is taken off."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> float | None:
        return None if value is None else float(money.usd_from_nanos(value))

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any
    ) -> int:
        # No comparison with what is not a number is answered: Decimal raises.
        if isinstance(value, bool) or not isinstance(value, int | Decimal) or Decimal(value).is_nan():
            msg = "must be a number"
            raise ValidationError(msg)
        if not 0 <= value <= _MAX_USD:
            msg = f"must be between 0 and {_MAX_USD}"
            raise ValidationError(msg)
        try:
            return money.nanos_from_usd(money.usd_as_meant(Decimal(value)))
        except money.AmountError as error:
            raise ValidationError(str(error)) from None


class UsdText(fields.Field[int]):
    """US dollars as a plain decimal string, where the contract wants a string."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> str | None:
        return None if value is None else money.decimal_string(value, 9)


class Instant(fields.Field[datetime]):
    """An instant as ISO 8601 in UTC."""

    def _serialize(self, value: datetime | None, attr: str | None, obj: Any, **_kwargs: Any) -> str | None:
        return None if value is None else clock.isoformat(value)


class Count(fields.Field[int]):
    """A whole number in a query string; one that no column holds counts as the largest that it does."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any
    ) -> int:
        text = str(value)
        if not re.fullmatch(r"-?[0-9]{1,4000}", text, re.ASCII):
            msg = "must be a whole number"
            raise ValidationError(msg)
        return min(int(text), _MAX_COUNT)


class Whole(fields.Field[int]):
    """A whole number in a JSON body: no text, no fraction, no boolean; one beyond all sense counts as the largest."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any
    ) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            msg = "must be a whole number"
            raise ValidationError(msg)
        return max(-_MAX_COUNT, min(value, _MAX_COUNT))


class Address(Text):
    """An address of any chain, in its canonical form."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> str:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            return addresses.parse_any(text)[1]
        except addresses.AddressError as error:
            raise ValidationError(str(error)) from None


_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)


class Domain(Text):
    """A host name such as `shop.example.com`, lower-cased, in its IDNA (ASCII) form; no scheme, port or path."""

    def _deserialize(
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> str:
        text = super()._deserialize(value, attr, data, **kwargs).strip().rstrip(".").lower()
        try:
            host = text if text.isascii() else text.encode("idna").decode("ascii")
        except UnicodeError:
            host = ""
        if not _DOMAIN.fullmatch(host) or len(host) > _MAX_HOST_LETTERS:
            msg = 'must be a host name such as "shop.example.com"'
            raise ValidationError(msg)
        return host


def json_default(value: object) -> object:
    """Write an exact dollar figure inside `details` as the JSON number that it is elsewhere; else do as Flask does."""
    return float(value) if isinstance(value, Decimal) else DefaultJSONProvider.default(value)
