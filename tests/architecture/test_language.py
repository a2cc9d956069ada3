"""Language rules: no word of the project's former dialect, unique class names, plain docstrings and commit subjects."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUFFIXES = {".py", ".md", ".html", ".txt", ".toml", ".js", ".sh"}
SCRIPTS = {"run", "test", "Makefile", "Procfile", ".ci/run"}

# An underscore separates words, so that identifiers are covered too.
WORDS = (
    "mend|mends|mended|tills?|desks?|errands?|lanes?|knock|knocks|knocked|knocking|lets? go|letting go|"
    "gives? way|gave way|pass(?:es|ed)? the (?:[a-z'_]+ )?limits?"
).replace(" ", "[ _]")
BANNED = re.compile(rf"(?<![A-Za-z])(?:{WORDS})(?![A-Za-z])", re.IGNORECASE)

EXEMPT_FILES = {"tests/architecture/test_language.py": "holds the list itself"}
EXEMPT_FOLDERS = {"migrations/versions/": "a released migration is not edited"}
# Words with another meaning: the beginning of the path, the words, the reason.
EXEMPT_WORDS = (
    ("", {'"nobody"'}, "the Unix user"),
    ("shopper/page/keywords.py", {"till", "desk"}, "words on the buttons of shops"),
    ("CHANGELOG.md", {"mend"}, "a former option, next to the present one"),
    ("tests/support/shops/", {"desk"}, "a product"),
    ("tests/browser/", {"desk"}, "a product"),
)

# The words that a docstring does not begin with: a function's begins with a verb of the domain, a module's names it.
FIRST_WORDS = ("Tell ", "Say ", "What ", "Who ", "Where ", "How ")

# When the rules came into force: the commit before "Move modules into the packages of the new layout".
RULES_SINCE = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)


def tracked_files() -> list[str]:
    """Return the names of the tracked text files of the project; of all that are there, in a tree without .git."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if listed == [""]:
        skipped = {".venv", "var", "node_modules"}
        listed = [
            name_of(path)
            for path in ROOT.rglob("*")
            if path.is_file() and not skipped & set(path.relative_to(ROOT).parts)
        ]
    return [name for name in listed if Path(name).suffix in SUFFIXES or name in SCRIPTS]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield name_of(path), ast.parse(path.read_text())


def banned_in(line: str, name: str = "") -> Iterator[str]:
    allowed = {word for start, words, _ in EXEMPT_WORDS if name.startswith(start) for word in words}
    for match in BANNED.finditer(line):
        word, quoted = match.group(), line[max(0, match.start() - 1) : match.end() + 1]
        if not {word.lower(), quoted} & allowed:
            yield word


def text_of(name: str) -> str:
    text = (ROOT / name).read_text(errors="replace")
    # The entries of releases stay as they were published.
    return re.split(r"^## \[\d", text, maxsplit=1, flags=re.MULTILINE)[0] if name == "CHANGELOG.md" else text


def recent_commits() -> list[tuple[str, str]]:
    """Return abbreviated hash and subject of those commits of this clone that the rules cover."""
    log = subprocess.run(["git", "log", "--format=%ct %h %s"], cwd=ROOT, capture_output=True, text=True, check=False)
    commits = [line.split(" ", 2) for line in log.stdout.splitlines()]
    return [(sha, subject) for time, sha, subject in commits if int(time) >= RULES_SINCE.timestamp()]


@pytest.mark.parametrize(
    "sentence", ["Mend what is broken.", "test_lanes_of_a_till", "lane = 1", "it passes the daily limit"]
)
def test_the_pattern_finds_sentences_and_identifiers(sentence: str) -> None:
    assert list(banned_in(sentence))


@pytest.mark.parametrize("line", ["until", "desktop", "an agent whose limits hold", "all checks passed the review"])
def test_the_pattern_leaves_ordinary_text_alone(line: str) -> None:
    assert not list(banned_in(line))


def test_no_file_uses_a_banned_word() -> None:
    found = [
        f"{name}:{number}: {word}"
        for name in tracked_files()
        if name not in EXEMPT_FILES and not name.startswith(tuple(EXEMPT_FOLDERS))
        for number, line in enumerate(text_of(name).splitlines(), 1)
        for word in banned_in(line, name)
    ]
    assert not found, "\n" + "\n".join(found)


def test_commit_subjects_are_short_and_plain() -> None:
    found = [
        f"{sha}: {len(subject)} characters, {list(banned_in(subject))}: {subject}"
        for sha, subject in recent_commits()
        if len(subject) > 72 or list(banned_in(subject))
    ]
    assert not found, "\n" + "\n".join(found)


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for name, tree in sources("app"):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    found = [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]
    assert not found, "\n" + "\n".join(found)


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = []
    for name, tree in sources("app", "server", "workers", "shopper", "signer"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            docstring = ast.get_docstring(node) or ""
            if docstring.startswith(FIRST_WORDS):
                found.append(f"{name}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}")
    assert not found, "\n" + "\n".join(found)
