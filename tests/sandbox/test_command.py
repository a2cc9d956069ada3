from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from eth_account import Account

from app.adapters.bridges.deployments import PORTALS
from app.adapters.bridges.ether import deposit_call
from sandbox.errors import SandboxError
from sandbox.evm.node import usable_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


# Other nodes choose theirs at random above these; each process of the tests has a range of its own.
_PORTS = range(10_000 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), 20_000)


def free_ports() -> list[str]:
    """Choose ports for all; Solana's WebSocket uses the port after its HTTP port."""
    ports = filter(is_free, _PORTS)
    options: list[str] = []
    for name in ("ethereum", "base", "faucet", "perpdex", "jupiter", "cctp", "openai"):
        options += [f"--{name}-port", str(next(ports))]
    pairs = (port for port in ports if is_free(port + 1))
    return [*options, "--solana-port", str(next(pairs))]


def is_free(port: int) -> bool:
    try:
        return usable_port(port) == port
    except SandboxError:
        return False


class Running:
    """A sandbox in a separate process, and its output."""

    def __init__(self, state: Path, *options: str) -> None:
        command = [sys.executable, "-m", "sandbox", "--state", str(state), *free_ports(), *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self.urls: dict[str, str] = {}

    def wait(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.strip() == "sandbox ready":
                self.urls = json.loads(self.process.stdout.readline())
                return
        raise AssertionError("\n".join(self.lines))

    def rpc(self, chain: str, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return requests.post(self.urls[chain], json=body, timeout=20).json()["result"]

    def pay(self, **order: str) -> dict[str, str]:
        answer = requests.post(self.urls["faucet"] + "/pay", json=order, timeout=20)
        assert answer.status_code == 200, answer.text
        paid: dict[str, str] = answer.json()
        return paid

    def children(self) -> list[int]:
        """Return the ids of the child processes."""
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True)
        rows = (line.split() for line in listing.stdout.splitlines())
        return [int(pid) for pid, parent in rows if int(parent) == self.process.pid]


@contextmanager
def sandbox(state: Path, *options: str) -> Iterator[Running]:
    running = Running(state, *options)
    try:
        running.wait()
        yield running
    finally:
        if running.process.poll() is None:
            running.process.terminate()
        running.process.wait(20)
        assert running.process.stdout is not None
        running.process.stdout.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return sys.platform != "linux" and subprocess.run(["kill", "-0", str(pid)], check=False).returncode == 0
    return state != "Z"


def test_payments_survive_a_stop_a_kill_and_a_second_sandbox_and_no_process_is_left(tmp_path: Path) -> None:
    address = Account.create().address
    owner = "4fYNw3dojWmQ4dXtSGE9epjRGy9pFSx62YypT7avPYvA"
    orders = [
        {"chain": "ethereum", "address": address, "currency": "ETH", "amount": "1"},
        {"chain": "base", "address": address, "currency": "ETH", "amount": "2"},
        {"chain": "solana", "address": owner, "currency": "SOL", "amount": "3"},
    ]
    with sandbox(tmp_path / "state") as first:
        assert first.urls["network_ids"] == "sandbox"
        hashes = [first.pay(reference=order["chain"], **order)["tx_hash"] for order in orders]
        children = first.children()
        assert len(children) == 3
        second = Running(tmp_path / "state", "--no-solana")
        assert "another sandbox runs on" in second.process.communicate(timeout=20)[0]
        assert second.process.returncode == 1
    assert first.process.returncode == 0
    assert not any(alive(child) for child in children)
    with sandbox(tmp_path / "state") as again:
        assert [again.pay(reference=order["chain"], **order)["tx_hash"] for order in orders] == hashes
        assert int(again.rpc("ethereum", "eth_getBalance", address, "latest"), 16) == 10**18
        assert int(again.rpc("base", "eth_getBalance", address, "latest"), 16) == 2 * 10**18
        wait_until(lambda: again.rpc("solana", "getBalance", owner)["value"] == 3 * 10**9, 30)
        if sys.platform != "linux":
            return  # only there a child ends with its parent
        children = again.children()
        again.process.kill()
        again.process.wait()
        wait_until(lambda: not any(alive(child) for child in children))
    with sandbox(tmp_path / "state") as last:
        assert int(last.rpc("base", "eth_chainId"), 16) == 908453
        assert [last.pay(reference=order["chain"], **order)["tx_hash"] for order in orders] == hashes


def deposit_to_base(running: Running, wei: int) -> None:
    """Deposit ether in Base's portal on Ethereum, and wait until Base has it."""
    recipient = Account.create().address
    call = deposit_call(PORTALS["sandbox"], recipient, wei)
    sender = running.rpc("ethereum", "eth_accounts")[0]
    transaction = {"from": sender, "to": call.to, "value": hex(wei), "data": "0x" + call.data.hex()}
    running.rpc("ethereum", "eth_sendTransaction", transaction)
    wait_until(lambda: running.rpc("base", "eth_getBalance", recipient, "latest") == hex(wei), what="ether on Base")


def test_a_killed_child_is_restarted_with_its_chain_and_its_deposits(tmp_path: Path) -> None:
    address = Account.create().address
    with sandbox(tmp_path / "state", "--no-solana") as running:
        deposit_to_base(running, 10**17)
        running.pay(reference="a", chain="base", address=address, currency="ETH", amount="1")
        saved = tmp_path / "state" / "base-sandbox.chain.gz.previous"
        wait_until(saved.exists)
        before = running.children()
        for child in before:
            os.kill(child, signal.SIGKILL)

        def paid_again(chain: str) -> bool:
            try:
                running.pay(reference=f"b-{chain}", chain=chain, address=address, currency="ETH", amount="1")
            except (requests.RequestException, AssertionError):
                return False
            return True

        for chain in ("ethereum", "base"):
            wait_until(lambda: paid_again(chain))  # noqa: B023 - called here
        wait_until(lambda: len(running.children()) == 2)
        assert not set(before) & set(running.children())
        running.pay(reference="a", chain="base", address=address, currency="ETH", amount="1")
        assert int(running.rpc("base", "eth_getBalance", address, "latest"), 16) == 2 * 10**18
        deposit_to_base(running, 10**16)


def test_a_taken_port_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = Running(tmp_path / "state", "--base-port", str(port), "--no-solana")
        out, _ = running.process.communicate(timeout=20)
    assert running.process.returncode == 1
    assert out.splitlines() == [f"sandbox: port {port} is taken: stop what uses it, or choose another with --base-port"]


def test_one_port_for_two_services_is_refused(tmp_path: Path) -> None:
    port = usable_port(0)
    running = Running(tmp_path / "state", "--base-port", str(port), "--solana-port", str(port - 1))
    out, _ = running.process.communicate(timeout=20)
    assert running.process.returncode == 1
    assert f"port {port} is used twice: change --solana-port or --base-port" in out
