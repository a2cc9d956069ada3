"""Keys of wallets under AWS KMS, Google Cloud KMS, HashiCorp Vault and SoftHSM: real clients against real protocols."""

from __future__ import annotations

import base64
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr, ValidationError

from app.adapters import key_services
from app.adapters.vault import LocalVault
from app.capacity import single_flight_cache
from app.capacity.single_flight_cache import SingleFlightCache
from app.config import Settings
from app.errors import KeyServiceUnavailable
from app.observability import telemetry
from app.ports.errors import Rejected
from app.ports.vault import KeyService, SecretLocation
from app.wiring import build
from tests.support.applications import key_of, settings_for
from tests.support.key_services import (
    AWS_ARN,
    AWS_SECRET_KEY,
    GOOGLE_NAME,
    PIN,
    VAULT_TOKEN,
    StoredKey,
    aws_kms,
    google_kms,
    make_softhsm,
    softhsm_module,
    vault_transit,
)
from tests.support.loopback_http import Reply

_LOCAL = ("k1", bytes(range(32)))
_WALLET = SecretLocation("wallet_keys", "sealed", "1b4e28ba-2fa1-41d2-883f-0016d3cca427")
_RETIRED = replace(_WALLET, table="retired_keys")
_OTHER = replace(_WALLET, row_id="2c5f39cb-2fa1-41d2-883f-0016d3cca428")
_API_KEY = SecretLocation("api_keys", "sealed", _WALLET.row_id)
_SECRET = b"canary-wallet-secret"


def aws_key(arn: str) -> KeyService:
    return partial(key_services.aws_kms, arn)


def google_key(name: str) -> KeyService:
    return partial(key_services.google_kms, name)


def transit_key(token: str, host: str, mount: str, key: str) -> KeyService:
    return partial(key_services.vault_transit, SecretStr(token), host, mount, key)


def hsm_key(pin: str, label: str, name: str, module: str) -> KeyService:
    return partial(key_services.pkcs11_key, SecretStr(pin), label, name, module)


@pytest.fixture(scope="session")
def softhsm(tmp_path_factory: pytest.TempPathFactory) -> str:
    module = softhsm_module()
    if module is None:
        assert not os.environ.get("CI"), "SoftHSM is missing: apt install softhsm2"
        pytest.skip("SoftHSM is missing: apt install softhsm2")
    make_softhsm(tmp_path_factory.mktemp("softhsm"), module)
    return module


def log_out() -> None:
    for session in key_services._pkcs11_sessions.values():
        session.close()
    key_services._pkcs11_sessions.clear()


@dataclass
class EndedSession:
    """A session that the device has ended."""

    session: Any

    def get_key(self, **_wanted: object) -> object:
        raise ConnectionError

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self.session.close()


@pytest.fixture(params=["aws", "google", "vault", "pkcs11"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KeyService, StoredKey | None]]:
    with ExitStack() as stack:
        if request.param == "aws":
            key = stack.enter_context(aws_kms(monkeypatch))
            yield aws_key(AWS_ARN), key
        elif request.param == "google":
            key = stack.enter_context(google_kms(tmp_path, monkeypatch))
            yield google_key(GOOGLE_NAME), key
        elif request.param == "vault":
            key, host = stack.enter_context(vault_transit(tmp_path, monkeypatch))
            yield transit_key(VAULT_TOKEN, host, "transit", "wallets"), key
        else:
            yield hsm_key(PIN, "purser", "wallets", request.getfixturevalue("softhsm")), None


@pytest.fixture
def transit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KeyService, StoredKey]]:
    with vault_transit(tmp_path, monkeypatch) as (key, host):
        yield transit_key(VAULT_TOKEN, host, "transit", "wallets"), key


def test_a_wallets_key_opens_in_another_process_and_the_service_learns_for_whom(
    service: tuple[KeyService, StoredKey | None],
) -> None:
    used, stored = service
    sealed = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _WALLET)
    assert sealed.startswith("k3.")
    assert LocalVault([_LOCAL], {"k3": used}).open(sealed, _WALLET) == _SECRET
    if stored is not None:
        # Sealing tries at once whether the service can open it again.
        assert stored.uses == [(use, _WALLET.row_id) for use in ("encrypt", "decrypt", "decrypt")]


