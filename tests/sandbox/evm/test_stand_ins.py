"""The compiled stand-ins are those of the sources beside them."""

from __future__ import annotations

import hashlib
import json

from sandbox.evm.stand_ins import COMPILED, FOLDER


def test_what_was_compiled_is_what_the_sources_say() -> None:
    compiled = json.loads(COMPILED.read_text())
    sources = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.vy")}
    assert {name: entry["source_sha256"] for name, entry in compiled.items()} == sources
