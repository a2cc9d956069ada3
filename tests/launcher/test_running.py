from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from launcher import processes
from launcher.instance import read_record
from tests.launcher.conftest import Launcher
from tests.support.servers import redis_server
from tests.support.waiting import wait_until


def _answering_pid(launcher: Launcher) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{launcher.port}/v1/health", timeout=1) as answer:
            return int(answer.read())
    except OSError:
        return 0


def _all_ended(pids: set[int]) -> bool:
    return not any(processes.start_time(pid) for pid in pids)


def test_a_killed_process_is_restarted_and_leaves_no_process_behind(launcher: Launcher) -> None:
    launcher.start_and_wait()
    first = launcher.pid_of("web")
    os.kill(first, signal.SIGKILL)
    second = wait_until(lambda: _answering_pid(launcher), what="an answer of the new web process")
    assert second != first
    assert "was killed by signal 9; starting it again in 0.5 s" in launcher.output()


def test_a_crash_loop_is_restarted_with_growing_delays_and_spares_the_others(launcher: Launcher) -> None:
    with (launcher.root / "Procfile").open("a") as procfile:
        procfile.write(f"scheduler: {sys.executable} -c raise(SystemExit(3))\n")
    launcher.start_and_wait()
    web = launcher.pid_of("web")
    wait_until(lambda: "starting it again in 2 s" in launcher.output(), what="the third death")
    delays = [line.split()[-2] for line in launcher.output().splitlines() if "ended with status 3" in line]
    assert delays[:3] == ["0.5", "1", "2"]
    assert _answering_pid(launcher) == web


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopping_terminates_processes_that_left_their_group(launcher: Launcher, number: signal.Signals) -> None:
    launcher.start_and_wait()
    # First the worker, which has started its job by then.
    ours = {launcher.pid_of("worker")} | processes.pids_with_marker(launcher.mark())
    assert len(ours) == 3  # web, worker and the worker's job
    launcher.signal(number)
    assert launcher.wait() == 0
    assert _all_ended(ours)
    assert not (launcher.root / "var" / "launcher.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the processes of a session")
