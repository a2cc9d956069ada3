"""Wallets whose keys a KMS encrypts: outages, moves between services and the operator's commands, over Vault's wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from flask import Flask
from pydantic import SecretStr
from sqlalchemy import select, update

from app.adapters.evm.chain import EvmChain
from app.adapters.key_services import vault_transit as use_vault_transit
from app.adapters.vault import LocalVault
from app.capacity.single_flight_cache import SingleFlightCache
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import KeyServiceUnavailable
from app.observability import counters
from app.ports.vault import KeyService
from app.wallets.core import custody
from app.wallets.core.models import RetiredKey, WalletKey
from sandbox.evm import EvmNode
from tests.support import status_writes
from tests.support.agents import Agent, register
from tests.support.applications import key_of, settings_for
from tests.support.chains import fund
from tests.support.key_services import VAULT_TOKEN, StoredKey, vault_transit
from tests.support.loopback_http import Reply
from tests.support.phrases import phrase_of
from tests.support.wallet_keys import key_owner
from workers import approvals as approval_worker

_LOCAL = settings_for("sqlite://").encryption_key_list()


@dataclass
class KeyHouse:
    """Two keys of a key service, and the vaults that processes with different settings have."""

    stored: StoredKey
    service: KeyService

    def vault(self, sealing: str, *opening: str) -> LocalVault:
        return LocalVault(_LOCAL, {name: self.service for name in (sealing, *opening) if name}, sealing)

    def fail(self) -> None:
        self.stored.misbehave = lambda _asked: Reply(b'{"errors":["Vault is sealed"]}', status=503)

    def recover(self) -> None:
        self.stored.misbehave = lambda _asked: None


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyHouse]:
    with vault_transit(tmp_path, monkeypatch) as (stored, host):
        yield KeyHouse(stored, partial(use_vault_transit, SecretStr(VAULT_TOKEN), host, "transit", "wallets"))


def forget(vault: LocalVault) -> None:
    """Forget data keys, as a process does after five minutes."""
    vault._data_keys = SingleFlightCache()


def run(app: Flask, *command: str) -> tuple[int, str]:
    done = app.test_cli_runner().invoke(args=list(command))
    return done.exit_code, done.output


def key_ids() -> set[str]:
    with read_only_unit() as session:
        sealed = [*session.scalars(select(WalletKey.sealed)), *session.scalars(select(RetiredKey.sealed))]
    return {each.partition(".")[0] for each in sealed}


@pytest.mark.chain
def test_while_a_key_service_is_out_nothing_is_signed_and_the_same_request_pays_once_afterwards(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse, chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
) -> None:  # fmt: skip
    vault = house.vault("k3")
    app = build_app(sqlite_url, vault=vault, chains=chains)
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        house.fail()
        assert agent.move("1", "USDC").status_code == 200, "the data key is remembered"
        forget(vault)
        answer = agent.move("2", "USDC", Idempotency_Key="order-1")
        assert (answer.status_code, answer.get_json()["code"]) == (503, "KEY_SERVICE_UNAVAILABLE")
        assert int(answer.headers["Retry-After"]) > 0
        assert [row["amount"] for row in agent.history()] == ["1"]
        assert agent.spent_this_month() == 1
        assert agent.move("2", "USDC", options={"dry_run": True}).status_code == 200
        assert agent.get(f"{agent.wallet_url}/balances").status_code == 200
        for path in ("/v1/wallets", "/v1/agents/register"):
            assert agent.post(path, {"name": "new"}).get_json()["code"] == "KEY_SERVICE_UNAVAILABLE"
        assert len(agent.get("/v1/wallets").get_json()["wallets"]) == 1
        house.recover()
        forget(vault)
        paid = [agent.move("2", "USDC", Idempotency_Key="order-1").get_json() for _ in range(2)]
        assert paid[0]["transaction_id"] == paid[1]["transaction_id"]
        assert sorted(row["amount"] for row in agent.history()) == ["1", "2"]
        assert agent.spent_this_month() == 3
    assert {wallet for _, wallet in house.stored.uses} == {agent.wallet_id, *_of_service(app)}


def _of_service(app: Flask) -> set[str]:
    with app.app_context(), read_only_unit() as session:
        return set(session.scalars(select(WalletKey.wallet_id)))


@pytest.mark.chain
def test_an_approved_payment_waits_for_the_key_service_and_is_paid_once(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse, chains: dict[ChainName, EvmChain],
    base_node: EvmNode, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from app.approvals import execution  # noqa: PLC0415
    from tests.api.test_approvals import ask, decide, read  # noqa: PLC0415

    vault = house.vault("k3")
    app = build_app(sqlite_url, vault=vault, chains=chains)
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        agent.controls(approval_threshold_usd=5)
        approval = ask(agent)
        assert decide(approval)
        house.fail()
        forget(vault)
        monkeypatch.setattr(execution, "_RETRY_AFTER", -execution._RETRY_AFTER)
        approval_worker.execute()
        assert read(agent, approval)["status"] == "approved"
        assert agent.history() == []
        house.recover()
        forget(vault)
        approval_worker.execute()
        assert read(agent, approval)["status"] == "executed"
        assert len(agent.history()) == 1


def test_wallets_move_into_a_key_service_between_services_and_back_without_downtime(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    agents: list[Agent] = []

    def works(vault: LocalVault) -> None:
        """Add a wallet; every process that may run beside this one opens all keys."""
        app = build_app(sqlite_url, vault=vault)
        with app.app_context():
            agents.append(register(app.test_client()))
            for agent in agents:
                assert custody.signer_of(agent.wallet_id).evm_address == agent.address

    def rotates(vault: LocalVault) -> str:
        app = build_app(sqlite_url, vault=vault)
        with app.app_context():
            exit_code, output = run(app, "keys", "rotate")
            assert exit_code == 0, output
            assert "0 secrets" in run(app, "keys", "rotate")[1]
        return output

    works(house.vault("", "k3"))
    works(house.vault("k3"))
    works(house.vault("", "k3"))
    assert "with key k1 and k3." in rotates(house.vault("k3"))
    works(house.vault("k3", "k4"))
    works(house.vault("k4", "k3"))
    rotates(house.vault("k4", "k3"))
    works(house.vault("k4"))
    works(house.vault("", "k4"))
    rotates(house.vault("", "k4"))
    works(house.vault(""))
    app = build_app(sqlite_url)
    with app.app_context():
        assert key_ids() == {"k1"}
        assert [entry for entry in run(app, "audit", "verify")[1].splitlines() if "changed" in entry] == []


def test_a_rotation_that_an_outage_interrupts_loses_nothing_and_goes_on(
    build_app: Callable[..., Flask], each_database_url: str, house: KeyHouse
) -> None:
    app = build_app(each_database_url, vault=house.vault("k4", "k3"))
    with app.app_context():
        agents = [register(app.test_client()) for _ in range(6)]
    before = build_app(each_database_url, vault=house.vault("k3", "k4"))
    with before.app_context():
        assert run(before, "keys", "rotate")[0] == 0
        assert key_ids() == {"k3"}
    uses = iter(range(1000))
    # Each key is decrypted, encrypted and tried: the third one is left half done.
    house.stored.misbehave = lambda _asked: Reply(b"", status=503) if next(uses) >= 8 else None
    with app.app_context():
        exit_code, output = run(app, "keys", "rotate", "--batch", "4")
        assert (exit_code, key_ids()) == (1, {"k3", "k4"})
        assert "cannot be used at the moment" in output
        house.recover()
        for agent in agents:
            assert custody.signer_of(agent.wallet_id).evm_address == agent.address
    after = build_app(each_database_url, vault=house.vault("k4", "k3"))
    with after.app_context():
        assert run(after, "keys", "rotate")[0] == 0
        assert key_ids() == {"k4"}
    alone = build_app(each_database_url, vault=house.vault("k4"))
    with alone.app_context():
        for agent in agents:
            assert custody.signer_of(agent.wallet_id).evm_address == agent.address


def test_a_wallet_is_deleted_during_an_outage_and_its_phrase_exported_afterwards(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    vault = house.vault("k3")
    app = build_app(sqlite_url, vault=vault)
    with app.app_context():
        agent = register(app.test_client())
        second = agent.post("/v1/wallets", {"name": "second"}).get_json()["id"]
        house.fail()
        forget(vault)
        assert agent.delete(f"/v1/wallets/{second}").status_code == 200
        exit_code, output = run(app, "retired-keys", "export", second)
        assert (exit_code, "cannot be used at the moment" in output) == (1, True)
        house.recover()
        forget(vault)
        assert run(app, "retired-keys", "export", second)[1].count(" ") > 12


def test_a_row_copied_from_another_wallet_opens_nothing(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    app = build_app(sqlite_url, vault=house.vault("k3"))
    with app.app_context():
        mine, victim = register(app.test_client()), register(app.test_client())
        with unit_of_work() as session:
            stolen = session.scalar(select(WalletKey.sealed).where(WalletKey.wallet_id == victim.wallet_id))
            session.execute(update(WalletKey).where(WalletKey.wallet_id == mine.wallet_id).values(sealed=stolen))
        with pytest.raises(KeyServiceUnavailable):
            custody.signer_of(mine.wallet_id)


def test_doctor_tells_whether_the_key_service_works_and_which_key_seals(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    vault = house.vault("k3")
    app = build_app(sqlite_url, vault=vault)
    with app.app_context():
        register(app.test_client())
    assert "new ones are sealed with key k3" in run(app, "doctor")[1]
    house.fail()
    forget(vault)
    output = run(app, "doctor")[1]
    assert "FAIL  keys: a key in a KMS or HSM cannot be used" in output
    local = build_app(sqlite_url)
    status_writes.expect_unverifiable_rows()
    assert "cannot be decrypted" in run(local, "doctor")[1]
    assert VAULT_TOKEN not in output


def test_no_key_service_is_asked_while_a_unit_of_work_is_open(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    vault = house.vault("k3")
    app = build_app(sqlite_url, vault=vault)
    with app.app_context():
        agent = register(app.test_client())
        forget(vault)
        house.stored.uses.clear()
        with read_only_unit() as session:
            sealed = session.scalars(select(WalletKey.sealed).where(WalletKey.wallet_id == agent.wallet_id)).one()
            for act in (vault.signer, lambda _sealed, place: vault.create_wallet(place)):
                with pytest.raises(RuntimeError):
                    act(sealed, custody.key_location(agent.wallet_id))
    assert house.stored.uses == []


def test_each_use_of_the_key_is_counted_by_outcome(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    def counted(operation: str, outcome: str) -> float:
        wanted = {"key": "k3", "operation": operation, "outcome": outcome}
        samples = (sample for metric in counters.collect() for sample in metric.samples)
        return sum(s.value for s in samples if s.name == "purser_key_seconds_count" and s.labels == wanted)

    before = [counted("encrypt", "ok"), counted("decrypt", "ok"), counted("encrypt", "VaultDown")]
    app = build_app(sqlite_url, vault=house.vault("k3"))
    with app.app_context():
        agent = register(app.test_client())
        house.fail()
        agent.post("/v1/wallets", {"name": "second"})
    after = [counted("encrypt", "ok"), counted("decrypt", "ok"), counted("encrypt", "VaultDown")]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]


def test_the_clients_of_key_services_are_not_loaded_without_one() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = (
        "import sys; from tests.support.applications import settings_for; from app.wiring import build;"
        " build(settings_for('sqlite://'));"
        " print(sorted({'botocore', 'hvac', 'google.auth', 'pkcs11'} & set(sys.modules)))"
    )
    environment = {**os.environ, "ENCRYPTION_KEYS": key_of("k1")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_owner_takes_and_brings_in_keys_under_a_key_service_and_an_outage_loses_none(
    build_app: Callable[..., Flask], sqlite_url: str, house: KeyHouse
) -> None:
    vault, words = house.vault("k3"), "abandon " * 23 + "art"
    app = build_app(sqlite_url, vault=vault)
    with app.app_context():
        ada = key_owner(app)
        ada.ask()
        begun = ada.begin_import()
        house.fail()
        forget(vault)
        assert ada.begin_import().status_code == 503
        assert ada.finish_import(begun, words).status_code == 503
        assert len(ada.agent.get("/v1/wallets").get_json()["wallets"]) == 1
        with ada.later():
            assert ada.take().status_code == 503
            house.recover()
            forget(vault)
            first = ada.opened(ada.take())
            assert ada.import_phrase(words).status_code == 303
        forget(vault)
        of_agent = [each["id"] for each in ada.agent.get("/v1/wallets").get_json()["wallets"]]
        assert [phrase_of(each) for each in of_agent] == [first, words]
        assert key_ids() == {"k3"}
        assert ada.agent.delete(f"/v1/wallets/{of_agent[1]}").status_code == 200
        assert custody.export_retired(of_agent[1])[1] == words
