"""The target of a forwarded request: passed on byte for byte, or refused.

However an upstream reads the path (decoding it once or again, dropping parameters, folding look-alikes), it stays below
the base URL that it is appended to.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from app.errors import InvalidInput, NotFound

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\]")
_MAX_DECODINGS = 5


def path_prefix(path: str) -> str:
    """Return the first two segments of a path: the operation, without the ids below it."""
    return "/".join(path.strip("/").split("/")[:2])


class RequestTarget(NamedTuple):
    """A path below an upstream's base and a query: `raw_path` and `query` as sent, `path` decoded, for rules.

    None of the paths begins with a slash; `path` has no empty segments.
    """

    raw_path: str
    path: str
    query: str

    def join_base(self, base_path: str) -> str:
        """Return the target of the outgoing request, below the path of a base URL (`/v1`, or nothing)."""
        path = f"{base_path}/{self.raw_path}" if self.raw_path or not base_path else base_path
        return f"{path}?{self.query}" if self.query else path

    def without_parameters(self, names: Collection[str]) -> RequestTarget:
        """Remove parameters from the query, such as credentials; the others keep every byte."""
        if not self.query:
            return self
        kept = [part for part in self.query.split("&") if unquote_plus(part.split("=", 1)[0]).lower() not in names]
        return RequestTarget(self.raw_path, self.path, "&".join(kept))

    def split_first_segment(self) -> tuple[str, RequestTarget]:
        """Split off the first segment, decoded; return it and the rest."""
        first, _, rest = self.raw_path.partition("/")
        name = unquote_to_bytes(first).decode()
        return name, RequestTarget(rest, _decode_path(rest), self.query)


def parse_target(line: str, query: str, *prefix: str) -> RequestTarget:
    """Return what is asked for below a prefix. Raises: InvalidInput if it could lead elsewhere; NotFound."""
    if "#" in line:
        raise _invalid_path("has a fragment")
    raw_path = line.partition("?")[0]
    start = "/" + "/".join(prefix)
    if raw_path != start and not raw_path.startswith(f"{start}/"):
        raise NotFound
    rest = _ascii(raw_path[len(start) + 1 :])
    return RequestTarget(rest, _decode_path(rest), _ascii(query))


def _decode_path(raw_path: str) -> str:
    if "//" in f"/{raw_path}":
        raise _invalid_path("has an empty segment")
    if _BAD_ESCAPE.search(raw_path):
        raise _invalid_path("has a % that begins no escape")
    text, path = raw_path, None
    for _ in range(_MAX_DECODINGS):
        for form in {text, unicodedata.normalize("NFKC", text)}:
            if _FORBIDDEN_CHARACTERS.search(form):
                raise _invalid_path("has a backslash or a control character")
            # "..;x" is ".." to servers that know parameters of segments.
            if any(segment.split(";", 1)[0].strip() in {".", ".."} for segment in form.split("/")):
                raise _invalid_path("has a dot segment")
        try:
            decoded = unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise _invalid_path("is not UTF-8") from None
        path = decoded if path is None else path
        if decoded == text:
            return "/".join(segment for segment in path.split("/") if segment)
        text = decoded
    raise _invalid_path("is encoded too often")


def _ascii(text: str) -> str:
    # Servers pass bytes as Latin-1; non-ASCII bytes are sent escaped, which is equivalent by RFC 3987.
    return text if text.isascii() else quote(text.encode("latin-1"), safe="".join(map(chr, range(0x21, 0x7F))))


def _invalid_path(problem: str) -> InvalidInput:
    return InvalidInput(f"The path {problem}.", details={"fields": {"path": [problem]}})
