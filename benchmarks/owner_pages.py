"""Processor time of the owner's pages of an agent with 10 000 transactions, in this process, on PostgreSQL."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from flask.testing import FlaskClient
from sqlalchemy import insert

from app.config import Settings
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.extensions import db
from app.factory import create_app
from app.spending.models import SpendingHold
from app.wallets.core.models import Transaction
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold

_TRANSACTIONS = 10_000
_MAX_MS = 150.0


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Measure each page several times; the median counts."""
    app = create_app(Settings(**stack.settings_of(infrastructure.migrated("owner_pages", LOG_LEVEL="WARNING"))))
    thresholds.print_heading(f"Pages of an agent with {_TRANSACTIONS:,} transactions")
    with app.app_context():
        client = app.test_client()
        made = client.post("/v1/agents/register", json={"name": "Busy"}).get_json()
        _populate(made["wallet"])
        _sign_in(client, made)
        place = f"/owner/agents/{made['agentId']}"
        limits = f"{place}/wallets/{made['wallet']['id']}/limits"
        pages = {
            "activity": f"{place}/activity", "activity, searched": f"{place}/activity?text=0x12",
            "limits": limits, "limits, compared": f"{limits}?preset=careful",
        }  # fmt: skip
        found = [_page(client, name, path, rounds=3 if quick else 20) for name, path in pages.items()]
        db.engine.dispose()
    return found


def _page(client: FlaskClient, name: str, path: str, *, rounds: int) -> Threshold:
    spent = []
    for number in range(rounds + 1):
        started = time.process_time()
        assert client.get(path).status_code == 200, path  # noqa: PLR2004
        if number:  # the first round warms caches up
            spent.append((time.process_time() - started) * 1000)
    return thresholds.at_most(f"processor time of the page: {name}", thresholds.median(spent), _MAX_MS, "ms")


def _populate(wallet: dict[str, Any]) -> None:
    now, sender = datetime.now(UTC), wallet["addresses"]["base"]
    movements, holds = [], []
    for number in range(_TRANSACTIONS):
        at, movement_id = now - timedelta(minutes=4 * number), new_id()
        movement = {
            "id": movement_id, "wallet_id": wallet["id"], "type": "transfer", "chain": "base", "from_address": sender,
            "to_address": f"0x{number % 300:040x}", "amount_units": 10**6, "currency": "USDC", "cost_nanos": 10**9,
            "tx_hash": f"0x{number:064x}", "status": "confirmed", "created_at": at, "checks": 0,
        }  # fmt: skip
        hold = {
            "reference": movement_id, "wallet_id": wallet["id"], "amount_nanos": 10**9, "state": "spent",
            "made_on": at.date(), "created_at": at,
        }  # fmt: skip
        movements.append(Transaction.stamp(movement))
        holds.append(SpendingHold.stamp(hold))
    with unit_of_work() as session:
        session.execute(insert(Transaction), movements)
        session.execute(insert(SpendingHold), holds)


def _sign_in(client: FlaskClient, made: dict[str, Any]) -> None:
    claimed = client.post("/v1/device/claim", json={"code": made["claimCode"]}).get_json()
    form = client.get("/owner/sign-in").text
    token = re.search(r'name="csrf_token" value="([^"]*)"', form)
    assert token
    answer = client.post("/owner/sign-in", data={"csrf_token": token[1], "owner_key": claimed["ownerKey"]})
    assert answer.status_code == 303, answer.text  # noqa: PLR2004
