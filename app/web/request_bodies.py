"""Request bodies: read once, decompressed, within the memory that the process has for bodies, and parsed strictly.

webargs handles malformed JSON without `handle_error`, and `float` would lose digits of amounts; both are replaced here.
"""

import io
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import brotli  # type: ignore[import-untyped]
import marshmallow as ma
from backports import zstd
from flask import Request
from webargs.flaskparser import FlaskParser
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from app.core import strict_json
from app.core.strict_json import MAX_DEPTH, MAX_VALUES
from app.db.unit_of_work import striped_lock
from app.errors import InvalidInput, PayloadTooLarge
from app.web.client_request import RAW_BODY, ClientRequest, current_request
from app.web.error_responses import client_error_of
from server.client_socket import ConnectionShed
from server.pool import ANONYMOUS

MAX_KEYLESS_BYTES = 256 * 1024
"""The largest body that is read without a key, decoded or not."""
_MEBIBYTE = 2**20
_CHUNK_BYTES = 65_536
# Smaller reads make the server copy what remains of each received chunk.
_READ_BYTES = _MEBIBYTE
# Decoded in a few milliseconds.
_UNSERIALIZED_BYTES = 16_384
_DECODED_KEY = "purser.decoded_body"
_decoding_lock = threading.Lock()
_Decoded: TypeAlias = tuple[bytes, bool, bool, bytes]
"""What was decoded, whether more input is needed, whether the stream has ended, and what follows its end."""
MAX_KEYLESS_VALUES = 20_000
"""Names and values of a body that is sent without a key, or to one of our own routes."""
_PARSED_KEY = "purser.parsed_body"


def raw_body(request: ClientRequest) -> bytes:
    """Read a request's body as it was sent, once for all callers.

    Raises: PayloadTooLarge; InvalidInput when it is incomplete or malformed; RequestTimeout when it takes too long;
    Overloaded when there is no memory for it.
    """
    if RAW_BODY not in request.environ:
        request.environ[RAW_BODY] = _read(request)
    body: bytes = request.environ[RAW_BODY]
    return body


def body_environ(body: bytes) -> dict[str, Any]:
    """Return the part of a WSGI environment for a body that is read already."""
    return {RAW_BODY: body, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}


def decoded_body(request: ClientRequest) -> bytes:
    """Read a request's body and decode its `Content-Encoding`: gzip, zstd or br.

    The limit holds for the decoded body, and nothing beyond it is decoded.

    Raises: what `raw_body` does; InvalidInput for another encoding, or malformed data.
    """
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding in {"", "identity"}:
        return raw_body(request)
    if encoding not in _DECOMPRESSORS:
        raise InvalidInput(
            f"The Content-Encoding {encoding[:40]!r} of the request body is not supported: send one of "
            f"{', '.join(_DECOMPRESSORS)}, or none."
        )
    if _DECODED_KEY not in request.environ:
        compressed = raw_body(request)
        with serialize_decoding(request, len(compressed)):
            request.environ[_DECODED_KEY] = _decompress(request, encoding, compressed)
    body: bytes = request.environ[_DECODED_KEY]
    return body


@contextmanager
def serialize_decoding(request: ClientRequest, size: int) -> Iterator[None]:
    """Let one thread at a time decode a body of this size, unless it is small.

    Threads that compute concurrently delay each other and small requests. An account has one place in the queue, so
    that others wait for one of its bodies and not for all.
    """
    if size <= _UNSERIALIZED_BYTES:
        yield
        return
    connection = request.connection
    with striped_lock(f"body:{connection.account_id if connection else ANONYMOUS}"), _decoding_lock:
        yield


def reserve_memory(request: ClientRequest, amount: int) -> None:
    """Reserve memory for a request's decoded body, until the request is forwarded or ends.

    Raises: PayloadTooLarge if no process has this much memory; Overloaded if this one currently has not.
    """
    connection = request.connection
    if connection is None:
        return
    if amount > connection.decoded_limit:
        raise PayloadTooLarge(
            f"Decoding the request body would take {amount // _MEBIBYTE} MiB of memory; the limit for one request is "
            f"{connection.decoded_limit // _MEBIBYTE} MiB. Send fewer values, and less text outside of ASCII."
        )
    try:
        connection.reserve_decoded(amount)
    except ConnectionShed as error:
        raise client_error_of(error) or error from None


