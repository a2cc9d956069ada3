"""Bridges of ether between EVM chains: one deposit on the source chain, and nothing to deliver."""

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.ports.bridges import BridgeLegKind, BridgeRequest, BridgeStep, BridgeTransfer
from app.ports.chain import SignedTransaction, TransferIntent
from app.ports.errors import Rejected
from app.ports.vault import Signer


class EtherBridge:
    def __init__(self, source: EvmChain, destination: EvmChain) -> None:
        self._source = source
        self._destination = destination

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        return self._source.sign(step.draft, signer, sequence=sequence)

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Refuse: somebody else delivers. Raises: Rejected."""
        raise Rejected("nothing_to_deliver", details={"source_hash": transfer.source_hash})

    def _draft_deposit(self, request: BridgeRequest, target: CallTarget, *, gas: int) -> tuple[BridgeStep, ...]:
        """Draft the deposit, and simulate that it takes the amount and nothing else. Raises: Rejected, Unreachable."""
        rpc, deployment = self._source.rpc, self._source.deployment
        intent = TransferIntent(request.sender, target.to, request.amount)
        draft = self._source.draft_call(intent, target, gas=gas, simulates=True)
        simulation.assert_takes_ether(rpc, deployment, request.sender, target, max_fee_units=draft.fee_units)
        return (BridgeStep(BridgeLegKind.SOURCE, request.source, draft),)
