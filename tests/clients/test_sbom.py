"""The list of what the service is made of, which `make sbom` writes for each release."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from app.version import VERSION
from tests.support.published import make_python

ROOT = Path(__file__).resolve().parents[2]


def test_it_has_each_locked_requirement_with_its_hashes(tmp_path: Path) -> None:
    output = tmp_path / "var" / "sbom.cdx.json"
    python = make_python(ROOT / "deploy" / "sbom.txt")
    subprocess.run([sys.executable, str(ROOT / "deploy" / "sbom.py"), str(output), str(python)], check=True)
    written = json.loads(output.read_text())
    assert written["bomFormat"] == "CycloneDX"
    service = written["metadata"]["component"]
    assert (service["name"], service["version"]) == ("purser", VERSION)
    locked = re.findall(r"^([\w.-]+)(?:\[.+\])?==([^ ;\\]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    listed = {(part["name"], part["version"]): part for part in written["components"]}
    assert len(locked) > 50
    assert listed.keys() == set(locked)
    assert all(part["purl"].startswith("pkg:pypi/") for part in listed.values())
    assert all(reference.get("hashes") for part in listed.values() for reference in part["externalReferences"])
