from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from app.config import REQUIRED, Settings, UpstreamAccess
from launcher import browser, service, settings
from launcher.errors import LauncherError
from launcher.instance import Instance
from launcher.procfile import read_procfile
from launcher.sandbox_secrets import ensure_secrets
from launcher.settings import complete, read_dotenv, read_settings

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_defaults_are_those_of_the_service() -> None:
    assert tuple(name.upper() for name in REQUIRED) == settings.REQUIRED
    assert Settings.model_fields["port"].default == settings.DEFAULT_PORT
    assert f":{settings.REDIS_PORT}/" in Settings.model_fields["redis_url"].default.get_secret_value()


def test_secrets_are_generated_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    first = ensure_secrets(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert ensure_secrets(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert first["BOOTSTRAP_MASTER_KEY"].startswith("mk_")
    key_id, _, key = first["ENCRYPTION_KEYS"].partition(":")
    assert key_id
    assert len(base64.b64decode(key, validate=True)) == 32
    assert len(set(first.values())) == 5


def test_a_secret_that_an_older_file_lacks_is_added_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("SECRET_KEY=old\nENCRYPTION_KEYS=old:key\n")
    held = ensure_secrets(path)
    assert held["SECRET_KEY"] == "old"
    assert held["ENCRYPTION_KEYS"] == "old:key"
    assert held["CODE_PEPPERS"]
    assert ensure_secrets(path) == held


def test_lost_secrets_are_not_replaced_while_wallets_depend_on_them(tmp_path: Path) -> None:
    plan = read_settings(tmp_path, {}, {})
    complete(plan)
    (plan.var / "purser.sqlite").touch()
    (plan.var / "secrets.env").unlink()
    with pytest.raises(LauncherError, match=r"secrets\.env is gone"):
        complete(read_settings(tmp_path, {}, {}))
    assert not (plan.var / "secrets.env").exists()


@pytest.mark.parametrize("network", ["testnet", "mainnet"])
def test_secrets_are_never_generated_outside_the_sandbox(tmp_path: Path, network: str) -> None:
    with pytest.raises(LauncherError) as caught:
        read_settings(tmp_path, {"NETWORK": network, "CODE_PEPPERS": "a:b"}, {})
    assert f"NETWORK={network} needs SECRET_KEY, ENCRYPTION_KEYS:" in str(caught.value)
    assert caught.value.status == 2
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "var").exists()


def test_other_networks_get_no_sandbox_and_no_master_key(tmp_path: Path) -> None:
    given = {"NETWORK": "mainnet", "SECRET_KEY": "s", "CODE_PEPPERS": "a:b", "ENCRYPTION_KEYS": "a:b"}
    plan = read_settings(tmp_path, given, {})
    complete(plan)
    assert plan.sandbox_ports == {}
    assert "BOOTSTRAP_MASTER_KEY" not in plan.environment
    assert "ETHEREUM_RPC_URL" not in plan.environment
    assert not (plan.var / "secrets.env").exists()


def test_the_environment_overrides_dotenv_and_both_override_generated_settings(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# mine\nexport PORT=9001\nSECRET_KEY='from # file'\n\nREDIS_URL=redis://file  # elsewhere\nLOG_LEVEL=\n"
    )
    plan = read_settings(tmp_path, {"SECRET_KEY": "from environment", "PORT": ""}, read_dotenv(tmp_path / ".env"))
    complete(plan)
    assert plan.port == 9001
    assert plan.environment["SECRET_KEY"] == "from environment"
    assert plan.environment["REDIS_URL"] == "redis://file"
    assert plan.environment["LOG_LEVEL"] == ""
    assert plan.redis_port is None


def test_a_malformed_dotenv_line_is_named_by_number_without_its_content(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=1\n\n# mine\n\nsecret-without-a-name\n")
    with pytest.raises(LauncherError) as caught:
        read_dotenv(tmp_path / ".env")
    assert str(caught.value) == ".env line 5 is not KEY=VALUE."


@pytest.mark.parametrize("port", ["0", "65536", "eighty", "80.0", "-1", "٨٠"])
def test_a_malformed_port_is_refused(tmp_path: Path, port: str) -> None:
    with pytest.raises(LauncherError, match="PORT must be a number"):
        read_settings(tmp_path, {"PORT": port}, {})


def test_no_two_servers_get_the_same_port(tmp_path: Path) -> None:
    for port in ("18545", "18900"):
        plan = read_settings(tmp_path, {"PORT": port}, {})
        complete(plan)
        websocket = plan.sandbox_ports["SOLANA_RPC_URL"] + 1
        used = {plan.port, plan.redis_port, websocket, *plan.sandbox_ports.values()}
        assert len(used) == 3 + len(plan.sandbox_ports)


def test_the_local_service_listens_on_loopback_only(tmp_path: Path) -> None:
    given = {"NETWORK": "testnet", "SECRET_KEY": "s", "CODE_PEPPERS": "a:b", "ENCRYPTION_KEYS": "a:b"}
    plan = read_settings(tmp_path, {**given, "GUNICORN_CMD_ARGS": "--log-level debug"}, {})
    assert plan.environment["GUNICORN_CMD_ARGS"] == "--bind 127.0.0.1:8000 --log-level debug"
    chosen = read_settings(tmp_path, {**given, "GUNICORN_CMD_ARGS": "--bind 0.0.0.0:80"}, {})
    assert chosen.environment["GUNICORN_CMD_ARGS"] == "--bind 0.0.0.0:80"
    # In the sandbox gunicorn.conf.py does the same.
    assert "GUNICORN_CMD_ARGS" not in read_settings(tmp_path, {}, {}).environment


def test_the_sandbox_has_a_model_unless_a_key_of_openai_is_given(tmp_path: Path) -> None:
    for given, url, key in (
        ({}, r"http://127\.0\.0\.1:\d+/v1", "sk-sandbox"),
        ({"OPENAI_API_KEY": "sk-mine"}, "", "sk-mine"),
        ({"OPENAI_BASE_URL": "http://mine"}, "http://mine", ""),
    ):
        plan = read_settings(tmp_path, given, {})
        complete(plan)
        assert re.fullmatch(url, plan.environment.get("OPENAI_BASE_URL", ""))
        assert plan.environment.get("OPENAI_API_KEY", "") == key


def test_a_reset_deletes_only_files_of_the_sandbox(tmp_path: Path) -> None:
    plan = read_settings(tmp_path, {}, {})
    complete(plan)
    for name in ("purser.sqlite", "purser.sqlite-wal", "notes.txt"):
        (plan.var / name).touch()
    (plan.var / "redis").mkdir()
    service.reset(plan)
    assert sorted(path.name for path in plan.var.iterdir()) == ["launcher.lock", "notes.txt"]


def test_a_running_service_is_not_reset(tmp_path: Path) -> None:
    plan = read_settings(tmp_path, {}, {})
    complete(plan)
    running = Instance(plan.var)
    running.acquire()
    running.record_address(address=plan.address)
    with pytest.raises(LauncherError, match=r"Already running on http://127\.0\.0\.1:8000"):
        service.reset(plan)
    assert (plan.var / "secrets.env").exists()
    running.release()


def test_the_procfile_has_one_command_for_each_process() -> None:
    commands = read_procfile(REPOSITORY / "Procfile")
    assert list(commands) == ["release", "web", "worker", "shopper", "scheduler"]
    assert commands["web"] == ("gunicorn", "wsgi:app")


def test_the_containers_run_the_commands_of_the_procfile() -> None:
    services = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    for name, command in read_procfile(REPOSITORY / "Procfile").items():
        assert tuple(services[name]["command"].split()) == command


def test_the_image_has_every_folder_that_the_service_imports() -> None:
    included = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().split() if line[0] == "!"}
    packages = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert packages - included <= {"benchmarks", "launcher", "sandbox", "solana_node", "tests"}
    assert all((REPOSITORY / name).exists() for name in included)


def test_a_small_host_gets_no_shopper(tmp_path: Path) -> None:
    assert "HOST_MEMORY is 512MB" in (browser.obstacle({"HOST_MEMORY": "512MB"}) or "")
    program = tmp_path / "chromium"
    program.touch(mode=0o755)
    assert browser.obstacle({"HOST_MEMORY": "4GB", "PATH": str(tmp_path)}) is None


def test_a_malformed_procfile_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("# processes\n\nweb gunicorn\n")
    with pytest.raises(ValueError, match="not a process line: 'web gunicorn'"):
        read_procfile(tmp_path / "Procfile")


def test_programs_other_than_the_service_get_no_setting_of_it(tmp_path: Path) -> None:
    names = (Settings.model_fields | UpstreamAccess.model_fields).keys() - {"network", "port"}
    given = {name.upper(): "canary" for name in names}
    plan = read_settings(tmp_path, {**given, "PATH": "/bin", "LC_ALL": "C", "HTTPS_PROXY": "http://p:1"}, {})
    assert plan.non_secret_environment == {"PATH": plan.environment["PATH"], "LC_ALL": "C", "HTTPS_PROXY": "http://p:1"}


def test_services_that_start_together_look_for_different_ports(tmp_path: Path) -> None:
    used: set[int] = set()
    for port in ("8000", "8001", "8999"):
        plan = read_settings(tmp_path, {"PORT": port}, {})
        complete(plan)
        chosen = {plan.redis_port, *plan.sandbox_ports.values(), plan.sandbox_ports["SOLANA_RPC_URL"] + 1}
        assert not used & chosen
        used |= chosen