def test_a_process_of_anyone_with_a_name_cut_within_a_character_does_not_prevent_the_stop() -> None:
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b'caf\\xc3', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as named:  # fmt: skip
        assert named.stdin is not None
        assert named.stdout is not None
        assert named.stdout.readline() == b"\n"
        assert processes.pids_in_sessions([named.pid]) == {named.pid}
        named.stdin.write(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the processes of a session")
def test_stopping_ends_a_job_that_left_its_group_and_hides_its_environment(launcher: Launcher) -> None:
    worker = launcher.root / "worker.py"
    worker.write_text(worker.read_text().replace("process_group=0", "process_group=0, env={}"))
    launcher.start_and_wait()
    leader = launcher.pid_of("worker")
    jobs = processes.pids_in_sessions([leader]) - {leader}
    assert len(jobs) == 1
    assert not jobs & processes.pids_with_marker(launcher.mark())
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 0
    assert _all_ended(jobs)


def test_a_second_stop_signal_kills_processes_that_ignore_the_first(launcher: Launcher) -> None:
    (launcher.root / "worker.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('worker pid', os.getpid())\n"
        "time.sleep(600)\n"
    )
    launcher.start_and_wait()
    ours = {launcher.pid_of("worker")} | processes.pids_with_marker(launcher.mark())
    launcher.signal(signal.SIGINT)
    wait_until(lambda: "Stopping" in launcher.output(), what="the first signal to be handled")
    launcher.signal(signal.SIGINT)
    assert launcher.wait(timeout=10) == 0
    assert _all_ended(ours)


def test_the_next_start_terminates_exactly_the_processes_of_a_killed_launcher(launcher: Launcher) -> None:
    stubborn = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    (launcher.root / "worker.py").write_text(stubborn + "print('worker pid', os.getpid())\ntime.sleep(600)\n")
    launcher.start_and_wait()
    left = launcher.pid_of("worker")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        launcher.signal(signal.SIGKILL)
        launcher.wait()
        assert processes.start_time(left)
        # An id that the system has reused since; the start time differs.
        record = launcher.root / "var" / "launcher.json"
        record.write_text(record.read_text().replace('"children": [', f'"children": [[{bystander.pid}, "1"], '))
        launcher.start_and_wait()
        assert _all_ended({left})
        assert bystander.poll() is None
        assert "of a ./run that was killed" in launcher.output()
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_children_end_with_a_launcher_that_is_killed(launcher: Launcher) -> None:
    launcher.start_and_wait()
    web = launcher.pid_of("web")
    launcher.signal(signal.SIGKILL)
    launcher.wait()
    wait_until(lambda: _all_ended({web}), what="the end of the web process")


def test_a_second_start_prints_the_address_of_the_first_and_ends(launcher: Launcher) -> None:
    launcher.start_and_wait()
    web = launcher.pid_of("web")
    second = Launcher(launcher.root, launcher.port, launcher.settings, log="second")
    second.start()
    assert second.wait() == 1
    assert f"Already running on http://127.0.0.1:{launcher.port}" in second.output()
    assert len(second.output().splitlines()) == 1
    assert _answering_pid(launcher) == web


def test_a_taken_port_is_reported_before_anything_starts(launcher: Launcher) -> None:
    with redis_server(port=launcher.port):
        launcher.start()
        assert launcher.wait() == 1
    assert launcher.output().splitlines() == [
        f"Port {launcher.port} is taken by another program: stop it, or choose another: PORT=8001 ./run."
    ]


def test_a_database_that_cannot_be_prepared_ends_the_start(launcher: Launcher) -> None:
    procfile = launcher.root / "Procfile"
    procfile.write_text(procfile.read_text().replace("print('released')", "raise SystemExit('no such table')"))
    launcher.start()
    assert launcher.wait() == 1
    assert "no such table" in launcher.output()
    assert "The database could not be prepared: see the lines above." in launcher.output()
    assert "web pid" not in launcher.output()


def test_a_failed_start_names_the_process_that_died(launcher: Launcher) -> None:
    for name in ("ETHEREUM_RPC_URL", "BASE_RPC_URL", "SOLANA_RPC_URL"):
        del launcher.settings[name]
    # The program that starts the chains.
    python = launcher.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'sandbox: npm was not found'\nexit 1\n")
    python.chmod(0o755)
    (launcher.root / "web.py").write_text("import time; time.sleep(600)")
    launcher.start()
    assert launcher.wait(60) == 1
    assert launcher.output().splitlines()[-1] == "Sandbox did not start: see the lines above."


def test_the_embedded_redis_keeps_its_data_and_moves_when_its_port_is_taken(launcher: Launcher) -> None:
    del launcher.settings["REDIS_URL"]
    (launcher.root / "worker.py").write_text(
        "import os, time\nprint('worker pid', os.getpid(), os.environ['REDIS_URL'])\ntime.sleep(600)\n"
    )

    def url() -> str:
        launcher.pid_of("worker")
        return next(line.split()[-1] for line in launcher.output().splitlines() if "worker pid" in line)

    launcher.start_and_wait()
    first = url()
    with redis.Redis.from_url(first) as client:
        client.set("kept", "yes")
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 0
    with redis_server(port=int(first.rpartition(":")[2].split("/")[0])):
        launcher.start_and_wait()
        assert url() != first
        with redis.Redis.from_url(url()) as client:
            assert client.get("kept") == b"yes"


def test_the_embedded_redis_requires_a_password_that_no_other_user_can_read(launcher: Launcher) -> None:
    del launcher.settings["REDIS_URL"]
    launcher.start_and_wait()
    var = launcher.root / "var"
    url = read_record(var / "launcher.json")["settings"]["REDIS_URL"]
    with redis.Redis.from_url(url) as client:
        assert client.ping()
    password = urlsplit(url).password
    assert password
    assert len(password) >= 32
    with redis.Redis.from_url(url.replace(f":{password}@", "")) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    holders = [path for path in var.rglob("*") if path.is_file() and password in path.read_text(errors="replace")]
    assert {path.name: path.stat().st_mode & 0o777 for path in holders} == {
        "launcher.json": 0o600, "password.conf": 0o600,
    }  # fmt: skip
    commands = subprocess.run(["ps", "-A", "-ww", "-o", "args="], check=True, capture_output=True, text=True).stdout
    assert password not in commands
    assert password not in launcher.output()


def test_the_folder_of_a_service_is_private_to_its_owner(launcher: Launcher) -> None:
    launcher.start_and_wait()
    var = Path(launcher.root / "var")
    assert var.stat().st_mode & 0o077 == 0


_SANDBOX = """#!/bin/sh
while [ ! -e ready ]; do sleep 0.05; done
echo 'sandbox ready'
exec sleep 600
"""


def _status(port: int) -> tuple[int, str | None, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/health", timeout=5) as answer:
            return answer.status, None, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Retry-After"], error.read()
    except OSError:
        return 0, None, b""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux starts the web process as a fork")
def test_the_port_answers_starting_until_the_sandbox_is_ready(launcher: Launcher) -> None:
    for name in ("ETHEREUM_RPC_URL", "BASE_RPC_URL", "SOLANA_RPC_URL"):
        del launcher.settings[name]
    python = launcher.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(_SANDBOX)
    python.chmod(0o755)
    # Like gunicorn, it serves the socket that it inherits.
    web = (launcher.root / "web.py").read_text()
    own, _, _ = web.partition("http.server.HTTPServer(")
    inheriting = "import socket\nserver = http.server.HTTPServer(('', 0), Handler, bind_and_activate=False)\n"
    inheriting += "assert os.environ['LISTEN_PID'] == str(os.getpid())\n"
    inheriting += "server.socket = socket.socket(fileno=3)\nserver.socket.setblocking(True)\nserver.serve_forever()\n"
    (launcher.root / "web.py").write_text(own + inheriting)
    procfile = launcher.root / "Procfile"
    procfile.write_text(procfile.read_text().replace(" web.py", " -m web"))
    launcher.start()
    status, retry_after, body = wait_until(
        lambda: (found := _status(launcher.port))[0] and found, what="an answer while the chains start"
    )
    assert (status, retry_after, json.loads(body)["code"]) == (503, "1", "STARTING")
    assert "web pid" not in launcher.output()
    (launcher.root / "ready").touch()
    seen = wait_until(
        lambda: (found := _status(launcher.port)[0]) != 503 and found, what="an answer of the web process"
    )
    assert seen == 200
    wait_until(lambda: "Purser runs on" in launcher.output(), what="the launcher's welcome")
    assert "  faucet         http://127.0.0.1:" in launcher.output()
    assert "released" not in launcher.output()
