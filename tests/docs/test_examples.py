"""The commands of README.md and docs/tutorial.md, executed against the service that `./run` starts.

`UPDATE_DOCS=1 ./test tests/docs` replaces the printed output by that of this run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.servers import free_port
from tests.support.started import StartedService, started_service
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.chain, pytest.mark.redis, pytest.mark.timeout(420)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
_EXAMPLE = re.compile(r"```sh\n(?P<commands>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
_ENTRY_POINTS = ("./run\n", "./test\n")
_SEPARATOR = "\x1e"
_DOCUMENT_SECONDS = 150.0

# Values that differ between runs. A value that occurs twice in a document must occur twice in the run, too.
_VARYING = re.compile(
    r"(?P<uuid>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"|(?P<transaction>0x[0-9a-f]{64})"
    r"|(?P<address>0x[0-9a-fA-F]{40})"
    r"|(?P<key>ak_[\w-]{43})"
    r"|(?P<code>\b[A-Z]{4}-[0-9]{4}\b)"
    r"|(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z)"
    r"|(?P<block>(?<=\"result\":\")0x[0-9a-f]{1,4}(?=\"))"
    r"|(?P<latency>(?<=\"median_latency_ms\": )[0-9]+)"
    r"|(?P<fee>(?<=\"gas_fee\": \")0\.[0-9]+)"
    r"|(?P<base58>\b[1-9A-HJ-NP-Za-km-z]{32,90}\b)"
)


@dataclass(frozen=True)
class Service:
    """A running service and the values that replace those in the documents."""

    replacements: dict[str, str]

    def execute(self, blocks: list[str]) -> list[str]:
        """Run the blocks in one shell and return the output of each."""
        script = "set -m\n" + "".join(f"printf '{_SEPARATOR}'\n{block}" for block in blocks)
        script = _replace_all(script, self.replacements)
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=_DOCUMENT_SECONDS,
            stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        shown = {actual: shown for shown, actual in self.replacements.items()}
        return _replace_all(done.stdout.replace("\r", ""), shown).split(_SEPARATOR)[1:]


def _replace_all(text: str, replacements: dict[str, str]) -> str:
    """Replace in one pass: a free port may contain the digits of another one."""
    return re.sub("|".join(map(re.escape, replacements)), lambda match: replacements[match[0]], text)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedService]:
    """A new service, whose output is compared."""
    with started_service(tmp_path) as service:
        yield service


@pytest.fixture
def service(started: StartedService, tmp_path: Path) -> Service:
    """The started service, with its addresses in the place of the documents'."""
    return Service({
        "http://127.0.0.1:8000": started.url,
        "http://127.0.0.1:18547": started.faucet_url,
        "9099": str(free_port()),
        "/tmp/weather": str(tmp_path / "weather"),  # noqa: S108 - as in the tutorial
    })  # fmt: skip


def _comparable(outputs: list[str]) -> list[str]:
    """Replace varying values by their kind and their order of appearance."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        return f"<{kind}>" if kind == "time" else numbers.setdefault(match[0], f"<{kind} {len(numbers)}>")

    return [_VARYING.sub(number, output) for output in outputs]


def _rewrite(document: Path, outputs: list[str]) -> None:
    remaining = iter(outputs)

    def filled(match: re.Match[str]) -> str:
        if match["commands"] in _ENTRY_POINTS:
            return match[0]
        output = next(remaining)
        shown = f"\n```text\n{output}```\n" if output else ""
        return f"```sh\n{match['commands']}```\n{shown}"

    document.write_text(_EXAMPLE.sub(filled, document.read_text()))


def test_commands_in_readme_and_tutorial_print_the_shown_output(service: Service) -> None:
    # The daily limit must not be reset in the middle of the tutorial.
    wait_until(lambda: f"{datetime.now(UTC):%H:%M}" < "23:57", 200, what="midnight")
    for document in DOCUMENTS:
        examples = [
            match for match in _EXAMPLE.finditer(document.read_text()) if match["commands"] not in _ENTRY_POINTS
        ]
        assert len(examples) > 1, document
        outputs = service.execute([match["commands"] for match in examples])
        shown = [match["output"] or "" for match in examples]
        if _comparable(outputs) != _comparable(shown) and os.environ.get("UPDATE_DOCS"):
            _rewrite(document, outputs)
        else:
            assert _comparable(outputs) == _comparable(shown), f"{document.name}: UPDATE_DOCS=1 ./test tests/docs"


def test_readme_names_both_entry_points() -> None:
    commands = [match["commands"] for match in _EXAMPLE.finditer((ROOT / "README.md").read_text())]
    assert [command for command in commands if command in _ENTRY_POINTS] == list(_ENTRY_POINTS)
