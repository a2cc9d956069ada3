"""The target of a forwarded request: passed on byte for byte below its base, or refused."""

from __future__ import annotations

import pytest

from app.core.request_target import RequestTarget, parse_target
from app.errors import InvalidInput, NotFound

PREFIX = "/v1/gateway/x"
MISLEADING = [
    "..", "../", ".", "./x", "a/../../b", "a/..", "a/./b",
    "%2e%2e/secret", "%2E%2E/secret", ".%2e/secret", "%2e./secret", "a/%2e%2e%2fsecret", "..%2fsecret",
    "%252e%252e/secret", "%25252e%25252e/secret", "%2525252525252541",
    "..;/secret", "..;x=1/secret", "%2e%2e;/secret",
    "..\\secret", "..%5csecret", "a\\b", "a%5cb", "%255c",
    "/", "//evil.example/", "a//b", "a///", "http://evil.example/", "https:%2f%2fevil.example//",
    "a%00b", "a%0d%0aHost:%20evil", "a%0ab", "a%09b", "a%7fb", "a%2500",
    "%c0%ae%c0%ae/secret", "%c0%af", "%ff", "a%zz", "a%", "a%2",
    "%EF%BC%8E%EF%BC%8E/secret", "..%EF%BC%8Fsecret", "%E2%80%A4%E2%80%A4/secret",
    "a#b", "..#", "%20../x", "../%20",
]  # fmt: skip


def parsed(rest: str) -> RequestTarget:
    line = PREFIX + rest
    return parse_target(line, line.partition("?")[2], "v1", "gateway", "x")


@pytest.mark.parametrize(
    ("rest", "forwarded"),
    [
        ("", "/base"),
        ("/", "/base"),
        ("/weather/Berlin", "/base/weather/Berlin"),
        ("/a/", "/base/a/"),
        ("/a%20b/%C3%A9", "/base/a%20b/%C3%A9"),
        ("/\u00c3\u00a9?q=\u00c3\u00a4", "/base/%C3%A9?q=%C3%A4"),
        ("/a%2Cb;c=1/@:!$&'()*+,=", "/base/a%2Cb;c=1/@:!$&'()*+,="),
        ("/x?", "/base/x"),
        ("/x?a=1&a=2&b=%2F%20+&c", "/base/x?a=1&a=2&b=%2F%20+&c"),
        ("/x?q=%2e%2e%2f&x=//&y=http://z/", "/base/x?q=%2e%2e%2f&x=//&y=http://z/"),
        ("/...", "/base/..."),
        ("/a..b/.c", "/base/a..b/.c"),
    ],
)
def test_a_harmless_target_keeps_every_byte(rest: str, forwarded: str) -> None:
    assert parsed(rest).join_base("/base") == forwarded


def test_a_target_that_some_server_reads_as_another_path_is_refused() -> None:
    assert [rest for rest in MISLEADING if _is_accepted(f"/{rest}")] == []


def _is_accepted(rest: str) -> bool:
    try:
        parsed(rest)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize(
    "line",
    ["/v1/gateway/xy", "/v1/gateway/%78/a", "/v1/gateway/x%2fa", "//v1/gateway/x/a", "/a/../v1/gateway/x/a", "/", ""],
)  # fmt: skip
def test_a_disguised_prefix_is_not_found(line: str) -> None:
    with pytest.raises(NotFound):
        parse_target(line, "", "v1", "gateway", "x")


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("key=1&a=1", "a=1"),
        ("a=1&key=1", "a=1"),
        ("a=1&KEY=1&b=%2F", "a=1&b=%2F"),
        ("k%65y=1", ""),
        ("key", ""),
        ("+key=1&keys=2&a=key", "+key=1&keys=2&a=key"),
    ],
)
def test_a_named_parameter_is_removed_in_any_spelling(query: str, kept: str) -> None:
    assert parsed(f"/x?{query}").without_parameters({"key"}).query == kept
