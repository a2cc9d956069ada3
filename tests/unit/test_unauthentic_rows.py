"""Rows that the service did not write are found in tables of any length."""

from __future__ import annotations

import pytest
from flask import Flask
from sqlalchemy import delete, insert

from app import authenticated
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import snapshot, unit_of_work
from app.spending.models import ApprovedPayee


@pytest.mark.parametrize("number", [1, 499, 500, 501, 1000, 1001])
def test_no_row_is_left_out_where_a_page_ends(app: Flask, number: int) -> None:
    payee = {"wallet_id": new_id(), "week_nanos": 0, "created_at": clock.now()}
    rows = [payee | {"payee": f"{place}.example"} for place in range(number)]
    with app.app_context():
        with unit_of_work() as session:
            session.connection().execute(insert(ApprovedPayee.__table__), rows)
        with snapshot() as session:
            found = authenticated.seal_of(ApprovedPayee).unauthentic_rows(session)
            assert sorted(row.payee for row in found) == sorted(row["payee"] for row in rows)
        with unit_of_work() as session:
            session.execute(delete(ApprovedPayee))
