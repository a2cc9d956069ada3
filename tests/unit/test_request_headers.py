"""The headers of a request are those that werkzeug reads from the same WSGI environment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import EnvironHeaders

from app.web.client_request import RequestHeaders

_variables = st.sampled_from([
    "HTTP_HOST", "HTTP_X_API_KEY", "HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH", "CONTENT_TYPE", "CONTENT_LENGTH",
    "REMOTE_ADDR", "X_API_KEY", "wsgi.version",
])  # fmt: skip
_names = st.sampled_from(["Host", "x-api-key", "X_API_KEY", "Content-Type", "content_length", "Remote-Addr", ""])


@given(st.dictionaries(_variables, st.sampled_from(["", "7", "text"])), _names)
def test_headers_are_read_as_werkzeug_reads_them(environ: dict[str, str], name: str) -> None:
    expected, read = EnvironHeaders(environ), RequestHeaders(environ)

    assert list(read) == list(expected)
    assert read.get(name) == expected.get(name)
    assert read.get(name, "-") == expected.get(name, "-")
    assert read.get(name, type=int) == expected.get(name, type=int)
    assert (name in read) == (name in expected)
