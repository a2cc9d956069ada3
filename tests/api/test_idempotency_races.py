"""Idempotency keys with a slow holder: a record is never made twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import select, update

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import IdempotencyConflict
from app.idempotency import service as idempotency
from app.idempotency.models import IdempotencyKey
from app.idempotency.service import Claim, KeyScope, StoredResponse


@pytest.fixture(autouse=True)
def _app_context(app: Flask) -> Iterator[None]:
    with app.app_context():
        yield


def _claim(owner_id: str) -> Claim | StoredResponse:
    return idempotency.claim_key(KeyScope(owner_id, "POST", "/v1/wallets", "k"), b"{}")


def _expired_claim(owner_id: str) -> Claim:
    """Claim a key and let its lease expire while its holder still works."""
    claim = _claim(owner_id)
    assert isinstance(claim, Claim)
    with unit_of_work() as session:
        session.execute(update(IdempotencyKey).values(lease_until=clock.now() - timedelta(seconds=1)))
    return claim


def test_a_claim_bound_after_it_was_read_is_not_taken_over() -> None:
    slow = _expired_claim(new_id())
    with read_only_unit() as session:
        row = session.scalars(select(IdempotencyKey)).one()
        session.expunge(row)
    with unit_of_work() as session:
        slow.bind(session, new_id())
    with pytest.raises(IdempotencyConflict), unit_of_work() as session:
        idempotency._take_over(session, row, holder=new_id(), now=clock.now(), body_hmac=row.body_hmac)


def test_a_slow_request_that_lost_its_claim_records_nothing() -> None:
    owner_id = new_id()
    slow = _expired_claim(owner_id)
    assert isinstance(_claim(owner_id), Claim)
    with pytest.raises(IdempotencyConflict), unit_of_work() as session:
        slow.bind(session, new_id())


def test_a_commit_with_a_lost_outcome_does_not_release_the_key() -> None:
    owner_id, subject_id = new_id(), new_id()
    claim = _expired_claim(owner_id)
    with unit_of_work() as session:
        claim.bind(session, subject_id)
    claim.release()
    stored = _claim(owner_id)
    assert isinstance(stored, StoredResponse)
    assert stored.subject_id == subject_id
