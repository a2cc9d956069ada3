"""The `BridgeProvider` port for ether from Ethereum to Base; the chains themselves prove everything.

Deposits and what results from them: specs.optimism.io, "Deposits" (source hash, opaque fields, type 0x7e).
"""

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.bridges.ether import EtherBridge
from app.adapters.evm import calls
from app.adapters.evm.calls import TransactionReceipt
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.calls import ContractEvent, Function
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.jsonrpc.calls import accept_any_error
from app.core.foreign import MalformedResponseError
from app.ports.bridges import (
    BridgeArrival,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)

_DEPOSIT = Function("optimism_portal", "depositTransaction")
_DEPOSITED_EVENT = ContractEvent("optimism_portal", "TransactionDeposited")
"""Sender, recipient, version, opaque fields."""
_TYPE = b"\x7e"
_GAS = 21_000
"""The gas of a plain transfer to oneself; the portal burns about as much on Ethereum."""
_OPAQUE = 73
"""Mint, value, gas and a flag; the call's data follow."""


def deposit_call(portal: str, recipient: str, units: int) -> CallTarget:
    return CallTarget(portal, units, _DEPOSIT.encode(recipient, units, _GAS, False, b""))  # noqa: FBT003 - creates no contract


def derived_hashes(receipt: TransactionReceipt | None, *, portal: str, sender: str) -> tuple[str, ...]:
    """Return the hashes of the transactions that result from a receipt's deposits. Raises: MalformedResponseError."""
    found = []
    for log in receipt.logs if receipt is not None else ():
        fields = _DEPOSITED_EVENT.decode(log) if log.contract == portal else None
        if fields is not None and fields[0] == sender:
            _sender, recipient, _version, opaque = fields
            place = bytes.fromhex(log.block.hash[2:]) + log.index.to_bytes(32, "big")
            found.append(_hash(place, sender, recipient, opaque))
    return tuple(found)


def _hash(place: bytes, sender: str, recipient: str, opaque: bytes) -> str:
    if len(opaque) < _OPAQUE:
        raise MalformedResponseError("expected a deposit's fields")
    mint, value, gas = (int.from_bytes(opaque[start:end], "big") for start, end in ((0, 32), (32, 64), (64, 72)))
    source = keccak(bytes(32) + keccak(place))
    addresses = [bytes.fromhex(address[2:]) for address in (sender, recipient)]
    fields = [source, *addresses, mint, value, gas, 0, opaque[_OPAQUE:]]
    return "0x" + keccak(_TYPE + bytes(rlp.encode(fields))).hex()


_TYPICAL_GAS = 120_000
_TYPICAL_SECONDS = 180


class PortalBridge(EtherBridge):
    name = "portal"

    def __init__(self, ethereum: EvmChain, base: EvmChain, portal: str) -> None:
        super().__init__(ethereum, base)
        self._portal = portal

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Return the only offer: the full amount, in some minutes."""
        return BridgeOffer(request, "Base's portal", fee_units=0, seconds=_TYPICAL_SECONDS, terms={})

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        request = offer.request
        target = deposit_call(self._portal, request.recipient, request.amount.units)
        return self._draft_deposit(request, target, gas=_TYPICAL_GAS)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Find the transaction on Base that results from the deposit. Raises: Unreachable."""
        receipt = self._source.rpc.ask(calls.receipt(transfer.source_hash))
        hashes = derived_hashes(receipt, portal=self._portal, sender=transfer.request.sender)
        if not hashes:
            return BridgeProgress(BridgePhase.WAITING, note="source_not_seen")
        receipt_call = calls.receipt(hashes[0], tolerates=accept_any_error)
        self._destination.rpc.run(receipt_call)
        executed = None if receipt_call.error is not None else receipt_call.result
        if executed is None:
            return BridgeProgress(BridgePhase.WAITING)
        # A deposit is a transaction of its sender there, and uses one of its nonces. Its success is irrelevant: the
        # ether belongs to its sender in any case.
        arrival = BridgeArrival(transfer.request.amount.units, executed.tx_hash, executed.block, consumes_nonce=True)
        return BridgeProgress(BridgePhase.ARRIVED, arrival=arrival)
