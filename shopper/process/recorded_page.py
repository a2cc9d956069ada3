"""The document of a page on which a purchase failed, without what was typed, without persons and tokens. No I/O.

Sanitized by the browser's process, and by the service again: the same function, which changes nothing the second time.
"""

import html
import json
import re
from collections.abc import Callable
from contextlib import suppress
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

from shopper.page import json_ld

MAX_CHARACTERS = 1_000_000
_MAX_INPUT = 4 * MAX_CHARACTERS
_MAX_PARSED = 2 * _MAX_INPUT
_REDACTED = "…"
_MAX_TEXT = 2_000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_HEAD = f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
# With their contents; `script` is kept for structured data only.
_DROPPED = frozenset({"style", "noscript", "object", "canvas", "video", "audio", "iframe", "script"})
_DROPPED_VOID = frozenset({"base", "link", "embed", "source", "track", "frame"})
_VOID = frozenset({"input", "br", "hr", "img", "meta", "wbr", "col", "area"})
_TAG = re.compile(r"[a-z][a-z0-9-]{0,40}")
_ATTRIBUTES = frozenset(
    (
        "id", "class", "name", "type", "role", "for", "form", "autocomplete", "placeholder", "label", "title", "alt",
        "lang", "required", "disabled", "checked", "selected", "readonly", "open", "hidden", "multiple", "colspan",
        "rowspan",
        "itemscope", "itemprop", "itemtype", "property", "content", "value", "href", "action", "formaction", "style",
        "shadowrootmode", "data-currency", "data-currency-code", "data-path", "slot",
    )
)  # fmt: skip
_CHOICES = frozenset({"radio", "checkbox", "submit", "button", "reset"})
_PATHS = frozenset({"href", "action", "formaction", "data-path"})
_STYLE = re.compile(r"(display|visibility|opacity|text-decoration|position|left|overflow|width|height):[a-z0-9-]{1,30}")
_DATA = frozenset(
    (
        "@context", "@type", "@graph", "mainEntity", "offers", "hasVariant", "price", "priceCurrency", "availability",
        "orderNumber", "totalPaymentDue", "value",
    )
)  # fmt: skip
# An amount with its currency: kept, although it has digits.
_AMOUNT = re.compile(
    r"(?:[$€£¥₹]|\b[A-Z]{3}\b|\bkr|zł)\s?\d{1,7}(?:[.,' ]\d{3}){0,4}(?:[.,]\d{1,2})?(?!\d)"
    r"|(?<![\d-])\d{1,7}(?:[.,' ]\d{3}){0,4}(?:[.,]\d{1,2})?\s?(?:[$€£¥₹]|\b[A-Z]{3}\b|kr\b|zł)"
    r"|(?<![\d.,-])\d{1,7}[.,]\d{2}(?![\d.,-])"
)
_TOKEN = re.compile(r"(?<![\w+/=-])(?=[\w+/=-]*\d)[\w+/=-]{20,}|\b[0-9a-f]{12,}\b", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


def sanitize(document: str, redact: Callable[[str], str]) -> str:
    """Return a document of allowed elements and attributes, with amounts and structure, its other texts redacted."""
    parser = _Sanitizer(redact)
    # A space ends a character reference. The library's own end of a document takes quadratic time.
    rest, budget = document[:_MAX_INPUT] + " ", _MAX_PARSED
    # The parser asserts that marked sections are known: a page must not end a purchase by another one.
    with suppress(AssertionError, _OutputFull):
        while rest and budget > 0:
            budget -= len(rest)
            parser.feed(rest)
            # What it leaves has no end, or cannot be read.
            rest, parser.rawdata = parser.rawdata.partition(">")[2], ""
    return parser.document


class _OutputFull(Exception):
    pass


class _Sanitizer(HTMLParser):
    def __init__(self, redact: Callable[[str], str]) -> None:
        super().__init__(convert_charrefs=True)
        self._redact = redact
        self._parts = [_HEAD]
        self._length = 0
        self._dropped = ""
        self._is_data = False

    @property
    def document(self) -> str:
        return "".join(self._parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._is_data = tag == "script" and given.get("type") == "application/ld+json"
        is_hidden = tag == "input" and given.get("type") == "hidden"
        if self._dropped or not _TAG.fullmatch(tag) or tag in _DROPPED_VOID or is_hidden:
            return
        if tag in _DROPPED and not self._is_data:
            self._dropped = tag
            if tag == "iframe":
                self._write(f'<iframe title="{self._attribute("title", given.get("title", ""))}"></iframe>')
            return
        if tag == "meta" and not re.search("price|availability", f"{given.get('property')} {given.get('itemprop')}"):
            return
        if self._is_data:
            self._write('<script type="application/ld+json">')
            return
        if tag == "input" and given.get("value") and given.get("type") not in _CHOICES:
            # What was typed.
            given["value"] = _REDACTED
        kept = [
            f'{name}="{self._attribute(name, value)}"' if value else name
            for name, value in given.items()
            if (name in _ATTRIBUTES or re.fullmatch(r"aria-[a-z]{1,20}", name))
        ]
        self._write(f"<{' '.join([tag, *kept])}>")

    def handle_endtag(self, tag: str) -> None:
        if self._dropped:
            self._dropped = "" if tag == self._dropped else self._dropped
        elif _TAG.fullmatch(tag) and tag not in _VOID:
            self._is_data = False
            self._write(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._dropped:
            return
        if self._is_data:
            self._write(self._structured(data))
        else:
            self._write(html.escape(self._text(data)))

    def _write(self, part: str) -> None:
        self._length += len(part)
        if self._length > MAX_CHARACTERS:
            raise _OutputFull
        self._parts.append(part)

    def _attribute(self, name: str, value: str) -> str:
        if name == "style":
            value = ";".join(rule for rule in value.split(";") if _STYLE.fullmatch(rule))
        elif name in _PATHS:
            value = self._path(value)
        else:
            value = self._text(value)
        return html.escape(value[:1000])

    def _path(self, address: str) -> str:
        try:
            path = urlsplit(address).path
        except ValueError:
            return ""
        return "/".join(self._text(part) for part in path.split("/"))

    def _text(self, text: str) -> str:
        """Return a text with its amounts, and otherwise without persons, credentials, numbers and tokens."""
        plain = _SPACE.sub(" ", text[:_MAX_TEXT])
        found, end = [], 0
        for amount in _AMOUNT.finditer(plain):
            found += [self._words(plain[end : amount.start()]), amount[0]]
            end = amount.end()
        return "".join([*found, self._words(plain[end:])])

    def _words(self, text: str) -> str:
        return self._redact(_TOKEN.sub(_REDACTED, text)) if text.strip() else text

    def _structured(self, text: str) -> str:
        return json.dumps(self._reduced(json_ld.parse(text))).replace("<", "\\u003c")

    def _reduced(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._reduced(inner) for inner in node]
        if isinstance(node, dict):
            return {
                name: _REDACTED if name == "orderNumber" else self._reduced(inner)
                for name, inner in node.items()
                if name in _DATA
            }
        return self._text(node) if isinstance(node, str) and not node.startswith("https://schema.org") else node
