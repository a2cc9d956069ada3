"""The audit of spending sums looks at every account, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from sqlalchemy import insert

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.spending import audit
from app.spending.models import SpendingAccount, SpendingHold


@pytest.mark.parametrize("accounts", [0, 1, 999, 1000, 1001, 2000])
def test_a_wrong_sum_is_found_on_whatever_page_it_stands(app: Flask, accounts: int) -> None:
    now = clock.now()
    wallets = sorted(new_id() for _ in range(accounts))
    wrong = {wallets[place] for place in (0, 998, 999, 1000, 1999) if place < accounts}

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
                session.execute(
                    insert(SpendingHold), [hold(wallet, nanos) for wallet in wallets for nanos in (3, 4)]
                )
        with reading():
            found = audit.check(now)
        assert {sentence.split()[1] for sentence in found} == wrong
        if wrong:
            with unit_of_work() as session:
                session.query(SpendingAccount).update({"day_nanos": 7, "week_nanos": 7, "month_nanos": 7})
