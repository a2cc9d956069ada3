from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest
from eth_account import Account

from sandbox.evm import EvmNode, state
from tests.support.waiting import wait_until

HEADER_ONLY, WITH_TRANSACTIONS = False, True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "base.chain.gz"


def balance(node: EvmNode, address: str, block: str = "latest") -> int:
    return int(node.rpc("eth_getBalance", address, block), 16)


def head(node: EvmNode) -> int:
    return int(node.rpc("eth_blockNumber"), 16)


def test_a_stopped_chain_continues_from_its_state(path: Path) -> None:
    recipient = Account.create().address
    with EvmNode("base", state=path) as node:
        tx_hash = node.fund_eth(recipient, 5)
        stopped_at = head(node)
    with EvmNode("base", state=path) as node:
        assert balance(node, recipient) == 5
        assert node.rpc("eth_getTransactionReceipt", tx_hash)["status"] == "0x1"
        assert head(node) > stopped_at
        node.fund_eth(recipient, 5)
        assert balance(node, recipient) == 10


def test_a_restarted_chain_can_be_read_a_few_blocks_deep(path: Path) -> None:
    recipient = Account.create().address
    with EvmNode("base", state=path) as node:
        node.fund_eth(recipient, 5)
    with EvmNode("base", state=path) as node:
        assert balance(node, recipient, hex(head(node) - 10)) == 5


def test_a_killed_node_restarts_on_the_saved_chain(path: Path) -> None:
    recipient = Account.create().address
    with EvmNode("base", state=path, state_interval=0.05) as node:
        node.fund_eth(recipient, 5)
        head_hash = node.rpc("eth_getBlockByNumber", "latest", HEADER_ONLY)["hash"]
        wait_until(lambda: node._upkeep is not None and node._upkeep._saved_head == head_hash)
        url = node.url
        node.kill()
        assert not node.running
        node.restart()
        assert node.url == url
        assert balance(node, recipient) == 5
        node.fund_eth(recipient, 5)
        assert balance(node, recipient) == 10


def test_a_corrupt_file_is_replaced_by_the_previous_save(path: Path) -> None:
    recipient = Account.create().address
    lines: list[str] = []
    with EvmNode("base", state=path) as node:
        node.fund_eth(recipient, 5)
    with EvmNode("base", state=path):
        pass
    path.write_bytes(path.read_bytes()[:10_000])
    with EvmNode("base", state=path, log_line=lines.append) as node:
        assert balance(node, recipient) == 5
    assert "damaged" in lines[0]


def test_a_save_that_the_node_refuses_is_replaced_by_the_previous_one(path: Path) -> None:
    lines: list[str] = []
    with EvmNode("base", state=path):
        pass
    with EvmNode("base", state=path):
        pass
    path.write_bytes(gzip.compress(b'{"accounts": "none"}'))
    with EvmNode("base", state=path, log_line=lines.append) as node:
        assert node.rpc("eth_getCode", node.deployment.usdc, "latest") != "0x"
    assert "refuses" in lines[0]


def test_an_unusable_chain_is_kept_and_a_new_one_started(path: Path) -> None:
    lines: list[str] = []
    path.write_bytes(b"not a chain")
    with EvmNode("base", state=path, log_line=lines.append) as node:
        assert node.rpc("eth_getCode", node.deployment.usdc, "latest") != "0x"
    assert path.with_name(path.name + ".damaged").read_bytes() == b"not a chain"
    assert any("a new chain is started" in line for line in lines)


def test_a_taken_port_does_not_damage_the_saved_chain(path: Path) -> None:
    with EvmNode("base", state=path) as node:
        port = int(node.url.rsplit(":", 1)[1])
        other = EvmNode("base", port=port, state=path)
        node._upkeep.save()  # type: ignore[union-attr]
        with pytest.raises(Exception, match=f"port {port} is taken"):
            other.start()
        assert path.exists()


def test_a_dump_of_a_busy_chain_is_of_one_block(own_base_node: EvmNode, tmp_path: Path) -> None:
    """State of one block with receipts of another would be an inconsistent chain."""
    node = own_base_node
    recipient = Account.create().address
    done = threading.Event()

    def traffic() -> None:
        while not done.is_set():
            node.fund_eth(recipient, 1)

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        wait_until(lambda: balance(node, recipient))
        dumps = [state.dump(node._connected(), node.mining_lock) for _ in range(6)]
    finally:
        done.set()
        thread.join()
    assert node.rpc("anvil_getAutomine")
    for number, content in enumerate(dumps):
        path = tmp_path / f"{number}.gz"
        path.write_bytes(content)
        with EvmNode("base", state=path) as copy:
            transactions = sum(
                transaction["to"] == recipient.lower()
                for block in range(head(copy) + 1)
                for transaction in copy.rpc("eth_getBlockByNumber", hex(block), WITH_TRANSACTIONS)["transactions"]
            )
            assert balance(copy, recipient) == transactions > 0
