"""Advice on a failed purchase never contradicts its message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import errors
from app.ports.shopper import FailureCode, PurchaseFailed
from app.shopping import schemas as advice
from app.shopping.purchase_runner import stored_error

LIMIT_ERRORS = (
    errors.WalletFrozen, errors.AddressNotAllowed, errors.DomainNotAllowed, errors.PriceUnavailable,
    errors.PerTxLimitExceeded, errors.DailyLimitExceeded, errors.WeeklyLimitExceeded, errors.MonthlyLimitExceeded,
    errors.SessionLimitExceeded,
)  # fmt: skip
_ROOT = Path(__file__).parents[2]
_SENDS_AGAIN = re.compile(r"send it again|try again|send again|repeat it", re.IGNORECASE)
_REPETITION_IS_USELESS = re.compile(r"does not help|no second attempt|tried once", re.IGNORECASE)


def _messages() -> Iterator[tuple[str, FailureCode, str]]:
    """Yield the place, code and literal text of every failure in the code, as far as it is written there."""
    for folder in ("shopper", "app"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                codes = [
                    each.attr
                    for each in node.args
                    if isinstance(each, ast.Attribute)
                    and isinstance(each.value, ast.Name)
                    and each.value.id == "FailureCode"
                ]
                texts = [
                    part.value
                    for argument in node.args
                    for part in ast.walk(argument)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                for code in codes:
                    yield f"{path.name}:{node.lineno}", FailureCode[code], " ".join(texts)


def test_no_message_gives_advice_on_repetition_that_its_advice_contradicts() -> None:
    found = list(_messages())
    assert len(found) > 40
    for place, code, message in found:
        assert not _SENDS_AGAIN.search(message), (place, message)
        shown = advice.advice_on(stored_error(PurchaseFailed(code, message), None))
        if _REPETITION_IS_USELESS.search(message):
            assert not _SENDS_AGAIN.search(shown), (place, message, shown)


def test_a_failure_that_only_the_operator_can_fix_is_not_to_be_sent_again() -> None:
    failure = PurchaseFailed(FailureCode.BROWSER_ERROR, "Sending it again does not help.", is_permanent=True)
    assert advice.advice_on(stored_error(failure, None)).startswith(
        "Nothing was ordered. Send it again only after the operator"
    )


@pytest.mark.parametrize("code", list(FailureCode))
def test_every_code_has_advice(code: FailureCode) -> None:
    shown = advice.advice_on(stored_error(PurchaseFailed(code, "x"), None))
    assert shown.endswith(".")
    if code is FailureCode.OUTCOME_UNKNOWN:
        assert not _SENDS_AGAIN.search(shown)


@pytest.mark.parametrize("limit", [*(each.code for each in LIMIT_ERRORS), "APPROVAL_REQUIRED", "NOT_FOUND"])
def test_a_limit_of_the_wallet_is_not_answered_with_a_limit_of_the_request(limit: str) -> None:
    failure = PurchaseFailed(FailureCode.LIMIT_EXCEEDED, "x")
    assert "Raise `max_total_usd`" not in advice.advice_on(stored_error(failure, None, limit_code=limit))
