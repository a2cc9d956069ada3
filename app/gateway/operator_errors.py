"""Errors of a provider that concern the operator's credential or account: clients get an error of this service.

They could do nothing about the provider's text, would take it for one about their own key, and it may show parts of the
operator's. Errors about the request are relayed, without such parts.
"""

import json
import re
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import structlog

from app.core.content_decoding import UndecodableResponse, decoder_for
from app.core.strict_json import parse_response
from app.errors import RateLimited, UpstreamError
from app.gateway.providers.table import Provider
from app.ports.errors import OutcomeUnknown
from app.ports.upstream import Headers, UpstreamResponse, named_headers
from app.state import app_state

_log = structlog.get_logger(__name__)
_MAX_BYTES = 256 * 1024
_MAX_SECONDS = 30
_MAX_TEXT, _MAX_TEXTS = 2_000, 200
_MAX_DEPTH = 6
_CODE_FIELDS = frozenset({"code", "type", "status", "reason", "tag", "error_code"})
_WORDS: Mapping[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_OPERATOR_CODES, _REQUEST_CODES, _RATE_CODES = (
    frozenset(_WORDS[f"{concern}_codes"]) for concern in ("operator", "request", "rate")
)
_OPERATOR_TEXT, _REQUEST_TEXT = (
    re.compile("|".join(_WORDS[f"{concern}_texts"]), re.IGNORECASE | re.DOTALL) for concern in ("operator", "request")
)
# Keys are shown as parts of them around asterisks, bullets, an ellipsis or the like.
_MASK = re.compile(rb"\*{3,}|(?:\xe2\x80\xa2|\\u2022){3,}|\xe2\x80\xa6|\\u2026|\.{3,}|[xX]{4,}")
_SHOWN_BEFORE, _SHOWN_AFTER = re.compile(rb"[A-Za-z0-9_-]*\Z"), re.compile(rb"[A-Za-z0-9_*.-]{0,64}")
_MIN_SHOWN, _MAX_SHOWN = 3, 64
_CERTAIN_MASKS = (b"*", b"\xe2\x80\xa2", b"\\u2022")
_CREDENTIAL_STATUSES = frozenset({401, 402, 403})
_ACCOUNT = re.compile(rb"\b(?:org[-_]|proj_)[A-Za-z0-9]{8,}|\bprojects?[/ ][0-9]{6,}")
_HIDDEN = "…".encode()
_WORD, _ESCAPE = re.compile(r"[a-z0-9]+"), re.compile(r"\\(?:u[0-9a-f]{4}|.)")


@dataclass
class ReadResponse:
    """A response whose first bytes, `body`, were read; `rest` is what follows."""

    status: int
    headers: Headers
    body: bytes
    rest: UpstreamResponse

    def read(self) -> bytes:
        body, self.body = self.body, b""
        return body or self.rest.read()

    def read_within(self, seconds: Decimal) -> bytes | None:
        return self.read() if self.body else self.rest.read_within(seconds)

    def abort(self) -> None:
        self.rest.abort()

    def close(self) -> None:
        self.rest.close()


def screen(provider: Provider, client_id: str, target: str, sent: bytes, incoming: UpstreamResponse) -> ReadResponse:
    """Return a provider's error as clients may see it, decoded; the exchange is closed in any case.

    One about the operator's account is logged once a minute for each client.

    Raises: UpstreamError if it concerns the operator's account, or is longer than 256 KiB; OutcomeUnknown.
    """
    named = named_headers(incoming)
    encoding = named.get("content-encoding")
    try:
        body = _read(incoming, encoding)
    finally:
        incoming.close()
    concern = operator_concern(incoming.status, named, body, cache(partial(_words_sent, target, sent)))
    if concern is not None:
        reason = hide_keys(concern.encode(), provider.api_key).decode()[:200]
        with suppress(RateLimited):
            app_state().rate_limiter.count("1 per minute", "operator error", f"{provider.slug} {client_id}")
            _log.error("upstream_rejected_credential", provider=provider.slug, status=incoming.status, reason=reason)
        raise UpstreamError(
            f"The provider {provider.slug} refused this service's own credential or account (status"
            f" {incoming.status}). Your key and your request are not the cause, and nothing was charged. Try"
            " another provider, or again later; the operator's log has the reason.",
            details={"reason": "operator_account", "upstream_status": incoming.status},
        )
    cleaned = hide_keys(body, provider.api_key)
    changed = {"content-length", "content-encoding"} if encoding or cleaned != body else set()
    headers = [
        (name, value)
        for name, value in incoming.headers
        if name.lower() not in changed
        and hide_keys(latin := value.encode("latin-1", "replace"), provider.api_key) == latin
    ]
    return ReadResponse(incoming.status, headers, cleaned, incoming)


def operator_concern(
    status: int, headers: dict[str, str], body: bytes, words_sent: Callable[[], str] = str
) -> str | None:
    """Return what an error says about the operator's account; None if it is about the request, a rate or a failure.

    What the request contains is only quoted (`words_sent`).
    """
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    try:
        document = parse_response(body, parse_float=str, parse_constant=str)
    except ValueError:
        document = None
    codes, texts = set[str](), list[str]()
    for name, value in islice(_strings(document, 0), _MAX_TEXTS):
        if name in _CODE_FIELDS:
            codes.add(value.lower())
        texts.append(value[:_MAX_TEXT])
    if not texts:
        texts = [body[:_MAX_TEXT].decode("utf-8", "replace")]
    concern = next((code for code in sorted(codes & _OPERATOR_CODES) if _words(code) not in words_sent()), None)
    # A 429 that states when to try again, or calls itself a rate limit, is about a rate.
    is_rate = status == HTTPStatus.TOO_MANY_REQUESTS and bool(
        {"retry-after", "retry-after-ms"} & headers.keys() or codes & _RATE_CODES or b'"retryDelay"' in body
    )
    if concern is None and not is_rate:
        found = (each[0] for text in texts for each in _OPERATOR_TEXT.finditer(text))
        concern = next((each for each in found if _words(each) not in words_sent()), None)
    if concern is not None or status not in _CREDENTIAL_STATUSES:
        return concern
    if status == HTTPStatus.FORBIDDEN and document is not None:
        is_about_request = bool(codes & _REQUEST_CODES) or b'"flagged_input"' in body
        if is_about_request or any(_REQUEST_TEXT.search(text) for text in texts):
            return None
    return ", ".join(sorted(codes)) or "no code"


def hide_keys(text: bytes, key: str) -> bytes:
    """Return a text without masked keys, this key and parts of it, and ids of the account."""
    own, pieces, end = key.encode(), list[bytes](), 0
    for mask in _MASK.finditer(text):
        at = max(end, mask.start() - _MAX_SHOWN)
        before = _SHOWN_BEFORE.search(text, at, mask.start())
        shown, rest = before[0] if before else b"", _SHOWN_AFTER.match(text, mask.end())
        after = rest[0] if rest else b""
        if mask[0].startswith(_CERTAIN_MASKS):
            is_key = len(shown) + len(after) >= _MIN_SHOWN
        else:
            is_start = len(shown) >= _MIN_SHOWN and own.startswith(shown)
            is_key = is_start or (len(after) >= _MIN_SHOWN and own.endswith(after))
        if is_key and mask.start() >= end:
            pieces += [text[end : mask.start() - len(shown)], _HIDDEN]
            end = mask.end() + len(after)
    whole = b"".join([*pieces, text[end:]])
    return _ACCOUNT.sub(_HIDDEN, whole.replace(own, _HIDDEN) if own else whole)


def _words(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.lower()))} "


