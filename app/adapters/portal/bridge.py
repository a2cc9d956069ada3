"""The `Bridge` port for ether from Ethereum to Base: trusted with nothing, for both chains tell everything."""

from __future__ import annotations

from app.adapters.evm import rehearsal
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.transactions import ContractCall
from app.adapters.portal import deposits
from app.ports.bridges import Arrival, Ask, Crossing, Leg, Offer, Phase, Progress, Step
from app.ports.chain import Intent, Signed
from app.ports.errors import Rejected
from app.ports.vault import Signer

_USUAL_GAS = 120_000
_USUAL_SECONDS = 180


class PortalBridge:
    """Base's portal on Ethereum. Opens no connection before the first verb."""

    name = "portal"

    def __init__(self, ethereum: EvmChain, base: EvmChain, portal: str) -> None:
        """Take both chains, and the portal's address on the first."""
        self._ethereum = ethereum
        self._base = base
        self._portal = portal

    def quote(self, ask: Ask) -> Offer:
        """Return the only offer that there is: all of it, in some minutes."""
        return Offer(ask, "Base's portal", fee_units=0, seconds=_USUAL_SECONDS, terms={})

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the deposit and rehearse it. Raises: Rejected, Unreachable."""
        ask = offer.ask
        target = deposits.call(self._portal, ask.recipient, ask.amount.units)
        intent = Intent(ask.sender, self._portal, ask.amount)
        draft = self._ethereum.draft_call(intent, ContractCall(target), gas=_USUAL_GAS, simulates=True)
        seen = rehearsal.rehearse(self._ethereum, ask.sender, [target])
        if seen is not None:
            left = -seen.native_units
            if seen.usdc_units != 0 or not ask.amount.units <= left <= ask.amount.units + draft.fee_units:
                raise Rejected("unsafe_instructions")
        return (Step(Leg.SOURCE, ask.source, draft),)

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a step. Pure."""
        return self._ethereum.sign(step.draft, signer, sequence=sequence)

    def follow(self, crossing: Crossing) -> Progress:
        """Look for the transaction on Base that the deposit becomes. Raises: Unreachable."""
        found = Call(
            "eth_getTransactionReceipt",
            (crossing.source_hash,),
            read=lambda answer: deposits.hashes_in(answer, portal=self._portal, sender=crossing.ask.sender),
        )
        self._ethereum.rpc.run(found)
        if not found.answer:
            return Progress(Phase.WAITING, note="source_not_seen")
        looked_for = Call(
            "eth_getTransactionReceipt", (found.answer[0],), read=deposits.derived, tolerates=_anything
        )
        self._base.rpc.run(looked_for)
        executed = None if looked_for.error is not None else looked_for.answer
        if executed is None:
            return Progress(Phase.WAITING)
        # A deposit is a transaction of its sender's there, and counts among their nonces.
        arrival = Arrival(crossing.ask.amount.units, executed.tx_hash, executed.block, takes_slot=True)
        return Progress(Phase.ARRIVED, arrival=arrival)

    def deliver(self, crossing: Crossing) -> Step:
        """Refuse: Base itself delivers. Raises: Rejected."""
        raise Rejected("nothing_to_deliver", details={"source_hash": crossing.source_hash})


def _anything(_error: RpcError) -> bool:
    return True
