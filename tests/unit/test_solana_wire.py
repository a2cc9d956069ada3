"""Strict parsing of a Solana node's responses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from app.adapters.solana.client import wire
from app.adapters.solana.client.wire import HistoryEntry
from app.adapters.solana.deposits import SolanaScanState
from app.adapters.solana.send import refusals
from app.adapters.solana.track.account_history import HistoryProgress
from app.core.foreign import MalformedResponseError
from app.core.strict_json import parse_response

_CONTEXT = {"slot": 7}


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 10_000, b"\xff\xfe", b"{", b'{"result": "[[[['])
def test_deeply_nested_text_is_refused_before_parsing(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_response(body, parse_float=str)


def test_brackets_inside_strings_are_accepted() -> None:
    answer = {"logs": ["[" * 500 + '"\\', "}" * 900], "value": 12345678901234567890}
    assert parse_response(json.dumps(answer).encode(), parse_float=str) == answer


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (wire.number, True),
        (wire.number, -1),
        (wire.number, 2**64),
        (wire.number, 1.5),
        (wire.number, "1"),
        (wire.Blockhash.read, {"context": _CONTEXT, "value": {"blockhash": "no", "lastValidBlockHeight": 1}}),
        (wire.Blockhash.read, {"context": {}, "value": {"blockhash": "1" * 32, "lastValidBlockHeight": 1}}),
        (wire.EpochInfo.read, {"absoluteSlot": 1}),
        (wire.statuses(1), {"context": _CONTEXT, "value": []}),
        (wire.statuses(1), {"context": _CONTEXT, "value": [{"slot": 1, "confirmationStatus": "rooted", "err": None}]}),
        (wire.statuses(1), {"context": _CONTEXT, "value": [{"slot": 1, "confirmationStatus": "confirmed"}]}),
        (wire.history, [{"signature": "nonsense", "slot": 1}]),
        (wire.accounts(1), {"context": _CONTEXT, "value": [{"lamports": 1, "owner": "x", "data": ["", "base64"]}]}),
        (wire.landed_or_none("x", wire.LandedTransaction), {"slot": 1, "transaction": ["AAAA", "base64"], "meta": {}}),
        (wire.priority_estimate, {"priorityFeeEstimate": "1e200000"}),
        (wire.priority_estimate, {"priorityFeeEstimate": "NaN"}),
        (wire.priority_estimate, {"priorityFeeEstimate": True}),
        (wire.priority_estimate, {"priorityFeeEstimate": -1}),
        (wire.priority_prices, [{"prioritizationFee": True}]),
        (wire.simulation(1), {"context": _CONTEXT, "value": {"err": None, "accounts": None}}),
        (wire.simulation(), {"context": _CONTEXT, "value": {"err": None, "unitsConsumed": "7"}}),
        (wire.simulation(), {"context": _CONTEXT, "value": {}}),
        (wire.landed_or_none("x", wire.LandedTransaction), {"slot": 1, "transaction": [], "meta": {}}),
    ],
)
def test_a_response_of_another_shape_is_malformed(read: Callable[[object], object], answer: object) -> None:
    with pytest.raises(MalformedResponseError):
        read(answer)


def test_an_unknown_error_is_still_an_error() -> None:
    statuses = wire.statuses(2)(
        {
            "context": _CONTEXT,
            "value": [
                {"slot": 1, "confirmationStatus": "finalized", "err": {"BrandNew": [1, {"x": None}]}},
                {"slot": 1, "confirmations": None, "err": None},
            ],
        }
    )
    found = [(each.slot, each.level, each.failed) for each in statuses.found if each is not None]
    assert found == [(1, "finalized", True), (1, "finalized", False)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("InsufficientFundsForFee", "InsufficientFundsForFee"),
        ({"InsufficientFundsForRent": {"account_index": 0}}, "InsufficientFundsForRent"),
        ({"InstructionError": [2, {"Custom": 1}]}, "insufficient token balance"),
        ({"InstructionError": [2, {"Custom": 6001}]}, "custom program error 0x1771"),
        ({"InstructionError": [2, "InvalidAccountData"]}, "InvalidAccountData"),
        ({"InstructionError": [2, "https://evil"]}, "the transaction would fail"),
        ("x" * 200, "the transaction would fail"),
        (None, "the transaction would fail"),
    ],
)
def test_only_known_error_texts_are_shown(error: object, expected: str) -> None:
    assert refusals.simulation_error(error) == expected


def test_a_scan_state_survives_the_database() -> None:
    trail = HistoryProgress()
    for slot in range(40):
        trail = trail.with_read(HistoryEntry.model_construct(signature=f"signature{slot}", slot=slot))
    mark = SolanaScanState(7, 2**63, 2**64 - 1, trail, HistoryProgress(before="there"), mismatch_slot=9)

    again = SolanaScanState.from_terms(json.loads(json.dumps(dict(mark.as_terms()))))

    assert again == mark
    assert again.is_reading_history
    assert len(again.wallet.recent) == 16
    assert again.wallet.until == "signature24"
