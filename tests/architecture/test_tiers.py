"""The tiers of the suite: a renamed test does not leave its tier unnoticed, and a run says what it left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiers import FIRST_TIER, LONGEST, SAME_ON_BOTH, SECOND_TIER, Tier, summary, tier_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("pattern", [*SECOND_TIER, *FIRST_TIER, *LONGEST, *SAME_ON_BOTH])
def test_every_pattern_of_a_tier_names_existing_tests(pattern: str) -> None:
    path, _, test = pattern.partition("[[]")[0].partition("::")
    function = test.rstrip("*")
    assert any(f"def {function}" in file.read_text() for file in ROOT.glob(path) if file.is_file())


@pytest.mark.parametrize(
    ("test_id", "tier"),
    [
        ("tests/unit/test_money.py::test_a", Tier.FIRST),
        ("tests/crash/test_swaps.py::test_a[sqlite]", Tier.SECOND),
        ("tests/crash/test_transfers.py::test_every_step_of_a_transfer_is_a_kill_point[base-sqlite]", Tier.FIRST),
        ("tests/wire/test_slow_clients.py::test_a", Tier.SECOND),
        ("tests/wire/test_requests.py::test_a", Tier.FIRST),
    ],
)
def test_the_tier_of_a_test_depends_on_its_place(test_id: str, tier: Tier) -> None:
    assert tier_of(test_id) is tier


def test_the_last_line_names_the_dangers_left_out_and_the_command() -> None:
    line = summary(Tier.FIRST)
    assert line.startswith("Left out: the tests of tier 2")
    assert all(danger in line for danger in SECOND_TIER.values())
    assert "./test --tier=2" in line
