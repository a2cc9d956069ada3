"""What the image has runs without privileges and writes nothing outside of its folder for state."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.applications import DEAD_REDIS
from tests.support.hosts import Web, command_of, environment_of
from tests.support.servers import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
# As `cap_drop: [ALL]` and `no-new-privileges`: without capabilities, root too obeys the modes of files.
_WITHOUT_PRIVILEGES = ["setpriv", "--no-new-privs", "--inh-caps=-all"]
if os.geteuid() == 0:
    _WITHOUT_PRIVILEGES.append("--bounding-set=-all")


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """A folder with what the image has, where only `var` can be written."""
    folder = tmp_path / "image"
    for line in (ROOT / ".dockerignore").read_text().split():
        name = line.removeprefix("!")
        if not line.startswith("!"):
            continue
        if (ROOT / name).is_dir():
            # With the bytecode, which the image has, too.
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "var").mkdir()
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        if path != folder / "var":
            path.chmod(path.stat().st_mode & ~0o222)
    yield folder
    for path in paths:
        path.chmod(path.stat().st_mode | 0o200)


def test_no_process_writes_outside_its_state(image: Path, tmp_path: Path) -> None:
    port = free_port()
    environment = environment_of("sqlite:///var/purser.sqlite", DEAD_REDIS, PORT=str(port)) | {
        "HOME": str(image), "PYTHONDONTWRITEBYTECODE": "1", "AUDIT_WITNESS_FILE": "var/audit-heads.log"
    }  # fmt: skip
    before = sorted(image.rglob("*"))

    def command(kind: str) -> list[str]:
        return [*_WITHOUT_PRIVILEGES, *command_of(kind)]

    written = subprocess.run(
        [*_WITHOUT_PRIVILEGES, "touch", str(image / "app" / "written")], check=False, capture_output=True
    )
    assert written.returncode != 0
    released = subprocess.run(command("release"), cwd=image, env=environment, capture_output=True, check=False)
    assert released.returncode == 0, released.stdout + released.stderr
    with ExitStack() as stack:
        log = tmp_path / "log"
        output = stack.enter_context(log.open("wb"))
        processes = []
        for kind in ("web", "scheduler"):
            process = subprocess.Popen(
                command(kind), cwd=image, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            processes.append(process)
        web = Web(port, processes[0], log)
        wait_until(web.is_up, 90, what="an answer")
        assert web.ask("POST", "/v1/agents/register", {})[0] == 201
        wait_until(lambda: web.ask("GET", "/v1/health")[1]["checks"]["worker"] == "ok", 60, what="the scheduler")
        assert [process.poll() for process in processes] == [None, None]
    text = log.read_text(errors="replace")
    assert not re.search("read-only|permission denied|PermissionError|audit_witness_failed", text, re.IGNORECASE), text
    assert [path for path in sorted(image.rglob("*")) if path not in before and image / "var" not in path.parents] == []