def release_decoded(request: ClientRequest) -> None:
    """Release what `reserve_memory` reserved, once nothing refers to the decoded body."""
    if request.connection is not None:
        request.connection.release_decoded()


def limit_to_keyless(request: ClientRequest) -> None:
    request.max_content_length = MAX_KEYLESS_BYTES


def _read(request: ClientRequest) -> bytes:
    limit, length = request.max_content_length, request.content_length
    connection = request.connection
    try:
        stream = request.stream
        if connection is not None and (length or 0) > _CHUNK_BYTES:
            connection.check_body_fits(length or 0)
        # A read allocates all that it may return.
        body = stream.read(min(length, _READ_BYTES) if length is not None else _READ_BYTES)
        if len(body) != length:
            body = _join_chunks(chain((body,), iter(lambda: stream.read(_READ_BYTES), b"")))
    except RequestEntityTooLarge:
        raise _too_large(limit) from None
    except (OSError, ClientDisconnected) as error:
        raise client_error_of(error) or InvalidInput("The request body could not be read.") from None
    if length is None and limit is not None and len(body) >= limit:
        # A chunked body ends at the limit without an error (werkzeug's LimitedStream).
        raise _too_large(limit)
    return body


def _decompress(request: ClientRequest, encoding: str, compressed: bytes) -> bytes:
    connection, limit = request.connection, request.max_content_length

    def bounded_chunks() -> Iterator[bytes]:
        count = 0
        for piece in _decompressed_chunks(encoding, compressed):
            count += len(piece)
            if limit is not None and count > limit:
                raise _too_large(limit)
            if connection is not None:
                connection.reserve_body(len(piece))
            yield piece

    try:
        return _join_chunks(bounded_chunks())
    except ConnectionShed as error:
        raise client_error_of(error) or error from None
    except (EOFError, zlib.error, zstd.ZstdError, brotli.error):
        raise InvalidInput(f"The request body is not valid {encoding}.") from None


def _too_large(limit: int | None) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is too large: at most {limit} bytes, decoded if it is compressed.")


def _join_chunks(pieces: Iterable[bytes]) -> bytes:
    # getvalue() does not copy, unlike bytes(bytearray) and b"".join().
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
    return buffer.getvalue()


def _decompressed_chunks(encoding: str, compressed: bytes) -> Iterator[bytes]:
    """Decode one stream piece by piece.

    Several streams in one body are refused: they could be many empty ones.
    """
    make, decode = _DECOMPRESSORS[encoding]
    decoder, position, needs_input, has_ended, surplus = make(), 0, True, False, b""
    while not has_ended:
        data = compressed[position : position + _CHUNK_BYTES] if needs_input else b""
        position += len(data)
        piece, needs_input, has_ended, surplus = decode(decoder, data)
        if not piece and not data and not has_ended:
            raise EOFError
        yield piece
    if surplus or position < len(compressed):
        raise EOFError


def _gunzip(decoder: Any, data: bytes) -> _Decoded:
    piece = decoder.decompress(decoder.unconsumed_tail + data, _CHUNK_BYTES)
    return piece, not decoder.unconsumed_tail, decoder.eof, decoder.unused_data


def _decode_zstd(decoder: Any, data: bytes) -> _Decoded:
    return decoder.decompress(data, _CHUNK_BYTES), decoder.needs_input, decoder.eof, decoder.unused_data


def _decode_brotli(decoder: Any, data: bytes) -> _Decoded:
    # It raises an error for a surplus.
    piece = decoder.process(data, output_buffer_limit=_CHUNK_BYTES)
    return piece, decoder.can_accept_more_data(), decoder.is_finished(), b""


