"""Custody: keys are bound to their network, and the encryption key rotates during operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from sqlalchemy import text

from app.authenticated import RowChanged
from app.db.unit_of_work import read_only_unit
from app.errors import InternalError
from app.platform import row_seals
from app.state import app_state
from app.wallets.core import custody
from tests.support import status_writes
from tests.support.agents import register
from tests.support.applications import key_of


def test_keys_of_one_network_are_never_used_on_another(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    sandbox = build_app(sqlite_url)
    status_writes.expect_unverifiable_rows()
    with sandbox.app_context():
        wallet_id = register(sandbox.test_client()).wallet_id
    live = build_app(sqlite_url, settings={"network": "mainnet"})
    with live.app_context():
        with pytest.raises(InternalError):
            custody.signer_of(wallet_id)
        answer = live.test_client().post("/v1/agents/register")
        assert (answer.status_code, answer.get_json()["code"]) == (500, "INTERNAL_ERROR")
        with read_only_unit() as session:
            assert session.scalar(text("SELECT count(*) FROM wallets")) == 1


def test_after_a_rotation_the_old_key_opens_nothing_and_nothing_is_lost(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    before = build_app(sqlite_url)
    with before.app_context():
        agent = register(before.test_client())
        created = agent.post("/v1/wallets", {"name": "second"}, Idempotency_Key="k")
        second = created.get_json()["id"]
        assert agent.delete(f"/v1/wallets/{second}").status_code == 200
        sealed_before = _sealed()
    status_writes.expect_unverifiable_rows()
    both = build_app(sqlite_url, settings={"encryption_keys": f"{key_of('k2')},{key_of('k1')}"})
    with both.app_context():
        assert row_seals.reseal_all(app_state().ports.vault, batch=2) > len(sealed_before)
        assert row_seals.reseal_all(app_state().ports.vault, batch=2) == 0
    after = build_app(sqlite_url, settings={"encryption_keys": key_of("k2")})
    with after.app_context():
        assert custody.signer_of(agent.wallet_id).evm_address == agent.address
        assert not set(_sealed()) & set(sealed_before)
        client = after.test_client()
        again = client.post("/v1/wallets", json={"name": "second"}, headers=agent.headers(Idempotency_Key="k"))
        assert again.get_json() == created.get_json()
    old = build_app(sqlite_url)
    with old.app_context(), pytest.raises(RowChanged):
        custody.signer_of(agent.wallet_id)


def _sealed() -> list[str]:
    with read_only_unit() as session:
        return [
            sealed
            for table, column in row_seals.sealed_columns()
            for sealed in session.execute(text(f"SELECT {column.name} FROM {table.name}")).scalars()  # noqa: S608
            if sealed is not None
        ]
