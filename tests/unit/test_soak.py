"""What the soak compares at its end: a chain with its records, and error lines with the kills that explain them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import chain_records, soak

HASH = ("base", "0x01")
OTHER = ("base", "0x02")


def transfer(**changed: Any) -> SimpleNamespace:
    row = {
        "id": "t", "type": "transfer", "kind": None, "chain": "base", "status": "confirmed", "tx_hash": HASH[1],
        "evm_address": "0xA", "solana_address": "A", "to_address": "0xB", "currency": "USDC", "amount_units": 5,
        "output_currency": None, "output_units": None, "native_out_units": 2, "fee_units": 2,
    }  # fmt: skip
    return SimpleNamespace(**{**row, **changed})


def disagreements(*landed: tuple[str, str], success: bool = True, **changed: Any) -> list[str]:
    attempts = {key: SimpleNamespace(transaction_id="t", purpose="payment") for key in (HASH, OTHER)}
    return list(
        chain_records.find_unequal_transactions([transfer(**changed)], attempts, set(), dict.fromkeys(landed, success))
    )


def test_a_confirmed_transfer_that_landed_once_agrees() -> None:
    assert disagreements(HASH) == []


@pytest.mark.parametrize(
    ("landed", "success", "changed"),
    [
        ((HASH, OTHER), True, {}),
        ((), True, {}),
        ((HASH,), False, {}),
        ((HASH,), True, {"status": "failed"}),
        ((OTHER,), True, {}),
        ((HASH, ("base", "0x03")), True, {}),
    ],
    ids=["landed twice", "never landed", "reverted", "failed, but landed", "other hash", "without a record"],
)
def test_a_chain_that_disagrees_with_a_record_is_found(
    landed: tuple[tuple[str, str], ...], *, success: bool, changed: dict[str, Any]
) -> None:
    assert disagreements(*landed, success=success, **changed)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {("0xA", "USDC"): -5, ("0xA", "ETH"): -2, ("0xB", "USDC"): 5}),
        ({"status": "failed"}, {("0xA", "ETH"): -2}),
        ({"currency": "ETH", "native_out_units": 7}, {("0xA", "ETH"): -7, ("0xB", "ETH"): 5}),
        (
            {"output_currency": "ETH", "output_units": 9, "native_out_units": -7},
            {("0xA", "USDC"): -5, ("0xA", "ETH"): 7},
        ),
    ],
    ids=["tokens", "failed", "native", "swap"],
)
def test_the_records_of_a_movement_imply_balances(
    changed: dict[str, Any], expected: dict[tuple[str, str], int]
) -> None:
    flows = chain_records.flows_of([transfer(**changed)])
    assert {(address, symbol): units for (_, address, symbol), units in flows.items() if units} == expected


def test_only_a_disturbance_shortly_before_explains_an_error_line() -> None:
    at = datetime(2026, 11, 22, 12, tzinfo=UTC)
    lines = [
        f'{name:<9} | {{"event": "e{number}", "level": "error", "timestamp": "{time.isoformat()}"}}'
        for number, (name, time) in enumerate(
            [
                ("web", at + timedelta(seconds=10)),
                ("web", at + timedelta(minutes=2)),
                ("worker", at - timedelta(minutes=1)),
                ("sandbox", at + timedelta(minutes=2)),
            ]
        )
    ]
    found = soak.unexplained(lines, [soak.Disturbance(at, "kill worker", at)])
    assert [line.split('"')[3] for line in found] == ["e1", "e2"]
