"""What a Solana node may say is read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from app.adapters import json_rpc
from app.adapters.json_rpc import MalformedAnswerError
from app.adapters.solana import refusals, wire
from app.adapters.solana.marks import Mark, Trail
from app.adapters.solana.wire import Entry

_CONTEXT = {"slot": 7}


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 10_000,
        b"\xff\xfe",
        b"{",
        b'{"result": "[[[[',
    ],
)
def test_a_text_that_would_break_the_parser_is_refused_before_it(body: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        json_rpc.parsed(body)


def test_brackets_in_texts_of_strangers_do_no_harm() -> None:
    answer = {"logs": ["[" * 500 + '"\\', "}" * 900], "value": 12345678901234567890}
    assert json_rpc.parsed(json.dumps(answer).encode()) == answer


@pytest.mark.parametrize(
    ("read", "answer"),
    [
        (wire.number, True),
        (wire.number, -1),
        (wire.number, 2**64),
        (wire.number, 1.5),
        (wire.number, "1"),
        (wire.blockhash, {"context": _CONTEXT, "value": {"blockhash": "no", "lastValidBlockHeight": 1}}),
        (wire.blockhash, {"context": {}, "value": {"blockhash": "1" * 32, "lastValidBlockHeight": 1}}),
        (wire.epoch_info, {"absoluteSlot": 1}),
        (wire.statuses(1), {"context": _CONTEXT, "value": []}),
        (
            wire.statuses(1),
            {"context": _CONTEXT, "value": [{"slot": 1, "confirmationStatus": "rooted", "err": None}]},
        ),
        (wire.statuses(1), {"context": _CONTEXT, "value": [{"slot": 1, "confirmationStatus": "confirmed"}]}),
        (wire.history, [{"signature": "nonsense", "slot": 1}]),
        (
            wire.accounts(1),
            {"context": _CONTEXT, "value": [{"lamports": 1, "owner": "x", "data": ["", "base64"]}]},
        ),
        (wire.landed_or_none("x"), {"slot": 1, "transaction": ["AAAA", "base64"], "meta": {}}),
        (wire.landed_or_none("x"), {"slot": 1, "transaction": [], "meta": {}}),
    ],
)
def test_an_answer_of_another_shape_is_no_answer(read: Callable[[object], object], answer: object) -> None:
    with pytest.raises(MalformedAnswerError):
        read(answer)


def test_an_error_that_nobody_has_heard_of_is_an_error_all_the_same() -> None:
    told = wire.statuses(2)(
        {
            "context": _CONTEXT,
            "value": [
                {"slot": 1, "confirmationStatus": "finalized", "err": {"BrandNew": [1, {"x": None}]}},
                {"slot": 1, "confirmations": None, "err": None},
            ],
        }
    )
    assert told.found == (wire.Status(1, "finalized", failed=True), wire.Status(1, "finalized", failed=False))


@pytest.mark.parametrize(
    ("error", "told"),
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
def test_only_known_words_are_passed_on(error: object, told: str) -> None:
    assert refusals.simulated(error) == told


def test_a_mark_survives_the_database() -> None:
    trail = Trail()
    for slot in range(40):
        trail = trail.with_read(Entry(f"signature{slot}", slot))
    mark = Mark(7, 2**63, 2**64 - 1, trail, Trail(before="there"), doubt=9)

    again = Mark.of(json.loads(json.dumps(dict(mark.as_terms()))))

    assert again == mark
    assert again.is_walking
    assert len(again.wallet.recent) == 16
    assert again.wallet.until == "signature24"
