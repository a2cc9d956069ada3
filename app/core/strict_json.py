"""JSON of others, in two profiles: `parse_json` for requests, `parse_response` for the responses of other services.

Python's decoder recurses, and a deep text would end the process (`app.core.json_limits`). What this service has written
or checked itself is read with `json.loads`.
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from json import decoder
from typing import Any, NoReturn

from app.core.json_limits import JsonFootprint, JsonLimitError, measure_json
from app.errors import InvalidInput

MAX_DEPTH = 32
MAX_VALUES = 320_000
"""Names and values of a body. The largest legitimate ones known hold 300 000 tokens to embed, each a number."""
# More than any double has; an integer takes time that grows with the square of its digits.
_MAX_NUMBER_CHARS = 1000
_MAX_EXPONENT_CHARS = 6
_MAX_MAGNITUDE = 400
"""The power of ten of a number in a response: more than any number of 256 bits or of a binary fraction has."""


@dataclass(slots=True, unsafe_hash=True)
class JsonNumber:
    """A JSON number with a fraction or an exponent, as it was written. It is neither a str nor a number."""

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > _MAX_NUMBER_CHARS or len(self.text.lower().partition("e")[2]) > _MAX_EXPONENT_CHARS:
            raise _number_too_long()

    @property
    def decimal(self) -> Decimal:
        return Decimal(self.text)


def reject_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


def parse_json(
    body: bytes,
    *,
    max_depth: int = MAX_DEPTH,
    max_values: int = MAX_VALUES,
    reserve: Callable[[int], None] | None = None,
) -> Any:
    """Parse JSON with exact numbers: those with a fraction or an exponent become `JsonNumber`.

    Values are counted before anything is decoded; `reserve` receives the bytes of memory that decoding takes.

    Raises: InvalidInput for what is not valid JSON, is nested deeper than `max_depth`, or holds more than
    `max_values` names and values; what `reserve` raises.
    """
    try:
        found = measure_json(body, max_depth=max_depth, max_values=max_values)
        if reserve is not None:
            reserve(found.memory_bytes)
        return _decode_json(body, found)
    except JsonLimitError as error:
        raise InvalidInput(f"The request body {error}") from None
    except (ValueError, RecursionError):
        raise InvalidInput("The request body is not valid JSON.") from None


def _parse_fraction(text: str) -> Decimal:
    """Return a number with few digits before and after the point: conversions of 1e1000000 would take minutes."""
    number = Decimal(text)
    if abs(number.adjusted()) > _MAX_MAGNITUDE:
        raise ValueError("the JSON has a number out of range")
    return number


def parse_response(
    text: bytes,
    *,
    max_depth: int = 64,
    parse_float: Callable[[str], Any] = _parse_fraction,
    parse_constant: Callable[[str], Any] = reject_constant,
) -> Any:
    """Parse another service's JSON; `parse_constant` is for NaN and Infinity, else refused. Raises: ValueError."""
    # Without as many brackets there cannot be as many levels.
    if text.count(b"{") + text.count(b"[") > max_depth:
        measure_json(text, max_depth=max_depth)
    try:
        # UTF-8 only, as for requests.
        return _decoder(parse_float, parse_constant).decode(text.decode("utf-8-sig", "surrogatepass"))
    except (RecursionError, ArithmeticError) as error:
        raise ValueError("the JSON has a number or a depth out of range") from error


@lru_cache(maxsize=16)
def _decoder(parse_float: Callable[[str], Any], parse_constant: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=parse_float, parse_constant=parse_constant)


def _decode_json(body: bytes, footprint: JsonFootprint) -> Any:
    """Decode JSON, its long strings apart from the rest: one wide character quadruples a string's memory."""
    if not footprint.long_strings:
        # UTF-8 only (RFC 8259 §8.1): in another encoding, the depth could be measured wrongly.
        return _PLAIN_DECODER.decode(body.decode("utf-8-sig"))
    strings: dict[str, str] = {}
    pieces = []
    position = 0
    # No client's number has such an exponent, and no client can guess this one.
    mark = f"0e{secrets.randbelow(10**18):018}"
    for begin, end in footprint.long_strings:
        number = f"{mark}{len(strings)}"
        strings[number] = _decode_string(body, begin, end)
        pieces += [body[position : begin - 1], b" ", number.encode(), b" "]
        position = end + 1
    text = b"".join([*pieces, body[position:]]).decode("utf-8-sig")
    return _request_decoder(lambda text: strings.get(text) or JsonNumber(text)).decode(text)


def _decode_string(body: bytes, begin: int, end: int) -> str:
    """Decode a string in one copy if it has no escapes, such as a picture in base64."""
    view = memoryview(body)
    plain = str(view[begin:end], "utf-8")
    if "\\" not in plain and plain.isprintable():
        return plain
    del plain
    value: str = decoder.scanstring(  # type: ignore[attr-defined]
        str(view[begin : end + 1], "utf-8"), 0
    )[0]
    return value


def _parse_integer(text: str) -> int:
    if len(text) > _MAX_NUMBER_CHARS:
        raise _number_too_long()
    return int(text)


def _number_too_long() -> InvalidInput:
    return InvalidInput(
        f"A number in the request body has more than {_MAX_NUMBER_CHARS} characters, or an exponent of more than "
        f"{_MAX_EXPONENT_CHARS - 1} digits."
    )


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # A check before ours may have read the other one (RFC 8259 §4).
        raise InvalidInput("The request body names a field twice.")
    return found


def _request_decoder(parse_float: Callable[[str], Any]) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_float=parse_float,
        parse_int=_parse_integer,
        object_pairs_hook=_build_object,
        parse_constant=reject_constant,
    )


_PLAIN_DECODER = _request_decoder(JsonNumber)
