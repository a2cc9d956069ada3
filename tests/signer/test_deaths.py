"""The web process and the signer process die at each step: nothing is paid twice, and nothing is held for ever."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from sqlalchemy import delete, select, update

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import KeyServiceUnavailable
from app.platform import row_seals
from app.ports.errors import Rejected
from app.spending.holds import SpendingHoldState
from app.spending.models import SpendingHold
from app.state import Application, app_state
from app.wallets.core import intents
from app.wallets.core.intents import Intent
from app.wallets.core.models import SigningIntent, Transaction, WalletKey
from sandbox.evm import EvmNode
from signer.server import SignerServer
from tests.api.test_wallet_key_services import forget
from tests.signer.conftest import Attacker
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, fund
from tests.support.drivers import fresh_address
from tests.support.signers import SignerThread, signer_of
from workers import confirmations, sweeps

LATER = timedelta(minutes=11)


def held() -> list[int]:
    with read_only_unit() as session:
        return list(session.scalars(
            select(SpendingHold.amount_nanos).where(SpendingHold.state == SpendingHoldState.HELD)
        ))  # fmt: skip


def open_intents() -> int:
    with read_only_unit() as session:
        return len(session.scalars(select(SigningIntent.id)).all())


def settle(after: timedelta = LATER) -> None:
    now = clock.now() + after
    intents.settle_abandoned(now)


def unrecorded() -> list[str]:
    return intents.find_unrecorded(clock.now() - timedelta(hours=1))


def test_a_web_process_that_dies_before_it_asks_leaves_nothing_held(attacker: Attacker) -> None:
    attacker.record()
    assert held() == [5 * 10**9]
    settle(timedelta(minutes=9))
    assert held() == [5 * 10**9], "it may still be about to sign"
    settle()
    assert (held(), open_intents(), unrecorded()) == ([], 0, [])
    assert attacker.refusal(attacker.fields()) == "not_recorded"


def test_a_web_process_that_dies_with_a_signature_stays_counted_and_is_reported(attacker: Attacker) -> None:
    intent = attacker.record()
    attacker.ask(attacker.fields())
    assert unrecorded() == [], "a request may be about to record it"
    settle()
    assert held() == [5 * 10**9]
    assert [intent in problem for problem in unrecorded()] == [True]
    settle(timedelta(days=30))
    assert held() == [5 * 10**9]
    settle(timedelta(days=63))
    assert (held(), open_intents()) == ([], 0)
    assert len(unrecorded()) == 1, "the signer does not forget"


def test_who_deletes_the_intent_of_what_was_signed_is_reported(attacker: Attacker) -> None:
    attacker.record()
    attacker.ask(attacker.fields())
    from app.extensions import db  # noqa: PLC0415

    with db.engine.begin() as connection:
        connection.execute(delete(SigningIntent))
    assert len(unrecorded()) == 1


def test_an_authorization_nobody_recorded_is_released_once_it_has_expired(attacker: Attacker) -> None:
    from tests.signer.test_attacks_on_evm import authorization  # noqa: PLC0415

    attacker.record(kind="x402")
    attacker.ask(authorization(attacker, until=int(clock.now().timestamp()) + 3600))
    settle()
    assert held() == [5 * 10**9]
    settle(timedelta(minutes=61))
    assert held() == []


def test_permits_of_a_draft_are_no_signature_that_pays(attacker: Attacker) -> None:
    from app.adapters.evm.contracts.deployments import PERMIT2  # noqa: PLC0415
    from tests.signer.test_attacks_on_evm import permit  # noqa: PLC0415

    attacker.record(kind="x402")
    attacker.ask(permit(attacker, PERMIT2, 5_000_000))
    settle()
    assert (held(), unrecorded()) == ([], [])


class DroppingServer(SignerServer):
    """A signer that dies before or after it has committed a signature, before its answer arrives."""

    dies = ""

    def answer(self, line: bytes) -> Mapping[str, Any]:
        if self.dies and json.loads(line)["act"] == "sign":
            if self.dies == "after":
                super().answer(line)
            raise OSError("died")
        return super().answer(line)


@dataclass
class Paying:
    app: Application
    agent: Agent
    signer: SignerThread
    server: DroppingServer
    node: EvmNode


@pytest.fixture
def paying(
    build_app: Callable[..., Application], each_database_url: str, tmp_path: Path, base_node: EvmNode,
    chains: dict[ChainName, EvmChain],
) -> Iterator[Paying]:  # fmt: skip
    app = build_app(each_database_url, chains=chains)
    with app.app_context(), signer_of(app, tmp_path) as signer:
        signer.stop()
        server = signer.server
        signer.server = dropping = DroppingServer(signer.app, server.service, signer.client.path, [os.geteuid()])
        signer.start()
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        yield Paying(app, agent, signer, dropping, base_node)


@pytest.mark.chain
def test_a_transfer_is_signed_recorded_and_confirmed(paying: Paying) -> None:
    answer = paying.agent.move("2", "USDC")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "confirmed")
    assert paying.agent.spent_this_month() == 2
    assert (held(), unrecorded()) == ([], [])
    _finalize(paying)
    settle(timedelta(days=8))
    assert open_intents() == 0


@pytest.mark.chain
def test_while_the_signer_is_away_nothing_is_held_and_the_same_request_pays_once_afterwards(paying: Paying) -> None:
    agent = paying.agent
    paying.signer.stop()
    answer = agent.move("2", "USDC", Idempotency_Key="order-1")
    assert (answer.status_code, answer.get_json()["code"]) == (503, "KEY_SERVICE_UNAVAILABLE")
    assert int(answer.headers["Retry-After"]) > 0
    assert (held(), open_intents(), agent.history(), agent.spent_this_month()) == ([], 0, [], 0)
    assert agent.move("2", "USDC", options={"dry_run": True}).status_code == 200
    assert agent.get("/v1/wallets").status_code == 200
    assert agent.post("/v1/wallets", {"name": "new"}).status_code == 503
    paying.signer.start()
    paid = [agent.move("2", "USDC", Idempotency_Key="order-1").get_json() for _ in range(2)]
    assert paid[0]["transaction_id"] == paid[1]["transaction_id"]
    assert agent.spent_this_month() == 2


@pytest.mark.chain
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_signer_that_dies_in_between_pays_nothing_twice_and_holds_nothing_for_ever(paying: Paying, dies: str) -> None:
    agent = paying.agent
    paying.server.dies = dies
    assert agent.move("2", "USDC", Idempotency_Key="order-1").status_code == 503
    assert agent.history() == []
    paying.server.dies = ""
    answer = agent.move("2", "USDC", Idempotency_Key="order-1")
    assert answer.get_json()["status"] == "confirmed"
    assert [row["amount"] for row in agent.history()] == ["2"]
    assert held() == ([] if dies == "before" else [2 * 10**9]), "what was signed may land until its nonce is used"
    assert len(unrecorded()) == (dies == "after")
    _finalize(paying)
    if dies == "after":
        _set_error(agent, "slot_taken")
        settle()
        assert held() == [2 * 10**9], "what has used the nonce may be what was signed before"
        _set_error(agent, None)
    settle()
    assert (held(), agent.spent_this_month()) == ([], 2)


def _set_error(agent: Agent, error: str | None) -> None:
    with unit_of_work() as session:
        session.execute(update(Transaction).where(Transaction.wallet_id == agent.wallet_id).values(error=error))


def _finalize(paying: Paying) -> None:
    """Let the chain make the blocks after which the movement is final, and a worker see it."""
    for _ in range(10):
        fund(paying.node, fresh_address(), eth=0.001)
    with time_machine.travel(clock.now() + timedelta(hours=1), tick=True):
        confirmations.confirm(ChainName.BASE.value)


@pytest.mark.chain
def test_a_refused_movement_gives_its_hold_back_at_once(paying: Paying) -> None:
    answer = paying.agent.move("20", "USDC", how="transfer", to="0x000000000000000000000000000000000000dEaD")
    assert answer.status_code == 400
    answer = paying.agent.move("45", "USDC")
    assert answer.status_code == 200
    answer = paying.agent.move("50", "USDC")
    assert answer.status_code == 200
    assert paying.agent.move("10", "USDC").status_code in {403, 500}
    assert (held(), unrecorded()) == ([], [])


def test_a_client_of_another_user_is_not_answered(attacker: Attacker) -> None:
    attacker.signer.server.uids.clear()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(attacker.signer.client.path)
        assert connection.recv(100) == b""


def test_the_audit_reports_a_signature_without_a_movement(attacker: Attacker) -> None:
    attacker.record()
    attacker.ask(attacker.fields())
    settle()
    assert any("no movement was recorded" in violation for violation in sweeps.audit())


def test_keys_rotate_with_the_settings_of_the_service_leaves_wallets_keys_as_they_are(attacker: Attacker) -> None:
    with read_only_unit() as session:
        before = session.scalars(select(WalletKey.sealed)).all()
    result = attacker.app.test_cli_runner().invoke(args=["keys", "rotate"])
    assert (result.exit_code, "settings of the signer process" in result.output) == (1, True)
    vault = app_state().ports.vault
    with pytest.raises(Rejected, match="keys_are_in_signer"):
        row_seals.reseal_all(vault, batch=10)
    with read_only_unit() as session:
        assert session.scalars(select(WalletKey.sealed)).all() == before
    attacker.record()
    assert attacker.signed_by(attacker.fields()) == attacker.agent.address


def test_a_unit_that_fails_after_any_signature_leaves_the_nonce_to_the_next(attacker: Attacker) -> None:
    own, nothing = attacker.agent, TokenAmount(0, USDC)
    submission = Intent(new_id(), own.wallet_id, ChainName.BASE, "transfer", RECIPIENT, nothing)
    sent = attacker.fields(data=b"") | {"to": bytes.fromhex(own.address[2:])}
    with pytest.raises(RuntimeError), intents.recorded(submission):
        raise RuntimeError(attacker.ask(sent, ids=[submission.id]))
    attacker.record()
    assert attacker.signed_by(attacker.fields()) == own.address


@pytest.mark.chain
def test_while_the_signer_s_own_key_service_is_away_nothing_is_signed_or_held(paying: Paying) -> None:
    agent, key = paying.agent, paying.signer.folder / "wallet.key"
    hidden, vault = key.rename(key.with_suffix(".away")), paying.signer.app.state.ports.vault
    forget(vault)
    answer = agent.move("2", "USDC", Idempotency_Key="order-1")
    assert (answer.status_code, answer.get_json()["code"]) == (503, "KEY_SERVICE_UNAVAILABLE")
    assert (held(), open_intents(), unrecorded(), agent.history()) == ([], 0, [], [])
    hidden.rename(key)
    forget(vault)
    assert agent.move("2", "USDC", Idempotency_Key="order-1").get_json()["status"] == "confirmed"


def test_a_line_that_is_too_long_ends_its_connection(attacker: Attacker) -> None:
    client = attacker.signer.client
    with pytest.raises(KeyServiceUnavailable):
        client.ask("ping", filler="x" * 2**17)
    assert client.ask("signed", since=0) == {}
