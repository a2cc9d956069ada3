"""The audit of spending sums covers every account, whatever their number."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import insert

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.spending import accounts, audit, holds, sessions
from app.spending.models import SpendingAccount, SpendingHold
from app.spending.policy import SpendingRequest


@pytest.mark.parametrize("account_count", [0, 1, 999, 1000, 1001, 2000])
def test_a_wrong_sum_is_found_on_every_page(app: Flask, account_count: int) -> None:
    now = clock.now()
    wallets = sorted(new_id() for _ in range(account_count))
    wrong = {wallets[place] for place in (0, 998, 999, 1000, 1999) if place < account_count}

    def account(wallet_id: str) -> dict[str, Any]:
        counted = 5 if wallet_id in wrong else 7
        return {
            "wallet_id": wallet_id,
            "agent_id": new_id(),
            "frozen_at": None,
            "lock_version": 0,
            "counted_on": now.date(),
            "day_nanos": counted,
            "week_nanos": counted,
            "month_nanos": counted,
        }

    def hold(wallet_id: str, nanos: int) -> dict[str, Any]:
        return {
            "reference": new_id(),
            "wallet_id": wallet_id,
            "amount_nanos": nanos,
            "state": "held",
            "made_on": now.date(),
            "created_at": now,
        }

    with app.app_context():
        if wallets:
            with unit_of_work() as session:
                session.execute(insert(SpendingAccount), [account(wallet) for wallet in wallets])
                session.execute(insert(SpendingHold), [hold(wallet, nanos) for wallet in wallets for nanos in (3, 4)])
        with read_only_unit() as session:
            found = audit.check(session, now)
        assert {sentence.split()[1] for sentence in found} == wrong
        if wrong:
            with unit_of_work() as session:
                session.query(SpendingAccount).update({"day_nanos": 7, "week_nanos": 7, "month_nanos": 7})


def test_a_session_that_counts_other_than_its_holds_is_found(app: Flask) -> None:
    wallet, later = new_id(), clock.now() + timedelta(hours=1)
    with app.app_context():
        with unit_of_work() as session:
            accounts.open_account(session, wallet, new_id())
        with unit_of_work() as session:
            opened = sessions.open_session(session, wallet, max_nanos=10, expires_at=later, domains=())
        for value in (3, 4):
            with unit_of_work() as session:
                request = SpendingRequest(value, session_id=opened.id)
                holds.hold(session, wallet, request, reference=str(value))
        with unit_of_work() as session:
            assert holds.release(session, "3")
        with read_only_unit() as session:
            assert sessions.get(session, opened.id).counted_nanos == 4
            assert audit.check(session) == []
        with unit_of_work() as session:
            sessions.adjust_count(session, opened.id, 1)
        with read_only_unit() as session:
            [sentence] = audit.check(session)
        assert sentence == f"session {opened.id} counts 5, its holds are 4"
        with unit_of_work() as session:
            sessions.adjust_count(session, opened.id, -1)
