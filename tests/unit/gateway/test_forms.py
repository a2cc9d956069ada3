"""Multipart forms: those of the usual clients are read, those that servers read in different ways are refused."""

from __future__ import annotations

import time

import pytest

from app.errors import InvalidInput
from app.gateway.validation.body import BodyKind, RequestBody, boundary_of, parse_body
from tests.support.provider_rows import FORM, form_of

MODEL = 'Content-Disposition: form-data; name="model"'
FILE = 'Content-Disposition: form-data; name="file"; filename="a.wav"'
SOUND = b"RIFF\x00\xff"


def form(*parts: tuple[str, bytes], boundary: str = "b", before: bytes = b"", after: bytes = b"\r\n") -> bytes:
    written = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts]
    return before + b"".join(written) + f"--{boundary}--".encode() + after


def read(raw: bytes, content_type: str = "multipart/form-data; boundary=b") -> RequestBody:
    return parse_body(BodyKind.FORM, raw, content_type)


@pytest.mark.parametrize(
    "head",
    [
        # .NET: tokens without quotes, and both forms of the file's name.
        "Content-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav",
        "Content-Type: audio/wav\r\nContent-Disposition: form-data; name=file; filename=a.wav",
        "Content-Disposition: form-data; name=file; filename*=utf-8''%e2%82%ac.wav",
        'Content-Disposition: form-data; name=file; filename="=?utf-8?B?4oKsLndhdg==?="; filename*=utf-8\'\'x.wav',
        # Java: Apache HttpClient, OkHttp, JavaMail (which folds long lines).
        f"{FILE}\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: binary",
        f"{FILE}\r\nContent-Type: audio/wav\r\nContent-Length: {len(SOUND)}",
        'Content-Disposition: form-data;\r\n\tname="file"; filename="a.wav"\r\nMIME-Version: 1.0',
        # curl, browsers, Node.
        f"{FILE}\r\nContent-Type: audio/wav",
        'content-disposition: form-data; name="file"; filename="a;b (1).wav"',
        'CONTENT-DISPOSITION:form-data;name="file";filename="a.wav";',
        'Content-Disposition:\tform-data ;\t filename="C:\\music\\a.wav" ; name="file"',
        "Content-ID: <1>\r\n" + FILE,
        'Content-Disposition: form-data; name="file"; filename="\u20ac.wav"',
    ],
)  # fmt: skip
def test_the_files_of_usual_clients_are_read(head: str) -> None:
    found = read(form((MODEL, b"whisper-1"), (head, SOUND)))
    assert (found.parsed, [bytes(file) for file in found.files]) == ({"model": "whisper-1"}, [SOUND])


@pytest.mark.parametrize(
    "head",
    [
        "Content-Disposition: form-data; name=model",
        "Content-Disposition: form-data; name=model\r\nContent-Type: text/plain; charset=utf-8",
        f"{MODEL}\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit",
        f'{MODEL}\r\nContent-Type: text/plain;charset="us-ascii"\r\nX-Extra: 1',
        f"Content-Length: 9\r\n{MODEL}",
        f"{MODEL}\r\nContent-Type: application/json",
    ],
)
def test_the_texts_of_usual_clients_are_read(head: str) -> None:
    assert read(form((head, b"whisper-1"))).parsed == {"model": "whisper-1"}


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=b; charset=UTF-8", "b"),
        ("multipart/form-data; charset=utf-8; boundary=b", "b"),
        ('Multipart/Form-Data;charset="utf-8";BOUNDARY="b"', "b"),
        ("multipart/form-data ;\tboundary=b ;", "b"),
        ('multipart/form-data; boundary="a=_b c"', "a=_b c"),
        ("multipart/form-data; boundary=----=_Part_1_2.3", "----=_Part_1_2.3"),
        ("multipart/form-data; boundary=b; charset=ISO-8859-1", "b"),
    ],
)
def test_the_content_types_of_usual_clients_are_read(content_type: str, boundary: str) -> None:
    assert read(form((MODEL, b"m"), boundary=boundary), content_type).parsed == {"model": "m"}