def test_a_data_key_of_one_wallet_opens_no_other(service: tuple[KeyService, StoredKey | None]) -> None:
    used, _ = service
    vault = LocalVault([_LOCAL], {"k3": used}, "k3")
    sealed, other = vault.seal(_SECRET, _WALLET), vault.seal(b"another", _OTHER)
    fresh = LocalVault([_LOCAL], {"k3": used})
    (_, data_key, _), (_, _, body) = sealed.split("."), other.split(".")
    for text, place in ((sealed, _OTHER), (f"k3.{data_key}.{body}", _OTHER), (f"k3.{'A' * 80}.{body}", _WALLET)):
        with pytest.raises(KeyServiceUnavailable):
            fresh.open(text, place)
    with pytest.raises(KeyServiceUnavailable):
        fresh.open(f"k3.{data_key}.{body}", _WALLET)


@pytest.mark.parametrize("sealed", ["k3.", "k3..", "k3.AAAA", "k3.AAAA.", "k3.%.AAAA", "k3.AAAA.AAAA.AAAA", "k3.A.B"])
def test_garbage_opens_nothing(sealed: str, transit: tuple[KeyService, StoredKey]) -> None:
    with pytest.raises(KeyServiceUnavailable):
        LocalVault([_LOCAL], {"k3": transit[0]}).open(sealed, _WALLET)


@pytest.mark.parametrize("sealed", ["", ".", "k3", "k4.AAAA.AAAA", "k1.", "k1.AAAA", "k1.AAAA.AAAA"])
def test_what_no_key_has_sealed_is_refused_without_asking_a_service(sealed: str) -> None:
    with pytest.raises(Rejected, match=r"^sealed_unreadable$"):
        LocalVault([_LOCAL]).open(sealed, _WALLET)


