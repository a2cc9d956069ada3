"""Receipts: nothing but what the service has signed, with a key that it still has, is one."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from app import signing
from app.payments.x402 import terms
from app.signing import Statement
from app.state import Application
from purser import ReceiptVerificationError, verify_receipt
from tests.support.applications import key_of, settings_for
from tests.support.receipts import SERVICE, decoded_part, encoded_part, signed_by

OTHER_KEY = ec.derive_private_key(7, ec.SECP256R1())
HEADER = {"alg": "ES256", "kid": "did:web:purser.test#r1", "typ": "purser-record+jws"}
STATED = {"iss": SERVICE, "iat": 1, "record": {"amount": "1"}}


@pytest.fixture
def app(build_app: Callable[..., Application], sqlite_url: str) -> Application:
    return build_app(sqlite_url)


def issue(**stated: Any) -> str:
    receipt = signing.sign_own(Statement.RECORD, **stated)
    assert receipt is not None
    return receipt


def keys() -> Mapping[str, Any]:
    return {"keys": signing.public_keys()}


def assert_refused(receipt: str) -> None:
    """Neither this service nor the package for clients accepts it."""
    assert signing.verify(receipt) is None
    with pytest.raises(ReceiptVerificationError):
        verify_receipt(receipt, keys(), SERVICE)


def by_mac(header: Mapping[str, Any]) -> str:
    """Return what a library accepts that takes the public key for a shared secret."""
    signed = f"{encoded_part({**header, 'alg': 'HS256'})}.{encoded_part(STATED)}"
    point = signing.public_keys()[0]["x"].encode()
    mac = hmac.new(point, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def test_a_receipt_states_what_was_signed_and_when_by_whom(app: Application) -> None:
    with app.app_context():
        receipt = issue(record={"amount": "1"})
        kind, stated = signing.verify(receipt) or ("", {})
        assert (kind, stated["record"], stated["iss"]) == (Statement.RECORD, {"amount": "1"}, SERVICE)
        assert verify_receipt(receipt, keys(), SERVICE) == ("purser-record+jws", stated)


def test_every_altered_part_is_refused(app: Application) -> None:
    with app.app_context():
        receipt = issue(record={"amount": "1"})
        header, stated, signature = receipt.split(".")
        dearer = {**decoded_part(stated), "record": {"amount": "1000"}}
        another_kind = {**decoded_part(header), "typ": "x402-receipt+jws"}
        flipped = signature[:10] + ("A" if signature[10] != "A" else "B") + signature[11:]
        for altered in (
            f"{header}.{encoded_part(dearer)}.{signature}", f"{encoded_part(another_kind)}.{stated}.{signature}",
            f"{header}.{stated}.{flipped}", f"{header}.{stated}.", f"{header}.{stated}", f"{receipt}.{signature}",
            f"{header}.{stated}.{signature[:-4]}", f"{header}.{stated}.{'A' * 86}",
        ):  # fmt: skip
            assert_refused(altered)


@pytest.mark.parametrize(
    "changed",
    [
        {"alg": "none"}, {"alg": "None"}, {"alg": "ES384"}, {"alg": "EdDSA"}, {"alg": ["ES256"]}, {"alg": None},
        {"kid": "did:web:purser.test#r2"}, {"kid": "did:web:attacker.example#r1"}, {"kid": "r1"}, {"kid": None},
        {"kid": {"r1": 1}}, {"kid": "../../etc/passwd"}, {"kid": "' OR 1=1 --"}, {"typ": "JWT"}, {"typ": None},
        {"typ": "purser-record"}, {"crit": ["b64"], "b64": False}, {"crit": ["exp"], "exp": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_a_header_that_we_do_not_write_is_refused_whoever_signed_it(changed: dict[str, Any], app: Application) -> None:
    with app.app_context():
        header = {name: value for name, value in {**HEADER, **changed}.items() if value is not None}
        assert_refused(f"{encoded_part(header)}.{encoded_part(STATED)}.")
        assert_refused(signed_by(OTHER_KEY, header, STATED))


def test_a_key_that_the_receipt_itself_brings_is_not_used(app: Application) -> None:
    x, y = (each.to_bytes(32, "big") for each in _point(OTHER_KEY))
    jwk = {"kty": "EC", "crv": "P-256", "x": _text(x), "y": _text(y)}
    with app.app_context():
        for brought in ({}, {"jwk": jwk}, {"jku": "https://attacker.example/jwks.json"}, {"x5c": ["AAAA"]}):
            assert_refused(signed_by(OTHER_KEY, {**HEADER, **brought}, STATED))


def test_the_public_key_is_not_taken_for_a_secret(app: Application) -> None:
    with app.app_context():
        assert_refused(by_mac(HEADER))


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "...", "a.b.c", "é.é.é", "\x00", "ey" * 9000, "{}", "eyJhbGciOiJFUzI1NiJ9..", "null.null.null"],
)
def test_what_is_no_receipt_is_refused_without_an_error(text: str, app: Application) -> None:
    with app.app_context():
        assert_refused(text)


def test_a_header_that_is_nested_deeply_is_refused_without_an_error(app: Application) -> None:
    with app.app_context():
        for deep in ("[" * 6000, '{"a":' * 1500):
            part = base64.urlsafe_b64encode(deep.encode()).rstrip(b"=").decode()
            assert_refused(f"{part}.{part}.AAAA")


def test_a_receipt_of_another_service_with_a_key_of_the_same_name_is_refused(
    build_app: Callable[..., Application], sqlite_url: str
) -> None:
    own, other = (
        build_app(sqlite_url),
        build_app(sqlite_url, settings={"receipt_signing_keys": key_of("r1")[:3] + key_of("x")[2:]}),
    )
    with other.app_context():
        foreign = issue()
        assert signing.verify(foreign) is not None
    with own.app_context():
        assert_refused(foreign)
        # A page that shows our receipt as its own, or as one that came by https.
        for service in ("https://purser.test", "http://attacker.example", "http://purser.test:81", "purser.test"):
            with pytest.raises(ReceiptVerificationError):
                verify_receipt(issue(), keys(), service)


def test_a_rotated_key_verifies_until_it_is_removed_and_signs_nothing(
    build_app: Callable[..., Application], sqlite_url: str
) -> None:
    def with_keys(*names: str) -> Application:
        return build_app(sqlite_url, settings={"receipt_signing_keys": ",".join(map(key_of, names))})

    with with_keys("r1").app_context():
        old = issue()
    with with_keys("r2", "r1").app_context():
        assert [each["kid"] for each in signing.public_keys()] == ["did:web:purser.test#r2", "did:web:purser.test#r1"]
        assert decoded_part(issue().split(".")[0])["kid"] == "did:web:purser.test#r2"
        assert signing.verify(old) is not None
        kept = keys()
    with with_keys("r2").app_context():
        assert_refused(old)
    # Who has kept the keys can still verify it.
    assert verify_receipt(old, kept, SERVICE).type == "purser-record+jws"


def test_without_a_key_nothing_is_signed_and_nothing_is_verified(
    build_app: Callable[..., Application], sqlite_url: str, app: Application
) -> None:
    with app.app_context():
        receipt = issue()
    bare = build_app(sqlite_url, settings={"receipt_signing_keys": ""})
    with bare.app_context():
        assert (signing.sign_own(Statement.RECORD), signing.verify(receipt)) == (None, None)
        assert bare.test_client().get("/.well-known/jwks.json").get_json()["keys"] == []


def test_what_would_make_headers_too_long_for_clients_is_left_out(app: Application) -> None:
    with app.app_context():
        assert signing.header(issue(text="a" * 2000)) != {}
        assert signing.header(issue(text="a" * 3000)) == {}
        terms_of_one = dict.fromkeys(("scheme", "network", "asset", "payTo", "amount"), "1")
        accepts = [{**terms_of_one, "maxTimeoutSeconds": 300}] * 3
        for length, is_signed in ((512, True), (513, False)):
            extension = terms._offers("a" * length, accepts)
            assert (len(extension) > 0) is is_signed
            assert len(terms.encode_header(extension)) < 7000


def test_published_keys_have_no_private_part(app: Application) -> None:
    published = app.test_client().get("/.well-known/jwks.json")
    [key] = published.get_json()["keys"]
    assert set(key) == {"kty", "crv", "x", "y", "kid", "alg", "use"}
    assert published.headers["Access-Control-Allow-Origin"] == "*"
    document = app.test_client().get("/.well-known/did.json").get_json()
    [method] = document["verificationMethod"]
    assert (document["id"], method["publicKeyJwk"]) == ("did:web:purser.test", key)
    assert document["assertionMethod"] == [method["id"]] == [key["kid"]]


@pytest.mark.parametrize("key", ["A" * 43 + "=", "/" * 42 + "8=", "AAAA"], ids=["zero", "beyond the curve", "short"])
def test_a_key_that_cannot_sign_is_refused_at_the_start_and_not_quoted(key: str) -> None:
    with pytest.raises(ValidationError, match="RECEIPT_SIGNING_KEYS") as refused:
        settings_for("sqlite://", receipt_signing_keys=f"r1:{key}")
    assert key not in str(refused.value.errors(include_input=False, include_context=False))


def _point(private: ec.EllipticCurvePrivateKey) -> tuple[int, int]:
    numbers = private.public_key().public_numbers()
    return numbers.x, numbers.y


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
