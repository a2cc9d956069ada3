"""The compiled stand-ins match their sources."""

from __future__ import annotations

import hashlib
import json

from sandbox.evm.stand_ins import COMPILED, FOLDER


def test_the_compiled_contracts_match_the_sources() -> None:
    compiled = json.loads(COMPILED.read_text())
    sources = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.vy")}
    assert {name: entry["source_sha256"] for name, entry in compiled.items()} == sources
