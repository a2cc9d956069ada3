"""The cost of decoding a JSON text, measured in one pass before it is decoded: depth, values, memory, long strings.

Python's decoder is recursive, and a dependency may raise the recursion limit far beyond what the C stack holds: a deep
text would then crash the process. A value may take a hundred times its bytes as an object, and a character of a string
four times, so memory is estimated here.
"""

import re
from dataclasses import dataclass, field

# Read in pieces: other threads run between two of them, and a refused text is not read to its end.
_PIECE_BYTES = 8192
_OPENING = b"[{"
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
# The most that a value takes: an object of one member, or a number with its digits in an object of many.
_BYTES_PER_VALUE = 136
# Bytes per byte of a string, as text and as string: a character takes up to four bytes in each, and with escapes the
# decoder allocates a quarter more.
_PLAIN, _ESCAPED, _WIDE = 1, 3, 11
_COLON = re.compile(rb"[ \t\r\n]*:")


class JsonLimitError(ValueError):
    """The text exceeds a limit; the message, after the name of the text, may be shown to whoever sent it."""


@dataclass(slots=True)
class JsonFootprint:
    values: int = 1
    """An upper bound for the names and values."""
    memory_bytes: int = 0
    """An upper estimate of the memory for decoding, when long strings are decoded separately."""
    long_strings: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of strings of more than 8 KiB, without quotes; not all of those below 16 KiB, and no names."""


def measure_json(text: bytes, *, max_depth: int, max_values: int | None = None) -> JsonFootprint:
    """Measure a text, valid or not, as far as a decoder reads it. Raises: JsonLimitError."""
    footprint = JsonFootprint()
    position, depth, short_bytes, short_weight = 0, 0, len(text), _ESCAPED
    # The unterminated string at the end of a piece: its start, and the cost of a byte of it.
    in_string, string_start, bytes_per_char = False, 0, _PLAIN
    while position < len(text):
        piece = _piece_at(text, position)
        depth_after = position + len(piece)
        parts = piece.split(b'"')
        outside = b"".join(parts[in_string::2])
        if in_string:
            end = position + len(parts[0])
            bytes_per_char = max(bytes_per_char, _bytes_per_char(text[position:end]))
            if len(parts) > 1 and end - string_start > _PIECE_BYTES and not _COLON.match(text, end + 1):
                footprint.long_strings.append((string_start, end))
                footprint.memory_bytes += (end - string_start) * bytes_per_char
                short_bytes -= end - string_start
                bytes_per_char = _PLAIN
        if len(parts) > 1 or not in_string:
            short_weight = max(short_weight, bytes_per_char, _bytes_per_char(text[position:depth_after]))
        in_string ^= len(parts) % 2 == 0
        if in_string and len(parts) > 1:
            string_start = depth_after - len(parts[-1])
            bytes_per_char = _bytes_per_char(text[string_start:depth_after])
        position = depth_after
        brackets = outside.translate(None, _NOT_BRACKETS)
        opening = brackets.count(b"[") + brackets.count(b"{")
        footprint.values += outside.count(b",") + outside.count(b":") + opening
        if max_values is not None and footprint.values > max_values:
            found = f"{footprint.values} in its first {position} bytes. Send it in several requests."
            raise JsonLimitError(f"has more than {max_values} names and values: {found}")
        if depth + opening <= max_depth:
            depth += 2 * opening - len(brackets)
        else:
            depth = _depth_after(brackets, depth, max_depth)
        if depth < 0:
            # Unbalanced: a decoder fails here, but may have widened all of the text before.
            short_weight = _WIDE
            break
    if in_string:
        short_weight = max(short_weight, bytes_per_char)
    footprint.memory_bytes += short_bytes * short_weight + footprint.values * _BYTES_PER_VALUE
    return footprint


def _piece_at(text: bytes, position: int) -> bytes:
    """Return a piece with its escapes masked, so that every quote in it starts or ends a string."""
    piece = text[position : position + _PIECE_BYTES]
    if b"\\" not in piece:
        return piece
    # Masked by as many bytes, so that positions stay.
    piece = piece.replace(b"\\\\", b"__")
    if piece.endswith(b"\\") and len(piece) > 1:
        # It escapes the first byte of the next piece, and belongs there.
        piece = piece[:-1]
    return piece.replace(b'\\"', b"__")


def _bytes_per_char(piece: bytes) -> int:
    if not piece.isascii() or b"\\u" in piece:
        return _WIDE
    return _ESCAPED if b"\\" in piece else _PLAIN


def _depth_after(brackets: bytes, depth: int, max_depth: int) -> int:
    for bracket in brackets:
        depth += 1 if bracket in _OPENING else -1
        if depth > max_depth:
            raise JsonLimitError(f"is nested deeper than {max_depth} levels.")
        if depth < 0:
            break
    return depth
