"""Idempotency keys with a slow holder: a record is never made twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import update

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.errors import IdempotencyConflict
from app.idempotency import service as idempotency
from app.idempotency.service import Claim, IdempotencyKey, KeyScope


@pytest.fixture(autouse=True)
def _app_context(app: Flask) -> Iterator[None]:
    with app.app_context():
        yield


def _claim(owner_id: str) -> Claim | IdempotencyKey:
    return idempotency.claim_key(KeyScope(owner_id, "POST", "/v1/wallets", "k"), b"{}")


def _expired_claim(owner_id: str) -> Claim:
    """Claim a key and let its lease expire while its holder still works."""
    claim = _claim(owner_id)
    assert isinstance(claim, Claim)
    with unit_of_work() as session:
        session.execute(update(IdempotencyKey).values(lease_until=clock.now() - timedelta(seconds=1)))
    return claim


def test_of_requests_that_take_an_abandoned_claim_over_at_once_one_wins(app: Flask) -> None:
    owner_id = new_id()
    _expired_claim(owner_id)

    def take_over(_number: int) -> bool:
        with app.app_context():
            try:
                return isinstance(_claim(owner_id), Claim)
            except IdempotencyConflict:
                return False

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(take_over, range(4))).count(True) == 1


def test_a_claim_bound_after_its_lease_is_not_taken_over() -> None:
    owner_id, subject_id = new_id(), new_id()
    slow = _expired_claim(owner_id)
    with unit_of_work() as session:
        slow.bind(session, subject_id)
    stored = _claim(owner_id)
    assert isinstance(stored, IdempotencyKey)
    assert stored.subject_id == subject_id


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
    assert isinstance(stored, IdempotencyKey)
    assert stored.subject_id == subject_id
