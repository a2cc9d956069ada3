"""The documents: a short README, a complete index, and no dead links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_FENCED = re.compile(r"```.*?```", re.DOTALL)


def _documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [path for path in map(ROOT.joinpath, listed.splitlines()) if path.exists()]


def _anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub derives from a document's headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_at_most_120_lines_and_6_kb() -> None:
    readme = (ROOT / "README.md").read_bytes()
    assert len(readme.splitlines()) <= 120
    assert len(readme) <= 6000


def test_every_link_between_documents_has_a_target() -> None:
    dead = []
    for document in _documents():
        for link in _LINK.finditer(_FENCED.sub("", document.read_text())):
            target = (document.parent / link["path"]).resolve() if link["path"] else document
            found = target.exists() and (not link["anchor"] or link["anchor"] in _anchors(target))
            dead += [] if found else [f"{document.relative_to(ROOT)}: {link[0]}"]
    assert dead == []


def test_every_path_named_in_the_readme_exists() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/patterns.md"):
        named = re.findall(r"`([\w.]+/[\w./]*)`", (ROOT / name).read_text())
        assert [path for path in named if not (ROOT / path).exists()] == [], name


def test_index_lists_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {(ROOT / "docs" / link["path"]).resolve() for link in _LINK.finditer(index)}
    pages = {path for path in _documents() if path.parent in (ROOT, ROOT / "docs")}
    assert pages - linked == {ROOT / "README.md", ROOT / "docs" / "README.md"}
