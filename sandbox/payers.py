"""How the faucet pays: by real transfers on each chain, so that a deposit looks like a deposit."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from eth_account import Account
from eth_account.signers.local import LocalAccount

from app.adapters.evm.deployments import Deployment
from sandbox.evm import roles
from sandbox.evm.abi import call_data
from sandbox.evm.rpc import NodeClient, NodeError

_ATTEMPTS = 3
_MINED_SECONDS = 5
_TIP_WEI = 10**9
_SOLANA_METHODS = {"SOL": "requestAirdrop", "USDC": "sandbox_mint"}


class Refused(Exception):
    """The chain will not take this payment; the message is fit for the caller."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to pay, in base units of the currency."""

    reference: str
    chain: str
    address: str
    currency: str
    units: int


@dataclass(frozen=True, slots=True)
class Payment:
    """A transaction that pays an order; `nonce` and `raw` (hex) are kept where it can be sent again."""

    tx_hash: str
    nonce: int | None = None
    raw: str | None = None


class Record(Protocol):
    """Where a payment is written down before it is sent."""

    def __call__(self, payment: Payment) -> None:
        """Write it down, durably."""
        ...


class Payer(Protocol):
    """Pays on one chain."""

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Pay once, knowing what was recorded earlier, and return the transaction's hash.

        Raises: Refused, NodeDown, NodeError.
        """
        ...


class EvmPayer:
    """Signs transfers from the faucet's account itself, so that a transaction is known before it is sent."""

    def __init__(self, url: str, deployment: Deployment) -> None:
        """Pay through this node."""
        self._client = NodeClient(url)
        self._deployment = deployment
        self._account: LocalAccount = Account.from_key(roles.FAUCET_KEY)
        self._one_at_a_time = threading.Lock()

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Send the earlier transaction again as long as it can be mined, else sign and send a new one."""
        with self._one_at_a_time:  # nonces are handed out in order
            payment = earlier
            for _ in range(_ATTEMPTS):
                if payment is not None and self._lives(payment):
                    return payment.tx_hash
                payment = self._sign(order)
                record(payment)
            raise NodeError(f"the {order.chain} node does not take the faucet's transactions")

    def _lives(self, payment: Payment) -> bool:
        """Tell whether a payment is mined or will be, after sending it again if need be."""
        if self._client.call("eth_getTransactionByHash", payment.tx_hash) is None:
            if payment.nonce != self._next_nonce():
                return False  # the chain lost it (a kill, a reorganisation), or the nonce was taken
            try:
                self._client.call("eth_sendRawTransaction", payment.raw)
            except NodeError:
                return False
        deadline = time.monotonic() + _MINED_SECONDS
        while (receipt := self._client.call("eth_getTransactionReceipt", payment.tx_hash)) is None:
            if time.monotonic() > deadline:
                return True  # mining is held: it waits in the pool
            time.sleep(0.01)
        return bool(receipt["status"] == "0x1")

    def _sign(self, order: Order) -> Payment:
        call = {"from": self._account.address, **self._transfer(order)}
        try:
            gas = int(self._client.call("eth_estimateGas", call), 16)
        except NodeError as error:
            raise Refused(f"the transfer would fail ({error})") from error
        base_fee = int(self._client.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)  # noqa: FBT003 - the method's own parameter
        nonce = self._next_nonce()
        transaction: dict[str, Any] = {
            **self._transfer(order),
            "chainId": self._deployment.chain_id,
            "nonce": nonce,
            "gas": gas * 5 // 4,
            "maxFeePerGas": 2 * base_fee + _TIP_WEI,
            "maxPriorityFeePerGas": _TIP_WEI,
        }
        signed = self._account.sign_transaction(transaction)
        return Payment(signed.hash.to_0x_hex(), nonce, signed.raw_transaction.to_0x_hex())

    def _transfer(self, order: Order) -> dict[str, str]:
        if order.currency == "ETH":
            return {"to": order.address, "value": hex(order.units), "data": "0x"}
        data = call_data("transfer(address,uint256)", order.address, order.units)
        return {"to": self._deployment.usdc, "value": "0x0", "data": data}

    def _next_nonce(self) -> int:
        return int(self._client.call("eth_getTransactionCount", self._account.address, "pending"), 16)


class SolanaPayer:
    """Asks the Solana node, whose airdrops and mints are real transactions.

    Their signatures are known only from its answer: an answer lost in a crash may lead to a second payment.
    """

    def __init__(self, url: str) -> None:
        """Pay through this node."""
        self._client = NodeClient(url)
        self._one_at_a_time = threading.Lock()

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Return the earlier payment, or make one."""
        if earlier is not None:
            return earlier.tx_hash
        with self._one_at_a_time:
            try:
                signature = str(
                    self._client.call(_SOLANA_METHODS[order.currency], order.address, order.units)
                )
            except NodeError as error:
                raise Refused(str(error)) from error
            record(Payment(signature))
            return signature
