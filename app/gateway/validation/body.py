"""Strict parsing of forwarded request bodies; what parsers could read in different ways is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from app.core import strict_json
from app.errors import InvalidInput
from app.gateway.validation.rules import PRICED_FIELDS

_MAX_DEPTH = 200
_MAX_PARTS = 200
_MAX_PART_HEADER_BYTES = 2_000
_MAX_TEXT_BYTES = 256 * 1024
_BOUNDARY = re.compile(
    r'multipart/form-data *; *boundary=(?P<quote>"?)([A-Za-z0-9\'()+_,./:=?-]{1,70})(?P=quote) *',
    re.IGNORECASE,
)
# Some parsers treat a part with an empty file name as text.
_DISPOSITION = re.compile(
    rb'content-disposition: *form-data; *name=("?)([A-Za-z0-9_.-]{1,100}(?:\[[A-Za-z0-9_]{0,50}\])?)\1'
    rb"""((?:; *filename(?:="[^"\r\n]+"|\*=[^;"'\r\n]+'[^;"'\r\n]*'[^;"'\r\n]+))*)""",
    re.IGNORECASE,
)
# Some parsers decode a text with the charset of its part.
_OTHER_HEADER = re.compile(
    rb"content-type: *(?:(?!charset)[^\r\n])*(?:charset=\"?utf-8\"?)?|content-length: *[0-9]+"
    rb"|content-transfer-encoding: *(?:7bit|8bit|binary)",
    re.IGNORECASE,
)
_CHARSET_FIELD = "_charset_"
_PRICED_FIELDS = frozenset(PRICED_FIELDS)


class BodyKind(StrEnum):
    """Kinds of request body that a route accepts."""

    NONE = "none"
    JSON = "json"
    FORM = "form"
    EITHER = "json or form"


class RequestBody(NamedTuple):
    """A body as it was sent, and parsed: a JSON value, or the text fields of a form by name, and its files."""

    raw: bytes
    parsed: Any = None
    is_form: bool = False
    files: tuple[memoryview, ...] = ()

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of a JSON object or a form; empty for an empty body. Raises: InvalidInput for another value."""
        if self.parsed is None and not self.raw.strip():
            return {}
        if not isinstance(self.parsed, dict):
            raise InvalidInput("The request body must be a JSON object.")
        return self.parsed


def parse_body(
    kind: BodyKind,
    raw: bytes,
    content_type: str | None,
    *,
    parse_json: Callable[..., Any] = strict_json.parse_json,
) -> RequestBody:
    """Parse a body of the kind that its route accepts. Raises: InvalidInput, and what `parse_json` raises."""
    if not raw.strip():
        return RequestBody(raw)
    if kind is BodyKind.NONE:
        raise InvalidInput("This route accepts no request body: send none.")
    boundary = _BOUNDARY.fullmatch(content_type or "") if kind is not BodyKind.JSON else None
    if boundary is not None:
        fields, files = _parse_form(raw, boundary[2].encode())
        return RequestBody(raw, fields, is_form=True, files=files)
    if kind is BodyKind.FORM:
        raise InvalidInput(
            "The request body must be a form: Content-Type: multipart/form-data with a boundary."
        )
    return RequestBody(raw, parse_json(raw, max_depth=_MAX_DEPTH))


def _parse_form(raw: bytes, boundary: bytes) -> tuple[dict[str, Any], tuple[memoryview, ...]]:
    """Return the text fields of a form and its files; fields named `x[]` are lists under the name `x`.

    The boundary must occur only as a delimiter on a line of its own, so that every parser splits the form alike.
    """
    delimiter = b"--" + boundary
    fields: dict[str, Any] = {}
    named_files: set[str] = set()
    files: list[memoryview] = []
    at = 0
    if not raw.startswith(delimiter):
        raise _malformed_form("does not begin with its boundary")
    for _ in range(_MAX_PARTS + 1):
        start = at + len(delimiter)
        if raw.startswith(b"--", start) and raw[start + 2 :] in {b"", b"\r\n"}:
            if both := named_files & set(fields):
                raise _malformed_form(f"has the field {min(both)} as text and as a file")
            if named := named_files & _PRICED_FIELDS:
                raise _malformed_form(f"has the field {min(named)} as a file")
            return fields, tuple(files)
        at = raw.find(delimiter, start)
        if not raw.startswith(b"\r\n", start) or at < 0 or raw[at - 2 : at] != b"\r\n":
            raise _malformed_form("has a boundary that is not on a line of its own, or does not end with one")
        name, is_file, begin = _parse_part_header(raw, start + 2, at - 2)
        if is_file:
            named_files.add(name.removesuffix("[]"))
            files.append(memoryview(raw)[begin : at - 2])
        else:
            _add_field(fields, name, raw[begin : min(at - 2, begin + _MAX_TEXT_BYTES + 1)])
    raise _malformed_form(f"has more than {_MAX_PARTS} parts")


def _parse_part_header(raw: bytes, start: int, end: int) -> tuple[str, bool, int]:
    """Return the name of a part, whether it is a file, and the offset of its content."""
    blank = raw.find(b"\r\n\r\n", start, min(end + 2, start + _MAX_PART_HEADER_BYTES))
    lines = raw[start:blank].split(b"\r\n") if blank >= 0 else []
    named = [found for line in lines if (found := _DISPOSITION.fullmatch(line))]
    others = [
        line for line in lines if not _DISPOSITION.fullmatch(line) and not _OTHER_HEADER.fullmatch(line)
    ]
    if len(named) != 1 or others:
        raise _malformed_form(
            "has a part with other headers than one Content-Disposition with a name and an optional Content-Type"
        )
    return named[0][2].decode(), bool(named[0][3]), blank + 4


def _add_field(fields: dict[str, Any], name: str, content: bytes) -> None:
    if len(content) > _MAX_TEXT_BYTES:
        raise _malformed_form(f"has a text of more than {_MAX_TEXT_BYTES} bytes in {name}")
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise _malformed_form(f"has a text in {name} that is not UTF-8") from None
    plain = name.removesuffix("[]")
    if plain == _CHARSET_FIELD and value.lower() != "utf-8":
        raise _malformed_form("names a charset that is not UTF-8")
    if name != plain and isinstance(fields.setdefault(plain, []), list):
        fields[plain].append(value)
    elif plain in fields:
        raise _malformed_form(f"has the field {plain} twice")
    else:
        fields[plain] = value


def _malformed_form(problem: str) -> InvalidInput:
    return InvalidInput(f"The form in the request body {problem}.")
