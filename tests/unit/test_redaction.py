"""The operator's credential is redacted from responses: streamed, split anywhere, or compressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.forwarding.filters import Redactor
from app.ports.errors import OutcomeUnknown

KEY = "sk-sk-operator"
SECRET = KEY.encode()


def relayed(pieces: list[bytes], encoding: str | None = None) -> bytes:
    redactor = Redactor([KEY], encoding)
    return b"".join([redactor.feed(piece) for piece in pieces] + [redactor.finish()])


def _cut(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


@given(st.lists(st.sampled_from([SECRET, b"sk-", b"s", b"sk-sk-operato", b"x", b"\n\n"]), max_size=8), st.data())
def test_the_credential_is_redacted_wherever_a_stream_is_split(words: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert relayed(pieces) == whole.replace(SECRET, "…".encode())


def test_an_event_is_relayed_immediately_except_for_a_possible_prefix_of_a_secret() -> None:
    redactor = Redactor([KEY], None)
    assert redactor.feed(b"data: sk-sk\n\n") == b"data: sk-sk\n\n"
    assert redactor.feed(b"data: sk-sk-oper") == b"data: "
    assert redactor.feed(b"a\n\n") == b"sk-sk-opera\n\n"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_response_is_relayed_unchanged_unless_it_holds_the_credential(encoding: str) -> None:
    compress = gzip.compress if encoding == "gzip" else zlib.compress
    good, bad = compress(b"sk-sk-opera" * 9000), compress(b"a" * 90_000 + SECRET)
    for size in (1, 7, len(bad)):
        assert relayed(list(_cut(good, size)), encoding) == good
        passed: list[bytes] = []
        with pytest.raises(OutcomeUnknown):
            passed.extend(map(Redactor([KEY], encoding).feed, _cut(bad, size)))
        assert SECRET not in zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(b"".join(passed))


@pytest.mark.parametrize(("encoding", "body"), [("br", b"x"), ("gzip, gzip", b"x"), ("gzip", b"not gzip")])
def test_a_response_that_cannot_be_searched_is_not_relayed(encoding: str, body: bytes) -> None:
    with pytest.raises(OutcomeUnknown):
        relayed([body, b""], encoding)


def test_an_endless_compressed_response_without_content_is_not_buffered() -> None:
    redactor, compressor = Redactor([KEY], "gzip"), zlib.compressobj(wbits=31)
    assert redactor.feed(compressor.compress(b"s") + compressor.flush(zlib.Z_SYNC_FLUSH)) == b""
    empty_blocks = [b"\x00\x00\x00\xff\xff" * 10_000] * 64
    with pytest.raises(OutcomeUnknown):
        b"".join(map(redactor.feed, empty_blocks))


def test_a_response_to_a_call_without_credential_is_not_scanned() -> None:
    assert Redactor([""], "br").feed(b"sk-anything") == b"sk-anything"
