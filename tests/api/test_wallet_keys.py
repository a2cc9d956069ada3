"""Keys of wallets that their owner takes out or brings in, and attacks on both."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import time_machine
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flask import Flask
from mnemonic import Mnemonic
from sqlalchemy import select, update

from app.adapters.vault import LocalVault, evm_address, solana_address, wallet_keys
from app.audit_log.actors import owner_actor
from app.authenticated import seal_of
from app.core import clock, hpke, identifiers
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import KeyServiceUnavailable, NotFound
from app.events import targets
from app.events.targets import Audience, Subscriber
from app.extensions import db
from app.identity import owner_keys
from app.identity import service as identity
from app.owner import wallet_keys as service
from app.payments import treasury
from app.platform import personal_data
from app.ports.vault import NewWallet, SecretLocation
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.models import KeyTransfer, Wallet
from app.wallets.core.wallets import MAX_WALLETS_PER_AGENT
from tests.support.agents import Agent
from tests.support.applications import settings_for
from tests.support.authenticators import SoftwareAuthenticator
from tests.support.notices import Browser, Mailbox, notices_app
from tests.support.operators import Operator, entries
from tests.support.owners import OWNER_KEY, forms_of, person
from tests.support.phrases import phrase_of
from tests.support.wallet_keys import WAIT, KeyOwner, key_owner, sealed_for
from tests.support.webhooks import deliver

CODE = re.compile(r"\b(?:[0-9A-HJKMNP-TV-Z]{4}-){6}[0-9A-HJKMNP-TV-Z]{4}\b")
TWELVE = "abandon " * 11 + "about"
TWENTY_FOUR = "abandon " * 23 + "art"


@pytest.fixture
def ada(app: Flask, agent: Agent) -> KeyOwner:
    return key_owner(app, agent)


def wallet_of(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.get(agent.wallet_url).get_json()
    return found


def acts() -> list[str]:
    return [each.action.removeprefix("wallet.") for each in entries() if each.action.startswith("wallet.")]


def rows() -> list[KeyTransfer]:
    with read_only_unit() as session:
        return list(session.scalars(select(KeyTransfer)))


def is_given(answer: Any) -> bool:
    return "data-sealed" in answer.text


def test_the_owner_takes_the_keys_after_the_waiting_time_and_the_wallet_is_marked(
    build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox
) -> None:
    app = notices_app(build_app, sqlite_url, mailbox)
    with app.app_context():
        takes_the_keys(key_owner(app), mailbox)


def takes_the_keys(ada: KeyOwner, mailbox: Mailbox) -> None:
    subscriber = Subscriber(Audience.OWNER, ada.agent.id)
    targets.add_email(subscriber, "ada@home.example.org", types=["credits.low"])
    targets.add_browser(subscriber, **Browser().subscription("https://push.example.com/x"), types=["credits.low"])
    assert wallet_of(ada.agent)["exported_at"] is None
    assert ada.ask().status_code == 303
    assert "in 72 hours" in ada.browser.get(ada.keys).text
    assert "The keys of a wallet were asked for" in ada.browser.get(ada.page).text
    with ada.later():
        words = ada.opened(ada.take())
        evm, solana = wallet_keys(custody_entropy(words))
        assert (evm_address(evm), solana_address(solana)) == (ada.agent.address, ada.agent.solana_address)
        exported_at = wallet_of(ada.agent)["exported_at"]
        assert exported_at is not None
        for page in (ada.keys, ada.page):
            assert "Others may have the keys" in ada.browser.get(page).text
        assert ada.opened(ada.take()) == words
        assert wallet_of(ada.agent)["exported_at"] == exported_at
    assert acts() == ["export_requested", "exported", "exported"]
    events = ada.agent.get("/v1/events", types="wallet.*").get_json()["events"]
    assert [each["type"] for each in events] == [
        "wallet.export_requested", "wallet.exported", "wallet.exported"
    ]  # fmt: skip
    deliver()
    # Whatever they asked for, all targets of the owner are told.
    assert "wallet.export_requested" in str([each for _, each in mailbox.received])


def custody_entropy(words: str) -> bytes:
    return bytes(Mnemonic("english").to_entropy(words))


def test_nothing_is_given_before_the_waiting_time_after_a_day_or_without_a_request(ada: KeyOwner) -> None:
    with pytest.raises(NotFound):
        take_directly(ada)
    ada.ask()
    path = f"{ada.keys}/take"
    with ada.later(WAIT - timedelta(minutes=10)):
        assert "in 1 hour," in ada.browser.get(ada.keys).text
        assert path not in forms_of(ada.browser.get(ada.keys))
        with pytest.raises(NotFound):
            take_directly(ada)
    with ada.later(WAIT + timedelta(days=1)):
        assert path not in forms_of(ada.browser.get(ada.keys))
        with pytest.raises(NotFound):
            take_directly(ada)
    assert acts() == ["export_requested"]
    assert wallet_of(ada.agent)["exported_at"] is None


def take_directly(ada: KeyOwner, wallet_id: str | None = None, public_key: str | None = None) -> str:
    """Take keys as a request that has passed all checks of the page would."""
    with read_only_unit() as session:
        owner = owner_keys.find(session, ada.browser.key)
    assert owner
    with ada.app.test_request_context():
        actor = owner_actor(owner.id)
        return service.take(actor, owner, wallet_id or ada.agent.wallet_id, public_key or ada.made[1])


def test_it_can_be_cancelled_until_the_last_moment_and_asked_for_again(ada: KeyOwner) -> None:
    ada.ask()
    with ada.later():
        ready = ada.browser.get(ada.keys)
        assert ada.cancel().status_code == 303
        path, fields = f"{ada.keys}/take", {"public_key": ada.made[1]}
        late = ada.confirm(ready, path, **fields)
        assert (late.status_code, is_given(late)) == (404, False)
        assert ada.ask().status_code == 303
        assert "in 72 hours" in ada.browser.get(ada.keys).text
    assert acts() == ["export_requested", "export_cancelled", "export_requested"]


def test_a_request_that_is_cancelled_while_a_slow_key_service_opens_the_key_gives_one_answer(
    ada: KeyOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.ask()
    expected, seal = phrase_of(ada.agent.wallet_id), custody.seal_phrase

    def cancelled_meanwhile(wallet_id: str, recipient: str, info: str) -> str:
        monkeypatch.undo()
        assert ada.cancel().status_code == 303
        return seal(wallet_id, recipient, info)

    with ada.later():
        monkeypatch.setattr(custody, "seal_phrase", cancelled_meanwhile)
        taken = ada.take()
        # It was given out before the cancellation, so its words can be read; a signer process reads the row itself.
        if app_state().ports.signer is None:
            assert ada.opened(taken) == expected
        else:
            assert (taken.status_code, is_given(taken)) == (404, False)
        assert f"{ada.keys}/take" not in forms_of(ada.browser.get(ada.keys))
    assert acts() == ["export_requested", "exported", "export_cancelled"]


def test_a_request_that_has_expired_is_not_cancelled_again(ada: KeyOwner) -> None:
    ada.ask()
    with ada.later(WAIT + timedelta(days=2)):
        shown = forms_of(ada.browser.get(ada.keys))[ada.keys]
        assert ada.browser.client.post(f"{ada.keys}/cancel", data=shown).status_code == 303
    assert acts() == ["export_requested"]


def test_an_outage_of_the_key_service_is_a_page_that_says_when_to_try_again(
    ada: KeyOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada.ask()
    begun = ada.begin_import()

    def out(*_: object) -> NoReturn:
        raise KeyServiceUnavailable(retry_after_seconds=10)

    with monkeypatch.context() as outage:
        for use in ("seal_phrase", "import_phrase"):
            outage.setattr(custody, use, out)
        imported = ada.finish_import(begun, TWELVE)
        with ada.later():
            taken = ada.take()
    for failed in (imported, taken):
        assert (failed.status_code, failed.headers.get("Retry-After")) == (503, "10")
        assert not is_given(failed)
    # The wallet was marked before its key was opened, and of the phrase nothing is left.
    assert acts() == ["export_requested", "exported"]
    assert [each.key_sealed for each in rows()] == [None]
    assert ada.import_phrase(TWELVE).status_code == 303
    with ada.later():
        assert ada.opened(ada.take()) == phrase_of(ada.agent.wallet_id)


def test_an_agent_that_is_deleted_gives_nothing_and_gets_no_wallet(ada: KeyOwner, ops: Operator) -> None:
    ada.ask()
    begun = ada.begin_import()
    assert ops.delete(f"/agents/{ada.agent.id}").status_code == 200
    # The session has ended; the key of the form expires.
    assert ada.finish_import(begun, TWELVE).location.startswith("/owner/sign-in")
    assert [each.wallet_id for each in rows()] == [None]
    with read_only_unit() as session:
        assert list(session.scalars(select(Wallet.id).where(Wallet.agent_id == ada.agent.id))) == []


@pytest.mark.parametrize("length", [3000, 60_000])
def test_long_and_odd_values_of_every_field_are_refused_without_a_trace(ada: KeyOwner, length: int) -> None:
    ada.ask()
    [waiting] = rows()
    with ada.later():
        for point in ("\0" * length, "A" * length, " " * length, "\u202e" * (length // 4), "="):
            assert ada.take(public_key=point).status_code == 400
        for words in ("abandon " * (length // 9), " " * length, "\u0301" * (length // 4), "\x1b[2J"):
            assert ada.import_phrase(words).status_code == 400
        for odd in ("0", "%00", "a" * 2000, waiting.id, ada.agent.wallet_id, "..%2f"):
            shown = forms_of(ada.browser.get(ada.keys))[f"{ada.keys}/take"]
            assert ada.browser.client.post(f"{ada.page}/import/{odd}", data=shown).status_code in (403, 404)
            assert ada.browser.client.post(f"{ada.page}/wallets/{odd}/keys/take", data=shown).status_code in (403, 404)
    assert [each.id for each in rows()] == [waiting.id]
    assert acts() == ["export_requested"]


def test_an_assertion_for_one_act_or_wallet_is_refused_for_every_other(ada: KeyOwner) -> None:
    second = ada.agent.post("/v1/wallets", {}).get_json()["id"]
    of_second = ada.keys.replace(ada.agent.wallet_id, second)
    ada.ask()
    with ada.later():
        shown, fields = ada.browser.get(ada.keys), {"public_key": ada.made[1]}
        asked = ada.browser.get(of_second)
        for page, signed_for, sent_to in (
            (shown, f"{ada.keys}/take", of_second), (asked, of_second, f"{ada.keys}/take"),
            (shown, f"{ada.keys}/take", f"{ada.page}/import/{second}"), (shown, f"{ada.keys}/take", ada.keys),
        ):  # fmt: skip
            form = forms_of(page)[signed_for] | fields | {"passkey": ada.sign(page, signed_for, **fields)}
            refused = ada.browser.client.post(sent_to, data=form)
            assert (refused.status_code, is_given(refused)) == (403, False), sent_to
    assert acts() == ["export_requested"]


def test_asking_twice_begins_one_waiting_time(ada: KeyOwner) -> None:
    page = ada.browser.get(ada.keys)
    ada.ask()
    [first] = rows()
    with time_machine.travel(clock.now() + timedelta(minutes=9)):
        # The page of before, in another window.
        assert ada.confirm(page, ada.keys).status_code == 303
    assert [(each.id, each.valid_from) for each in rows()] == [(first.id, first.valid_from)]
    assert acts() == ["export_requested"]


def test_after_a_day_the_keys_must_be_asked_for_again(ada: KeyOwner) -> None:
    ada.ask()
    with ada.later():
        assert is_given(ada.take())
    with ada.later(WAIT + timedelta(days=1)):
        assert f"{ada.keys}/take" not in forms_of(ada.browser.get(ada.keys))
        assert ada.ask().status_code == 303


def test_asking_needs_a_passkey(ada: KeyOwner) -> None:
    refused = ada.browser.send(ada.browser.get(ada.keys), ada.keys, owner_key=ada.browser.key)
    assert (refused.status_code, rows()) == (403, [])


def test_taking_needs_a_passkey_that_signs_this_act_and_this_key(ada: KeyOwner) -> None:
    ada.ask()
    _, other = hpke.new_key()
    path = f"{ada.keys}/take"
    with ada.later():
        page, keys = ada.browser.get(ada.keys), ada.browser.get(f"{ada.page}/keys")
        fields = {"public_key": ada.made[1]}
        refused = [
            # Not the owner key alone.
            ada.browser.send(page, path, **fields, owner_key=ada.browser.key),
            # Signed for another key, and for another act.
            ada.browser.send(page, path, public_key=other, passkey=ada.sign(page, path, **fields)),
            ada.browser.send(page, path, **fields, passkey=ada.sign(keys, f"{ada.page}/keys/show")),
        ]
        signed = ada.sign(page, path, **fields)
        assert is_given(ada.browser.send(page, path, **fields, passkey=signed))
        # A second time.
        refused.append(ada.browser.send(page, path, **fields, passkey=signed))
    assert [(each.status_code, is_given(each)) for each in refused] == [(403, False)] * 4
    assert acts() == ["export_requested", "exported"]


def test_another_owner_an_agent_and_a_stranger_get_nothing(app: Flask, ada: KeyOwner) -> None:
    ada.ask()
    eve = key_owner(app)
    with ada.later():
        for keys in (ada.keys, ada.keys.replace(ada.agent.id, eve.agent.id)):
            for path in (keys, f"{keys}/take", f"{keys}/cancel"):
                form = {**forms_of(ada.browser.get(ada.keys))[f"{ada.keys}/take"], "owner_key": eve.browser.key}
                eve.sign_in()
                csrf = forms_of(eve.browser.get(eve.keys))[eve.keys]["csrf_token"]
                answer = eve.browser.client.post(path, data={**form, "csrf_token": csrf})
                assert (answer.status_code in (303, 403, 404), is_given(answer)) == (True, False)
                by_agent = ada.agent.client.post(path, data=form, headers=ada.agent.headers())
                assert (by_agent.status_code, is_given(by_agent)) == (303, False)
                assert person(app).client.post(path, data=form).status_code == 303
        with pytest.raises(NotFound):
            take_directly(eve, ada.agent.wallet_id)
        assert is_given(ada.take())


@pytest.mark.parametrize(
    "change", ["replaced", "recovered", "handed over"],
)  # fmt: skip
def test_a_new_owner_key_ends_open_requests(app: Flask, ada: KeyOwner, change: str) -> None:
    ada.ask()
    keys = f"{ada.page}/keys"
    with ada.later():
        ready, path = ada.browser.get(ada.keys), f"{ada.keys}/take"
        form = {**forms_of(ready)[path], "public_key": ada.made[1]}
        form["passkey"] = ada.sign(ready, path, public_key=ada.made[1])
        if change == "replaced":
            shown = ada.browser.send(ada.browser.get(keys), f"{keys}/replace-owner-key", owner_key=ada.browser.key)
            new, browser = OWNER_KEY.findall(shown.text)[0], ada.browser
        else:
            kind = "handover" if change == "handed over" else "recovery_code"
            asked = forms_of(ada.browser.get(keys))[f"{keys}/codes"]
            made = ada.browser.client.post(
                f"{keys}/codes", data={**asked, "kind": kind, "owner_key": ada.browser.key}
            )  # fmt: skip
            browser = person(app)
            shown = browser.send(browser.get("/owner/recover"), "/owner/recover", code=CODE.findall(made.text)[0])
            new = OWNER_KEY.findall(shown.text)[0]
            assert browser.send(shown, "/owner/recover/use").status_code == 200
        assert not is_given(ada.browser.client.post(path, data=form))
        assert path not in forms_of(browser.get(ada.keys))
        with read_only_unit() as session:
            current = owner_keys.find(session, new)
        assert current
        # A request that was checked before the change and acts after it.
        former = replace(current, id=identifiers.new_id())
        with ada.app.test_request_context(), pytest.raises(NotFound):
            service.request_export(owner_actor(current.id), former, ada.agent.wallet_id)
        # The new owner adds a passkey, asks, and waits.
        device = SoftwareAuthenticator("http://purser.test", "purser.test")
        browser.key = new
        assert device.add_to(browser, ada.page).status_code == 303
        assert KeyOwner(app, ada.agent, browser, device).ask().status_code == 303
        assert "in 72 hours" in browser.get(ada.keys).text
    assert acts() == ["export_requested"] * 2


def test_a_frozen_agents_keys_are_neither_asked_for_nor_taken(ada: KeyOwner, ops: Operator) -> None:
    ada.ask()
    with ada.later():
        assert ops.post(f"/agents/{ada.agent.id}/freeze", {}).status_code == 200
        frozen = ada.take()
        assert (frozen.status_code, is_given(frozen)) == (403, False)
        ada.cancel()
        assert ada.ask().status_code == 403
    assert wallet_of(ada.agent)["exported_at"] is None


def test_a_deleted_wallet_gives_nothing_and_leaves_no_request(ada: KeyOwner) -> None:
    ada.ask()
    with ada.later():
        path, ready = f"{ada.keys}/take", ada.browser.get(ada.keys)
        with unit_of_work() as session:
            identity.lock_agent(session, ada.agent.id)
            wallets.delete_all(session, ada.agent.id)
        gone = ada.confirm(ready, path, public_key=ada.made[1])
        assert (gone.status_code, is_given(gone)) == (404, False)
    assert rows() == []


def test_what_is_not_a_point_of_the_curve_gets_nothing(ada: KeyOwner) -> None:
    ada.ask()
    for point in (
        "", "AA", "====", "é", "B" * 5000, hpke.base64url(b"\0"), hpke.base64url(b"\4" + bytes(64)),
        hpke.base64url(b"\4" + b"\xff" * 64), hpke.base64url(bytes(32)),
    ):  # fmt: skip
        with ada.later():
            refused = ada.take(public_key=point)
            assert (refused.status_code, is_given(refused)) == (400, False), point
        assert wallet_of(ada.agent)["exported_at"] is None, point
        assert acts() == ["export_requested"], point


def test_a_key_of_another_curve_gets_nothing() -> None:
    other = ec.generate_private_key(ec.SECP256K1()).public_key()
    with pytest.raises(ValueError, match="Invalid EC key"):
        hpke.point(hpke.base64url(other.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)))


def test_a_request_that_sql_moves_forward_moves_to_another_wallet_or_inserts_is_refused(
    app: Flask, ada: KeyOwner
) -> None:
    eve = key_owner(app)
    ada.ask()
    for values in ({"valid_from": clock.now()}, {"wallet_id": eve.agent.wallet_id}, {"owner_key_id": None}):
        changed = {**values}
        if "owner_key_id" in changed:
            with read_only_unit() as session:
                eves = owner_keys.find(session, eve.browser.key)
                assert eves
                changed["owner_key_id"] = eves.id
        with db.engine.connect() as connection:
            connection.execute(update(KeyTransfer.__table__).values(changed))
            kept = connection.execute(select(KeyTransfer.__table__)).mappings().one()
            connection.rollback()
        assert not seal_of(KeyTransfer).is_authentic(SimpleNamespace(**kept), remembers=False)
    with unit_of_work() as session:
        session.execute(update(KeyTransfer.__table__).values(valid_from=clock.now()))
    with pytest.raises(NotFound):
        take_directly(ada)


def test_no_wallet_of_the_operator_can_be_asked_for_or_taken(app: Flask, ada: KeyOwner) -> None:
    treasury = create_treasury()
    page = ada.keys.replace(ada.agent.wallet_id, treasury)
    assert ada.browser.get(page).status_code == 404
    csrf = forms_of(ada.browser.get(ada.keys))[ada.keys]
    asked = ada.browser.client.post(page, data={**csrf, "owner_key": ada.browser.key})
    assert asked.status_code in (403, 404)
    with read_only_unit() as session:
        owner = owner_keys.find(session, ada.browser.key)
    assert owner
    with app.test_request_context(), pytest.raises(NotFound):
        service.request_export(owner_actor(owner.id), owner, treasury)
    with pytest.raises(NotFound):
        take_directly(ada, treasury)


def create_treasury() -> str:
    return treasury.wallet(treasury.WalletRole.TREASURY, ChainName.BASE).id


class Killed(BaseException):
    """The process dies."""


class DyingVault(LocalVault):
    """A vault in a process that dies when it is used for something."""

    dies_at = ""

    def recovery_phrase(self, sealed: str, location: SecretLocation) -> str:
        self._die("recovery_phrase")
        return super().recovery_phrase(sealed, location)

    def import_phrase(self, to: SecretLocation, phrase: str, info: str, key: str, at: SecretLocation) -> NewWallet:
        self._die("import_phrase")
        return super().import_phrase(to, phrase, info, key, at)

    def _die(self, at: str) -> None:
        if self.dies_at == at:
            raise Killed


def test_a_process_that_dies_marks_the_wallet_before_it_opens_the_key_and_makes_no_half_wallet(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    vault = DyingVault(settings_for(sqlite_url).encryption_key_list())
    app = build_app(sqlite_url, vault=vault)
    with app.app_context():
        ada = key_owner(app)
        ada.ask()
        vault.dies_at = "recovery_phrase"
        with ada.later():
            with pytest.raises(Killed):
                ada.take()
            assert wallet_of(ada.agent)["exported_at"] is not None
            assert acts() == ["export_requested", "exported"]
            vault.dies_at = "import_phrase"
            assert ada.opened(ada.take()) == phrase_of(ada.agent.wallet_id)
            begun = ada.begin_import()
            with pytest.raises(Killed):
                ada.finish_import(begun, TWELVE)
            assert len(ada.agent.get("/v1/wallets").get_json()["wallets"]) == 1
            # The key of that form is gone, so a new one is begun.
            vault.dies_at = ""
            assert ada.finish_import(begun, TWELVE).status_code == 404
            assert ada.import_phrase(TWELVE).status_code == 303


# Imports.


@pytest.mark.parametrize(
    ("words", "evm", "solana"),
    [
        (TWELVE, "0x9858EfFD232B4033E47d90003D41EC34EcaEda94", "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk"),
        (TWENTY_FOUR, "0xF278cF59F82eDcf871d630F28EcC8056f25C1cdb", "3Cy3YNTFywCmxoxt8n7UH6hg6dLo5uACowX3CFceaSnx"),
    ],
)  # fmt: skip
def test_an_imported_phrase_has_the_addresses_of_metamask_and_phantom_and_can_be_taken_out(
    ada: KeyOwner, words: str, evm: str, solana: str
) -> None:
    made = ada.import_phrase(words)
    assert made.status_code == 303, made.text
    first, imported = ada.agent.get("/v1/wallets").get_json()["wallets"]
    assert (imported["addresses"]["base"], imported["addresses"]["solana"]) == (evm, solana)
    # Others may know the phrase from the start, and the wallet may hold money.
    assert imported["exported_at"] is not None
    assert first["exported_at"] is None
    assert imported["spending_controls"]["daily_limit_usd"] == 100
    assert phrase_of(imported["id"]) == words
    assert custody.signer_of(imported["id"]).evm_address == evm
    assert rows() == []
    assert acts() == ["imported"]


def test_a_phrase_is_read_whatever_its_spaces(ada: KeyOwner) -> None:
    assert ada.import_phrase("  " + TWELVE.replace(" ", " \n ")).status_code == 303


def test_a_wrong_phrase_is_a_clear_error_that_quotes_no_word(ada: KeyOwner) -> None:
    for words in (
        "", "abandon", "abandon " * 12, "abandon " * 24, "abandon " * 14 + "address", "zoo " * 11 + "about",
        "secretword " * 12, "ABANDON " * 11 + "about", "\0" * 40, "é" * 12,
    ):  # fmt: skip
        refused = ada.import_phrase(words)
        assert (refused.status_code, "12 or 24 words" in refused.text) == (400, True), words
        assert not any(each in refused.text for each in ("abandon", "secretword", "about<", "zoo")), words
        assert len(ada.agent.get("/v1/wallets").get_json()["wallets"]) == 1, words
        assert rows() == [], words


def test_a_wallet_that_exists_is_not_imported(app: Flask, ada: KeyOwner) -> None:
    eve = key_owner(app)
    assert eve.import_phrase(phrase_of(ada.agent.wallet_id)).status_code == 409
    assert ada.import_phrase(TWELVE).status_code == 303
    assert ada.import_phrase(TWELVE).status_code == 409
    assert eve.import_phrase(TWELVE).status_code == 409
    imported = ada.agent.get("/v1/wallets").get_json()["wallets"][1]["id"]
    assert ada.agent.delete(f"/v1/wallets/{imported}").status_code == 200
    # Once it was deleted, whoever has the phrase may use it again.
    again = eve.import_phrase(TWELVE)
    assert again.status_code == 303
    assert [each["exported_at"] is None for each in eve.agent.get("/v1/wallets").get_json()["wallets"]] == [True, False]


def test_a_sealed_phrase_is_used_once_in_its_form_only(app: Flask, ada: KeyOwner) -> None:
    eve = key_owner(app)
    begun, of_eve = ada.begin_import(), eve.begin_import()
    stolen = sealed_for(begun, TWELVE)
    assert eve.finish_import(of_eve, "", sealed=stolen).status_code == 400
    [path] = [each for each in forms_of(begun) if "/import/" in each]
    # Another form's, an expired one, and none.
    other = path.replace(ada.agent.id, eve.agent.id)
    eve.begin_import()
    csrf = {**forms_of(begun)[path], "csrf_token": forms_of(eve.browser.get(eve.keys))[eve.keys]["csrf_token"]}
    assert eve.browser.client.post(other, data={**csrf, "sealed": stolen}).status_code == 403
    with time_machine.travel(clock.now() + timedelta(minutes=9)):
        renewed = ada.begin_import()
        assert ada.finish_import(begun, TWELVE).status_code == 404
    with time_machine.travel(clock.now() + timedelta(minutes=9)):
        assert ada.finish_import(renewed, TWELVE).status_code == 303
        assert ada.finish_import(renewed, TWENTY_FOUR).status_code == 404


def test_an_import_needs_a_passkey_that_signs_what_was_sealed(ada: KeyOwner) -> None:
    begun = ada.begin_import()
    [path] = [each for each in forms_of(begun) if "/import/" in each]
    mine, theirs = sealed_for(begun, TWELVE), sealed_for(begun, TWENTY_FOUR)
    assert ada.browser.send(begun, path, sealed=mine, owner_key=ada.browser.key).status_code == 403
    assert ada.browser.send(begun, path, sealed=theirs, passkey=ada.sign(begun, path, sealed=mine)).status_code == 403
    assert len(rows()) == 1


def test_what_was_not_sealed_is_a_clear_error(ada: KeyOwner) -> None:
    for sealed in ("A", "AAAA", "x" * 3000, "é", hpke.base64url(b"\4" + bytes(100))):
        refused = ada.finish_import(ada.begin_import(), "", sealed=sealed)
        assert (refused.status_code, "12 or 24 words" in refused.text) == (400, True), sealed


def test_the_key_of_an_import_that_is_not_finished_is_deleted(ada: KeyOwner) -> None:
    ada.begin_import()
    personal_data.prune("key_transfers", clock.now())
    assert len(rows()) == 1
    personal_data.prune("key_transfers", clock.now() + timedelta(minutes=31))
    assert rows() == []


def test_the_number_of_wallets_is_limited_and_locked_limits_are_inherited(ada: KeyOwner) -> None:
    ada.agent.controls(daily_limit_usd=7)
    lock = f"{ada.page}/lock"
    assert ada.browser.send(ada.browser.get(ada.page), lock).status_code == 303
    assert ada.import_phrase(TWELVE).status_code == 303
    controls = ada.agent.get("/v1/wallets").get_json()["wallets"][1]["spending_controls"]
    assert (controls["daily_limit_usd"], controls["locked"]) == (7, True)
    for _ in range(MAX_WALLETS_PER_AGENT - 2):
        assert ada.agent.post("/v1/wallets", {}).status_code == 201
    full = ada.import_phrase(TWENTY_FOUR)
    assert (full.status_code, "at most" in full.text) == (409, True)


def test_neither_words_nor_keys_are_in_logs_pages_events_entries_or_rows(ada: KeyOwner) -> None:
    words = phrase_of(ada.agent.wallet_id)
    written, pages = [], []
    with all_records() as records:
        ada.ask()
        with ada.later():
            pages += [ada.take(), ada.take(public_key="x"), ada.browser.get(ada.keys), ada.browser.get(ada.page)]
            pages += [ada.import_phrase(each) for each in (TWELVE, "abandon " * 12, words, "zoo " * 24)]
            pages += [ada.agent.get("/v1/events"), ada.agent.get("/v1/wallets")]
        written = [str(vars(each)) + each.getMessage() for each in records]
    stored = []
    with db.engine.connect() as connection:
        for table in db.metadata.sorted_tables:
            stored += [str(dict(row)) for row in connection.execute(select(table)).mappings()]
    secrets = [TWELVE.strip(), TWELVE[:40], words, " ".join(words.split()[:3]), "abandon", "zoo"]
    for entropy in (custody_entropy(words), custody_entropy(TWELVE)):
        for key in (entropy, *(each for each in private_keys(entropy))):
            secrets += [key.hex(), hpke.base64url(key), repr(key)[2:-1]]
    for place in (*written, *stored, *(each.text for each in pages)):
        for secret in secrets:
            assert secret not in place, place[:200]


def private_keys(entropy: bytes) -> tuple[bytes, bytes]:
    evm, solana = wallet_keys(entropy)
    return evm.secret, solana.private_bytes_raw()


@contextmanager
def all_records() -> Iterator[list[logging.LogRecord]]:
    """Collect the records of all loggers at every level, before redaction."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(level=0)
    handler.emit = records.append  # type: ignore[method-assign]
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
