"""The Python package, installed from what is published, walks the tutorial; so does its command line."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from purser import Purser
from tests.support import python_package
from tests.support.published import PROGRAMS, environment, run_python
from tests.support.started import StartedService
from tests.support.upstreams import Exchange, misbehaving_upstream

pytestmark = [pytest.mark.chain, pytest.mark.redis, pytest.mark.timeout(1200)]

_SECONDS = 180


@pytest.fixture(scope="module")
def programs() -> Path:
    """The programs of an environment that has the wheel and nothing else."""
    return python_package.installed()


@dataclass(frozen=True)
class Shell:
    """A person's shell with the command, without a key in it."""

    programs: Path
    home: Path
    service: StartedService

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in environment().items() if not name.startswith("PURSER_")}
        places = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "config")}
        return {**inherited, **places, "PURSER_FAUCET_URL": self.service.faucet_url, "COLUMNS": "120"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.programs / "purser"), *arguments], env=self.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0, text: str = "") -> str:
        ran = subprocess.run(
            [str(self.programs / "purser"), *arguments], env=self.environment, text=True, check=False, input=text,
            capture_output=True, timeout=_SECONDS,
        )  # fmt: skip
        assert ran.returncode == code, (arguments, ran.stdout, ran.stderr)
        return ran.stdout if code == 0 else ran.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code))


@pytest.fixture
def shell(programs: Path, started: StartedService, tmp_path: Path) -> Shell:
    return Shell(programs, tmp_path, started)


def python(programs: Path, *arguments: str) -> str:
    command = [str(programs / "python"), *arguments]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=_SECONDS, env={"PATH": os.environ["PATH"]}
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_sdist_and_wheel_install_alone(tmp_path: Path) -> None:
    built = python_package.built()
    assert [path.name.rpartition("-")[0].split("-")[0] for path in built] == ["purser_sdk", "purser_sdk"]
    for number, package in enumerate(built):
        found = python_package.install(package, tmp_path / str(number))
        assert python(found, "-c", "import purser; print(purser.__version__)").strip() == "1.0.0"
        ran = subprocess.run([str(found / "purser"), "--version"], capture_output=True, text=True, check=True)
        assert "1.0.0" in ran.stdout


def test_the_example_of_the_readme_prints_what_it_shows(programs: Path, started: StartedService) -> None:
    readme = (python_package.SOURCES / "README.md").read_text()
    [(example, shown)] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert python(programs, "-c", example.replace("http://127.0.0.1:8000", started.url)) == shown


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_both_clients_walk_the_tutorial(programs: Path, started: StartedService, kind: str) -> None:
    ran = subprocess.run(
        [str(programs / "python"), str(PROGRAMS / "python_sdk_walk.py"), started.url, kind],
        check=False, capture_output=True, text=True, timeout=_SECONDS,
        env={"PATH": os.environ["PATH"], "PURSER_FAUCET_URL": started.faucet_url},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "sent": ["confirmed", "12.5"], "code": "DAILY_LIMIT_EXCEEDED", "status": 403, "limit_usd": 20.0,
        "requested_usd": 12.5, "swapped": "confirmed", "arrived": "confirmed", "received": True, "ticker": "3000.25",
        "preview": ["NOT_IMPLEMENTED", 501], "chain": "0xddca5", "said": "This is the sandbox's model. You said: hello",
        "providers": ["alchemy", "openai"],
        "paid": "UPSTREAM_ERROR", "events": 3, "faucet": "0x",
    }  # fmt: skip


def test_a_type_checker_reads_the_installed_package(programs: Path) -> None:
    program = str(PROGRAMS / "python_sdk_types.py")
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(programs.parent / "mypy"),
        "--python-executable", str(programs / "python"), program,
    ]  # fmt: skip
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    assert ran.returncode == 0, ran.stdout


def test_a_person_walks_the_tutorial_with_the_command(shell: Shell) -> None:
    assert "NO_KEY" in shell.run("balance", code=3)
    made = shell.json("register", "--name", "walker", "--base-url", shell.service.url)
    assert "apiKey" not in made
    [stored] = shell.home.glob("config/purser/credentials.json")
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700
    assert "would be lost" in shell.run("register", code=2)
    for currency, amount in (("ETH", "0.01"), ("USDC", "25")):
        assert "confirmed" in shell.run("fund", "--chain", "base", "--currency", currency, "--amount", amount)
    lines = shell.run("balance").splitlines()
    assert lines[0].split() == ["chain", "token", "balance", "usd_value"]
    assert any(line.split()[:3] == ["base", "USDC", "25"] for line in lines)
    to = shell.json("register", "--name", "friend", "--yes")["wallet"]["addresses"]["base"]
    assert to.startswith("0x")


