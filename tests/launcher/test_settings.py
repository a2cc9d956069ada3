from __future__ import annotations

import base64
from pathlib import Path

import pytest

from launcher import service
from launcher.dotenv import read_dotenv
from launcher.errors import LauncherError
from launcher.instance import Instance
from launcher.procfile import read_procfile
from launcher.secret_file import ensure_secrets
from launcher.settings import complete, read_settings

REPOSITORY = Path(__file__).resolve().parents[2]


def test_secrets_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
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
    assert len(set(first.values())) == 4


def test_a_secret_that_an_older_file_lacks_is_added_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "secrets.env"
    path.write_text("SECRET_KEY=old\nENCRYPTION_KEYS=old:key\n")
    held = ensure_secrets(path)
    assert held["SECRET_KEY"] == "old"
    assert held["ENCRYPTION_KEYS"] == "old:key"
    assert held["CODE_PEPPERS"]
    assert ensure_secrets(path) == held


def test_secrets_that_are_gone_are_not_replaced_while_wallets_depend_on_them(tmp_path: Path) -> None:
    plan = read_settings(tmp_path, {}, {})
    complete(plan)
    (plan.var / "purser.sqlite").touch()
    (plan.var / "secrets.env").unlink()
    with pytest.raises(LauncherError, match=r"secrets\.env is gone"):
        complete(read_settings(tmp_path, {}, {}))
    assert not (plan.var / "secrets.env").exists()


@pytest.mark.parametrize("network", ["testnet", "mainnet"])
def test_secrets_are_never_made_where_keys_are_worth_money(tmp_path: Path, network: str) -> None:
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


def test_the_environment_wins_over_dotenv_and_both_over_what_the_sandbox_makes(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "# mine\nexport PORT=9001\nSECRET_KEY='from # file'\n\nREDIS_URL=redis://file  # elsewhere\n"
        "LOG_LEVEL=\n"
    )
    plan = read_settings(
        tmp_path, {"SECRET_KEY": "from environment", "PORT": ""}, read_dotenv(tmp_path / ".env")
    )
    complete(plan)
    assert plan.port == 9001
    assert plan.environment["SECRET_KEY"] == "from environment"
    assert plan.environment["REDIS_URL"] == "redis://file"
    assert plan.environment["LOG_LEVEL"] == ""
    assert plan.redis_port is None


def test_a_malformed_dotenv_line_is_named_by_number_without_its_content(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=1\nsecret-without-a-name\n")
    with pytest.raises(LauncherError) as caught:
        read_dotenv(tmp_path / ".env")
    assert str(caught.value) == ".env line 2 is not KEY=VALUE."


@pytest.mark.parametrize("port", ["0", "65536", "eighty", "80.0", "-1", "٨٠"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    with pytest.raises(LauncherError, match="PORT must be a number"):
        read_settings(tmp_path, {"PORT": port}, {})


def test_no_two_parts_are_given_one_port(tmp_path: Path) -> None:
    for port in ("18545", "18900"):
        plan = read_settings(tmp_path, {"PORT": port}, {})
        complete(plan)
        websocket = plan.sandbox_ports["SOLANA_RPC_URL"] + 1
        used = {plan.port, plan.redis_port, websocket, *plan.sandbox_ports.values()}
        assert len(used) == 3 + len(plan.sandbox_ports)


def test_here_the_service_listens_to_this_machine_only(tmp_path: Path) -> None:
    plan = read_settings(tmp_path, {"GUNICORN_CMD_ARGS": "--log-level debug"}, {})
    assert plan.environment["GUNICORN_CMD_ARGS"] == "--bind 127.0.0.1:8000 --log-level debug"
    chosen = read_settings(tmp_path, {"GUNICORN_CMD_ARGS": "--bind 0.0.0.0:80"}, {})
    assert chosen.environment["GUNICORN_CMD_ARGS"] == "--bind 0.0.0.0:80"


def test_a_reset_deletes_what_the_sandbox_keeps_and_nothing_else(tmp_path: Path) -> None:
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
    running.note(address=plan.address)
    with pytest.raises(LauncherError, match=r"Already running on http://127\.0\.0\.1:8000"):
        service.reset(plan)
    assert (plan.var / "secrets.env").exists()
    running.release()


def test_the_procfile_has_one_command_for_each_process() -> None:
    commands = read_procfile(REPOSITORY / "Procfile")
    assert list(commands) == ["release", "web", "worker", "shopper", "scheduler"]
    assert commands["web"] == ("gunicorn", "wsgi:app")


def test_a_procfile_line_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("# processes\n\nweb gunicorn\n")
    with pytest.raises(ValueError, match="not a process line: 'web gunicorn'"):
        read_procfile(tmp_path / "Procfile")
