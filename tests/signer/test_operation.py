"""A signer process in operation: what operators and metrics are told of it, and its role in PostgreSQL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from flask import Flask
from sqlalchemy import select
from sqlalchemy.engine import make_url

from app.adapters.vault import LocalVault
from app.db.unit_of_work import read_only_unit
from app.ports.errors import Rejected
from app.state import Application
from app.wallets.core import custody
from app.wallets.core.models import KeyTransfer
from signer.client import RemoteVault, SignerClient
from tests.signer.conftest import Attacker
from tests.support.agents import register
from tests.support.applications import change_ports, key_of
from tests.support.deployed import ROOT
from tests.support.servers import Postgres
from tests.support.signers import KEY_ID, SignerThread, signer_of
from tests.support.waiting import wait_until
from tests.support.wallet_keys import key_owner


@pytest.fixture
def served(
    build_app: Callable[..., Application], sqlite_url: str, tmp_path: Path
) -> Iterator[tuple[Application, SignerThread]]:
    """A signer whose socket has a folder of its own."""
    tmp_path.chmod(0o750)
    app = build_app(sqlite_url, settings={"signer_socket": str(tmp_path / "signer.sock")})
    with app.app_context(), signer_of(app, tmp_path) as running:
        yield app, running


def told(app: Flask) -> list[str]:
    """Return what `flask doctor` says of the signer."""
    lines = app.test_cli_runner().invoke(args=["doctor"]).output.splitlines()
    return [line for line in lines if " signer: " in line]


def measured(app: Flask) -> dict[str, float]:
    lines = app.test_client().get("/metrics").get_data(as_text=True).splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if line.startswith("purser_signer"))}


def test_refusals_are_counted_by_the_signer_and_outages_are_measured(attacker: Attacker) -> None:
    attacker.record()
    attacker.ask(attacker.fields())
    assert measured(attacker.app) == {"purser_signer_up": 1, "purser_signer_refusals": 0}
    assert attacker.refusal(attacker.fields(units=5_000_001, nonce=1)) == "not_as_recorded"
    with pytest.raises(Rejected):
        attacker.signer.client.ask("export", row_id=attacker.agent.wallet_id, recipient="", info="")
    assert measured(attacker.app)["purser_signer_refusals"] == 2
    attacker.signer.stop()
    assert measured(attacker.app) == {"purser_signer_up": 0}
    attacker.signer.start()
    assert measured(attacker.app) == {"purser_signer_up": 1, "purser_signer_refusals": 2}, "the journal keeps them"


def test_another_user_is_counted_and_gets_no_answer(attacker: Attacker) -> None:
    attacker.signer.server.uids.clear()
    attacker.signer.client.forget_connections()
    assert measured(attacker.app) == {"purser_signer_up": 0}
    attacker.signer.server.uids.add(os.geteuid())
    assert measured(attacker.app)["purser_signer_refusals"] >= 1


def test_a_signer_that_hangs_does_not_stop_the_metrics(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as silent:
        path = attacker.signer.folder / "silent"
        silent.bind(str(path))
        silent.listen()
        monkeypatch.setattr(attacker.signer.client, "path", str(path))
        assert measured(attacker.app) == {"purser_signer_up": 0}


def test_doctor_finds_a_socket_that_others_can_replace_and_a_signer_that_is_away(
    served: tuple[Application, SignerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, signer = served
    register(app.test_client())
    danger = "reach its socket or put another in its place"
    assert danger in str(told(app)), "it runs as the same user"
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert [line.split()[0] for line in told(app)] == ["ok"], told(app)
    for mode in (0o770, 0o755, 0o751):
        signer.folder.chmod(mode)
        assert danger in str(told(app))
    signer.folder.chmod(0o750)
    signer.stop()
    [line] = told(app)
    assert line.startswith("FAIL")
    assert "does not respond, so nothing is signed" in line
    signer.start()
    assert "FAIL" not in str(told(app))


def test_doctor_names_keys_that_the_web_process_should_not_have(
    build_app: Callable[..., Application], sqlite_url: str, tmp_path: Path
) -> None:
    app = build_app(sqlite_url)
    register(app.test_client())  # sealed with ENCRYPTION_KEYS, before there was a signer
    given = {"signer_socket": str(tmp_path / "signer.sock"), "vault_token": "s.secret-token"}
    app = build_app(sqlite_url, settings=given)
    with app.app_context(), signer_of(app, tmp_path):
        found = str(told(app))
    assert "this process has VAULT_TOKEN" in found
    assert "secret-token" not in found
    assert "1 wallets' keys can be opened without the signer process" in found


def test_an_imported_phrase_is_opened_by_the_signer_alone(
    build_app: Callable[..., Application], sqlite_url: str, tmp_path: Path
) -> None:
    app, words = build_app(sqlite_url), "abandon " * 11 + "about"
    with app.app_context(), signer_of(app, tmp_path) as signer:
        sent: list[dict[str, Any]] = []

        def noted(act: str, **asked: Any) -> Any:
            sent.append({"act": act, **asked})
            return ask(act, **asked)

        ask, ada = signer.client.ask, key_owner(app)
        signer.client.ask = noted  # type: ignore[method-assign]
        begun = ada.begin_import()
        with read_only_unit() as session:
            [row] = session.scalars(select(KeyTransfer)).all()
        assert (row.key_sealed or "").startswith(f"{KEY_ID}.")
        location = custody.import_location(row.id)
        with pytest.raises(Rejected):
            app.state.ports.vault.open(row.key_sealed or "", location)
        with pytest.raises(Rejected):
            LocalVault(app.state.settings.encryption_key_list()).open(row.key_sealed or "", location)
        assert ada.finish_import(begun, words).status_code == 303
        wallets = {each["addresses"]["base"] for each in ada.agent.get("/v1/wallets").get_json()["wallets"]}
        assert "0x9858EfFD232B4033E47d90003D41EC34EcaEda94" in wallets
        assert {"import_key", "import_phrase"} <= {each["act"] for each in sent}
        assert "abandon" not in str(sent)
        [imported] = [each for each in sent if each["act"] == "import_phrase"]
        assert ask(**imported)[0] == imported["row_id"], "an answer that was lost is given again"
        with pytest.raises(Rejected, match="import_used"):
            ask(**{**imported, "row_id": str(uuid4())})
        assert ada.import_phrase("abandon " * 12).status_code == 400
        assert signer.client.refusals() == 1, "a mistyped word is no attack"
        begun = ada.begin_import()
        signer.stop()
        assert ada.finish_import(begun, words).status_code == 503


@pytest.fixture
def role_urls(postgres: Postgres, postgres_url: str) -> Iterator[dict[str, str]]:
    """The database under the role of `deploy/signer/role.sql`, and a journal of its own."""
    admin = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute((ROOT / "deploy/signer/role.sql").read_text())
        connection.execute("ALTER ROLE purser_signer PASSWORD 'role-password'")
    journal = postgres.create_database("signer_journal")
    own = make_url(postgres_url).set(username="purser_signer", password="role-password")
    yield {"DATABASE_URL": own.render_as_string(hide_password=False), "SIGNER_DATABASE_URL": journal}
    postgres.drop_database("signer_journal")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("DROP OWNED BY purser_signer; DROP ROLE purser_signer")


@pytest.fixture
def signer_process(role_urls: dict[str, str], tmp_path: Path) -> Iterator[SignerClient]:
    """`python -m signer` with its own settings only."""
    key = tmp_path / "wallet.key"
    key.write_bytes(os.urandom(32))
    path = tmp_path / "socket" / "signer"
    own = {
        **role_urls, "NETWORK": "sandbox", "ENCRYPTION_KEYS": key_of("k1"), "SIGNER_SOCKET": str(path),
        "WALLET_ENCRYPTION_KEYS": f"w1:file://{key}", "PATH": os.environ["PATH"],
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "signer"], cwd=ROOT, env=own, stdout=log, stderr=log)
    try:
        wait_until(lambda: path.exists() or process.poll() is not None, 60, what="the socket of the signer")
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield SignerClient(str(path))
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.postgres
def test_a_signer_needs_no_more_than_its_role_in_postgresql_may_do(
    build_app: Callable[..., Application], postgres_url: str, signer_process: SignerClient, role_urls: dict[str, str]
) -> None:
    app = build_app(postgres_url)
    change_ports(
        app, vault=RemoteVault(app.state.settings.encryption_key_list(), signer_process), signer=signer_process
    )
    signer: Any = SimpleNamespace(client=signer_process)
    with app.app_context():
        attacker = Attacker(app, register(app.test_client()), signer)
        attacker.record()
        assert attacker.signed_by(attacker.fields()) == attacker.agent.address
        assert attacker.refusal(attacker.fields(units=1)) == "not_as_recorded"
        with pytest.raises(Rejected, match="not_recorded"):
            signer_process.ask("export", row_id=attacker.agent.wallet_id, recipient="", info="")
        assert list(signer_process.withdraw(attacker.ids)) == attacker.ids
        assert signer_process.refusals() == 2
        signer_process.forget_connections()
    url = make_url(role_urls["DATABASE_URL"]).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        for statement in (
            "UPDATE wallets SET name = 'x'", "DELETE FROM signing_intents", "INSERT INTO key_store VALUES (2, 'x')",
            "SELECT * FROM owner_keys", "SELECT * FROM retired_keys", "CREATE TABLE t (n int)",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
