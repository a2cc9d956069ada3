"""Reading JSON of other services by models: exact types, ranges, and errors without foreign text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Barrier
from typing import Annotated, Any

import pytest
from pydantic import Field

from app.core.foreign import U64, ForeignModel, Items, MalformedResponseError, OptionalItems, U64Digits, reader


class _Entry(ForeignModel):
    block_height: U64
    names: OptionalItems[str] = ()
    is_final: bool = False
    amount: U64Digits = 0
    fee: Annotated[Decimal, Field(ge=0)] = Decimal(0)


read_entries = reader(Items[_Entry])


def test_members_have_their_foreign_names_and_unknown_ones_are_ignored() -> None:
    found = _Entry.read({"blockHeight": 2**64 - 1, "names": None, "amount": "007", "fee": Decimal("0.5"), "new": {}})
    assert (found.block_height, found.names, found.amount, found.fee) == (2**64 - 1, (), 7, Decimal("0.5"))


@pytest.mark.parametrize(
    "change",
    [
        {"blockHeight": True},
        {"blockHeight": 1.0},
        {"blockHeight": Decimal(1)},
        {"blockHeight": "1"},
        {"blockHeight": None},
        {"blockHeight": -1},
        {"blockHeight": 2**64},
        {"blockHeight": 10**5000},
        {"names": "abc"},
        {"names": {"a": 1}},
        {"names": [1]},
        {"isFinal": 1},
        {"isFinal": "true"},
        {"amount": "-1"},
        {"amount": "1e9"},
        {"amount": " 1"},
        {"amount": "1_0"},
        {"amount": "١"},
        {"amount": str(2**64)},
        {"amount": "9" * 5000},
        {"amount": True},
        {"fee": Decimal("NaN")},
        {"fee": Decimal("Infinity")},
        {"fee": "0.5"},
        {"fee": 0.5},
    ],
)
def test_another_type_or_range_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponseError):
        _Entry.read({"blockHeight": 1, **change})


@pytest.mark.parametrize("value", [None, [], "text", 1, {}])
def test_what_is_no_object_or_lacks_a_member_is_malformed(value: object) -> None:
    with pytest.raises(MalformedResponseError):
        _Entry.read(value)


def test_an_error_names_the_place_and_nothing_that_was_sent() -> None:
    read = reader(Annotated[dict[str, Annotated[dict[str, _Entry], Field(max_length=1)]], Field()])
    with pytest.raises(MalformedResponseError) as caught:
        read({"https://node/canary-key": {"canary key": {"blockHeight": "canary-key"}}})
    assert str(caught.value) == "int_type at blockHeight"
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_list_is_read_up_to_its_first_bad_entry() -> None:
    with pytest.raises(MalformedResponseError, match=r"^there is no 1\.blockHeight$"):
        read_entries([{"blockHeight": 1}, *[{}] * 100_000])


def test_threads_may_read_the_first_answers_at_once() -> None:
    for _ in range(20):

        class Inner(ForeignModel):
            number: U64

        class Fresh(ForeignModel):
            entries: Items[Inner]

        start = Barrier(8)

        def read(model: type[Fresh] = Fresh, start: Barrier = start) -> int:
            start.wait()
            return model.read({"entries": [{"number": 3}]}).entries[0].number

        with ThreadPoolExecutor(8) as threads:
            assert [each.result() for each in [threads.submit(read) for _ in range(8)]] == [3] * 8
