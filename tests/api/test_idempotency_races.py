"""Idempotency keys whose holder is slow, not dead: what was recorded is never recorded again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from flask import Flask, g
from sqlalchemy import select, update

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.errors import IdempotencyConflict
from app.web import idempotency
from app.web.idempotency import IdempotencyKey, _Claim, _Stored


def _left_behind(owner_id: str) -> _Claim:
    """Claim a key whose lease is over while its holder still works."""
    claim = idempotency._claim(owner_id, "k")
    assert isinstance(claim, _Claim)
    with unit_of_work() as session:
        session.execute(update(IdempotencyKey).values(lease_until=clock.now() - timedelta(seconds=1)))
    return claim


def test_a_claim_that_recorded_something_after_it_was_read_is_not_taken_over(app: Flask) -> None:
    with app.test_request_context("/v1/wallets", method="POST", data=b"{}"):
        slow = _left_behind(new_id())
        with reading() as session:
            row = session.scalars(select(IdempotencyKey)).one()
            session.expunge(row)
        g.idempotency_claim = slow
        with unit_of_work():
            idempotency.bind(new_id())
        with pytest.raises(IdempotencyConflict), unit_of_work():
            idempotency._take_over(row, holder=new_id(), now=clock.now(), body_hmac=row.body_hmac)


def test_a_slow_request_whose_claim_was_taken_over_records_nothing(app: Flask) -> None:
    owner_id = new_id()
    with app.test_request_context("/v1/wallets", method="POST", data=b"{}"):
        slow = _left_behind(owner_id)
        assert isinstance(idempotency._claim(owner_id, "k"), _Claim)
        g.idempotency_claim = slow
        with pytest.raises(IdempotencyConflict), unit_of_work():
            idempotency.bind(new_id())


def test_a_commit_whose_answer_was_lost_does_not_free_the_key(app: Flask) -> None:
    owner_id, subject_id = new_id(), new_id()
    with app.test_request_context("/v1/wallets", method="POST", data=b"{}"):
        claim = _left_behind(owner_id)
        g.idempotency_claim = claim
        with unit_of_work():
            idempotency.bind(subject_id)
        idempotency._forget(claim)
        found = idempotency._claim(owner_id, "k")
        assert isinstance(found, _Stored)
        assert found.subject_id == subject_id
