"""Who can write to the database, and has no key of the service, moves nothing, receives nothing and is found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Uuid, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from werkzeug.test import TestResponse

from app import authenticated
from app.agents.claims import ClaimCode
from app.approvals.models import Approval
from app.audit_log import trail
from app.authenticated import RowChanged, RowSeal, UnsealedRowPermit
from app.core import clock, identifiers
from app.core.chains import ChainName
from app.core.pagination import PageRequest
from app.db.tables import UtcDateTime
from app.db.unit_of_work import read_only_unit, snapshot, unit_of_work
from app.extensions import db
from app.idempotency.service import IdempotencyKey
from app.identity import owner_keys
from app.identity.models import Agent as AgentRow
from app.identity.models import ApiKey, MasterKey, OwnerKey
from app.owner.session import sessions
from app.owner.session.sessions import OwnerSession, OwnerSessionKey
from app.payments import treasury
from app.payments.models import ServiceWallet
from app.payments.treasury import ServiceWallets, WalletRole
from app.platform import row_seals
from app.spending import audit as spending_audit
from app.spending.models import ApprovedPayee, SpendingAccount, SpendingControls
from app.state import app_state
from app.wallets.core import wallets
from app.wallets.core.models import SignedAttempt, Transaction, Wallet
from app.wallets.transactions import open_transactions
from sandbox.evm import EvmNode
from tests.support import filled, rows
from tests.support.agents import Agent, register
from tests.support.applications import key_of
from tests.support.chains import RECIPIENT, fund
from workers import approvals as worker

NO_POWER = {
    "address_names": {"created_at": "shown only"},
    "agents": {
        "name": "shown only", "created_at": "orders lists", "requests_per_minute": "how many requests",
    },
    "api_keys": {
        "email": "of a gateway-only key, shown only", "sealed": "AES-GCM, bound to its row",
        "created_at": "orders lists",
    },
    "approvals": {
        "sealed": "AES-GCM, bound to its row", "answer": "the owner's words, after the decision",
        "subject_id": "of what was recorded", "error": "why it failed", "holder": "a worker's lease",
        "lease_until": "a worker's lease", "request_id": "for the logs", "created_at": "orders lists",
        "finished_at": "shown only",
    },
    "approved_payees": {"created_at": "shown only"},
    "bridges": {
        "stage": "what the chain shows decides", "fee_units": "shown only",
        "proof": "the destination's contract verifies it",
        "attested_at": "when", "received_units": "as the chain shows", "arrival_hash": "as the chain shows",
        "arrival_block": "as the chain shows", "arrival_block_hash": "as the chain shows",
        "arrival_takes_slot": "as the chain shows", "may_return": "how long it is watched",
        "refund_hash": "as the chain shows", "refund_block": "as the chain shows",
        "refund_block_hash": "as the chain shows", "refund_units": "as the chain shows", "next_step_at": "when",
        "steps": "how often",
    },
    "claim_codes": {
        "pepper_id": "the hash decides", "answer_sealed": "AES-GCM, bound to its row", "repeats": "only bounds repeats",
        "created_at": "shown only",
    },
    "key_limits": {
        "name": "shown only", "tags": "shown only", "created_at": "orders lists",
    },
    "master_keys": {"name": "shown only", "sealed": "AES-GCM, bound to its row", "created_at": "orders lists"},
    "oauth_grants": {"used_at": "shown only", "created_at": "shown only"},
    "oauth_tokens": {"polled_at": "slows polls only", "created_at": "shown only"},
    "owner_keys": {"created_at": "orders lists"},
    "owner_passkeys": {
        "backup_eligible": "compared when the passkey signs, and only stricter than without it",
        "sign_count": "refuses if too high", "name": "shown only", "created_at": "orders lists",
        "used_at": "shown only",
    },
    "console_sessions": {"started_at": "shown only"},
    "owner_sessions": {"started_at": "shown only"},
    "services": {
        "name": "shown only", "description": "shown only", "pricing_model": "shown only", "category": "shown only",
        "secret_sealed": "AES-GCM, bound to its row", "total_calls": "orders the catalog",
        "total_revenue_nanos": "orders the catalog", "created_at": "orders lists", "updated_at": "shown only",
        "suspended_at": "an operator stopped it; resuming it gives no power over money",
    },
    "signed_attempts": {
        "id": "orders attempts", "raw": "signed by the wallet's key", "refusal": "why nodes refuse it",
        "seen_at_block": "when", "sent_at": "when",
    },
    "signing_intents": {
        "created_at": "when it is abandoned", "closed_at": "the signer decides what it signs", "nonce": "when it ends",
        "valid_until": "when it ends",
    },
    "budgets": {
        "name": "shown only", "created_at": "orders lists",
    },
    "spending_accounts": {"lock_version": "a lock"},
    "spending_controls": {"updated_at": "shown only"},
    "spending_holds": {
        "state": "counts in sums that are authenticated", "created_at": "shown only",
        "budgets": "the audit adds up what budgets count",
    },
    "spending_sessions": {"created_at": "orders lists"},
    "transactions": dict.fromkeys(
        [
            "from_address", "tx_hash", "status", "error", "cost_nanos", "created_at", "confirmed_at",
            "output_currency", "output_quoted_units", "output_minimum_units", "output_units", "gas_fee_units",
            "expires_at_height", "fee_cap_units", "fee_units", "native_out_units", "block_number",
            "block_hash", "opened_block", "expires_at", "next_check_at", "quarantined_at", "checks",
            "request_id",
        ],
        "an outcome, which the chain shows, or when it is checked",
    ),
    "wallets": {
        "name": "shown only", "transaction_count": "shown only", "created_at": "orders lists",
        "active_at": "paces scans for deposits", "new_to_scans": "begins scans for deposits",
        "exported_at": "shown only",
    },
}  # fmt: skip
"""The columns of authenticated tables that give no power, and why."""


def other(column: Any, value: Any) -> Any:  # noqa: PLR0911 - one line per type
    """Return another value of the same type."""
    if value is None and isinstance(column.type, UtcDateTime):
        return clock.now()
    if isinstance(column.type, Uuid):
        return identifiers.new_id()
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1
    if isinstance(value, datetime | date):
        return value + timedelta(days=1)
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, list):
        return [*value, "x"]
    if isinstance(value, dict):
        return {**value, "x": "x"}
    return "x" if value != "x" else "y"


def changed() -> list[str]:
    with read_only_unit() as session:
        return authenticated.find_changed(session)


def write(statement: Any) -> None:
    """Write as an intruder who has the database only."""
    with db.engine.begin() as connection:
        connection.execute(statement)


def test_every_column_that_gives_power_is_found_when_it_is_changed(app: Flask) -> None:
    with app.app_context():
        with db.engine.connect() as connection:
            filled.fill(connection)
        rows.accept()
        assert changed() == []
        for seal in authenticated.seals():
            for column in seal.table.columns:
                gives_power = column.name not in NO_POWER.get(seal.table.name, {})
                assert _is_found(seal, column) is gives_power, (seal.table.name, column.name)
        with db.engine.begin() as connection:
            for table in reversed(db.metadata.sorted_tables):
                connection.execute(delete(table))


def _is_found(seal: RowSeal, column: Any) -> bool:
    """Change a column of one row, and return whether that is found."""
    table = seal.table
    with db.engine.connect() as connection:
        keys = list(table.primary_key.columns)
        row = connection.execute(select(table).order_by(*keys).limit(1)).mappings().one()
        is_row = [each == row[each] for each in keys]
        value = other(column, row[column])
        try:
            connection.execute(update(table).where(*is_row).values({column: value}))
        except IntegrityError:
            # The database refuses this change of one column alone.
            return not seal.is_authentic(SimpleNamespace(**{**row, column.key: value}), remembers=False)
        with Session(connection) as session:
            found = list(seal.unauthentic_rows(session))
        connection.rollback()
    assert len(found) <= 1
    return bool(found)


@pytest.fixture
def victim(funded_agent: Agent) -> Agent:
    return funded_agent


@pytest.fixture
def intruder(chain_client: FlaskClient, base_node: EvmNode) -> Agent:
    """An intruder with a separate agent, who can also write to the database."""
    made = register(chain_client)
    fund(base_node, made.address, eth=1)
    return made


def is_refused(answer: TestResponse, *tables: str) -> None:
    assert answer.status_code == 500, answer.get_json()
    assert "was changed outside" in answer.get_json()["error"], answer.get_json()
    assert any(f" of {table} " in each or table in each for each in changed() for table in tables)


@pytest.mark.chain
def test_a_key_that_was_inserted_opens_nothing(victim: Agent) -> None:
    forged = identifiers.new_key("ak")
    row = {
        "id": identifiers.new_id(), "kind": "ak", "agent_id": victim.id, "account_id": victim.id,
        "digest": identifiers.digest(forged), "sealed": "x", "created_at": clock.now(), "mac": "k1.x",
    }  # fmt: skip
    write(insert(ApiKey.__table__).values(row))
    answer = victim.client.get("/v1/wallets", headers={"X-API-Key": forged})
    assert answer.status_code == 401
    assert f"row {row['id']} of api_keys was not written by this service" in changed()[0]
    assert victim.get("/v1/wallets").status_code == 200


@pytest.mark.chain
def test_a_key_cannot_be_moved_to_another_agent(victim: Agent, intruder: Agent) -> None:
    of_intruder = ApiKey.__table__.c.agent_id == intruder.id
    write(update(ApiKey.__table__).where(of_intruder).values(agent_id=victim.id, account_id=victim.id))
    assert intruder.get("/v1/wallets").status_code == 401
    assert len(changed()) == 1


@pytest.mark.chain
def test_a_master_key_that_was_inserted_opens_nothing(victim: Agent) -> None:
    forged = "mk_" + "x" * 43
    row = {
        "id": identifiers.new_id(), "name": "ops", "digest": identifiers.digest(forged), "sealed": "x",
        "active": True, "created_at": clock.now(),
    }  # fmt: skip
    write(insert(MasterKey.__table__).values(row))
    answer = victim.client.get("/v1/platform/agents", headers={"X-Master-Key": forged})
    assert answer.status_code == 401
    assert len(changed()) == 1


@pytest.mark.chain
def test_an_owner_cannot_be_made_by_sql(victim: Agent) -> None:
    key, token = identifiers.new_key("ok"), "t" * 43
    ids = [identifiers.new_id() for _ in range(2)]
    now = clock.now()
    owner = {"id": ids[0], "agent_id": victim.id, "digest": identifiers.digest(key), "created_at": now}
    signed_in = {
        "id": ids[1], "digest": identifiers.digest(token), "started_at": now, "expires_at": now + timedelta(hours=1),
    }  # fmt: skip
    write(insert(OwnerKey.__table__).values(owner))
    write(insert(OwnerSession.__table__).values(signed_in))
    write(insert(OwnerSessionKey.__table__).values(session_id=ids[1], owner_key_id=ids[0]))
    with read_only_unit() as session:
        assert owner_keys.find(session, key) is None
    assert sessions.find_session(token) is None
    assert len(changed()) == 3


@pytest.mark.chain
def test_a_wallet_cannot_be_moved_to_another_agent(victim: Agent, intruder: Agent) -> None:
    for table in (Wallet.__table__, SpendingAccount.__table__):
        key = table.c.id if "id" in table.c else table.c.wallet_id
        write(update(table).where(key == victim.wallet_id).values(agent_id=intruder.id))
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}
    is_refused(intruder.post(f"{victim.wallet_url}/transfer", body), "wallets")
    assert victim.move("1", "USDC").status_code == 404


@pytest.mark.chain
def test_an_address_of_another_is_never_shown_to_be_paid(victim: Agent) -> None:
    address = "0x52908400098527886E0F7030069857D2E4169EE7"
    is_wallet = Wallet.__table__.c.id == victim.wallet_id
    write(update(Wallet.__table__).where(is_wallet).values(evm_address=address))
    for answer in (
        victim.post(f"{victim.wallet_url}/fund", {"amount": "5", "currency": "USDC", "chain": "base"}),
        victim.get("/v1/wallets"),
        victim.get(f"{victim.wallet_url}/balances"),
    ):
        is_refused(answer, "wallets")
        assert address not in answer.get_data(as_text=True)


@pytest.mark.chain
@pytest.mark.parametrize(
    "changes",
    [{"per_tx_limit_nanos": 0}, {"locked": True}, {"allowed_addresses": ["x"]}, {"approval_threshold_nanos": 1}, None],
    ids=["limit", "lock", "allowlist", "threshold", "deleted"],
)
def test_controls_that_were_changed_or_deleted_permit_nothing(victim: Agent, changes: dict[str, Any] | None) -> None:
    table = SpendingControls.__table__
    is_wallet = table.c.wallet_id == victim.wallet_id
    write(delete(table).where(is_wallet) if changes is None else update(table).where(is_wallet).values(changes))
    answer = victim.move("90", "USDC")
    assert answer.status_code == 500, answer.get_json()
    assert "spending_controls" in answer.get_json()["error"]
    assert victim.history() == []
    with snapshot() as session:
        found = [*authenticated.find_changed(session), *spending_audit.check(session)]
    assert len(found) == 1
    rows.accept()


@pytest.mark.chain
def test_looser_controls_of_yesterday_cannot_be_put_back(victim: Agent) -> None:
    table = SpendingControls.__table__
    with db.engine.connect() as connection:
        old = dict(connection.execute(select(table).where(table.c.wallet_id == victim.wallet_id)).mappings().one())
    victim.controls(per_tx_limit_usd=1)
    write(update(table).where(table.c.wallet_id == victim.wallet_id).values(old))
    answer = victim.move("40", "USDC")
    assert answer.status_code == 500, answer.get_json()
    with snapshot() as session:
        assert "older version" in spending_audit.check(session)[0]
    write(update(table).values(per_tx_limit_nanos=1))  # so that this test's end does not find the version
    rows.accept()


@pytest.mark.chain
def test_sums_cannot_be_reset(victim: Agent) -> None:
    table = SpendingAccount.__table__
    assert victim.move("40", "USDC").status_code == 200
    with db.engine.connect() as connection:
        spent = dict(connection.execute(select(table.c.day_nanos, table.c.frozen_at)).mappings().one())
    write(update(table).values(day_nanos=0))
    assert victim.move("1", "USDC").status_code == 500
    write(update(table).values(**spent))
    assert victim.move("1", "USDC").status_code == 200


@pytest.mark.chain
def test_a_frozen_agent_cannot_be_unfrozen_by_sql(victim: Agent) -> None:
    with unit_of_work() as session:
        wallets.set_frozen(session, victim.id, frozen=True)
    write(update(SpendingAccount.__table__).values(frozen_at=None))
    write(update(AgentRow.__table__).values(frozen_at=None))
    assert victim.move("1", "USDC").status_code == 500
    assert victim.post("/v1/wallets", {}).status_code == 500
    assert len(changed()) == 2


@pytest.mark.chain
def test_an_approval_cannot_be_given_by_sql(victim: Agent) -> None:
    victim.controls(approval_threshold_usd=10)
    asked = victim.move("20", "USDC")
    assert asked.status_code == 202, asked.get_json()
    decided = {"status": "approved", "decided_by": "passkey", "decided_at": clock.now()}
    write(update(Approval.__table__).values(decided))
    worker.execute()
    assert victim.history() == []
    assert len(changed()) == 1
    write(update(Approval.__table__).values(status="awaiting", decided_by=None, decided_at=None))


@pytest.mark.chain
def test_a_payee_cannot_be_permitted_by_sql(victim: Agent) -> None:
    victim.controls(approve_new_recipients=True)
    week = {"week_nanos": 10**12, "created_at": clock.now()}
    payee = {"wallet_id": victim.wallet_id, "payee": RECIPIENT.lower(), **week}
    write(insert(ApprovedPayee.__table__).values(payee))
    assert victim.move("1", "USDC").status_code == 202


@pytest.mark.chain
def test_a_forged_stuck_movement_is_not_signed(victim: Agent, intruder: Agent) -> None:
    """A worker signs a stuck movement again, from its rows."""
    sent = victim.move("1", "USDC")
    assert sent.status_code == 200, sent.get_json()
    table = Transaction.__table__
    stuck = {"status": "pending", "next_check_at": clock.now(), "confirmed_at": None, "block_number": None}
    write(update(table).values(to_address=intruder.address, amount_units=USDC_UNITS, nonce=1, **stuck))
    found, unreadable = open_transactions.due(ChainName.BASE, clock.now() + timedelta(hours=1))
    assert (len(found), len(unreadable)) == (0, 1)
    write(update(SignedAttempt.__table__).values(terms={"contract": intruder.address}))
    assert len(changed()) == 2
    write(delete(SignedAttempt.__table__))
    write(delete(Transaction.__table__))


USDC_UNITS = 90_000_000


@pytest.mark.chain
def test_payments_go_to_the_treasury_only(intruder: Agent) -> None:
    treasury.wallet(WalletRole.TREASURY, ChainName.BASE)
    app_state().part(ServiceWallets).clear()  # as after a restart
    write(update(ServiceWallet.__table__).values(wallet_id=intruder.wallet_id))
    with pytest.raises(RowChanged):
        treasury.recipient(ChainName.BASE)
    [found] = changed()
    assert "payment_wallets" in found


@pytest.mark.chain
def test_a_claim_cannot_be_undone_or_moved_by_sql(victim: Agent, intruder: Agent, chain_client: FlaskClient) -> None:
    code = intruder.post("/v1/agents/claim-code").get_json()["claimCode"]
    of_intruder = ClaimCode.__table__.c.agent_id == intruder.id
    write(update(ClaimCode.__table__).where(of_intruder).values(agent_id=victim.id))
    assert chain_client.post("/v1/device/claim", json={"code": code}).status_code == 404
    write(update(AgentRow.__table__).where(AgentRow.__table__.c.id == victim.id).values(claimed_email="x@y.example"))
    assert victim.post("/v1/agents/claim-code").status_code == 500


def test_rows_without_a_mac_are_accepted_only_while_an_upgrades_permit_is_in_force(
    app: Flask, client: FlaskClient
) -> None:
    agent, now = register(client), clock.now()
    with app.app_context():
        for seal in authenticated.seals():
            write(update(seal.table).values(mac=None))
        assert agent.get("/v1/wallets").status_code == 401
        write(insert(UnsealedRowPermit.__table__).values(id=1, sealed="k1.AAAA"))
        assert agent.get("/v1/wallets").status_code == 401
        rows.permit_until(now - timedelta(seconds=1))
        assert agent.get("/v1/wallets").status_code == 401
        assert row_seals.seal_permitted() == 0
        rows.permit_until(now + timedelta(hours=1))
        assert agent.get("/v1/wallets").status_code == 200
        # A process of the version before writes limits, and no MAC.
        write(update(SpendingControls.__table__).values(per_tx_limit_nanos=1))
        write(update(SpendingAccount.__table__).values(controls_version=0))
        assert row_seals.seal_permitted() > 0
        write(delete(UnsealedRowPermit.__table__))
        assert changed() == []
        assert agent.get(f"{agent.wallet_url}/controls").status_code == 200
        with snapshot() as session:
            assert spending_audit.check(session) == []


def test_macs_follow_the_encryption_keys(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    before = build_app(sqlite_url, settings={"encryption_keys": f"{key_of('k1')},{key_of('k2')}"})
    with before.app_context():
        agent = register(before.test_client())
    both = build_app(sqlite_url, settings={"encryption_keys": f"{key_of('k2')},{key_of('k1')}"})
    with both.app_context():
        assert Agent(both.test_client(), agent.id, agent.key, "", "", "").get("/v1/wallets").status_code == 200
        done = both.test_cli_runner().invoke(args=["keys", "rotate"])
        assert done.exit_code == 0, done.output
        for seal in authenticated.seals():
            with read_only_unit() as session:
                assert all(row.mac.startswith("k2.") for row in seal.page_after(session, None)), seal.table.name
        assert changed() == []
        assert "0 secrets" in both.test_cli_runner().invoke(args=["keys", "rotate"]).output


def test_an_operator_accepts_what_he_wrote_by_hand_and_the_log_says_so(app: Flask, client: FlaskClient) -> None:
    agent = register(client)
    with app.app_context():
        write(update(SpendingControls.__table__).values(daily_limit_nanos=1))
        done = app.test_cli_runner().invoke(args=["keys", "accept-rows"])
        assert (done.exit_code, "1 rows were accepted" in done.output) == (0, True), done.output
        assert agent.get(f"{agent.wallet_url}/controls").status_code == 200
        assert changed() == []
        with read_only_unit() as session:
            [entry] = trail.list_entries(session, PageRequest(1, 0))[0].items
        assert entry.action == "rows.accepted"
        assert "spending_controls" in str(entry.after)


def test_a_key_that_was_moved_to_another_agent_is_not_shown(client: FlaskClient) -> None:
    victim = client.post("/v1/agents/register", json={}).get_json()
    mine = client.post("/v1/agents/register", json={}).get_json()
    with unit_of_work() as session:
        session.execute(
            update(ApiKey)
            .where(ApiKey.agent_id == victim["agentId"])
            .values(agent_id=mine["agentId"], created_at=clock.now() + timedelta(days=1))
        )
    claimed = client.post("/v1/device/claim", json={"code": mine["claimCode"]})
    assert claimed.status_code == 500
    assert victim["apiKey"] not in claimed.text
    with unit_of_work() as session:
        session.execute(update(ApiKey).where(ApiKey.created_at > clock.now()).values(agent_id=victim["agentId"]))


def test_a_changed_row_does_not_stop_a_freeze(client: FlaskClient) -> None:
    agent = register(client)
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    with unit_of_work() as session:
        is_first = SpendingAccount.wallet_id == agent.wallet_id
        session.execute(update(SpendingAccount).where(is_first).values(controls_version=7))
    with unit_of_work() as session:
        wallets.set_frozen(session, agent.id, frozen=True)
    with read_only_unit() as session:
        frozen = {row.wallet_id: row.frozen_at for row in session.scalars(select(SpendingAccount))}
    assert frozen[second] is not None
    assert frozen[agent.wallet_id] is not None
    assert any("spending_accounts" in each for each in changed())
    rows.accept()


def test_a_response_is_not_rebuilt_from_the_record_of_another(client: FlaskClient) -> None:
    victim, intruder = register(client), register(client)
    code = {"Idempotency_Key": "k"}
    mine = intruder.post("/v1/agents/claim-code", **code).get_json()
    for answer_sealed in (None, "kept"):
        lost = {"answer_status": None, "lease_until": clock.now(), "subject_id": victim.id}
        if answer_sealed is None:
            lost["answer_sealed"] = None
        with unit_of_work() as session:
            session.execute(update(IdempotencyKey).values(lost))
        answer = intruder.post("/v1/agents/claim-code", **code)
        assert answer.status_code == 500
        assert mine["claimCode"] not in answer.text


def test_the_stored_response_of_another_is_not_replayed(client: FlaskClient) -> None:
    victim, intruder = register(client), register(client)
    theirs = victim.post("/v1/agents/claim-code", Idempotency_Key="k").get_json()
    for request_hmac in ({}, {"request_hmac": None}):
        with unit_of_work() as session:
            session.execute(update(IdempotencyKey).values(owner_id=intruder.id, **request_hmac))
        answer = intruder.post("/v1/agents/claim-code", Idempotency_Key="k")
        assert answer.status_code == 409
        assert theirs["claimCode"] not in answer.text
