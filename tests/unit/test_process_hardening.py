"""A compromised browser cannot read the environment or memory of processes that hold keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.applications import key_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc and prctl")
ROOT = Path(__file__).resolve().parents[2]
SECRET = "canary-encryption-key"
# Root can read everything, so a test that runs as root becomes an ordinary user in both processes.
_UNPRIVILEGED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def leave_root():
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(60706); os.setuid(60706)
"""
_VICTIM = (
    _UNPRIVILEGED
    + """
from app.core.host import harden
leave_root()
libc.prctl(4, 1, 0, 0, 0)  # a change of user has cleared the flag that every started program has
print(os.getpid(), flush=True)
sys.stdin.readline()
harden()
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""
)
_ATTACKER = (
    _UNPRIVILEGED
    + """
import json
leave_root()
answers = []
for pid in map(int, sys.argv[1:]):
    try:
        found = open(f"/proc/{pid}/environ").read()
    except OSError as error:
        found = type(error).__name__
    attached = libc.ptrace(16, pid, 0, 0)  # PTRACE_ATTACH
    if attached == 0:
        os.waitpid(pid, 0x40000000)
        libc.ptrace(17, pid, 0, 0)
    try:
        open(f"/proc/{pid}/mem", "rb").close()
        memory = True
    except OSError:
        memory = False
    answers.append([found, attached == 0, memory])
print(json.dumps(answers))
"""
)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-c", _VICTIM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT, env={"ENCRYPTION_KEYS": SECRET},
        )  # fmt: skip
        stack.callback(process.communicate)
        yield process


def _attack(*pids: int) -> list[tuple[str, bool, bool]]:
    ran = subprocess.run([sys.executable, "-c", _ATTACKER, *map(str, pids)], capture_output=True, text=True, check=True)
    return [(found, attached, memory) for found, attached, memory in json.loads(ran.stdout)]


def test_another_process_of_the_user_cannot_read_environment_or_memory_of_ours_or_its_forks(
    victim: subprocess.Popen[str],
) -> None:
    assert victim.stdin is not None
    assert victim.stdout is not None
    parent = int(victim.stdout.readline())
    [(found, attached, memory)] = _attack(parent)
    assert (SECRET in found, attached, memory) == (True, True, True)
    victim.stdin.write("\n")
    victim.stdin.flush()
    child = int(victim.stdout.readline())
    assert _attack(parent, child) == [("PermissionError", False, False)] * 2


@pytest.mark.parametrize(
    "entry",
    [
        "import wsgi", "from workers.context import application; application()", "import workers",
        "from launcher.__main__ import main; main(['true'])",
    ],
)  # fmt: skip
def test_every_process_with_secrets_is_hardened_and_writes_no_core_dump(entry: str, tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"], "SECRET_KEY": "s" * 32, "CODE_PEPPERS": key_of("p"),
        "ENCRYPTION_KEYS": key_of("k"), "DATABASE_URL": f"sqlite:///{tmp_path}/x.sqlite", "VAR_DIR": str(tmp_path),
    }  # fmt: skip
    after = "import ctypes, resource; print(ctypes.CDLL(None).prctl(3), resource.getrlimit(resource.RLIMIT_CORE))"
    ran = subprocess.run(
        [sys.executable, "-c", f"{entry}; {after}"], capture_output=True, text=True, cwd=ROOT, env=environment,
        check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "0 (0, 0)"
