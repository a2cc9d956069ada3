"""Placement of contracts at their mainnet addresses, with their real constructors."""

import time
from collections.abc import Mapping
from typing import Any

from app.adapters.evm.contracts.deployments import EvmDeployment
from sandbox.errors import SandboxError
from sandbox.evm.abi import Argument, call_data, decode_result, encode_arguments
from sandbox.evm.artifacts import Artifacts
from sandbox.evm.rpc import NodeClient

_GAS = hex(12_000_000)
_RECEIPT_SECONDS = 60
NO_ADDRESS = "0x" + "00" * 20


class Builder:
    """Deployment functions for one fresh chain.

    `accounts` are the ten accounts with keys in the node; see roles.py.
    """

    def __init__(
        self, client: NodeClient, artifacts: Artifacts, *, deployment: EvmDeployment, accounts: tuple[str, ...]
    ) -> None:
        self.client = client
        self.artifacts = artifacts
        self.deployment = deployment
        self.accounts = accounts

    def place(
        self,
        name: str,
        address: str,
        *,
        parameters: str = "()",
        arguments: tuple[Argument, ...] = (),
        libraries: Mapping[str, str] | None = None,
        sender: str | None = None,
    ) -> None:
        """Deploy a contract at an address, running its constructor there.

        The creation code is set as the code of the address and called: it returns the runtime code with the
        immutables of this address, and the constructor writes the storage of this address.
        """
        artifact = self.artifacts.load(name)
        creation = artifact.creation
        for library, offsets in artifact.library_offsets.items():
            for offset in offsets:
                start = offset * 2
                linked = (libraries or {})[library].removeprefix("0x").lower()
                creation = creation[:start] + linked + creation[start + len(linked) :]
        self.place_code(creation, address, parameters=parameters, arguments=arguments, sender=sender)

    def place_code(
        self,
        creation: str,
        address: str,
        *,
        parameters: str = "()",
        arguments: tuple[Argument, ...] = (),
        sender: str | None = None,
    ) -> None:
        """Deploy creation code (hex without 0x) at an address, as `place` does."""
        creation += encode_arguments(parameters, *arguments).hex()
        self.set_code(address, "0x" + creation)
        transaction = {"from": sender or self.accounts[0], "to": address, "gas": _GAS}
        runtime = self.client.call("eth_call", transaction, "latest")
        self._send(transaction, "a constructor")
        self.set_code(address, runtime)

    def set_code(self, address: str, code: str) -> None:
        """Set an address's runtime code."""
        self.client.call("anvil_setCode", address, code)

    def set_runtime(self, name: str, address: str) -> None:
        """Set the runtime code of a contract that needs no constructor."""
        self.set_code(address, "0x" + self.artifacts.load(name).runtime)

    def set_storage(self, address: str, slot: int, value: int) -> None:
        """Write one storage slot."""
        self.client.call("anvil_setStorageAt", address, f"0x{slot:064x}", f"0x{value:064x}")

    def set_balance(self, address: str, wei: int) -> None:
        """Give an account exactly this balance."""
        self.client.call("anvil_setBalance", address, hex(wei))

    def transact(
        self, address: str, signature: str, *arguments: Argument, sender: str | None = None, wei: int = 0
    ) -> None:
        """Call a contract in a transaction of a node-held account, and wait until it is mined."""
        self.transact_raw(address, call_data(signature, *arguments), sender=sender, wei=wei)

    def transact_raw(self, address: str, data: str, *, sender: str | None = None, wei: int = 0) -> None:
        """Send input bytes in a transaction of a node-held account, and wait until it is mined."""
        transaction = {"from": sender or self.accounts[0], "to": address, "data": data, "value": hex(wei), "gas": _GAS}
        self._send(transaction, data[:10])

    def read(self, address: str, signature: str, returns: str, *arguments: Argument) -> tuple[Any, ...]:
        """Return the result of a view function."""
        transaction = {"to": address, "data": call_data(signature, *arguments)}
        return decode_result(returns, self.client.call("eth_call", transaction, "latest"))

    def _send(self, transaction: Mapping[str, str], what: str) -> None:
        tx_hash = self.client.call("eth_sendTransaction", transaction)
        deadline = time.monotonic() + _RECEIPT_SECONDS
        while (receipt := self.client.call("eth_getTransactionReceipt", tx_hash)) is None:
            if time.monotonic() > deadline:
                raise SandboxError(f"{what} at {transaction['to']} was not mined")
            time.sleep(0.002)
        if receipt["status"] != "0x1":
            raise SandboxError(f"{what} at {transaction['to']} was reverted")
