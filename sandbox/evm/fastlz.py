"""The length of data after FastLZ compression, on which the OP stack's data fee is based since Fjord.

Only the length is needed, so nothing is compressed. Follows op-geth's `FlzCompressLen` (core/types/rollup_cost.go)
and Solady's LibZip, the source of the predeployed oracle.
"""

_WINDOW = 8191
_HASH_SIZE = 8192
_HASH_FACTOR = 2654435769
_UNCOMPRESSED_TAIL = 13
_LONGEST_LITERAL = 32
_LONGEST_MATCH = 262
_SHORT_MATCH = 6


def compressed_length(data: bytes) -> int:
    """Return the number of bytes to which FastLZ level 1 compresses `data`."""
    table = [0] * _HASH_SIZE
    limit = max(len(data) - _UNCOMPRESSED_TAIL, 0)
    length, anchor, at = 0, 0, 2
    while at < limit:
        found = 0
        while True:
            three = _three(data, at)
            slot = _slot(three)
            found, table[slot] = table[slot], at
            if at >= limit:
                break
            distance = at - found
            at += 1
            if distance <= _WINDOW and three == _three(data, found):
                break
        if at >= limit:
            break
        at -= 1
        if at > anchor:
            length += _literals(at - anchor)
        matched = _matched(data, found + 3, at + 3, limit + 9)
        length += _match(matched)
        at += matched
        for _ in range(2):
            table[_slot(_three(data, at))] = at
            at += 1
        anchor = at
    return length + _literals(len(data) - anchor)


def _three(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


def _slot(three: int) -> int:
    return ((_HASH_FACTOR * three) >> 19) & (_HASH_SIZE - 1)


def _literals(count: int) -> int:
    whole, rest = divmod(count, _LONGEST_LITERAL)
    return whole * (_LONGEST_LITERAL + 1) + (rest + 1 if rest else 0)


def _matched(data: bytes, earlier: int, later: int, end: int) -> int:
    """Return the length of the match, plus the first byte that differs."""
    count = 0
    while count < end - later:
        count += 1
        if data[earlier + count - 1] != data[later + count - 1]:
            break
    return count


def _match(count: int) -> int:
    whole, rest = divmod(count - 1, _LONGEST_MATCH)
    return 3 * whole + (3 if rest >= _SHORT_MATCH else 2)
