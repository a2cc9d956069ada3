"""What a forwarded call asks for, from the raw request line: passed on byte for byte, or refused.

Whatever an upstream may make of the path (decoding it, once or again, dropping parameters, folding look-alikes),
it stays below the base that it is put behind.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from flask import request
from werkzeug.routing import BaseConverter

from app.errors import InvalidInput, NotFound


class RestConverter(BaseConverter):
    """Whatever follows in a path, nothing included: `<rest:path>`."""

    regex = ".*"
    part_isolating = False


DOCUMENTED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Forwarded like those; an OpenAPI document has no words for them, or gains nothing from them. Routes need a list, so
# what is in none is 405: CONNECT, which asks for a tunnel, and words that nobody has registered.
FURTHER_METHODS = (
    "OPTIONS", "TRACE", "QUERY", "SEARCH", "REPORT", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK",
    "UNLOCK", "PURGE", "LINK", "UNLINK",
)  # fmt: skip
_UPPER_SEGMENTS = 2
_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NEVER = re.compile(r"[\x00-\x1f\x7f\\]")
_MAX_DECODINGS = 5


def upper_path(path: str) -> str:
    """Return the first two segments of a path: what was called, without the ids that come below it."""
    return "/".join(path.strip("/").split("/")[:_UPPER_SEGMENTS])


@dataclass(frozen=True, slots=True)
class Target:
    """A path below an upstream's base and a query: `raw_path` and `query` as sent, `path` decoded, for rules.

    None of the paths begins with a slash; `path` has no empty segments.
    """

    raw_path: str
    path: str
    query: str

    def below(self, base_path: str) -> str:
        """Return what to put on the request line, behind the path of a base (`/v1`, or nothing)."""
        path = f"{base_path}/{self.raw_path}" if self.raw_path or not base_path else base_path
        return f"{path}?{self.query}" if self.query else path

    def without_parameters(self, names: Collection[str]) -> Target:
        """Leave parameters out of the query, such as credentials; the others keep every byte."""
        if not self.query:
            return self
        kept = [
            part for part in self.query.split("&") if unquote_plus(part.split("=", 1)[0]).lower() not in names
        ]
        return Target(self.raw_path, self.path, "&".join(kept))

    def after_first(self) -> tuple[str, Target]:
        """Take the first segment off, decoded; return it and what is left."""
        first, _, rest = self.raw_path.partition("/")
        name = unquote_to_bytes(first).decode()
        return name, Target(rest, _checked(rest), self.query)


def target_below(*prefix: str) -> Target:
    """Return what the present request asks for below a prefix of segments.

    Raises: InvalidInput for a path that could lead elsewhere; NotFound when the prefix itself is disguised.
    """
    line = request_target()
    if "#" in line:
        raise _refused("has a fragment")
    raw_path = line.partition("?")[0]
    start = "/" + "/".join(prefix)
    if raw_path != start and not raw_path.startswith(f"{start}/"):
        raise NotFound
    rest = _ascii(raw_path[len(start) + 1 :])
    return Target(rest, _checked(rest), _ascii(request.environ["QUERY_STRING"]))


def request_target() -> str:
    """Return path and query of the present request as they were sent."""
    environ = request.environ
    # Servers hand the request line on under one name or the other; `request.path` has lost what was encoded.
    line: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    return _ABSOLUTE.sub("", line, count=1) if not line.startswith("/") else line


def _checked(raw_path: str) -> str:
    if "//" in f"/{raw_path}":
        raise _refused("has an empty segment")
    if _BAD_ESCAPE.search(raw_path):
        raise _refused("has a % that begins no escape")
    text, path = raw_path, None
    for _ in range(_MAX_DECODINGS):
        _refuse_escapes(text)
        try:
            decoded = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise _refused("is not UTF-8") from None
        path = decoded if path is None else path
        if decoded == text:
            return "/".join(segment for segment in path.split("/") if segment)
        text = decoded
    raise _refused("is encoded too often")


def _refuse_escapes(text: str) -> None:
    for form in {text, unicodedata.normalize("NFKC", text)}:
        if _NEVER.search(form):
            raise _refused("has a backslash or a control character")
        # "..;x" is ".." to servers that know parameters of segments.
        if any(segment.split(";", 1)[0].strip() in {".", ".."} for segment in form.split("/")):
            raise _refused("has a dot segment")


def _ascii(text: str) -> str:
    # Servers hand bytes over as Latin-1; what is no ASCII goes out as its escape, which is the same by RFC 3987.
    return (
        text if text.isascii() else quote(text.encode("latin-1"), safe="".join(map(chr, range(0x21, 0x7F))))
    )


def _refused(problem: str) -> InvalidInput:
    return InvalidInput(f"The path {problem}.", details={"fields": {"path": [problem]}})