def test_text_before_and_after_the_parts_is_ignored() -> None:
    raw = form((MODEL, b"m"), before=b"This is a form.\r\n", after=b"\r\nThe end --\r\n")
    assert read(raw).parsed == {"model": "m"}
    assert read(form((MODEL, b"m"), after=b"")).parsed == {"model": "m"}


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        # Another name, by another reading.
        (f"{MODEL}; name=n", "name=n"), (f"{MODEL}; name*=utf-8''n", r"name\*"),
        ("Content-Disposition: form-data; name*=utf-8''model", r"name\*"),
        (f'{MODEL}; filename="x; name=n"', "filename"), (f'{MODEL}; filename="x;\xa0name\x85=n"', "filename"),
        (f'{MODEL}; filename="x\\"; name="n"', "filename"),
        (f'{MODEL}; filename="x\\"', "filename"),
        (f'{MODEL}; filename="a\\"b.wav"', "filename"), (f"{MODEL}\r\n{MODEL}", "Content-Disposition"),
        ('Content-Disposition: form-data; name = "model"', "name = "),
        ('Content-Disposition: form-data; name="mod\\el"', "Content-Disposition"),
        ('Content-Disposition : form-data; name="model"', "Content-Disposition :"),
        ('Content-Disposition: attachment; name="model"', "attachment"),
        ('Content-Disposition: form-data;\r\n name="model"', "two lines"), (f"{MODEL};\r\n x=1", "x=1"),
        (f"{MODEL}; size=3", "size=3"), ("X: 1", "Content-Disposition"),
        # A text for one server, a file for another.
        (f"{MODEL}; filename=x", "as a file"), (f"{MODEL}; filename*=utf-8''x", "as a file"),
        ('Content-Disposition: form-data; name="input_fidelity"; filename="x"', "as a file"),
        ('Content-Disposition: form-data; name="file"; filename=""', "filename"),
        (f"{MODEL}\r\nContent-Type: application/octet-stream", "octet-stream"),
        ('Content-Disposition: form-data; name="file"; filename=x; filename=y', "filename=y"),
        ('Content-Disposition: form-data; name="file"; filename*=x', r"filename\*"),
        # Another value.
        (f"{MODEL}\r\nContent-Transfer-Encoding: base64", "encoding: base64"),
        (f"{MODEL}\r\nContent-Transfer-Encoding: quoted-printable", "quoted-printable"),
        (f"{MODEL}\r\nContent-Encoding: gzip", "content-encoding"),
        (f"{MODEL}\r\nContent-Length: 1", "content-length: 1"),
        (f"{MODEL}\r\nContent-Type: text/plain; charset=utf-16", "utf-16"),
        (f"{MODEL}\r\nContent-Type: text/plain; charset=utf-7", "utf-7"),
        (f"{MODEL}\r\nContent-Type: text/plain; charset=utf-8; charset=utf-16", "utf-16"),
        (f"{FILE}\r\nContent-Type: multipart/mixed; boundary=c", "multipart/mixed"),
        (f"{FILE}\r\nContent-Type: \x0bmultipart/mixed; boundary=c", "multipart/mixed"),
    ],
)  # fmt: skip
def test_what_servers_read_differently_is_refused_with_its_cause(head: str, cause: str) -> None:
    with pytest.raises(InvalidInput, match=cause):
        read(form((head, b"dear")))


@pytest.mark.parametrize(
    "before", ["multipart/form-data;", "multipart/form-data; boundary=b;", 'multipart/form-data; a="']
)
def test_a_header_of_spaces_takes_linear_time(before: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidInput):
        boundary_of(f"{before}{' ' * 200_000}x")
    headers = f"Content-Description: a{' ' * 1_900}b"
    parts = ((MODEL.replace("model", f"f{number}") + f"\r\n{headers}", b"m") for number in range(100))
    assert len(read(form(*parts)).parsed) == 100
    assert time.process_time() - began < 1


def test_text_in_another_charset_is_refused_where_it_is_not_ascii() -> None:
    latin = f"{MODEL}\r\nContent-Type: text/plain; charset=ISO-8859-1"
    for raw, content_type in (
        (form((latin, b"\xc3\xa9")), "multipart/form-data; boundary=b"),
        (form((MODEL, b"\xc3\xa9")), "multipart/form-data; boundary=b; charset=ISO-8859-1"),
    ):
        with pytest.raises(InvalidInput, match="UTF-8"):
            read(raw, content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data", "multipart/form-data; boundary=b; boundary=c", "multipart/form-data; boundary*=utf-8''b",
        "multipart/form-data; boundary=b,c", 'multipart/form-data; boundary="b "', "multipart/form-data; boundary=b c",
        'multipart/form-data; boundary="b\\"', "multipart/form-data; boundary=b; charset=utf-16",
        "multipart/form-data; boundary=b; charset=utf-7", "multipart/form-data; boundary=",
    ],
)  # fmt: skip
def test_a_content_type_that_servers_read_differently_is_refused(content_type: str) -> None:
    for kind in (BodyKind.FORM, BodyKind.EITHER):
        with pytest.raises(InvalidInput, match="form"):
            parse_body(kind, form((MODEL, b"m")), content_type)


@pytest.mark.parametrize(
    "raw",
    [
        form((MODEL, b"m"), before=b"x"), form((MODEL, b"m"), before=b"\n"), form((MODEL, b"m"), after=b"x"),
        form((MODEL, b"m"), after=b"\r\n--b\r\n" + MODEL.encode() + b"\r\n\r\ndear\r\n--b--"),
        form((MODEL, b"m")).replace(b"--b\r\n", b"--b \r\n"), form((MODEL, b"m\r\n--bc\r\n")), b"--c--\r\n",
        form((MODEL, b"m"), before=b"--b\r\n\r\nx\r\n"),
    ],
)  # fmt: skip
def test_a_boundary_that_is_not_a_delimiter_for_every_server_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput):
        read(raw)


def test_the_forms_of_the_former_tests_are_still_read() -> None:
    raw = form_of(("model", b"whisper-1"), ('file; filename="a b.mp3"', SOUND), ("include[]", b"logprobs"))
    assert read(raw, FORM).parsed == {"model": "whisper-1", "include": ["logprobs"]}
