"""compose.yaml: no service has privileges or an unpinned image, and every one reports its health."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from launcher.procfile import read_procfile
from tests.support.deployed import ROOT, compose_services

SERVICES = compose_services()
_ONCE = ("release", "restore", "drill")


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_privileges_or_writes_outside_its_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "caddy" else [])
    assert "no-new-privileges:true" in service["security_opt"]
    profiles = [each.partition("=")[2] for each in service["security_opt"] if each.startswith("seccomp")]
    assert profiles == (["./deploy/seccomp/chromium.json"] if name == "shopper" else [])
    assert not {"privileged", "network_mode", "pid", "devices"} & service.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_takes_the_memory_of_the_others(name: str) -> None:
    number, unit = re.fullmatch(r"(\d+)([mg])", SERVICES[name]["mem_limit"]).groups()  # type: ignore[union-attr]
    assert 512 <= int(number) * {"m": 1, "g": 1024}[unit] <= 4096


def test_a_process_has_no_more_memory_than_in_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/purser/values.yaml").read_text())
    for name in ("web", "worker", "scheduler", "shopper", "signer"):
        in_chart = chart[name]["resources"]["limits"]["memory"].removesuffix("i").lower()
        assert SERVICES[name]["mem_limit"] == in_chart, name


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_that_keeps_running_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    check = service["healthcheck"]
    if name in _ONCE:
        assert (check, service["restart"]) == ({"disable": True}, "no")
    else:
        assert check["test"][0] == "CMD"
        assert "interval" in check
        assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_router_is_reached_from_other_machines(name: str) -> None:
    published = [port for port in SERVICES[name].get("ports", []) if not port.startswith("127.0.0.1:")]
    assert published == (["80:80", "443:443", "443:443/udp"] if name == "caddy" else [])


def test_images_are_pinned_by_version() -> None:
    images = {service["image"] for service in SERVICES.values() if "build" not in service}
    images |= set(re.findall("^FROM (.+)$", (ROOT / "deploy/backup/Dockerfile").read_text(), re.MULTILINE))
    assert [image for image in images if not re.fullmatch(r"[a-z/]+:v?\d+\.\d+(\.\d+)?", image)] == []
    # pg_dump refuses a newer server.
    assert len([image for image in images if image.startswith("postgres:")]) == 1


def test_processes_run_the_commands_of_the_procfile() -> None:
    commands = read_procfile(ROOT / "Procfile")
    assert {name: tuple(shlex.split(SERVICES[name]["command"])) for name in commands} == commands


def test_every_mounted_file_exists() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    files = [mount for mount in mounts if mount.startswith("./")]
    assert len(files) >= 4
    assert all((ROOT / mount.split(":")[0]).exists() and mount.endswith(":ro") for mount in files)


def _variables(service: dict[str, Any]) -> str:
    return str([service.get("environment"), service.get("env_file"), service.get("command")])


def test_only_the_service_gets_its_secrets_and_only_the_backup_gets_those_of_the_storage() -> None:
    for name, service in SERVICES.items():
        is_ours = service.get("image") == "purser" and name != "signer"
        assert ("'.env'" in _variables(service)) is is_ours, name
        assert ("backup.env" in _variables(service)) is (name in {"backup", "restore"}), name
        assert ("BACKUP_IDENTITY" in _variables(service)) is (name == "restore"), name


def test_the_signer_is_another_user_that_reaches_the_database_alone() -> None:
    whole = yaml.safe_load((ROOT / "compose.yaml").read_text())
    signer = SERVICES["signer"]
    assert (signer["networks"], whole["networks"]) == (["database"], {"database": {"internal": True}})
    assert [name for name, service in SERVICES.items() if "database" in service.get("networks", ())] == [
        "signer", "postgres"
    ]  # fmt: skip
    assert signer["profiles"] == ["signer"]
    assert [file["path"] for file in signer["env_file"]] == ["signer.env"]
    assert "ports" not in signer
    image = (ROOT / "Dockerfile").read_text()
    user, group = signer["user"].split(":")
    [clients] = re.findall(r"^USER (.+)$", image, re.MULTILINE)
    assert (group, signer["environment"]["SIGNER_CLIENT_UIDS"]) == (clients, int(clients))
    assert f"--uid {user} " in image
    assert whole["volumes"]["signer-socket"]["driver_opts"]["o"] == f"uid={user},gid={group},mode=0750"
    for name, service in SERVICES.items():
        mounted = [each for each in service.get("volumes", ()) if each.startswith("signer-")]
        is_client = service.get("image") == "purser" and name != "signer"
        of_clients = ["signer-socket:/run/purser-signer:ro"] if is_client else []
        assert mounted == (signer["volumes"] if name == "signer" else of_clients)
