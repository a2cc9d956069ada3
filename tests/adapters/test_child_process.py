"""Child processes: a hostile one neither blocks the service nor fills its memory, and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.adapters import child_process
from app.adapters.child_process import ChildEndedError, ChildProcess, ChildTimeoutError
from tests.support.waiting import wait_until


@contextmanager
def running(script: str, *, max_line: int = 1000) -> Iterator[ChildProcess]:
    with child_process.run("-S", "-c", script, environment={"NAME": "value"}, max_line=max_line) as child:
        yield child


def soon() -> float:
    return time.monotonic() + 20


def test_lines_are_exchanged_until_the_process_ends() -> None:
    script = "import sys; text = sys.stdin.read(); print(len(text)); print('last', end='')"
    with running(script) as child:
        # More than a pipe holds.
        child.write(b"x" * 1_000_000, deadline=soon())
        child.close_input()
        assert child.read_line(deadline=soon()) == b"1000000"
        with pytest.raises(ChildEndedError):
            child.read_line(deadline=soon())


def test_a_silent_process_that_reads_nothing_exceeds_the_time_limit_of_both_directions() -> None:
    with running("import time; time.sleep(1000)") as child:
        with pytest.raises(ChildTimeoutError):
            child.read_line(deadline=time.monotonic() + 0.1)
        with pytest.raises(ChildTimeoutError):
            child.write(b"x" * 1_000_000, deadline=time.monotonic() + 0.1)


def test_an_endless_line_is_bounded() -> None:
    script = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with running(script, max_line=200_000) as child:
        with pytest.raises(ChildEndedError):
            child.read_line(deadline=soon())
        assert len(child._buffer) < 400_000


def test_a_process_that_has_ended_accepts_nothing() -> None:
    with running("import os, time; os.close(0); os.close(1); time.sleep(1000)") as child:
        with pytest.raises(ChildEndedError):
            child.read_line(deadline=soon())
        with pytest.raises(ChildEndedError):
            child.write(b"x", deadline=soon())


def test_it_has_only_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCRYPTION_KEYS", "canary-of-a-secret")
    with running("import os; print(sorted(os.environ.items() - {('LC_CTYPE', 'C.UTF-8')}))") as child:
        assert child.read_line(deadline=soon()) == b"[('NAME', 'value')]"


def test_what_it_has_started_is_killed_with_it() -> None:
    script = "import os, time\nif pid := os.fork(): print(pid, flush=True)\ntime.sleep(1000)"
    with running(script) as child:
        grandchild = int(child.read_line(deadline=soon()))
    wait_until(lambda: not is_running(grandchild))


def test_a_session_that_left_its_group_is_killed_with_it() -> None:
    # As browsers do. Stopped, it cannot end by itself either.
    script = "import os, signal\nif os.fork() == 0:\n os.setsid(); print(os.getpid(), flush=True)"
    script += "; os.kill(0, signal.SIGSTOP)\nsignal.pause()"
    with running(script) as child:
        grandchild = int(child.read_line(deadline=soon()))
    wait_until(lambda: not is_running(grandchild))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
