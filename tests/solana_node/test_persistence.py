import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from solana_node import USDC_MINT, SolanaNode
from tests.solana_node.client import CONFIRMED, PROCESSED, SOL, USDC, Client, RefusedError, pay_sol, pay_token

MINT = Pubkey.from_string(USDC_MINT)


@contextmanager
def running(state: Path) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """Run the node as its own process, killed at the end if it still runs."""
    options = ["--port", "0", "--slot-ms", "20", "--state", str(state)]
    command = [sys.executable, "-m", "solana_node", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        word, url = process.stdout.readline().split()
        assert word == "ready"
        with Client(url) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def call(client: Client, method: str, *params: object) -> object:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.session.post(client.url, json=body, timeout=10).json()["result"]


def test_a_killed_node_continues_from_its_state(tmp_path: Path) -> None:
    state, alice, bob = tmp_path / "chain.db", Keypair(), Keypair().pubkey()
    with running(state) as (process, client):
        genesis = call(client, "getGenesisHash")
        call(client, "requestAirdrop", str(alice.pubkey()), 10 * SOL)
        call(client, "sandbox_mint", str(alice.pubkey()), 100 * USDC)
        blockhash = client.blockhash(PROCESSED)
        landed = client.sign(pay_token(alice, bob, MINT, 3 * USDC), alice, blockhash=blockhash)
        client.send(landed, preflight=PROCESSED)
        unsent = client.sign([pay_sol(alice, bob, SOL)], alice, blockhash=blockhash)
        slot = call(client, "getSlot", {"commitment": "processed"})
        process.send_signal(signal.SIGKILL)
        process.wait()

    with running(state) as (_, client):
        assert call(client, "getGenesisHash") == genesis
        assert client.token_units(bob, MINT) == 3 * USDC
        assert client.token_units(alice.pubkey(), MINT) == 97 * USDC
        status = client.status(landed.signatures[0])
        assert status is not None
        assert status.err is None
        assert client.transaction(landed.signatures[0]) is not None
        later = call(client, "getSlot", {"commitment": "processed"})
        assert isinstance(slot, int)
        assert isinstance(later, int)
        assert later > slot
        with pytest.raises(RefusedError, match="already been processed"):
            client.send(landed, preflight=PROCESSED)
        with pytest.raises(RefusedError, match="Blockhash not found"):
            client.send(unsent, preflight=PROCESSED)
        client.send(client.sign([pay_sol(alice, bob, SOL)], alice), preflight=CONFIRMED)
        assert client.lamports(bob, PROCESSED) == SOL


def test_every_way_to_change_the_chain_is_kept(tmp_path: Path) -> None:
    state, alice, bob = tmp_path / "chain.db", Keypair(), Keypair()
    with SolanaNode(slot_ms=0, state=state) as node, Client(node.url) as client:
        node.airdrop(alice.pubkey(), 10 * SOL)
        node.airdrop(bob.pubkey(), SOL)
        node.advance(1)
        client.send(client.sign([pay_sol(bob, alice.pubkey(), SOL - 5000)], bob))
        node.call("sandbox_setAccount", str(MINT), 77)
        node.advance(1_000_000)
        slot = node.call("getSlot")

    with SolanaNode(slot_ms=0, state=state) as node:
        assert node.call("getSlot") > slot
        assert node.call("getBalance", str(alice.pubkey()))["value"] == 11 * SOL - 5000
        assert node.call("getAccountInfo", str(bob.pubkey()))["value"] is None
        assert node.call("getBalance", str(MINT))["value"] == 77
        assert len(node.call("getSignaturesForAddress", str(bob.pubkey()))) == 2


def test_two_nodes_never_write_one_state_file(tmp_path: Path) -> None:
    state = tmp_path / "chain.db"
    with SolanaNode(slot_ms=0, state=state), pytest.raises(RuntimeError, match="locked"):
        SolanaNode(slot_ms=0, state=state)


def test_fresh_chains_are_different_clusters() -> None:
    with SolanaNode(slot_ms=0) as one, SolanaNode(slot_ms=0) as other:
        assert one.call("getGenesisHash") != other.call("getGenesisHash")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_stops_cleanly_on_signals(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path / "chain.db") as (process, client):
        assert client.session.get(f"{client.url}/health", timeout=5).text == "ok"
        os.kill(process.pid, number)
        assert process.wait(timeout=10) == 0


def test_a_taken_port_is_named_and_nothing_is_left_behind() -> None:
    with SolanaNode(slot_ms=0) as node:
        port = int(node.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="in use"):
            SolanaNode(slot_ms=0, port=port)
        with pytest.raises(OSError, match="in use"):
            SolanaNode(slot_ms=0, port=port - 1)
        assert node.call("getHealth") == "ok"


def test_a_stopped_node_answers_no_client_not_even_on_an_open_connection() -> None:
    node = SolanaNode(slot_ms=0)
    node.start()
    with Client(node.url) as client:
        assert client.session.get(f"{node.url}/health", timeout=5).ok
        node.stop()
        with pytest.raises(requests.ConnectionError):
            client.session.get(f"{node.url}/health", timeout=5)
