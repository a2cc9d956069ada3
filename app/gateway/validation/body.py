"""Strict parsing of forwarded request bodies: JSON, and multipart forms (RFC 7578) as the usual clients write them.

A body is forwarded byte for byte, so what parsers could read in different ways is refused: it would not be priced.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from app.core import strict_json
from app.errors import InvalidInput
from app.gateway.dialects.request.cost_params import FIELDS

_MAX_PARTS = 200
_MAX_PART_HEADER_BYTES = 2_000
_MAX_TEXT_BYTES = 256 * 1024
_MEDIA_TYPE = "multipart/form-data"
# `; name=value`: a quoted string or a token, and in the outer header what many clients leave unquoted. Both patterns
# take spaces possessively: trying other divisions of thousands of them would take seconds.
_PARAMETER = re.compile(
    r";[ \t]*+(?:(?P<name>[!#$&+.^_`|~0-9A-Za-z*-]+)="
    r'(?:"(?P<quoted>[^"\r\n]*)"|(?P<token>[^\s"(),;<>@\[\\\]{}]+)))?[ \t]*+(?=;|$)'
)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([^\x00\r\n]*)")
_FOLD = re.compile(r"\r\n[ \t]+")
# ASCII is the same in all of them.
_UTF_8 = frozenset({"utf-8", "utf8"})
_CHARSET = {"charset": "utf-?8|(?:us-)?ascii|iso-8859-15?|latin1|windows-1252"}
_CHARSET_FIELD = "_charset_"
_CONTENT_TYPE = {"boundary": "[A-Za-z0-9'()+_,./:=? -]{0,69}[A-Za-z0-9'()+_,./:=?-]", **_CHARSET}
_DISPOSITION = {
    "name": r"[A-Za-z0-9_.-]{1,100}(?:\[[A-Za-z0-9_]{0,50}\])?",
    # A parser that splits at semicolons, or treats a backslash as an escape, would read other parameters.
    "filename": r"(?!.*;(?u:\s)*(?:file)?name\*?(?u:\s)*=).*[^\\]",
    "filename*": r"[A-Za-z0-9-]+'[A-Za-z0-9-]*'[^'\"]+",
}
# The headers of a part that may begin with `content-`.
_CONTENT_HEADERS = {
    "content-transfer-encoding": "7bit|8bit|binary",
    **dict.fromkeys(("content-id", "content-description", "content-language"), ".*"),
}
_TYPES_OF_FILES = r"(?!(?u:\s)*(?:multipart|message)/).*"
_TYPES_OF_TEXTS = rf"(?!(?u:\s)*application/octet-stream){_TYPES_OF_FILES}"
_NOTHING = "(?!)"
_TEXT_FIELDS = FIELDS["priced"] | FIELDS["texts_of_forms"] | {_CHARSET_FIELD}


def boundary_of(content_type: str) -> tuple[bytes, bool] | None:
    """Return the boundary of a form and whether its texts are UTF-8 for certain; None for another content type.

    Raises: InvalidInput.
    """
    if content_type.partition(";")[0].strip(" \t").lower() != _MEDIA_TYPE:
        return None
    parameters = _parameters("Content-Type", content_type, _MEDIA_TYPE, _CONTENT_TYPE)
    if "boundary" not in parameters:
        raise _malformed_form("needs a boundary in its Content-Type, of 1 to 70 letters, digits or hyphens")
    return parameters["boundary"].encode(), _is_utf_8(parameters)


def parse_form(raw: bytes, boundary: tuple[bytes, bool]) -> tuple[dict[str, Any], tuple[memoryview, ...]]:
    """Return the text fields of a form and its files; fields named `x[]` are lists under the name `x`.

    The boundary must occur only as a delimiter on a line of its own, so that every parser splits the form alike.

    Raises: InvalidInput.
    """
    delimiter, is_utf_8 = b"--" + boundary[0], boundary[1]
    fields: dict[str, Any] = {}
    named_files: set[str] = set()
    files: list[memoryview] = []
    at = raw.find(delimiter)
    if at < 0 or (at and raw[at - 2 : at] != b"\r\n"):
        raise _malformed_form("does not contain the boundary of its Content-Type at the beginning of a line")
    for _ in range(_MAX_PARTS + 1):
        start = at + len(delimiter)
        at = raw.find(delimiter, start)
        if raw.startswith(b"--", start) and at < 0 and raw[start + 2 : start + 4] in {b"", b"\r\n"}:
            if both := named_files & set(fields):
                raise _malformed_form(f"has the field {min(both)} as text and as a file")
            return fields, tuple(files)
        if not raw.startswith(b"\r\n", start) or at < 0 or raw[at - 2 : at] != b"\r\n":
            raise _malformed_form("has a boundary that is not on a line of its own, or does not end with one")
        name, is_file, is_plain, begin = _parse_part_header(raw, start + 2, at - 2)
        if is_file:
            named_files.add(name.removesuffix("[]"))
            files.append(memoryview(raw)[begin : at - 2])
        else:
            content = raw[begin : min(at - 2, begin + _MAX_TEXT_BYTES + 1)]
            _add_field(fields, name, content, is_utf_8=is_utf_8 and is_plain)
    raise _malformed_form(f"has more than {_MAX_PARTS} parts")


def _parse_part_header(raw: bytes, start: int, end: int) -> tuple[str, bool, bool, int]:
    """Return a part's name, whether it is a file, whether a text in it is UTF-8, and the offset of its content."""
    blank = raw.find(b"\r\n\r\n", start, min(end + 2, start + _MAX_PART_HEADER_BYTES))
    if blank < 0:
        raise _malformed_form(f"has a part without headers, or with more than {_MAX_PART_HEADER_BYTES} bytes of them")
    text = raw[start:blank].decode("utf-8", "replace")
    headers: dict[str, str] = {}
    for line in _FOLD.sub(" ", text).split("\r\n"):
        header = _HEADER.fullmatch(line)
        if header is None or header[1].lower() in headers:
            raise _ambiguous_header(line)
        headers[header[1].lower()] = header[2].rstrip(" \t")
    disposition = _parameters("Content-Disposition", headers.pop("content-disposition", ""), "form-data", _DISPOSITION)
    name, is_file = disposition.get("name", ""), disposition.keys() != {"name"}
    if not name:
        raise _malformed_form("has a part without a name")
    if not is_file and _FOLD.search(text):
        # A server that ignores the second line does not see the field, or its value in the same charset.
        raise _malformed_form(f"has a header on two lines in the part {name}")
    if is_file and name.removesuffix("[]") in _TEXT_FIELDS:
        raise _malformed_form(f"has the field {name} as a file")
    types = _TYPES_OF_FILES if is_file else _TYPES_OF_TEXTS
    known = {**_CONTENT_HEADERS, "content-type": types, "content-length": str(end - blank - 4)}
    for other, value in headers.items():
        if other.startswith("content-") and not _fits(known.get(other, _NOTHING), value):
            raise _ambiguous_header(f"{other}: {value}")
    type_ = "" if is_file else headers.get("content-type", "")
    return name, is_file, _is_utf_8(_parameters("Content-Type", type_, "[^;]*", _CHARSET)), blank + 4


