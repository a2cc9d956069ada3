"""The `BridgeProvider` port for ether from Ethereum to Base; the chains themselves prove everything."""

from __future__ import annotations

from app.adapters.bridges.portal import deposit_transactions
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.client import calls
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import ContractCall
from app.adapters.jsonrpc.calls import accept_any_error
from app.ports.bridges import (
    BridgeArrival,
    BridgeLegKind,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)
from app.ports.chain import SignedTransaction, TransferIntent
from app.ports.errors import Rejected
from app.ports.vault import Signer

_TYPICAL_GAS = 120_000
_TYPICAL_SECONDS = 180


class PortalBridge:
    """Base's portal on Ethereum. Opens no connection before the first call."""

    name = "portal"

    def __init__(self, ethereum: EvmChain, base: EvmChain, portal: str) -> None:
        self._ethereum = ethereum
        self._base = base
        self._portal = portal

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Return the only offer: the full amount, in some minutes."""
        return BridgeOffer(request, "Base's portal", fee_units=0, seconds=_TYPICAL_SECONDS, terms={})

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        request = offer.request
        target = deposit_transactions.deposit_call(self._portal, request.recipient, request.amount.units)
        intent = TransferIntent(request.sender, self._portal, request.amount)
        draft = self._ethereum.draft_call(intent, ContractCall(target), gas=_TYPICAL_GAS, simulates=True)
        rpc, deployment = self._ethereum.rpc, self._ethereum.deployment
        simulation.assert_takes_ether(rpc, deployment, request.sender, target, max_fee_units=draft.fee_units)
        return (BridgeStep(BridgeLegKind.SOURCE, request.source, draft),)

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        return self._ethereum.sign(step.draft, signer, sequence=sequence)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Find the transaction on Base that results from the deposit. Raises: Unreachable."""
        receipt = self._ethereum.rpc.ask(calls.receipt(transfer.source_hash))
        hashes = deposit_transactions.derived_hashes(receipt, portal=self._portal, sender=transfer.request.sender)
        if not hashes:
            return BridgeProgress(BridgePhase.WAITING, note="source_not_seen")
        receipt_call = calls.receipt(hashes[0], tolerates=accept_any_error)
        self._base.rpc.run(receipt_call)
        executed = None if receipt_call.error is not None else receipt_call.result
        if executed is None:
            return BridgeProgress(BridgePhase.WAITING)
        # A deposit is a transaction of its sender there, and uses one of its nonces. Its success is irrelevant: the
        # ether belongs to its sender in any case.
        arrival = BridgeArrival(transfer.request.amount.units, executed.tx_hash, executed.block, consumes_nonce=True)
        return BridgeProgress(BridgePhase.ARRIVED, arrival=arrival)

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Refuse: Base itself delivers. Raises: Rejected."""
        raise Rejected("nothing_to_deliver", details={"source_hash": transfer.source_hash})
