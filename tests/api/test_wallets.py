"""Wallets: creation, listing, reading, deletion, and isolation from other agents; no key is ever lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from eth_utils.address import to_checksum_address
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select

from app.core import clock, identifiers
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.idempotency.service import Claim
from app.ports.vault import SecretLocation
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending.controls import ControlsChange
from app.state import app_state
from app.wallets.core import custody, lifecycle, wallets
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import RetiredKey, Transaction, Wallet, WalletKey
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.ledger import race
from tests.support.movements import count_as

_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_DAY = 86_400


@pytest.fixture
def gateway_key(client: FlaskClient) -> dict[str, str]:
    answer = client.post("/v1/keys", json={})
    return {"X-API-Key": answer.get_json()["api_key"]}


def created(agent: Agent, body: object = None) -> dict[str, Any]:
    answer = agent.post("/v1/wallets", {} if body is None else body)
    assert answer.status_code == 201, answer.get_data(as_text=True)
    wallet: dict[str, Any] = answer.get_json()
    return wallet


def recorded(wallet_id: str, *, status: MovementStatus, type_: TransactionType = TransactionType.TRANSFER) -> str:
    """Record a movement as `transfers` does, without a chain."""
    transaction_id = identifiers.new_id()
    with unit_of_work() as session:
        spending_accounts.lock_account(session, wallet_id)
        lifecycle.record(
            session, Transaction(
                id=transaction_id, wallet_id=wallet_id, type=type_.value, chain=ChainName.BASE.value,
                to_address=RECIPIENT, amount_units=1, currency="USDC", cost_nanos=0, created_at=clock.now(),
                checks=0,
            ),
            status=status,
        )  # fmt: skip
        count_as(session, transaction_id, status)
    return transaction_id


def traces_of(wallet_id: str, *transaction_ids: str) -> set[str]:
    """Return every table that still mentions a wallet or its transactions."""
    found = set()
    with read_only_unit() as session:
        for table in db.metadata.sorted_tables:
            for column, ids in (("wallet_id", [wallet_id]), ("transaction_id", list(transaction_ids))):
                if (
                    column in table.columns
                    and session.execute(select(table.c[column]).where(table.c[column].in_(ids))).first()
                ):
                    found.add(table.name)
        if session.get(Wallet, wallet_id):
            found.add("wallets")
    return found


def retired_key(wallet_id: str) -> RetiredKey:
    with read_only_unit() as session:
        retired = session.get(RetiredKey, wallet_id)
        assert retired is not None
        session.expunge(retired)
        return retired


def test_a_new_wallet_is_returned_in_full_with_the_addresses_of_its_key(agent: Agent) -> None:
    answer = agent.post("/v1/wallets", {"name": "savings"})
    wallet = answer.get_json()
    assert answer.status_code == 201
    assert set(wallet) == {
        "id", "name", "addresses", "spending_controls", "transaction_count", "created_at", "exported_at",
    }  # fmt: skip
    assert (wallet["name"], wallet["spending_controls"], wallet["transaction_count"]) == ("savings", None, 0)
    assert identifiers.parse_id(wallet["id"]) == wallet["id"]
    assert _ISO.fullmatch(wallet["created_at"])
    assert wallet["addresses"]["ethereum"] == wallet["addresses"]["base"] != agent.address
    signer = custody.signer_of(wallet["id"])
    assert signer.evm_address == wallet["addresses"]["base"]
    assert signer.solana_address == wallet["addresses"]["solana"]
    assert agent.get(f"/v1/wallets/{wallet['id']}").get_json() == wallet


def test_a_wallet_without_a_name_is_called_by_its_number(agent: Agent) -> None:
    bodies = [None, {}, {"name": None}, {"name": "  \u00a0 "}, {"name": ""}, {"nome": "x"}]
    for number, body in enumerate(bodies, start=2):
        assert created(agent, body)["name"] == f"wallet-{number}"


def test_a_name_is_trimmed_and_may_have_a_hundred_letters_of_any_script(agent: Agent) -> None:
    for name, kept in {
        "  savings ": "savings",
        "x" * 100: "x" * 100,
        " " + "y" * 100 + " ": "y" * 100,
        "ключ 🔑": "ключ 🔑",
    }.items():
        assert created(agent, {"name": name})["name"] == kept


BAD_NAMES = ["x" * 101, "a\x00b", "a\nb", "a\x7fb", "\ud800", 1, True, 1.5, ["savings"], {"name": "savings"}]


def test_an_invalid_name_creates_no_wallet(agent: Agent) -> None:
    for name in BAD_NAMES:
        answer = agent.post("/v1/wallets", {"name": name})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), name
        assert list(answer.get_json()["details"]["fields"]) == ["name"]
    assert agent.get("/v1/wallets").get_json()["pagination"]["total"] == 1


def test_the_first_wallet_has_the_default_controls_and_comes_first(agent: Agent) -> None:
    later = [created(agent)["id"] for _ in range(2)]
    body = agent.get("/v1/wallets").get_json()
    assert [wallet["id"] for wallet in body["wallets"]] == [agent.wallet_id, *later]
    assert body["pagination"] == {"total": 3, "limit": 50, "offset": 0, "has_more": False}
    first, second, _ = body["wallets"]
    controls = first["spending_controls"]
    assert _ISO.fullmatch(controls.pop("updated_at"))
    assert controls == {
        "daily_limit_usd": 100, "weekly_limit_usd": 500, "monthly_limit_usd": 1000, "per_tx_limit_usd": 50,
        "allowed_addresses": [], "allowed_domains": [], "locked": False,
        "approval_threshold_usd": None, "approve_new_recipients": False, "approve_new_domains": False,
    }  # fmt: skip
    assert second["spending_controls"] is None
    assert set(first) == set(second)


PAGES: list[tuple[dict[str, int], str, tuple[object, ...]]] = [
    ({"limit": 2}, "ab", (4, 2, 0, True)),
    ({"limit": 2, "offset": 2}, "cd", (4, 2, 2, False)),
    ({"limit": 3, "offset": 1}, "bcd", (4, 3, 1, False)),
    ({"limit": 200}, "abcd", (4, 200, 0, False)),
    ({"limit": 201}, "abcd", (4, 200, 0, False)),
    ({"limit": 10**30}, "abcd", (4, 200, 0, False)),
    ({"offset": 4}, "", (4, 50, 4, False)),
    ({"offset": 10**15}, "", (4, 50, 10**15, False)),
    ({"colour": 1}, "abcd", (4, 50, 0, False)),
]


def test_a_page_reports_its_position(agent: Agent) -> None:
    agent.delete(agent.wallet_url)
    for name in "abcd":
        created(agent, {"name": name})
    for query, names, pagination in PAGES:
        body = agent.get("/v1/wallets", **query).get_json()
        assert [wallet["name"] for wallet in body["wallets"]] == list(names)
        assert tuple(body["pagination"].values()) == pagination


BAD_PAGES = [
    ("limit", "0"), ("limit", "-1"), ("limit", "x"), ("limit", "1.5"), ("limit", ""), ("limit", " 1"),
    ("limit", "1e2"), ("limit", "٣"), ("limit", "NaN"), ("limit", "-" + "9" * 30), ("offset", "-1"),
    ("offset", "x"), ("offset", ""), ("offset", "0.0"), ("offset", "9" * 5000),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/wallets", "{wallet}/transactions"])
def test_an_invalid_page_is_refused_with_its_field(path: str, agent: Agent) -> None:
    for field, value in BAD_PAGES:
        answer = agent.get(path.format(wallet=agent.wallet_url), **{field: value})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), (field, value)
        assert list(answer.get_json()["details"]["fields"]) == [field]


def odd_ids(wallet_id: str) -> list[str]:
    return [
        "x", "0", "null", "%00", wallet_id[:-1], wallet_id + "0", wallet_id.replace("-", ""), "{" + wallet_id + "}",
        "urn:uuid:" + wallet_id, identifiers.new_id(), "9" * 36, "g" + wallet_id[1:], "%F0%9F%92%A9", "a" * 5000,
    ]  # fmt: skip


ROUTES = [
    ("GET", ""), ("DELETE", ""), ("GET", "/balances"), ("POST", "/transfer"), ("POST", "/withdraw"), ("POST", "/fund"),
    ("GET", "/transactions"), ("GET", "/transactions/x"), ("GET", "/controls"), ("PUT", "/controls"),
]  # fmt: skip


def test_an_unknown_or_foreign_wallet_is_not_found(
    agent: Agent, client: FlaskClient, gateway_key: dict[str, str]
) -> None:
    other_agent = register(client)
    for method, rest in ROUTES:
        # A malformed body: 404 takes precedence over 400.
        for wallet_id in [*odd_ids(agent.wallet_id), other_agent.wallet_id]:
            url = f"/v1/wallets/{wallet_id}{rest}"
            answer = client.open(url, method=method, headers=agent.headers(), data=b"{")
            assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND"), url
        url = f"{agent.wallet_url}{rest}"
        assert client.open(url, method=method, headers=gateway_key, data=b"{").status_code == 404
        unknown = client.open(url, method=method, data=b"{")
        assert (unknown.status_code, unknown.get_json()["code"]) == (401, "UNAUTHORIZED")
    for owner in (agent, other_agent):
        assert owner.get(owner.wallet_url).status_code == 200


def test_a_wallet_has_one_name_so_that_no_second_spelling_escapes_an_idempotency_key(agent: Agent) -> None:
    assert agent.get(f"/v1/wallets/{agent.wallet_id.upper()}").status_code == 404


def test_a_gateway_only_key_has_no_wallets_and_the_error_names_the_required_key(
    client: FlaskClient, gateway_key: dict[str, str]
) -> None:
    for body in (b"", b"{}", b'{"name": 1}', b"{not json"):
        for key in ({}, {"Idempotency-Key": "k"}):
            answer = client.post("/v1/wallets", data=body, headers={**gateway_key, **key})
            assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")
            assert "agent key" in answer.get_json()["error"]
    listing = client.get("/v1/wallets", headers=gateway_key).get_json()
    assert listing == {"wallets": [], "pagination": {"total": 0, "limit": 50, "offset": 0, "has_more": False}}
    with read_only_unit() as session:
        assert session.scalars(select(Wallet)).all() == []


def test_an_agent_has_at_most_a_hundred_wallets(agent: Agent) -> None:
    for _ in range(99):
        wallets.create_for_agent(agent.id, name=None, claim=Claim.none())
    refused = agent.post("/v1/wallets", {})
    assert (refused.status_code, refused.get_json()["code"]) == (409, "LIMIT_REACHED")
    assert "100" in refused.get_json()["error"]
    body = agent.get("/v1/wallets", limit=200).get_json()
    assert len(body["wallets"]) == body["pagination"]["total"] == 100
    assert agent.delete(f"/v1/wallets/{body['wallets'][-1]['id']}").status_code == 200
    assert agent.post("/v1/wallets", {}).status_code == 201


def test_an_agent_cannot_fill_the_database_with_keys_of_deleted_wallets(agent: Agent) -> None:
    with unit_of_work() as session:
        for number in range(wallets.MAX_DELETED_PER_DAY - 1):
            session.add(
                RetiredKey(
                    wallet_id=identifiers.new_id(), agent_id=agent.id, evm_address=f"0x{number}",
                    solana_address=str(number), sealed="x", retired_at=clock.now(),
                    purge_after=clock.now() + timedelta(days=90),
                )
            )  # fmt: skip
    assert agent.delete(f"/v1/wallets/{created(agent)['id']}").status_code == 200
    refused = agent.post("/v1/wallets", {})
    assert (refused.status_code, refused.get_json()["code"]) == (409, "LIMIT_REACHED")
    with time_machine.travel(clock.now() + timedelta(days=1, seconds=1), tick=True):
        created(agent)


def test_a_deleted_wallet_loses_all_its_rows_but_its_key_is_kept(agent: Agent) -> None:
    ended = [recorded(agent.wallet_id, status=status) for status in (MovementStatus.CONFIRMED, MovementStatus.FAILED)]
    ended.append(recorded(agent.wallet_id, status=MovementStatus.PENDING, type_=TransactionType.FUNDING))
    before = agent.get(agent.wallet_url).get_json()
    assert before["transaction_count"] == 3
    assert traces_of(agent.wallet_id, *ended) >= {"wallets", "wallet_keys", "transactions", "spending_controls"}

    answer = agent.delete(agent.wallet_url)

    assert (answer.status_code, answer.get_json()) == (200, {"id": agent.wallet_id, "deleted": True})
    assert traces_of(agent.wallet_id, *ended) == {"retired_keys"}
    for again in (agent.get, agent.delete):
        assert again(agent.wallet_url).get_json()["code"] == "NOT_FOUND"
    assert agent.get("/v1/wallets").get_json()["wallets"] == []
    retired = retired_key(agent.wallet_id)
    assert (retired.purge_after - retired.retired_at).days == 90
    place = SecretLocation("retired_keys", "sealed", agent.wallet_id)
    signer = app_state().ports.vault.signer(retired.sealed, place)
    assert (signer.evm_address, signer.solana_address) == (agent.address, agent.solana_address)
    assert (retired.evm_address, retired.agent_id) == (agent.address, agent.id)


def test_an_agent_that_deleted_all_wallets_can_create_another(agent: Agent) -> None:
    agent.delete(agent.wallet_url)
    wallet = created(agent)
    assert (wallet["name"], wallet["spending_controls"]) == ("wallet-1", None)
    assert wallet["addresses"]["base"] != agent.address


def test_a_deletion_does_not_change_other_wallets(agent: Agent) -> None:
    other = created(agent)["id"]
    kept = recorded(other, status=MovementStatus.CONFIRMED)
    before = traces_of(other, kept)
    recorded(agent.wallet_id, status=MovementStatus.CONFIRMED)
    assert agent.delete(agent.wallet_url).status_code == 200
    assert traces_of(other, kept) == before
    assert custody.signer_of(other).evm_address


@pytest.mark.parametrize("type_", [TransactionType.TRANSFER, TransactionType.WITHDRAWAL, TransactionType.SWAP])
def test_a_wallet_with_a_pending_movement_is_not_deleted(type_: TransactionType, agent: Agent) -> None:
    in_flight = recorded(agent.wallet_id, status=MovementStatus.PENDING, type_=type_)
    before = traces_of(agent.wallet_id, in_flight)
    answer = agent.delete(agent.wallet_url)
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (409, "TRANSACTION_IN_PROGRESS")
    assert body["details"] == {"transaction_id": in_flight}
    assert traces_of(agent.wallet_id, in_flight) == before
    with read_only_unit() as session:
        assert session.get(RetiredKey, agent.wallet_id) is None
    with unit_of_work() as session:
        lifecycle.TRANSACTIONS.move(session, in_flight, MovementStatus.PENDING, MovementStatus.CONFIRMED)
    assert agent.delete(agent.wallet_url).status_code == 200


def test_a_wallet_with_an_undecryptable_key_is_not_deleted(agent: Agent) -> None:
    with unit_of_work() as session:
        key = session.get(WalletKey, agent.wallet_id)
        assert key is not None
        key.sealed = key.sealed[:-4] + "AAAA"
    assert agent.delete(agent.wallet_url).status_code == 500
    assert agent.get(agent.wallet_url).status_code == 200
    with read_only_unit() as session:
        assert session.get(WalletKey, agent.wallet_id) is not None


def test_concurrent_deletions_of_one_wallet_retire_its_key_once(agent: Agent, app: Flask) -> None:
    def delete() -> int:
        headers = {"X-API-Key": agent.key}
        return app.test_client().delete(agent.wallet_url, headers=headers).status_code

    statuses = race(app, [delete] * 4)
    assert sorted(map(str, statuses)) == ["200", "404", "404", "404"]
    with read_only_unit() as session:
        assert len(session.scalars(select(RetiredKey)).all()) == 1


def test_a_locked_or_frozen_wallet_is_not_deleted(agent: Agent) -> None:
    with unit_of_work() as session:
        spending_controls.replace_controls(session, [agent.wallet_id], ControlsChange(locked=True))
    locked = agent.delete(agent.wallet_url)
    assert (locked.status_code, locked.get_json()["code"]) == (403, "CONTROLS_LOCKED")
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=True)
    frozen = agent.delete(agent.wallet_url)
    assert (frozen.status_code, frozen.get_json()["code"]) == (403, "WALLET_FROZEN")
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=False)
        spending_controls.replace_controls(session, [agent.wallet_id], ControlsChange(locked=False))
    assert agent.delete(agent.wallet_url).status_code == 200


def test_a_new_wallet_inherits_locked_controls_and_the_freeze(agent: Agent) -> None:
    agent.controls(daily_limit_usd=7, allowed_addresses=[RECIPIENT], allowed_domains=["shop.example"])
    with unit_of_work() as session:
        wallets.set_frozen(session, agent.id, frozen=True)
        spending_controls.replace_controls(session, [agent.wallet_id], ControlsChange(locked=True))
    wallet = created(agent)
    controls = wallet["spending_controls"]
    assert (controls["daily_limit_usd"], controls["per_tx_limit_usd"], controls["locked"]) == (7, 50, True)
    assert (controls["allowed_addresses"], controls["allowed_domains"]) == (
        [to_checksum_address(RECIPIENT)],
        ["shop.example"],
    )
    assert agent.delete(f"/v1/wallets/{wallet['id']}").get_json()["code"] == "WALLET_FROZEN"


def test_a_new_wallet_inherits_from_the_first_one_and_not_from_one_that_was_locked_without_limits(agent: Agent) -> None:
    agent.controls(daily_limit_usd=7)
    # The lowest possible id.
    key = replace(custody.new_key(), wallet_id="00000000-0000-4000-8000-000000000001")
    with unit_of_work() as session:
        wallets.create(session, agent.id, key, name=None)
    with unit_of_work() as session:
        for wallet_id in (agent.wallet_id, key.wallet_id):
            spending_controls.replace_controls(session, [wallet_id], ControlsChange(locked=True))
    controls = created(agent)["spending_controls"]
    assert (controls["daily_limit_usd"], controls["locked"]) == (7, True)


def test_a_retired_key_is_kept_as_long_as_the_operator_says(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"retired_key_ttl_seconds": _DAY})
    with app.app_context(), time_machine.travel("2026-03-01T12:00:00Z", tick=False):
        agent = register(app.test_client())
        agent.delete(agent.wallet_url)
        retired = retired_key(agent.wallet_id)
        assert clock.isoformat(retired.purge_after).startswith("2026-03-02T12:00:00")
