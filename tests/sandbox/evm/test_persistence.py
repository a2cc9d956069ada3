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


def test_a_stopped_chain_goes_on_where_it_was(path: Path) -> None:
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


def test_a_killed_node_comes_back_with_what_was_saved(path: Path) -> None:
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


def test_a_torn_file_gives_way_to_the_save_before_it(path: Path) -> None:
    recipient = Account.create().address
    said: list[str] = []
    with EvmNode("base", state=path) as node:
        node.fund_eth(recipient, 5)
    with EvmNode("base", state=path):
        pass
    path.write_bytes(path.read_bytes()[:10_000])
    with EvmNode("base", state=path, say=said.append) as node:
        assert balance(node, recipient) == 5
    assert "damaged" in said[0]


def test_a_save_that_the_node_refuses_gives_way_to_the_one_before_it(path: Path) -> None:
    said: list[str] = []
    with EvmNode("base", state=path):
        pass
    with EvmNode("base", state=path):
        pass
    path.write_bytes(gzip.compress(b'{"accounts": "none"}'))
    with EvmNode("base", state=path, say=said.append) as node:
        assert node.rpc("eth_getCode", node.deployment.usdc, "latest") != "0x"
    assert "refuses" in said[0]


def test_a_chain_of_which_nothing_can_be_used_starts_anew_and_keeps_the_remains(path: Path) -> None:
    said: list[str] = []
    path.write_bytes(b"not a chain")
    with EvmNode("base", state=path, say=said.append) as node:
        assert node.rpc("eth_getCode", node.deployment.usdc, "latest") != "0x"
    assert path.with_name(path.name + ".damaged").read_bytes() == b"not a chain"
    assert any("starts anew" in line for line in said)


def test_a_taken_port_does_not_cost_the_saved_chain(path: Path) -> None:
    with EvmNode("base", state=path) as node:
        port = int(node.url.rsplit(":", 1)[1])
        other = EvmNode("base", port=port, state=path)
        node._upkeep.save()  # type: ignore[union-attr]
        with pytest.raises(Exception, match=f"port {port} is taken"):
            other.start()
        assert path.exists()


def test_a_dump_of_a_busy_chain_is_of_one_block(own_base_node: EvmNode, tmp_path: Path) -> None:
    """State of one block and receipts of another would be a chain that never was."""
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
        dumps = [state.dump(node._connected()) for _ in range(6)]
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
                for transaction in copy.rpc("eth_getBlockByNumber", hex(block), WITH_TRANSACTIONS)[
                    "transactions"
                ]
            )
            assert balance(copy, recipient) == transactions > 0