def _parameters(header: str, value: str, kinds: str, allowed: Mapping[str, str]) -> dict[str, str]:
    """Read the parameters of a header of these kinds. Raises: InvalidInput for another one, or one that is repeated."""
    first, semicolon, rest = value.partition(";")
    read = list(_PARAMETER.finditer(semicolon + rest))
    given = [(each["name"].lower(), each["token"] or each["quoted"] or "") for each in read if each["name"]]
    is_read = _fits(kinds, first.strip(" \t")) and "".join(each[0] for each in read) == semicolon + rest
    found = dict(given)
    if (
        not is_read
        or len(found) < len(given)
        or not all(_fits(allowed.get(each, _NOTHING), found[each]) for each in found)
    ):
        raise _ambiguous_header(f"{header}: {value}")
    return found


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text, re.IGNORECASE | re.ASCII) is not None


def _is_utf_8(parameters: Mapping[str, str]) -> bool:
    return parameters.get("charset", "utf-8").lower() in _UTF_8


def _ambiguous_header(line: str) -> InvalidInput:
    return _malformed_form(f"has the header {line[:100]!r}, which is malformed or which servers read in different ways")


def _add_field(fields: dict[str, Any], name: str, content: bytes, *, is_utf_8: bool) -> None:
    if len(content) > _MAX_TEXT_BYTES:
        raise _malformed_form(f"has a text of more than {_MAX_TEXT_BYTES} bytes in {name}")
    try:
        value = content.decode("utf-8" if is_utf_8 else "ascii")
    except UnicodeDecodeError:
        raise _malformed_form(f"has a text in {name} that is not UTF-8, or not declared as UTF-8") from None
    plain = name.removesuffix("[]")
    if plain == _CHARSET_FIELD and value.lower() not in _UTF_8:
        raise _malformed_form("names a charset that is not UTF-8")
    if name != plain and isinstance(fields.setdefault(plain, []), list):
        fields[plain].append(value)
    elif plain in fields:
        raise _malformed_form(f"has the field {plain} twice")
    else:
        fields[plain] = value


def _malformed_form(problem: str) -> InvalidInput:
    return InvalidInput(f"The form in the request body {problem}.")


_MAX_DEPTH = 200


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
    kind: BodyKind, raw: bytes, content_type: str | None, *, parse_json: Callable[..., Any] = strict_json.parse_json
) -> RequestBody:
    """Parse a body of the kind that its route accepts. Raises: InvalidInput, and what `parse_json` raises."""
    if not raw.strip():
        return RequestBody(raw)
    if kind is BodyKind.NONE:
        raise InvalidInput("This route accepts no request body: send none.")
    boundary = boundary_of(content_type or "") if kind is not BodyKind.JSON else None
    if boundary is not None:
        fields, files = parse_form(raw, boundary)
        return RequestBody(raw, fields, is_form=True, files=files)
    if kind is BodyKind.FORM:
        raise InvalidInput("The request body must be a form: Content-Type: multipart/form-data with a boundary.")
    return RequestBody(raw, parse_json(raw, max_depth=_MAX_DEPTH))