def _words_sent(target: str, body: bytes) -> str:
    """Return the words of a request, however its JSON is escaped."""
    try:
        text = json.dumps(parse_response(body, parse_float=str, parse_constant=str), ensure_ascii=False)
    except ValueError:
        text = body.decode("utf-8", "replace")
    return _words(f"{unquote_plus(target)} {_ESCAPE.sub(' ', text)}")


def _strings(node: Any, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        return
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        if isinstance(value, str | int):
            yield str(name), str(value)
        else:
            yield from _strings(value, depth + 1)


def _read(incoming: UpstreamResponse, content_encoding: str | None) -> bytes:
    """Return the decoded body. Raises: UpstreamError if it is too large or cannot be searched; OutcomeUnknown."""
    refusal = UpstreamError(
        f"The provider answered with status {incoming.status}, and a body that is too large or cannot be read."
    )
    decoder = decoder_for(content_encoding)
    if decoder is None:
        raise refusal
    deadline, body = time.monotonic() + _MAX_SECONDS, b""
    while piece := incoming.read():
        try:
            for decoded in decoder.feed(piece):
                body += decoded
                if len(body) > _MAX_BYTES:
                    raise refusal
        except UndecodableResponse:
            raise refusal from None
        if time.monotonic() > deadline:
            raise OutcomeUnknown("timeout")
    return body
