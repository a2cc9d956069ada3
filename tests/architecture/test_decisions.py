"""The decision records in `docs/decisions`: one template, a complete index, and references that resolve."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "decisions"
INDEX = FOLDER / "README.md"
RECORDS = {path.name[:4]: path for path in sorted(FOLDER.glob("[0-9]*.md"))}
READ = (
    "app", "benchmarks", "docs", "launcher", "migrations", "sandbox", "server", "shopper", "signer",
    "solana_node", "static", "templates", "tests", "workers",
)  # fmt: skip
SUFFIXES = {".py", ".md", ".toml", ".html", ".css", ".js", ".sh", ".in", ".txt", ".yml", ".yaml", ".example", ""}
SECTIONS = ["Status", "Context", "Decision", "Consequences"]
MERGED = re.compile(r"- (\d{4}) merged into \[(\d{4})\]")
REFERENCE = re.compile(
    r"decisions/(?P<path>\d{4}[-\w.]*)"
    r"|\b(?:decisions?|ADRs?)[\s#-]\[?(?P<number>\d+)",
    re.IGNORECASE,
)
FILE = re.compile(rf"`((?:{'|'.join(READ)})/[\w./-]+)`")


def _texts() -> Iterator[tuple[str, str]]:
    top = [path for path in ROOT.iterdir() if path.is_file()]
    below = [path for name in READ for path in (ROOT / name).rglob("*")]
    for path in top + below:
        if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__):
            yield path.relative_to(ROOT).as_posix(), path.read_text(errors="replace")


def _title(path: Path) -> str:
    return path.read_text().splitlines()[0]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def test_every_reference_to_a_decision_resolves() -> None:
    files = {path.name for path in FOLDER.iterdir()}
    found = []
    for name, text in _texts():
        for match in REFERENCE.finditer(text):
            path, number = match["path"], match["number"]
            resolves = number in RECORDS if path is None else path in files or path in RECORDS
            found += [] if resolves else [f"{name}: {match[0]}"]
    assert found == []


def test_documents_name_files_that_exist() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = ((page, path) for page in pages for path in FILE.findall(page.read_text()))
    assert [f"{page.name}: {path}" for page, path in named if not (ROOT / path).exists()] == []


def test_links_between_decisions_point_to_the_number_they_show() -> None:
    found = []
    for path in FOLDER.glob("*.md"):
        for shown, target in re.findall(r"\[(\d{4})\]\(([^)]*)\)", path.read_text()):
            if not target.startswith(shown) or not (FOLDER / target).is_file():
                found.append(f"{path.name}: {shown} {target}")
    assert found == []


def test_links_from_decisions_to_documents_resolve() -> None:
    found = []
    for path in FOLDER.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            found += [] if (FOLDER / target).is_file() else [f"{path.name}: {target}"]
    assert found == []


def test_every_decision_follows_the_template() -> None:
    for number, path in RECORDS.items():
        title = re.fullmatch(r"# (\d{4})\. (\S.*[^.])", _title(path))
        assert title is not None, path.name
        assert title[1] == number
        assert path.name == f"{number}-{_slug(title[2])}.md"
        assert not re.match(r"(what|when|where|which|who(?:se)?|how|why)\b", title[2], re.IGNORECASE)
        text = path.read_text()
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS, path.name
        status = text.split("## Status\n\n")[1].split("\n\n## ")[0]
        assert re.fullmatch(r"Accepted|Superseded by \[\d{4}\]\([^)]*\)", status), path.name


def test_no_line_of_a_decision_is_longer_than_120_characters() -> None:
    found = []
    for path in FOLDER.glob("*.md"):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            found += [f"{path.name}:{number}"] if len(line) > 120 else []
    assert found == []


def test_the_index_has_every_decision_once() -> None:
    lines = INDEX.read_text().splitlines()
    listed = Counter(line for line in lines if line.startswith("- ") and not MERGED.match(line))
    expected = []
    for number, path in RECORDS.items():
        superseded = re.search(r"^Superseded by \[(\d{4})\]", path.read_text(), re.MULTILINE)
        mark = f" (superseded by {superseded[1]})" if superseded else ""
        expected.append(f"- {number} [{_title(path).split('. ', 1)[1]}]({path.name}){mark}")
    assert listed == Counter(expected)


def test_merged_decisions_name_their_successor() -> None:
    merged = MERGED.findall(INDEX.read_text())
    assert len(merged) == len({number for number, _ in merged})
    assert not {number for number, _ in merged} & set(RECORDS)
    assert {target for _, target in merged} <= set(RECORDS)
