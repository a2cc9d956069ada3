"""Payments of the faucet: real transfers on each chain."""

import threading
import time
from dataclasses import dataclass
from typing import Protocol

from eth_utils.crypto import keccak

from app.adapters.evm.contracts.deployments import EvmDeployment
from sandbox.evm import roles
from sandbox.evm.abi import call_data
from sandbox.evm.rpc import TIP_WEI, NodeClient, NodeError

_ATTEMPTS = 3
_MINED_SECONDS = 5
_SOLANA_METHODS = {"SOL": "requestAirdrop", "USDC": "sandbox_mint"}


class PaymentRefused(Exception):
    """The chain refuses this payment; the message is returned to the client."""


@dataclass(frozen=True, slots=True)
class Order:
    """A payment to make, in base units of the currency."""

    reference: str
    chain: str
    address: str
    currency: str
    units: int


@dataclass(frozen=True, slots=True)
class Payment:
    """A transaction that pays an order; `nonce` and `raw` (hex) are stored if it can be sent again."""

    tx_hash: str
    nonce: int | None = None
    raw: str | None = None


class Record(Protocol):
    """Callback that records a payment before it is sent."""

    def __call__(self, payment: Payment) -> None:
        """Record it durably."""
        ...


class Payer(Protocol):
    """Pays on one chain."""

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Pay once, given the payment recorded earlier, and return the transaction's hash.

        Raises: PaymentRefused, NodeDown, NodeError.
        """
        ...


class EvmPayer:
    """Has the node sign the faucet's transfers, so that the transaction hash is known before it is sent."""

    def __init__(self, url: str, deployment: EvmDeployment) -> None:
        self._client = NodeClient(url)
        self._deployment = deployment
        self._address = str(self._client.call("eth_accounts")[roles.FAUCET])
        self._lock = threading.Lock()

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Resend the earlier transaction while it can be mined; otherwise sign and send a new one."""
        with self._lock:  # nonces are assigned in order
            payment = earlier
            for _ in range(_ATTEMPTS):
                if payment is not None and self._is_pending_or_mined(payment):
                    return payment.tx_hash
                payment = self._sign(order)
                record(payment)
            raise NodeError(f"the {order.chain} node does not accept the faucet's transactions")

    def _is_pending_or_mined(self, payment: Payment) -> bool:
        """Return whether a payment is mined or pending, resending it if necessary."""
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
                return True  # mining is paused: it waits in the pool
            time.sleep(0.01)
        return bool(receipt["status"] == "0x1")

    def _sign(self, order: Order) -> Payment:
        call = {"from": self._address, **self._transfer(order)}
        try:
            gas = int(self._client.call("eth_estimateGas", call), 16)
        except NodeError as error:
            raise PaymentRefused(f"the transfer would fail ({error})") from error
        base_fee = int(self._client.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)  # noqa: FBT003 - the method's own parameter
        nonce = self._next_nonce()
        numbers = {
            "chainId": self._deployment.chain_id,
            "nonce": nonce,
            "gas": gas * 5 // 4,
            "maxFeePerGas": 2 * base_fee + TIP_WEI,
            "maxPriorityFeePerGas": TIP_WEI,
        }
        transaction = {**call, **{name: hex(number) for name, number in numbers.items()}}
        raw = str(self._client.call("eth_signTransaction", transaction))
        return Payment("0x" + keccak(hexstr=raw).hex(), nonce, raw)

    def _transfer(self, order: Order) -> dict[str, str]:
        if order.currency == "ETH":
            return {"to": order.address, "value": hex(order.units), "data": "0x"}
        data = call_data("transfer(address,uint256)", order.address, order.units)
        return {"to": self._deployment.usdc, "value": "0x0", "data": data}

    def _next_nonce(self) -> int:
        return int(self._client.call("eth_getTransactionCount", self._address, "pending"), 16)


class SolanaPayer:
    """Pays by airdrops and mints of the Solana node, which are real transactions.

    Their signatures are known only from its response: one lost in a crash may lead to a second payment.
    """

    def __init__(self, url: str) -> None:
        self._client = NodeClient(url)
        self._lock = threading.Lock()

    def pay(self, order: Order, *, earlier: Payment | None, record: Record) -> str:
        """Return the earlier payment, or make a new one."""
        if earlier is not None:
            return earlier.tx_hash
        with self._lock:
            try:
                signature = str(self._client.call(_SOLANA_METHODS[order.currency], order.address, order.units))
            except NodeError as error:
                raise PaymentRefused(str(error)) from error
            record(Payment(signature))
            return signature