# How each decoder is made, and decodes what comes next.
_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], Callable[[Any, bytes], _Decoded]]] = {
    "gzip": (lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), _gunzip),
    # RFC 9659: a window of 8 MiB, and no larger one.
    "zstd": (
        lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 23}), _decode_zstd,
    ),
    "br": (brotli.Decompressor, _decode_brotli),
}  # fmt: skip


def parse_json(
    request: ClientRequest, body: bytes, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> Any:
    """Parse a JSON body of a request, for which memory is reserved before anything is decoded.

    `max_values` is MAX_VALUES, or MAX_KEYLESS_VALUES while the request may send no more than is read without a key.

    Raises: what `strict_json.parse_json` does; PayloadTooLarge and Overloaded if there is no memory for it.
    """
    if max_values is None:
        limit = request.max_content_length
        max_values = MAX_VALUES if limit is None or limit > MAX_KEYLESS_BYTES else MAX_KEYLESS_VALUES
    reserve = partial(reserve_memory, request)
    with serialize_decoding(request, len(body)):
        return strict_json.parse_json(body, max_depth=max_depth, max_values=max_values, reserve=reserve)


def parsed_body(
    request: ClientRequest, *, max_depth: int = MAX_DEPTH, max_values: int = MAX_KEYLESS_VALUES
) -> dict[str, Any]:
    """Parse the JSON object in a request's body, once for all callers; an empty body is an empty object.

    Raises: what `decoded_body` and `parse_json` do; InvalidInput for another value.
    """
    if _PARSED_KEY not in request.environ:
        body = decoded_body(request)
        parsed = parse_json(request, body, max_depth=max_depth, max_values=max_values) if body.strip() else {}
        if not isinstance(parsed, dict):
            raise InvalidInput("The request body must be a JSON object.")
        request.environ[_PARSED_KEY] = parsed
    found: dict[str, Any] = request.environ[_PARSED_KEY]
    return found


def parsed_body_environ(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a WSGI environment for a body that is parsed already; equal bodies have equal bytes."""
    text = json.dumps(body, sort_keys=True, default=repr).encode()
    return {**body_environ(text), _PARSED_KEY: dict(body)}


def flatten_errors(messages: Any) -> dict[str, list[str]]:
    """Flatten marshmallow's messages to `{"field": ["problem", …]}`; nested fields are joined with dots."""
    flat: dict[str, list[str]] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for name, inner in node.items():
                walk(prefix if name == "_schema" else f"{prefix}.{name}".lstrip("."), inner)
        else:
            flat.setdefault(prefix or "body", []).extend(str(text) for text in node)

    walk("", messages)
    return flat


class StrictParser(FlaskParser):  # type: ignore[misc, unused-ignore]
    """The parser of all routes: unknown fields are ignored, a body needs no content type, errors are InvalidInput."""

    # webargs declares it so.
    DEFAULT_UNKNOWN_BY_LOCATION = {**FlaskParser.DEFAULT_UNKNOWN_BY_LOCATION, "json": ma.EXCLUDE}  # noqa: RUF012
    DEFAULT_VALIDATION_STATUS = 400
    MAX_DEPTH = MAX_DEPTH
    MAX_VALUES = MAX_KEYLESS_VALUES

    def _raw_load_json(self, req: Request) -> Any:  # noqa: ARG002 - Flask's, which is the same one
        return parsed_body(current_request(), max_depth=self.MAX_DEPTH, max_values=self.MAX_VALUES)

    def handle_error(self, error: ma.ValidationError, *_args: object, **_kwargs: object) -> NoReturn:
        """Convert marshmallow's messages. Raises: InvalidInput always."""
        (messages,) = error.messages_dict.values()  # webargs nests them under the name of the location
        fields = flatten_errors(messages)
        message = f"Several fields are not valid: {', '.join(sorted(fields))}."
        if len(fields) == 1:
            [(name, problems)] = fields.items()
            message = f"{name}: {problems[0]}"
        raise InvalidInput(message, details={"fields": fields}) from None
