"""A program that a fork of the launcher runs behaves like one that was executed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import forks, procfile
from tests.launcher.conftest import Launcher
from tests.support.applications import key_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can fork everywhere")

FACTS = """
import atexit, json, os, signal, sys
if __name__ == "__main__":
    facts = {
        "arguments": sys.argv[1:], "folder": os.getcwd(), "session": os.getsid(0) == os.getpid(),
        "environment": dict(os.environ), "input": sys.stdin.read(),
        "files": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "name": open("/proc/self/comm").read().strip(),
        "signals": [str(signal.getsignal(number)) for number in (15, 1, 17)],
        "interrupt": signal.getsignal(2) is signal.default_int_handler,
    }
    atexit.register(print, "at exit")
    print("facts", json.dumps(facts))
    signal.pause()
"""


def start(launcher: Launcher, program: str) -> None:
    (launcher.root / "facts.py").write_text(program)
    with (launcher.root / "Procfile").open("a") as procfile:
        procfile.write(f"forked: {sys.executable} -m facts one two\n")
    launcher.start_and_wait()


def lines(launcher: Launcher) -> list[str]:
    found = (line.partition(" | ") for line in launcher.output().splitlines())
    return [text for name, _, text in found if name.strip() == "forked"]


def facts(launcher: Launcher) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        wait_until(lambda: [line for line in lines(launcher) if "facts" in line], what="the facts")[0][6:]
    )
    return found


def test_a_fork_inherits_nothing_of_the_launcher(launcher: Launcher) -> None:
    start(launcher, FACTS)
    found = facts(launcher)
    environment = found.pop("environment")
    assert environment["PORT"] == str(launcher.port)
    assert environment["PURSER_LAUNCHER"] == launcher.mark()
    assert "PYTHONPATH" not in environment  # the launcher's own
    # The listing itself is the fourth file.
    assert found == {
        "arguments": ["one", "two"], "folder": str(launcher.root), "session": True, "input": "",
        "files": [0, 1, 2, 3], "name": "forked", "signals": ["0", "0", "0"], "interrupt": True,
    }  # fmt: skip


def test_sigterm_ends_a_fork_as_it_ends_a_program(launcher: Launcher) -> None:
    start(launcher, FACTS)
    facts(launcher)
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 0


@pytest.mark.parametrize(
    ("ending", "status", "printed"),
    [
        ("sys.exit(3)", 3, None),
        ("sys.exit('no settings')", 1, "no settings"),
        ("raise ValueError('a defect')", 1, "ValueError: a defect"),
        ("pass", 0, None),
    ],
)
def test_a_fork_ends_with_the_status_and_exit_functions_of_a_program(
    ending: str, status: int, printed: str | None, launcher: Launcher
) -> None:
    start(launcher, f"import atexit, sys\natexit.register(print, 'at exit')\n{ending}\n")
    expected = f"ended with status {status}; starting it again in 0.5 s"
    wait_until(lambda: expected in lines(launcher), what="the end of the fork")
    assert "at exit" in lines(launcher)
    assert printed is None or printed in lines(launcher)


def test_the_programs_of_the_procfile_are_run_by_forks() -> None:
    root, programs = Path(__file__).resolve().parents[2], Path(sys.executable).parent
    for name, (program, *arguments) in procfile.read_procfile(root / "Procfile").items():
        assert forks.entry_point([str(programs / program), *arguments]) is not None, name
    for other in (["/usr/bin/python", "-m", "workers"], [sys.executable, "web.py"], [sys.executable, "-c", "1"]):
        assert forks.entry_point(other) is None


def test_loading_what_forks_share_starts_no_thread_and_leaves_the_environment(tmp_path: Path) -> None:
    environment = {
        "NETWORK": "sandbox", "SECRET_KEY": "s" * 32, "DATABASE_URL": f"sqlite:///{tmp_path}/x.sqlite",
        "VAR_DIR": str(tmp_path), "CODE_PEPPERS": key_of("p"), "ENCRYPTION_KEYS": key_of("k"),
    }  # fmt: skip
    # Not even a thread of native code, which Python does not list.
    count = f"import os, sys; from launcher import forks; before = dict(os.environ); found = {environment!r}"
    count += "; list(forks.preload(sys.argv[1:], found)); print(before == os.environ)"
    count += "; print('wsgi' in sys.modules, len(os.listdir('/proc/self/task')))"
    done = subprocess.run(
        [sys.executable, "-c", count, *forks.SERVICE_MODULES],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["True", "True 1"]


def test_invalid_settings_end_the_start_with_their_names() -> None:
    load = "from types import SimpleNamespace; from launcher import service"
    load += "; service._preload(SimpleNamespace(environment={'WEB_THREADS': 'many'}), None, ['wsgi'])"
    done = subprocess.run(
        [sys.executable, "-c", load],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "LauncherError: The settings are invalid:\n" in done.stderr
    assert "\nWEB_THREADS: " in done.stderr
