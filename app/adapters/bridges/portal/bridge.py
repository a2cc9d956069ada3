"""The `BridgeProvider` port for ether from Ethereum to Base; the chains themselves prove everything."""

from __future__ import annotations

from app.adapters.bridges.ether import EtherBridge
from app.adapters.bridges.portal import deposit_transactions
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.client import calls
from app.adapters.evm.send.transactions import ContractCall
from app.adapters.jsonrpc.calls import accept_any_error
from app.ports.bridges import (
    BridgeArrival,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)

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
        target = deposit_transactions.deposit_call(self._portal, request.recipient, request.amount.units)
        return self._draft_deposit(request, ContractCall(target), gas=_TYPICAL_GAS)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Find the transaction on Base that results from the deposit. Raises: Unreachable."""
        receipt = self._source.rpc.ask(calls.receipt(transfer.source_hash))
        hashes = deposit_transactions.derived_hashes(receipt, portal=self._portal, sender=transfer.request.sender)
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
