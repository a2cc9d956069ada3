"""deploy/cluster: every template is complete, containers have no privileges, and both forms run the same parts."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from launcher.procfile import read_procfile
from tests.support.deployed import ROOT

FOLDER = ROOT / "deploy" / "cluster"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.cluster.yaml").read_text())["services"]
DATA = ("data1", "data2", "data3")
HOSTS = (*DATA, "web1", "web2", "worker1", "worker2")


def _load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"cluster_{name}", FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


start, room = _load("start"), _load("room")
SECRETS = {name: f"{name.lower()}-x" for name in start.SECRETS}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**SECRETS, "CLUSTER_STATE": str(tmp_path), "PATH": "/usr/bin", "POSTGRES_BIN": "/usr/bin"}


def rendered(host: str, environment: dict[str, str]) -> dict[str, str]:
    made = start.Host(host, environment)
    made.render()
    return {path.name: path.read_text() for path in made.state.iterdir()}


@pytest.mark.parametrize("host", HOSTS)
def test_no_template_names_what_nobody_gives(host: str, environment: dict[str, str]) -> None:
    found = rendered(host, environment)
    assert len(found) == 11
    for name, text in found.items():
        if name.endswith(".yml"):
            assert yaml.safe_load(text)
        # The dollar of a regular expression, and of the shell.
        assert not re.search(r"\$[a-z{]", text) or name == "create-database.sh", name


def test_secrets_are_readable_by_their_owner_only(environment: dict[str, str]) -> None:
    made = start.Host("data1", environment)
    made.render()
    assert made.state.stat().st_mode & 0o077 == 0


def test_what_an_engine_rewrote_survives_a_restart_of_its_host(environment: dict[str, str]) -> None:
    made = start.Host("data1", environment)
    made.render()
    # Sentinel made this one a replica; the first configuration has two masters afterwards.
    (made.state / "redis.conf").write_text("replicaof 127.0.81.2 6379")
    assert rendered("data1", environment)["redis.conf"] == "replicaof 127.0.81.2 6379"


def test_a_disk_on_which_nothing_can_be_written_does_not_end_what_starts_parts_again(
    environment: dict[str, str], tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "etcd").write_text("#!/bin/sh\nexit 3\n")
    (programs / "etcd").chmod(0o755)
    made = start.Host("data1", {**environment, "CLUSTER_USER": "root", "PATH": f"{programs}:/usr/bin:/bin"})
    (made.state / "etcd.pid").mkdir(parents=True)
    for _ in range(2):
        made._keep("etcd")
        assert made._running["etcd"].wait(30) == 3


def _members(**changes: object) -> dict[str, Any]:
    replica = {"name": "data2", "role": "quorum_standby", "state": "streaming", "host": "127.0.81.2", "lag": 0}
    leader = {"name": "data1", "role": "leader", "state": "running", "host": "127.0.81.1"}
    return {"members": [leader, {**replica, **changes}]}


@pytest.mark.parametrize(
    ("name", "cluster", "free", "expected"),
    [
        ("data1", _members(), 2 * room.NEEDED_BYTES, True),
        ("data1", _members(), 2 * room.NEEDED_BYTES - 1, False),
        ("data2", _members(), 2 * room.NEEDED_BYTES, False),
        ("data1", {**_members(), "pause": True}, 2 * room.NEEDED_BYTES, False),
        ("data1", _members(role="replica"), 2 * room.NEEDED_BYTES, False),
        ("data1", _members(state="starting"), 2 * room.NEEDED_BYTES, False),
        ("data1", _members(lag=2**20 + 1), 2 * room.NEEDED_BYTES, False),
        ("data1", _members(lag="unknown"), 2 * room.NEEDED_BYTES, False),
        ("data1", _members(tags={"nofailover": True}), 2 * room.NEEDED_BYTES, False),
        ("data1", {"members": _members()["members"][:1]}, 2 * room.NEEDED_BYTES, False),
    ],
    ids=[
        "room",
        "not twice",
        "no leader",
        "paused",
        "confirms nothing",
        "does not follow",
        "behind",
        "lag unknown",
        "may not lead",
        "alone",
    ],
)
def test_a_leader_without_room_gives_up_only_for_a_replica_that_loses_nothing_and_has_room(
    name: str, cluster: dict[str, Any], free: int, *, expected: bool
) -> None:
    assert room.another_should_lead(name, cluster, lambda _host: free) is expected


def test_no_replica_without_room_may_be_the_one_that_patroni_chooses() -> None:
    both = _members()
    both["members"].append({**both["members"][1], "name": "data3", "host": "127.0.81.3"})
    rooms = {"127.0.81.2": 2 * room.NEEDED_BYTES, "127.0.81.3": room.NEEDED_BYTES}
    assert room.another_should_lead("data1", both, rooms.__getitem__)
    rooms["127.0.81.3"] -= 1
    assert not room.another_should_lead("data1", both, rooms.__getitem__)


def test_a_process_that_has_the_number_of_an_ended_database_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "postgres"
    database.mkdir()
    with subprocess.Popen(["env", "--default-signal=QUIT", "sleep", "60"], cwd=tmp_path) as other:
        try:
            (database / "postmaster.pid").write_text(f"{other.pid}\n")
            room.end(database)
            (database / "postmaster.pid").write_text(f"-{other.pid}\n")
            room.end(database)
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.2)
        finally:
            other.kill()


def test_a_leader_without_room_is_ended_as_by_a_crash_when_a_replica_reports_room(tmp_path: Path) -> None:
    answers = {("127.0.83.1", 8008): json.dumps(_members(host="127.0.83.2")), ("127.0.83.2", room.PORT): str(2**60)}
    (tmp_path / "postgres").mkdir()
    with contextlib.ExitStack() as running:
        # A shell's background processes ignore the signal, and so would the sleep.
        sleep = ["env", "--default-signal=QUIT", "sleep", "60"]
        database = running.enter_context(subprocess.Popen(sleep, cwd=tmp_path / "postgres"))
        running.callback(database.kill)
        (tmp_path / "postgres" / "postmaster.pid").write_text(f"{database.pid}\n{tmp_path}\n")
        for address, answer in answers.items():
            running.enter_context(_answering(address, answer.encode()))
        command = [sys.executable, str(FOLDER / "room.py"), "data1", "127.0.83.1", "127.0.83.1", str(tmp_path)]
        # More than any disk has: this one is nearly full.
        environment = {**os.environ, "LEADER_ROOM_MB": str(2**38)}
        watching = running.enter_context(subprocess.Popen(command, env=environment))
        running.callback(watching.kill)
        assert database.wait(30) == -signal.SIGQUIT


@contextlib.contextmanager
def _answering(address: tuple[str, int], answer: bytes) -> Iterator[None]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + answer)

    with ThreadingHTTPServer(address, Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_commit_needs_a_second_node_and_outlasts_the_lease(environment: dict[str, str]) -> None:
    found = rendered("data1", environment)
    dynamic = yaml.safe_load(found["patroni.yml"])["bootstrap"]["dcs"]
    assert (dynamic["synchronous_mode"], dynamic["synchronous_mode_strict"]) == ("quorum", True)
    assert dynamic["loop_wait"] + 2 * dynamic["retry_timeout"] <= dynamic["ttl"]
    # A COMMIT that is cancelled while it waits for the replica is acknowledged without it.
    limit = re.search(r"statement_timeout = '(\d+)s'", found["create-database.sh"])
    assert limit is not None
    assert int(limit[1]) > 2 * dynamic["ttl"]


def test_the_lease_is_as_short_as_the_changed_bound_of_patroni_permits(environment: dict[str, str]) -> None:
    lease = yaml.safe_load(rendered("data1", environment)["patroni.yml"])["bootstrap"]["dcs"]["ttl"]
    line = "        ttl = self. __get_and_maybe_adjust_int_value(config, 'ttl', 20)\n"
    changed = subprocess.run(
        ["sed", "--file", str(FOLDER / "lease.sed")], input=line, capture_output=True, text=True, check=True
    ).stdout
    assert changed == line.replace("20", str(lease))
    # Another line would leave the lease at 20 seconds unnoticed.
    assert f"grep --quiet \"'ttl', {lease})\"" in (FOLDER / "Dockerfile").read_text()


def test_the_role_has_the_limits_that_the_service_sends_when_it_connects() -> None:
    sent = re.findall(r"-c (\w+)=(\d+s)", (ROOT / "app" / "factory.py").read_text())
    on_role = re.findall(r"SET (\w+) = '(\d+s)'", (FOLDER / "create-database.sh").read_text())
    assert len(sent) == 3
    assert dict(sent) == dict(on_role)


def test_a_secret_that_a_format_would_quote_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(SystemExit, match="REDIS_PASSWORD"):
        start.Host("data1", {**environment, "REDIS_PASSWORD": 'a"b'})
    with pytest.raises(SystemExit, match="POSTGRES_PASSWORD"):
        start.Host("data1", {**environment, "POSTGRES_PASSWORD": ""})
    with pytest.raises(SystemExit, match="data9"):
        start.Host("data1", {**environment, "CLUSTER_ADDRESSES": "data9=10.0.0.9"})


def test_the_service_gets_the_addresses_of_its_own_host_and_no_password_of_engines(environment: dict[str, str]) -> None:
    made = start.Host("web1", {**environment, "SECRET_KEY": "s"})
    service = made.environment_of("web")
    assert "@127.0.81.4:6432/purser" in service["DATABASE_URL"]
    assert "@127.0.81.4:6379/0" in service["REDIS_URL"]
    assert service["SECRET_KEY"] == "s"
    assert not SECRETS.keys() & service.keys()
    assert "SECRET_KEY" not in made.environment_of("haproxy")


def test_a_host_that_ends_during_a_request_is_reported_as_the_api_reports_an_unknown_outcome() -> None:
    head, _, body = (FOLDER / "templates" / "unavailable.http").read_text().partition("\n\n")
    error = json.loads(body)
    assert head.startswith("HTTP/1.1 503 ")
    assert f"Content-Length: {len(body)}" in head
    # A client that repeats automatically would do it twice.
    assert "Retry-After" not in head
    assert (error["code"], error["details"]) == ("OVERLOADED", {"outcome": "unknown"})


def _section(text: str, name: str) -> str:
    sections = re.split(r"^(?=frontend|backend|listen|defaults)", text, flags=re.MULTILINE)
    return next(each for each in sections if each.startswith(f"{name}\n"))


def _milliseconds(section: str, name: str) -> int:
    found = re.search(rf"\b{name} (\d+)(ms|s)\b", section)
    assert found is not None
    return int(found[1]) * (1 if found[2] == "ms" else 1000)


def test_an_unplugged_web_host_is_given_up_within_two_seconds_and_a_slow_one_is_not(
    environment: dict[str, str],
) -> None:
    text = rendered("web1", environment)["haproxy-public.cfg"]
    web, ready = _section(text, "backend web"), _section(text, "backend ready")
    connect = _milliseconds(web, "timeout connect")
    # The pause before a check, the first that fails, the pause before the second, and the second.
    assert _milliseconds(web, "inter") + _milliseconds(web, "fastinter") + 2 * connect <= 1500
    assert "on-marked-down shutdown-sessions" in web
    # Only connections are checked here: a process that answers late, or 503, is not cut off from what it was sent.
    assert "httpchk" not in web
    assert "option httpchk GET /v1/health" in ready
    assert "shutdown-sessions" not in ready
    assert _milliseconds(ready, "timeout check") >= 3000


def test_data_hosts_that_accept_no_connection_are_given_up_within_two_seconds(environment: dict[str, str]) -> None:
    found = rendered("web1", environment)
    defaults, ready = _section(found["haproxy.cfg"], "defaults"), _section(found["haproxy-public.cfg"], "backend ready")
    connect, again = _milliseconds(defaults, "timeout connect"), _milliseconds(defaults, "fastinter")
    closed = _milliseconds(defaults, "inter") + again + 2 * connect
    assert re.search(r"\bfall 2\b", defaults)
    assert re.search(r"\bfall 2\b", ready)
    # Then /v1/health is not 200 any more, twice.
    assert closed + 2 * _milliseconds(ready, "fastinter") <= 2000
    database = _section(found["haproxy.cfg"], "listen database")
    assert "on-marked-down shutdown-sessions" in database
    assert "inter" not in database
    # A data host whose processes are slow still accepts, and may take longer to answer.
    assert _milliseconds(defaults, "timeout check") >= 2000


def test_reports_are_read_from_a_replica_through_few_connections(environment: dict[str, str]) -> None:
    found = rendered("web1", environment)
    service = start.Host("web1", environment).environment_of("web")
    assert service["DATABASE_REPLICA_URL"].endswith("@127.0.81.4:6432/purser_reports")
    assert "purser_reports = host=127.0.81.4 port=5001 dbname=purser pool_size=5" in found["pgbouncer.ini"]
    replica = _section(found["haproxy.cfg"], "listen replica")
    assert "bind 127.0.81.4:5001" in replica
    assert "uri /replica" in replica
    parameters = yaml.safe_load(found["patroni.yml"])["bootstrap"]["dcs"]["postgresql"]["parameters"]
    assert parameters["hot_standby_feedback"] is True


@pytest.mark.parametrize("part", ["web1-web", "worker2-worker", "worker2-scheduler"])
def test_containers_have_the_databases_that_a_host_has(part: str, environment: dict[str, str]) -> None:
    host, _, name = part.partition("-")
    of_host = start.Host(host, environment).environment_of(name)
    of_container = SERVICES[part]["environment"]
    for setting in ("DATABASE_URL", "DATABASE_REPLICA_URL"):
        assert of_container[setting].rpartition("/")[2] == of_host[setting].rpartition("/")[2]
        assert ":6432/" in of_container[setting]


def test_without_a_part_the_command_line_is_explained() -> None:
    ran = subprocess.run(
        [sys.executable, str(FOLDER / "start.py"), "data1", "web"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "worker1: haproxy, pgbouncer, worker, scheduler" in ran.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_has_privileges_or_is_reached_from_other_machines(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "pid", "devices", "cap_add"} & service.keys()
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_that_keeps_running_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert (service["healthcheck"] == {"disable": True}) is (name == "release")
    assert service["restart"] == ("no" if name == "release" else "unless-stopped")


def test_containers_run_the_parts_that_a_host_runs() -> None:
    commands = read_procfile(ROOT / "Procfile")
    for host in HOSTS:
        name, *chosen = shlex.split(SERVICES[host]["command"])
        assert name == host
        engines = [part for part in start.parts_of(host) if part in start.ENGINES]
        assert chosen == ([] if host in DATA else engines)
        for part in set(start.parts_of(host)) - set(engines):
            service = SERVICES[f"{host}-{part}"]
            assert tuple(shlex.split(service["command"])) == commands[part]
            assert service["network_mode"] == f"service:{host}"
    assert len(SERVICES) == len(HOSTS) + 6 + 1


def test_the_engines_are_of_the_same_postgresql_as_compose() -> None:
    image = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["postgres"]["image"]
    assert f"FROM {image}\n" in (FOLDER / "Dockerfile").read_text()