def test_the_command_moves_money_once_and_only_when_it_is_confirmed(shell: Shell) -> None:
    shell.run("register", "--base-url", shell.service.url)
    for currency, amount in (("ETH", "0.01"), ("USDC", "25")):
        shell.run("fund", "--chain", "base", "--currency", currency, "--amount", amount)
    payment = (
        "transfer", "--chain", "base", "--currency", "USDC", "--amount", "2.5",
        "--to", "0x00000000000000000000000000000000000000aa",
    )  # fmt: skip
    assert "--yes" in shell.run(*payment, code=2)
    assert shell.json(*payment, "--dry-run")["dry_run"] is True
    first = shell.json(*payment, "--yes", "--idempotency-key", "invoice-7")
    assert shell.json(*payment, "--yes", "--idempotency-key", "invoice-7") == first
    [row] = shell.json("transactions", "--type", "transfer")["transactions"]
    assert (row["id"], row["status"]) == (first["transaction_id"], "confirmed")
    limit = json.loads(shell.run(*payment[:6], "900", *payment[7:], "--yes", "--json", code=4))
    assert (limit["code"], limit["details"]["requested_usd"]) == ("PER_TX_LIMIT_EXCEEDED", 900.0)
    assert "amount" in shell.run(*payment[:6], "much", *payment[7:], "--yes", code=2)
    swap = ("swap", "--chain", "base", "--input-token", "USDC", "--output-token", "ETH", "--amount", "10", "--yes")
    assert shell.json(*swap)["status"] == "confirmed"
    bridge = ("bridge", "--source-chain", "base", "--destination-chain", "ethereum", "--token", "USDC", "--amount", "2")
    assert shell.json(*bridge, "--yes")["status"] == "confirmed"
    pay = ("pay", "http://127.0.0.1:9/none", "--max-amount-usd", "0.1", "--yes")
    assert "UPSTREAM_ERROR" in shell.run(*pay, code=8)
    assert shell.run("approvals") == "None.\n"
    assert shell.json("usage")["logs"] is not None
    assert "services" in shell.json("services", "--q", "nothing like it")
    assert "transaction.confirmed" in shell.run("events", "--types", "transaction.*")
    assert "purser" in shell.run("completion", "bash")
    assert shell.json("sandbox", "faucet", "--chain", "base", "--currency", "USDC", "--amount", "1")["tx_hash"]
    with shell.start("events", "--follow", "--json") as follow:
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["type"]
        follow.terminate()


def test_the_command_signs_in_to_an_agent_of_an_owner(shell: Shell) -> None:
    with shell.start("login", "--base-url", shell.service.url, "--json") as login:
        assert login.stderr is not None
        assert login.stdout is not None
        address = login.stderr.readline().split()[-1]
        code = login.stderr.readline().split()[-1]
        assert address.endswith(code)
        owned = run_python("owner_browser.py", shell.service.url, address)
        signed_in = json.loads(login.stdout.read())
    assert login.returncode == 0
    assert signed_in == {"base_url": shell.service.url, "wallet_id": owned["wallet_id"]}
    assert shell.json("balance")["wallet_id"] == owned["wallet_id"]
    _expire(shell)
    assert shell.json("balance")["wallet_id"] == owned["wallet_id"]
    shell.run("logout")
    assert "NO_KEY" in shell.run("balance", "--base-url", shell.service.url, code=3)


@pytest.mark.parametrize("drops", ["before the request arrives", "before the response leaves", "both, and is busy"])
def test_a_dropped_connection_pays_once(started: StartedService, drops: str) -> None:
    """The client repeats the payment under one key, through a proxy that drops its connections."""
    with Purser(base_url=started.url) as direct, misbehaving_upstream() as proxy:
        made = direct.register(name="payer")
        for currency, amount in (("ETH", "0.01"), ("USDC", "5")):
            direct.wait(direct.fund(chain="base", currency=currency, amount=amount))
        faults = {"before the request arrives": ["lost"], "before the response leaves": ["answered"]}
        remaining = faults.get(drops, ["lost", "busy", "answered", "answered"])

        def behave(exchange: Exchange) -> None:
            fault = remaining.pop(0) if remaining else ""
            if fault == "busy":
                exchange.answer(b'{"code": "OVERLOADED", "error": "busy"}', 503, ("Retry-After", "1"))
                return
            if fault != "lost":
                asked = exchange.asked
                passed = {"x-api-key", "idempotency-key", "content-type"}
                headers = {name: value for name, value in asked.headers if name in passed}
                answer = httpx.request("POST", started.url + asked.target, content=asked.body, headers=headers)
            if fault:
                exchange.hang_up()
            else:
                exchange.answer(answer.content, answer.status_code, ("Content-Type", "application/json"))

        proxy.behave = behave
        with Purser(base_url=proxy.url, api_key=made["apiKey"], wallet_id=made["wallet"]["id"]) as client:
            sent = client.transfer(chain="base", currency="USDC", amount="1", to="0x" + "00" * 19 + "aa")
        assert len({asked.header("Idempotency-Key") for asked in proxy.asked}) == 1
        [row] = direct.list_transactions(type="transfer")["transactions"]
        assert row["id"] == sent["transaction_id"]


def _expire(shell: Shell) -> None:
    """Have the command renew its token."""
    path = shell.home / "config" / "purser" / "credentials.json"
    stored = json.loads(path.read_text())
    before = stored["services"][shell.service.url]
    before["expires_at"] = 0
    path.write_text(json.dumps(stored))


def test_a_key_is_read_from_standard_input(shell: Shell, tmp_path: Path) -> None:
    shell.run("register", "--base-url", shell.service.url)
    stored = json.loads((shell.home / "config" / "purser" / "credentials.json").read_text())
    other = Shell(shell.programs, tmp_path / "other", shell.service)
    key = stored["services"][shell.service.url]["api_key"]
    other.run("login", "--with-api-key", "--base-url", shell.service.url, text=f"{key}\n")
    assert other.json("balance")["wallet_id"] == stored["services"][shell.service.url]["wallet_id"]
    shell.run("login", "--with-api-key", "--yes", text="ak_wrong\n", code=3)