def test_only_wallets_keys_are_sealed_by_the_service(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    vault = LocalVault([_LOCAL], {"k3": used}, "k3")
    assert (vault.sealing_key_id("wallet_keys"), vault.sealing_key_id("api_keys")) == ("k3", "k1")
    assert vault.open(vault.seal(b"api key", _API_KEY), _API_KEY) == b"api key"
    assert vault.is_authentic(vault.authenticate(b"row"), b"row")
    assert stored.uses == []


def test_a_wallet_is_retired_without_the_service(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    vault = LocalVault([_LOCAL], {"k3": used}, "k3")
    sealed, local = vault.seal(_SECRET, _WALLET), LocalVault([_LOCAL]).seal(_SECRET, _WALLET)
    stored.misbehave = lambda _asked: Reply(b"", status=503)
    retired, retired_local = vault.move(sealed, _WALLET, _RETIRED), vault.move(local, _WALLET, _RETIRED)
    stored.misbehave = lambda _asked: None
    fresh = LocalVault([_LOCAL], {"k3": used})
    assert fresh.open(retired, _RETIRED) == fresh.open(retired_local, _RETIRED) == _SECRET
    with pytest.raises(Rejected):
        fresh.open(retired_local, _WALLET)


def test_a_service_that_answers_another_key_opens_nothing_and_is_not_remembered(
    transit: tuple[KeyService, StoredKey],
) -> None:
    used, stored = transit
    sealed = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _WALLET)
    now = 0
    vault = LocalVault([_LOCAL], {"k3": used})
    vault._data_keys = SingleFlightCache(lambda: now)
    for wrong in (b"", b"short", bytes(32), bytes(64)):
        stored.replace_plaintext = lambda _plain, wrong=wrong: wrong  # type: ignore[misc]
        with pytest.raises(KeyServiceUnavailable):
            vault.open(sealed, _WALLET)
        now += 3 * 10**9
    stored.replace_plaintext = lambda plain: plain
    assert vault.open(sealed, _WALLET) == _SECRET


def test_no_key_is_sealed_that_the_service_cannot_open_again(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    vault = LocalVault([_LOCAL], {"k3": used}, "k3")
    stored.replace_plaintext = lambda _plain: bytes(32)
    with pytest.raises(KeyServiceUnavailable):
        vault.create_wallet(_WALLET)


def test_data_keys_are_remembered_for_five_minutes_and_forgotten_then(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    sealed = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _WALLET)
    other = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _OTHER)
    vault, now = LocalVault([_LOCAL], {"k3": used}), 0
    vault._data_keys = SingleFlightCache(lambda: now)
    stored.uses.clear()
    for _ in range(3):
        assert vault.open(sealed, _WALLET) == _SECRET
    now = 299 * 10**9
    assert vault.open(sealed, _WALLET) == _SECRET
    assert len(stored.uses) == 1
    now = 300 * 10**9
    vault.open(other, _OTHER)
    assert len(vault._data_keys._flights) == 1
    assert vault.open(sealed, _WALLET) == _SECRET
    assert len(stored.uses) == 3


def test_remembered_data_keys_are_bounded(
    transit: tuple[KeyService, StoredKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight_cache, "_MAX_ENTRIES", 3)
    vault = LocalVault([_LOCAL], {"k3": transit[0]}, "k3")
    for number in range(8):
        vault.seal(_SECRET, replace(_WALLET, row_id=str(number)))
        assert len(vault._data_keys._flights) <= 3


def test_requests_at_once_for_one_wallet_use_the_service_once(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    sealed = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _WALLET)
    vault, opened = LocalVault([_LOCAL], {"k3": used}), list[bytes]()
    stored.uses.clear()
    threads = [threading.Thread(target=lambda: opened.append(vault.open(sealed, _WALLET))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [_SECRET] * 8
    assert len(stored.uses) == 1


_OUTAGES: dict[str, Callable[[], Reply]] = {
    "500 that quotes": lambda: Reply(VAULT_TOKEN.encode(), status=500),
    "not JSON": lambda: Reply(b"<html>"),
    "no field": lambda: Reply(b"{}"),
    "redirect": lambda: Reply(b"", status=307, headers={"Location": "http://127.0.0.1:1/"}),
    "sealed": lambda: Reply(b'{"errors":["Vault is sealed"]}', status=503),
    "permission denied": lambda: Reply(b'{"errors":["permission denied"]}', status=403),
    "no token": lambda: Reply(b'{"errors":["missing client token"]}', status=400),
    "old version": lambda: Reply(b'{"errors":["ciphertext version is disallowed by policy (too old)"]}', status=400),
    "hangs up": lambda: Reply(None),
}


@pytest.mark.parametrize("kind", _OUTAGES)
def test_whatever_the_service_answers_otherwise_is_an_outage(kind: str, transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    vault = LocalVault([_LOCAL], {"k3": used}, "k3")
    sealed = vault.seal(_SECRET, _WALLET)
    stored.misbehave = lambda _asked: _OUTAGES[kind]()
    with structlog.testing.capture_logs() as lines, pytest.raises(KeyServiceUnavailable) as caught:
        LocalVault([_LOCAL], {"k3": used}).open(sealed, _WALLET)
    assert vault.open(sealed, _WALLET) == _SECRET, "what is remembered needs no service"
    with pytest.raises(KeyServiceUnavailable):
        vault.seal(_SECRET, _OTHER)
    shown = "\n".join([repr(lines), *traceback.format_exception(caught.value), repr(used)])
    assert "wallet_key_used" in shown
    assert VAULT_TOKEN not in shown


def test_a_service_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_services, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service = transit_key(VAULT_TOKEN, f"127.0.0.1:{silent.getsockname()[1]}", "transit", "wallets")
        with pytest.raises(KeyServiceUnavailable):
            LocalVault([_LOCAL], {"k3": service}, "k3").seal(_SECRET, _WALLET)


def test_a_service_that_hangs_holds_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.adapters.vault._MOST_THREADS", 1)
    asked, answered = threading.Event(), threading.Event()

    def hang(_operation: str, _text: str, _wallet_id: str) -> str:
        asked.set()
        answered.wait(10)
        raise TimeoutError

    vault, refused = LocalVault([_LOCAL], {"k3": hang}, "k3"), list[Exception]()

    def seal() -> None:
        try:
            vault.seal(_SECRET, _WALLET)
        except KeyServiceUnavailable as error:
            refused.append(error)

    first = threading.Thread(target=seal)
    first.start()
    assert asked.wait(10)
    seal()
    assert (len(refused), first.is_alive()) == (1, True)
    answered.set()
    first.join()
    assert len(refused) == 2


def test_wrong_credentials_are_an_outage_and_no_log_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, softhsm: str, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry.configure_logs("DEBUG")
    logging.getLogger().addHandler(caplog.handler)
    log_out()
    with (
        caplog.at_level(logging.DEBUG), structlog.testing.capture_logs() as lines, aws_kms(monkeypatch),
        vault_transit(tmp_path, monkeypatch) as (_, host),
    ):  # fmt: skip
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET_KEY + "x")
        for service in (
            aws_key(AWS_ARN),
            transit_key(VAULT_TOKEN + "x", host, "transit", "wallets"),
            hsm_key(PIN + "x", "purser", "wallets", softhsm),
            hsm_key(PIN, "purser", "absent", softhsm),
            hsm_key(PIN, "absent", "wallets", softhsm),
            hsm_key(PIN, "purser", "wallets", "/nowhere/library.so"),
        ):
            with pytest.raises(KeyServiceUnavailable):
                LocalVault([_LOCAL], {"k3": service}, "k3").seal(_SECRET, _WALLET)
    shown = f"{lines} {caplog.text}"
    assert [line["outcome"] for line in lines] == [
        "ClientError InvalidSignatureException", "Forbidden", "PinIncorrect", "NoSuchKey", "NoSuchToken", "PKCS11Error"
    ]  # fmt: skip
    assert [secret for secret in (AWS_SECRET_KEY, VAULT_TOKEN, PIN, _SECRET.decode()) if secret in shown] == []


def test_no_log_at_debug_has_a_data_key(
    service: tuple[KeyService, StoredKey | None], caplog: pytest.LogCaptureFixture
) -> None:
    telemetry.configure_logs("DEBUG")
    logging.getLogger().addHandler(caplog.handler)
    data_key = b"canary-of-a-data-key-of-32-bytes"
    with caplog.at_level(logging.DEBUG):
        text = base64.b64encode(data_key).decode()
        assert service[0]("decrypt", service[0]("encrypt", text, _WALLET.row_id), _WALLET.row_id) == text
    forms = (data_key.decode(), base64.b64encode(data_key).decode(), data_key.hex(), PIN, VAULT_TOKEN, AWS_SECRET_KEY)
    assert [form for form in forms if form in caplog.text] == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AccessDeniedException", 400), ("DisabledException", 400), ("ExpiredTokenException", 400),
        ("ThrottlingException", 400), ("KMSInternalException", 500), ("ServiceUnavailable", 503),
    ],
)  # fmt: skip
def test_what_aws_refuses_is_an_outage_that_the_log_names(
    code: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with aws_kms(monkeypatch) as stored:
        vault = LocalVault([_LOCAL], {"k3": aws_key(AWS_ARN)}, "k3")
        stored.misbehave = lambda _asked: Reply(b'{"__type": "%s"}' % code.encode(), status=status)
        with structlog.testing.capture_logs() as lines, pytest.raises(KeyServiceUnavailable):
            vault.seal(_SECRET, _WALLET)
        assert lines[0]["outcome"].endswith(code)
        stored.misbehave = lambda _asked: None
        assert vault.open(vault.seal(_SECRET, _WALLET), _WALLET) == _SECRET


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_what_google_refuses_is_an_outage_that_the_log_names(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with google_kms(tmp_path, monkeypatch) as stored:
        vault = LocalVault([_LOCAL], {"k3": google_key(GOOGLE_NAME)}, "k3")
        stored.misbehave = lambda asked: None if asked.target == "/token" else Reply(b"{}", status=status)
        with structlog.testing.capture_logs() as lines, pytest.raises(KeyServiceUnavailable):
            vault.seal(_SECRET, _WALLET)
        assert lines[0]["outcome"] == f"HTTPError {status}"
        stored.misbehave = lambda _asked: None
        assert vault.open(vault.seal(_SECRET, _WALLET), _WALLET) == _SECRET


def test_an_access_token_of_google_that_expired_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with google_kms(tmp_path, monkeypatch) as stored:
        vault = LocalVault([_LOCAL], {"k3": google_key(GOOGLE_NAME)}, "k3")
        vault.seal(_SECRET, _WALLET)
        answers = iter([Reply(b"{}", status=401)])
        stored.misbehave = lambda asked: None if asked.target == "/token" else next(answers, None)
        assert vault.open(vault.seal(_SECRET, _OTHER), _OTHER) == _SECRET


def test_a_disabled_key_of_google_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with google_kms(tmp_path, monkeypatch) as stored:
        service = google_key(GOOGLE_NAME)
        sealed = LocalVault([_LOCAL], {"k3": service}, "k3").seal(_SECRET, _WALLET)
        disabled = Reply(b'{"error": {"code": 400, "status": "FAILED_PRECONDITION"}}', status=400)
        stored.misbehave = lambda _asked: disabled
        with pytest.raises(KeyServiceUnavailable):
            LocalVault([_LOCAL], {"k3": service}).open(sealed, _WALLET)


def test_a_process_logs_in_to_an_hsm_once_and_again_when_its_session_has_ended(softhsm: str) -> None:
    vault = LocalVault([_LOCAL], {"k3": hsm_key(PIN, "purser", "wallets", softhsm)}, "k3")
    vault.seal(_SECRET, _WALLET)
    (session,) = key_services._pkcs11_sessions.values()
    vault.seal(_SECRET, _WALLET)
    assert list(key_services._pkcs11_sessions.values()) == [session]
    for name in key_services._pkcs11_sessions:
        key_services._pkcs11_sessions[name] = EndedSession(session)
    with pytest.raises(KeyServiceUnavailable):
        vault.seal(_SECRET, _WALLET)
    assert vault.open(vault.seal(_SECRET, _WALLET), _WALLET) == _SECRET


def test_threads_use_an_hsm_one_after_the_other(softhsm: str) -> None:
    vault, opened = LocalVault([_LOCAL], {"k3": hsm_key(PIN, "purser", "wallets", softhsm)}, "k3"), list[str]()

    def make(number: int) -> None:
        opened.append(vault.create_wallet(replace(_WALLET, row_id=str(number))).evm_address)

    threads = [threading.Thread(target=make, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(opened)) == 16


def test_a_rotated_key_of_vault_opens_what_its_former_version_sealed(transit: tuple[KeyService, StoredKey]) -> None:
    used, stored = transit
    before = LocalVault([_LOCAL], {"k3": used}, "k3").seal(_SECRET, _WALLET)
    stored.versions.append(os.urandom(32))
    vault = LocalVault([_LOCAL], {"k4": used, "k3": used}, "k4")
    after = vault.seal(vault.open(before, _WALLET), _WALLET)
    stored.versions[0] = bytes(32)
    fresh = LocalVault([_LOCAL], {"k4": used, "k3": used}, "k4")
    assert fresh.open(after, _WALLET) == _SECRET
    with pytest.raises(KeyServiceUnavailable):
        fresh.open(before, _WALLET)


def test_keys_of_two_hsm_objects_are_not_mixed_up(softhsm: str) -> None:
    services = {name: hsm_key(PIN, "purser", name, softhsm) for name in ("wallets", "others")}
    sealed = LocalVault([_LOCAL], services, "wallets").seal(_SECRET, _WALLET)
    with pytest.raises(KeyServiceUnavailable):
        LocalVault([_LOCAL], services).open(sealed.replace("wallets.", "others."), _WALLET)


def test_one_setting_chooses_the_services_and_the_one_that_seals() -> None:
    hcvault = "k3:hcvault://vault.example.com:8200/transit/keys/wallets"
    others = (
        f"k4:aws-kms://{AWS_ARN},k5:gcp-kms://{GOOGLE_NAME},"
        "k6:pkcs11:token=purser;object=wallets?module-path=/usr/lib/softhsm/libsofthsm2.so"
    )
    for first, sealing in ((hcvault, "k3"), (f"local,{hcvault}", "k1"), ("local", "k1"), ("", "k1")):
        settings = settings_for(
            "sqlite://", wallet_encryption_keys=f"{first},{others}" if first else "", vault_token="t", pkcs11_pin="p"
        )
        vault = build(settings).vault
        assert vault.sealing_key_id("wallet_keys") == sealing
    built = build(settings_for("sqlite://", wallet_encryption_keys=f"{hcvault},{others}")).vault
    assert isinstance(built, LocalVault)
    expected = [
        transit_key("", "vault.example.com:8200", "transit", "wallets"), aws_key(AWS_ARN), google_key(GOOGLE_NAME),
        hsm_key("", "purser", "wallets", "/usr/lib/softhsm/libsofthsm2.so"),
    ]  # fmt: skip
    found = built._services.values()
    assert [(each.func, each.args) for each in found] == [(each.func, each.args) for each in expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "k3", "k3:", "k3:hcvault://", "k3:https://vault/transit/keys/k", "k3:hcvault://user:pw@h/transit/keys/k",
        "k3:aws-kms://arn:aws:s3:::bucket", "k3:gcp-kms://projects/p", "k3:pkcs11:token=a;object=b",
        "k3:pkcs11:token=a;object=b?module-path=relative.so", "local,local", "k 3:hcvault://h/transit/keys/k",
        "k3:hcvault://h/transit/keys/k,k3:hcvault://h/transit/keys/l", "k1:hcvault://h/transit/keys/k",
    ],
)  # fmt: skip
def test_a_setting_that_names_no_service_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="WALLET_ENCRYPTION_KEYS"):
        Settings(
            secret_key="s" * 32, code_peppers=key_of("p1"), encryption_keys=key_of("k1"), wallet_encryption_keys=text
        )
