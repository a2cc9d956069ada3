"""Bridges of ether between EVM chains: one deposit on the source chain, and nothing to deliver.

Base's portal is one of them (`BridgeProvider`); the chains themselves prove everything.

Deposits and what results from them: specs.optimism.io, "Deposits" (source hash, opaque fields, type 0x7e).
"""

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.evm import calls
from app.adapters.evm.calls import TransactionReceipt
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.calls import ContractEvent, Function
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.jsonrpc.calls import accept_any_error
from app.core.foreign import MalformedResponseError
from app.ports import bridges
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
        intent = TransferIntent(request.sender, target.to, request.amount)
        draft = self._source.draft_call(intent, target, gas=gas, simulates=True)
        simulation.assert_takes_ether(self._source, request.sender, target, max_fee_units=draft.fee_units)
        return (BridgeStep(BridgeLegKind.SOURCE, request.source, draft),)


_DEPOSIT = Function("optimism_portal", "depositTransaction")
_DEPOSITED_EVENT = ContractEvent("optimism_portal", "TransactionDeposited")
"""Sender, recipient, version, opaque fields."""
_DEPOSIT_TYPE = b"\x7e"
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
            if len(opaque) < _OPAQUE:
                raise MalformedResponseError("expected a deposit's fields")
            place = bytes.fromhex(log.block.hash[2:]) + log.index.to_bytes(32, "big")
            source = keccak(bytes(32) + keccak(place))
            addresses = [bytes.fromhex(address[2:]) for address in (sender, recipient)]
            numbers = [int.from_bytes(opaque[at:end], "big") for at, end in ((0, 32), (32, 64), (64, 72))]
            derived = rlp.encode([source, *addresses, *numbers, 0, opaque[_OPAQUE:]])
            found.append("0x" + keccak(_DEPOSIT_TYPE + bytes(derived)).hex())
    return tuple(found)


class PortalBridge(EtherBridge):
    name = "portal"

    def __init__(self, ethereum: EvmChain, base: EvmChain, portal: str) -> None:
        super().__init__(ethereum, base)
        self._portal = portal

    def quote(self, request: bridges.BridgeRequest) -> bridges.BridgeOffer:
        """Return the only offer: the full amount, in some minutes."""
        return bridges.BridgeOffer(request, "Base's portal", fee_units=0, seconds=180, terms={})

    def prepare(self, offer: bridges.BridgeOffer) -> tuple[bridges.BridgeStep, ...]:
        request = offer.request
        target = deposit_call(self._portal, request.recipient, request.amount.units)
        return self._draft_deposit(request, target, gas=120_000)

    def progress(self, transfer: bridges.BridgeTransfer) -> bridges.BridgeProgress:
        """Find the transaction on Base that results from the deposit. Raises: Unreachable."""
        receipt = self._source.rpc.ask(calls.receipt(transfer.source_hash))
        hashes = derived_hashes(receipt, portal=self._portal, sender=transfer.request.sender)
        if not hashes:
            return bridges.BridgeProgress(bridges.BridgePhase.WAITING, note="source_not_seen")
        receipt_call = calls.receipt(hashes[0], tolerates=accept_any_error)
        self._destination.rpc.run(receipt_call)
        executed = None if receipt_call.error is not None else receipt_call.result
        if executed is None:
            return bridges.BridgeProgress(bridges.BridgePhase.WAITING)
        # A deposit is a transaction of its sender there, and uses one of its nonces. Its success is irrelevant: the
        # ether belongs to its sender in any case.
        arrival = bridges.BridgeArrival(
            transfer.request.amount.units, executed.tx_hash, executed.block, consumes_nonce=True
        )
        return bridges.BridgeProgress(bridges.BridgePhase.ARRIVED, arrival=arrival)
