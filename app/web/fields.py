"""Fields that convert between JSON and exact values; the only place for floats."""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from flask.json.provider import DefaultJSONProvider
from marshmallow import ValidationError, fields, missing, validate

from app.base_urls import HOST
from app.core import clock, money
from app.core.chains import AddressError, parse_any_address
from app.core.strict_json import JsonNumber

_MAX_USD = 1_000_000_000
_REJECTED_DOMAINS_NOTE = (
    "Refused are domains without a dot, and special-use ones: "
    "`.test`, `.invalid`, `.local`, `.localhost`, `.onion`, `.arpa`."
)
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MAX_NAME_CHARS = 100
_PLAIN_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_MAX_UNIT_BITS = 256
_MAX_COUNT = 10**18


# Messages follow the name of their field ("amount is required").
fields.Field.default_error_messages.update(
    required="is required", null="must not be null", validator_failed="is not valid"
)


class ParsedField(fields.Field[Any]):
    """A field with a function `_parse` that converts its JSON value. Raises: ValidationError for a wrong one."""

    def _parse(self, value: Any) -> Any:
        raise NotImplementedError

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any) -> Any:
        return self._parse(value)


class Text(ParsedField, fields.String):
    """A text that every database and terminal can hold: no control characters, no lone surrogates."""

    def _parse(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValidationError("must be a string")
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
            raise ValidationError("must not contain control characters")
        return value


def one_of(choices: Iterable[str], **options: Any) -> Text:
    return Text(validate=validate.OneOf(list(choices), error="must be one of {choices}"), **options)


class Identifier(fields.UUID):
    """A UUID in its usual form, as identifiers are stored."""

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **_kwargs: Any) -> Any:
        return str(super()._deserialize(value, attr, data))


class Name(Text):
    """A name of 1 to 100 characters after trimming; null and blank count as absent."""

    def _parse(self, value: Any) -> Any:
        name = super()._parse(value).strip()
        if len(name) > _MAX_NAME_CHARS:
            raise ValidationError("must have at most 100 characters")
        if any(letter in _BIDI_CONTROLS for letter in name):
            raise ValidationError("must not contain characters that change the direction of text")
        return name if any(unicodedata.category(letter)[0] in "LNPS" for letter in name) else None


class Email(Text):
    """A syntactically valid email address, lower-cased, without a DNS look-up; null and blank count as absent."""

    def __init__(self, **options: Any) -> None:
        metadata = options.pop("metadata", None) or {}
        described = " ".join(filter(None, (metadata.get("description"), _REJECTED_DOMAINS_NOTE)))
        super().__init__(metadata={**metadata, "description": described}, **options)

    def _parse(self, value: Any) -> Any:
        text = super()._parse(value).strip()
        if not text:
            return None
        from email_validator import EmailNotValidError, validate_email  # noqa: PLC0415 - for few requests only

        try:
            parsed = validate_email(text, check_deliverability=False, test_environment=False)
        except EmailNotValidError:
            raise ValidationError("must be an email address") from None
        return parsed.normalized.lower()


class Symbol(Text):
    """The name of a chain or token, in any case; that of a foreign token has a colon, and maybe a case."""

    def canonical(self, value: str) -> str:
        """Return the name in lower case. Other letters than ASCII stay: some equal these in another case."""
        return value.lower() if value.isascii() and ":" not in value else value


