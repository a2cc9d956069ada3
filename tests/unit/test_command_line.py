"""The command `purser`: documented commands exist, keys are stored for their owner only, and errors have exit codes."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from purser.cli import credentials, main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("skills/purser/SKILL.md", "clients/python/README.md", "docs/agents.md")
_COMMAND = re.compile(r"^(?:\| [^|]+ \| `|\$? *)(purser [a-z][^`#\n]+)", re.MULTILINE)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A person without a key store."""
    monkeypatch.setattr(credentials, "_key_store", lambda: None)
    for name in ("PURSER_BASE_URL", "PURSER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return CliRunner(env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")})


def parsed(arguments: list[str], group: click.Group = main) -> click.Context:
    """Parse a command without running it."""
    found = group.commands[arguments[0]]
    if isinstance(found, click.Group):
        return parsed(arguments[1:], found)
    return found.make_context(arguments[0], arguments[1:])


def commands(group: click.Group) -> list[click.Command]:
    found: list[click.Command] = [group]
    for each in group.commands.values():
        found += commands(each) if isinstance(each, click.Group) else [each]
    return found


def documented() -> list[str]:
    shown = [line for document in DOCUMENTS for line in _COMMAND.findall((ROOT / document).read_text())]
    helps = "\n".join(each.help or "" for each in commands(main))
    return sorted({line.strip().split(" < ")[0] for line in [*shown, *_COMMAND.findall(helps)]})


@pytest.mark.parametrize("line", documented())
def test_a_documented_command_exists_with_its_options(line: str) -> None:
    parsed(shlex.split(line)[1:])


def test_at_least_the_main_commands_are_documented() -> None:
    names = {line.split()[1] for line in documented()}
    assert names >= {
        "register", "login", "balance", "fund", "transfer", "swap", "bridge", "pay", "approvals", "usage", "events",
        "services", "sandbox",
    }  # fmt: skip


def test_a_stored_key_is_for_its_owner_only(runner: CliRunner, tmp_path: Path) -> None:
    with runner.isolation():
        stored = credentials.Credentials()
        stored.save("http://purser.test", {"api_key": "ak_1"}, wallet_id="w")
        stored.save("http://other.test", {"api_key": "ak_2"})
        assert stored.load("http://purser.test") == {"api_key": "ak_1", "wallet_id": "w"}
        assert stored.base_url == "http://other.test"
        [file] = (tmp_path / "config" / "purser").glob("*.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        stored.delete("http://other.test")
        assert (stored.base_url, stored.load("http://other.test")) == (None, {})
        file.chmod(0o640)
        with pytest.raises(click.ClickException, match="chmod 600"):
            stored.load("http://purser.test")


class KeyStore:
    """The interface of `keyring`."""

    def __init__(self) -> None:
        self.passwords: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.passwords.get((service, name))

    def set_password(self, service: str, name: str, password: str) -> None:
        self.passwords[service, name] = password

    def delete_password(self, service: str, name: str) -> None:
        del self.passwords[service, name]


def test_with_a_key_store_the_file_has_no_key(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = KeyStore()
    monkeypatch.setattr(credentials, "_key_store", lambda: store)
    with runner.isolation():
        stored = credentials.Credentials()
        stored.save("http://purser.test", {"api_key": "ak_1"}, wallet_id="w")
        [file] = (tmp_path / "config" / "purser").glob("*.json")
        assert "ak_1" not in file.read_text()
        assert stored.load("http://purser.test")["api_key"] == "ak_1"
        stored.delete("http://purser.test")
        assert store.passwords == {}


def test_no_option_takes_a_key() -> None:
    options = {option for command in commands(main) for each in command.params for option in each.opts}
    assert {each for each in options if "key" in each} == {"--idempotency-key", "--with-api-key", "--api-key-id"}


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["balance"], 3, "NO_KEY"),
        (["register", "--base-url", "http://127.0.0.1:9"], 9, "CONNECTION_FAILED"),
        (["transfer", "--chain", "base"], 2, "--to"),
        (["transfer", "--chain", "bitcoin"], 2, "bitcoin"),
        (["pay", "https://seller.test", "--max-amount-usd", "1", "--headers", "x"], 2, "NAME=VALUE"),
    ],
)
def test_errors_have_exit_codes(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, shown: str
) -> None:
    monkeypatch.setattr("purser._client.time.sleep", lambda _seconds: None)
    ran: Any = runner.invoke(main, arguments)
    assert (ran.exit_code, shown in ran.stderr) == (code, True), ran.output


def test_an_error_as_json_has_its_code(runner: CliRunner) -> None:
    ran: Any = runner.invoke(main, ["balance", "--json"])
    assert json.loads(ran.stderr)["code"] == "NO_KEY"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_the_command(runner: CliRunner, shell: str) -> None:
    ran = runner.invoke(main, ["completion", shell])
    assert (ran.exit_code, "_PURSER_COMPLETE" in ran.output) == (0, True)


def test_no_help_has_the_indentation_of_the_source() -> None:
    texts = [each.help.split("\b")[0] for each in commands(main) if each.help]
    assert len(texts) > 10
    assert [text for text in texts if "  " in text] == []


def test_an_absent_faucet_is_no_traceback(runner: CliRunner) -> None:
    order = ["--chain", "base", "--currency", "ETH", "--amount", "1", "--address", "0x1"]
    nowhere = {"PURSER_API_KEY": "ak_x", "PURSER_FAUCET_URL": "http://127.0.0.1:9"}
    ran = runner.invoke(main, ["sandbox", "faucet", *order], env=nowhere)
    assert (ran.exit_code, ran.stderr) == (9, "CONNECTION_FAILED: There is no faucet at http://127.0.0.1:9.\n")
