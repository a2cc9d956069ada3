from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from eth_account import Account

from app.adapters.bridges.deployments import PORTALS
from app.adapters.bridges.ether import deposit_call
from sandbox.bridges import Derivation
from sandbox.evm import EvmNode
from sandbox.evm.rpc import NodeClient
from tests.support.evm import await_mined


def deposit(ethereum: EvmNode, recipient: str, wei: int) -> None:
    call = deposit_call(PORTALS["sandbox"], recipient, wei)
    sender = ethereum.rpc("eth_accounts")[0]
    transaction = {"from": sender, "to": call.to, "value": hex(wei), "data": "0x" + call.data.hex()}
    await_mined(ethereum, ethereum.rpc("eth_sendTransaction", transaction))


def test_a_deposit_is_executed_once_while_its_receipt_is_missing(
    ethereum_node: EvmNode, base_node: EvmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    derivation = Derivation(ethereum_node, base_node)
    derivation.derive()
    first, second = Account.create().address, Account.create().address
    deposit(ethereum_node, first, 10**17)
    for tx_hash in derivation.derive():
        await_mined(base_node, tx_hash)
    call = NodeClient.call

    def without_receipts(client: NodeClient, method: str, *params: Any) -> Any:
        return None if method == "eth_getTransactionReceipt" else call(client, method, *params)

    deposit(ethereum_node, second, 10**16)
    with monkeypatch.context() as patch:
        patch.setattr(NodeClient, "call", without_receipts)
        (tx_hash,) = derivation.derive()
    await_mined(base_node, tx_hash)
    balances = [int(base_node.rpc("eth_getBalance", account, "latest"), 16) for account in (first, second)]
    assert balances == [10**17, 10**16]


def test_a_deposit_is_executed_once_on_a_busy_node(ethereum_node: EvmNode, own_base_node: EvmNode) -> None:
    derivation = Derivation(ethereum_node, own_base_node)
    derivation.derive()
    accounts = own_base_node.rpc("eth_accounts")
    is_over = threading.Event()

    def transfer(sender: str) -> None:
        client = NodeClient(own_base_node.url)
        while not is_over.is_set():
            client.call("eth_sendTransaction", {"from": sender, "to": accounts[0], "value": "0x1"})

    recipients = [Account.create().address for _ in range(10)]
    with ThreadPoolExecutor() as threads:
        running = [threads.submit(transfer, sender) for sender in accounts[-2:]]
        try:
            for recipient in recipients:
                deposit(ethereum_node, recipient, 10**15)
                for tx_hash in derivation.derive():
                    await_mined(own_base_node, tx_hash)
        finally:
            is_over.set()
    for future in running:
        future.result()
    balances = {int(own_base_node.rpc("eth_getBalance", account, "latest"), 16) for account in recipients}
    assert balances == {10**15}