class StrictBoolean(ParsedField):
    """True or false only, not 0, 1 or strings."""

    def _parse(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError("must be true or false")
        return value


class AmountField(ParsedField):
    """A token amount: a decimal string; a JSON number is taken by its digits. Checked against the token later."""

    def _parse(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, JsonNumber):
            return value.text
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValidationError('must be a decimal string such as "12.5"')
        if value.bit_length() > _MAX_UNIT_BITS:
            raise ValidationError("is larger than any balance can be")
        return str(value)

    def canonical(self, value: str) -> str:
        """Return the one spelling of an amount; a text that is none stays as it is."""
        if not _PLAIN_DECIMAL.fullmatch(value):
            return value
        whole, _, fraction = value.partition(".")
        shown, decimals = whole.lstrip("0") or "0", fraction.rstrip("0")
        return f"{shown}.{decimals}" if decimals else shown


class Usd(ParsedField):
    """US dollars: a JSON number outside, integer nano-dollars inside. Float noise is removed."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> float | None:
        return None if value is None else float(money.usd_from_nanos(value))

    def canonical(self, value: int) -> Decimal:
        return money.usd_from_nanos(value)

    def _parse(self, value: Any) -> int:
        if isinstance(value, JsonNumber):
            value = value.decimal
        # Decimal raises on comparisons with NaN.
        if isinstance(value, bool) or not isinstance(value, int | Decimal) or Decimal(value).is_nan():
            raise ValidationError("must be a number")
        if not 0 <= value <= _MAX_USD:
            raise ValidationError(f"must be between 0 and {_MAX_USD}")
        try:
            return money.nanos_from_usd(money.usd_without_float_noise(Decimal(value)))
        except money.AmountError as error:
            raise ValidationError(str(error)) from None


class UsdOrNone(Usd):
    """US dollars of a threshold: null, or 0, for none."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_none=True, **kwargs)

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **kwargs: Any) -> float | None:
        return super()._serialize(value or None, attr, obj, **kwargs)

    def deserialize(self, value: Any, attr: str | None = None, data: Any = None, **kwargs: Any) -> Any:
        return 0 if value is None else super().deserialize(value, attr, data, **kwargs)


class UsdText(fields.Field[int]):
    """US dollars as a plain decimal string, where the contract has a string; left out if there are none."""

    def _serialize(self, value: int | None, attr: str | None, obj: Any, **_kwargs: Any) -> Any:
        return missing if value is None else money.usd_string(value)


class Instant(fields.Field[datetime]):
    """An instant as ISO 8601 in UTC."""

    def _serialize(self, value: datetime | None, attr: str | None, obj: Any, **_kwargs: Any) -> str | None:
        return None if value is None else clock.isoformat(value)


class Moment(ParsedField, fields.String):
    """An instant in ISO 8601 with an offset."""

    def _parse(self, value: Any) -> datetime:
        try:
            moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ValidationError("must be an instant such as 2030-01-01T00:00:00Z")
        return moment.astimezone(UTC)


class QueryCount(ParsedField):
    """A whole number in a query string; one beyond 10^18 counts as 10^18, which columns can hold."""

    def _parse(self, value: Any) -> int:
        text = str(value)
        if not re.fullmatch(r"-?[0-9]{1,4000}", text, re.ASCII):
            raise ValidationError("must be a whole number")
        return min(int(text), _MAX_COUNT)


class WholeNumber(ParsedField):
    """A whole number in a JSON body: no string, fraction or boolean; one beyond ±10^18 counts as that."""

    def _parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValidationError("must be a whole number")
        return max(-_MAX_COUNT, min(value, _MAX_COUNT))


class Recipient(Text):
    """An address that is checked against its chain later."""

    def canonical(self, value: str) -> str:
        """Return the canonical form of an address; a text that is none stays as it is."""
        try:
            return parse_any_address(value)[1]
        except AddressError:
            return value


class Address(Text):
    """An address of any chain, in its canonical form."""

    def _parse(self, value: Any) -> str:
        text = super()._parse(value)
        try:
            return parse_any_address(text)[1]
        except AddressError as error:
            raise ValidationError(str(error)) from None


class DomainField(Text):
    """A host name such as `shop.example.com`, lower-cased, in its IDNA (ASCII) form; no scheme, port or path."""

    def _parse(self, value: Any) -> str:
        text = super()._parse(value).strip().rstrip(".").lower()
        try:
            host = text if text.isascii() else text.encode("idna").decode("ascii")
        except UnicodeError:
            host = ""
        if not HOST.fullmatch(host):
            raise ValidationError('must be a host name such as "shop.example.com"')
        return host


def json_default(value: object) -> object:
    """Serialize an exact number inside `details` as a JSON number; other values as Flask does."""
    if isinstance(value, JsonNumber):
        return float(value.text)
    return float(value) if isinstance(value, Decimal) else DefaultJSONProvider.default(value)
