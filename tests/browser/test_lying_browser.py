"""A browser's process that was taken over by a page: what it says is believed only as far as it may say it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from app.adapters.shopper_browser.shopper import _Conversation
from app.ports.shopper import Bought, Errand, Failed, Unclear
from tests.browser.conftest import FULL, Witness

REVIEW = {"total_nanos": 17, "payment_method": None, "shipping_method": None, "payment_pending": False}
BOUGHT = {"kind": "bought", "order_number": "A-1", **REVIEW}
ASKS = {"kind": "may_order", **REVIEW}
STUCK = {"kind": "failed", "trouble": "stuck", "message": "Ed is stuck", "missing": [], "choices": []}
_SAYS = """
import json, sys
for line in json.loads(sys.argv[1]):
    print(json.dumps(line), flush=True)
    if line["kind"] in ("may_order", "found"): sys.stdin.readline()
sys.stdin.read()
"""


def hear(*lines: dict[str, Any], witness: Witness | None = None, **errand: Any) -> object:
    """Return how a conversation with a process ends that says just this."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", _SAYS, json.dumps(lines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        conversation = _Conversation(
            child, Errand("https://shop.example/", FULL, **errand), witness or Witness()
        )
        return conversation.listen(deadline=time.monotonic() + 20)
    finally:
        child.kill()
        child.communicate()


def test_an_order_that_nobody_allowed_is_not_believed() -> None:
    with pytest.raises(Unclear):
        hear(BOUGHT)
    assert hear(ASKS, BOUGHT) == Bought("A-1", 17, None, None)


def test_a_dry_run_is_never_allowed_to_order_and_an_errand_never_ends_as_one() -> None:
    witness = Witness()
    with pytest.raises(Unclear):
        hear(ASKS, BOUGHT, witness=witness, dry_run=True)
    assert witness.reviews == []
    with pytest.raises(Failed):
        hear({"kind": "reviewed", **REVIEW})


def test_a_username_that_is_a_part_of_our_own_words_breaks_nothing() -> None:
    with pytest.raises(Failed) as failed:
        hear(STUCK, username="ed", password="stuck")
    assert (failed.value.trouble.value, failed.value.message) == ("stuck", "… is …")


def test_nothing_is_taken_back_once_the_order_was_allowed() -> None:
    with pytest.raises(Unclear):
        hear(ASKS, STUCK)
    with pytest.raises(Unclear):
        hear(ASKS, {"kind": "nonsense"})
