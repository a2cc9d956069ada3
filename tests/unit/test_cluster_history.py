"""The model of `benchmarks/cluster`: a false answer in a history is found, and an uncertain one is none."""

from __future__ import annotations

import pytest

from benchmarks.cluster import history
from benchmarks.cluster.history import Payment, Read, Write

WRITES = [
    Write(1, 0.0, 1.0, is_acknowledged=True),
    Write(2, 2.0, 3.0, is_acknowledged=True),
    Write(3, 4.0, 5.0, is_acknowledged=False),
    Write(4, 6.0, 7.0, is_acknowledged=True),
]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(Read(1, 3.5, 3.6), id="older than a write that was acknowledged before"),
        pytest.param(Read(4, 5.0, 5.5), id="before it was written"),
        pytest.param(Read(2, 7.5, 8.0), id="of a former leader"),
    ],
)
def test_a_read_that_no_single_database_could_answer_is_found(read: Read) -> None:
    assert list(history.stale_reads(WRITES, [read]))


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(Read(1, 2.5, 2.9), id="while the next is written"),
        pytest.param(Read(2, 2.5, 2.9), id="before its acknowledgement"),
        pytest.param(Read(3, 4.5, 4.6), id="of a write without an answer"),
        pytest.param(Read(2, 5.5, 5.9), id="without the write that had no answer"),
        pytest.param(Read(3, 8.0, 8.1), id="of a write without an answer that arrived late"),
    ],
)
def test_a_read_that_one_database_could_answer_is_not_reported(read: Read) -> None:
    assert list(history.stale_reads(WRITES, [read])) == []


def test_a_read_that_goes_back_behind_an_earlier_read_is_found() -> None:
    reads = [Read(2, 2.1, 2.2), Read(1, 2.3, 2.4)]
    assert len(list(history.stale_reads(WRITES, reads))) == 1
    assert list(history.stale_reads(WRITES, reads[::-1])) != []
    assert list(history.stale_reads(WRITES, [Read(2, 2.1, 2.4), Read(1, 2.2, 2.3)])) == []


def test_an_acknowledged_write_that_is_gone_at_the_end_is_found() -> None:
    assert list(history.lost_writes(WRITES, 2))
    assert list(history.lost_writes(WRITES, 5))
    assert list(history.lost_writes(WRITES, 4)) == []
    assert list(history.lost_writes(WRITES, 3)) == []


def test_a_key_with_two_payments_is_found_whether_or_not_it_was_answered() -> None:
    answered_twice = Payment("key", "wallet", 150, frozenset({"a", "b"}))
    assert any("answered with ['a', 'b']" in text for text in history.wrong_payments([answered_twice], {"a": 150}))
    answered_once = Payment("key", "wallet", 150, frozenset({"a"}))
    assert len(list(history.wrong_payments([answered_once], {"a": 150, "b": 150}))) == 1
    assert list(history.wrong_payments([answered_once], {"a": 150, "b": 151})) == []


def test_a_payment_that_was_answered_and_is_not_stored_is_found() -> None:
    payment = Payment("key", "wallet", 150, frozenset({"a"}))
    assert len(list(history.wrong_payments([payment], {}))) == 1
    assert len(list(history.missing({"call"}, set(), "call"))) == 1


def test_an_answer_that_names_another_amount_is_found() -> None:
    payment = Payment("key", "wallet", 150, frozenset({"a"}))
    assert len(list(history.wrong_payments([payment], {"a": 151}))) == 1


def test_a_limit_that_is_exceeded_by_the_smallest_amount_is_found() -> None:
    assert len(list(history.exceeded_limits({"wallet": 101}, 100))) == 1
    assert list(history.exceeded_limits({"wallet": 100}, 100)) == []
