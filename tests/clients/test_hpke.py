"""HPKE (RFC 9180): npm's library opens what this service seals, and the service opens what it seals."""

from __future__ import annotations

import base64
import json

import pytest

from app.core import hpke
from tests.support import compatibility
from tests.support.published import run_node

pytestmark = pytest.mark.timeout(1200)
WORDS = "legal winner thank year wave sausage worth useful legal winner thank yellow"
EXPORT, IMPORT = "purser export\na\nb", "purser import\na\nb"


def test_npms_library_opens_what_is_sealed_and_seals_what_is_opened() -> None:
    (browser_key, browser_point), (own_key, own_point) = hpke.new_key(), hpke.new_key()
    told = {
        "privateKey": base64.urlsafe_b64encode(browser_key).decode().rstrip("="), "publicKey": own_point,
        "sealed": hpke.seal(WORDS.encode(), hpke.point(browser_point), EXPORT), "message": WORDS, "exported": EXPORT,
        "imported": IMPORT,
    }  # fmt: skip
    found = run_node("hpke.mjs", json.dumps(told))
    assert (found["opened"], found["other"]) == (WORDS, False)
    assert hpke.unseal(found["sealed"], own_key, IMPORT).decode() == WORDS
    with pytest.raises(ValueError, match="not sealed"):
        hpke.unseal(found["sealed"], own_key, EXPORT)
    compatibility.check("npm", "@hpke/core", found["version"], ["open an exported phrase", "seal an imported phrase"])


def test_a_changed_text_and_one_for_another_key_do_not_open() -> None:
    (key, point), (other, _) = hpke.new_key(), hpke.new_key()
    sealed = hpke.seal(b"words", hpke.point(point), EXPORT)
    with pytest.raises(ValueError, match="not sealed"):
        hpke.unseal(sealed, other, EXPORT)
    # The last character is left out: two of its bits are padding.
    for at in (0, 3, 50, len(sealed) - 2):
        changed = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        with pytest.raises(ValueError, match=r"sealed|base64|Incorrect|EC"):
            hpke.unseal(changed, key, EXPORT)
    assert len({hpke.seal(b"words", hpke.point(point), EXPORT) for _ in range(5)}) == 5
