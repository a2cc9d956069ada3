"""`deploy/seccomp/chromium.json`: Chromium works in its own sandbox, and what it does not need is refused.

libseccomp loads the profile, as it does for a container.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.deployed import ROOT

PROFILE = ROOT / "deploy" / "seccomp" / "chromium.json"
# Loads a profile, becomes an unprivileged user, and executes a program.
_LOADER = """
# That user may be unable to read the library of Python, and execvp imports `warnings`.
import ctypes, json, os, sys, warnings
lib = ctypes.CDLL("libseccomp.so.2")
lib.seccomp_init.restype = ctypes.c_void_p
context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(0x7FFF0000)))
for rule in json.loads(sys.stdin.read())["syscalls"]:
    for name in rule["names"]:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        # Below 0: not a system call of this processor.
        if number >= 0 and lib.seccomp_rule_add(context, ctypes.c_uint32(0x50000 | rule["errnoRet"]), number, 0):
            raise SystemExit(f"{name} cannot be refused")
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
if lib.seccomp_load(context):
    raise SystemExit("the profile was not loaded")
os.execvp(sys.argv[1], sys.argv[1:])
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run() -> Iterator[Run]:
    """A function that runs a program under the profile, as a user who may do nothing."""
    home = Path(tempfile.mkdtemp(prefix="purser-test-seccomp-"))
    home.chmod(0o777)

    def started(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-c", _LOADER, *command], input=PROFILE.read_text(), capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home)}, cwd="/", check=False, timeout=120,
        )  # fmt: skip

    tried = started("unshare", "--user", "--map-root-user", "true")
    if tried.returncode:
        pytest.skip(f"this machine permits no user namespaces: {tried.stderr}")
    yield started
    shutil.rmtree(home, ignore_errors=True)


def test_chromium_renders_a_page_in_its_own_sandbox(run: Run, browser: str) -> None:
    shown = run(browser, "--headless", "--disable-dev-shm-usage", "--dump-dom", "data:text/html,<p>hello</p>")
    assert "<p>hello</p>" in shown.stdout, shown.stderr[-2000:]


@pytest.mark.parametrize("call", ["mount(b'none', b'/mnt', b'tmpfs', 0, None)", "setns(0, 0)", "unshare(0x20000) or 1"])
def test_the_administrator_of_a_user_namespace_may_not_mount_or_enter_others(run: Run, call: str) -> None:
    program = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.{call}, ctypes.get_errno())"
    done = run("unshare", "--map-root-user", "--mount", "--propagation", "unchanged", "python3", "-c", program)
    # 1 is EPERM. Namespaces themselves are permitted.
    assert done.stdout.split() == (["1", "0"] if "unshare" in call else ["-1", "1"]), done.stderr
