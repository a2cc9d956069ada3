"""Probes of a Solana endpoint: the reads of each feature, by the feature's own code."""

from solders.commitment_config import CommitmentLevel
from solders.signature import Signature

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import MAX_BATCH
from app.adapters.solana.client.wire import LandedTransaction
from app.adapters.solana.track import account_history
from app.core.chains import SOL, Family
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, TransactionQuery, TransactionStatus, TransferIntent, WatchedAddress
from app.ports.errors import Rejected
from app.ports.probes import ADDRESSES, UnexpectedAnswer

_ADDRESS = ADDRESSES[Family.SOLANA]


class SolanaEndpointProbes:
    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain

    def genesis_hash(self) -> str:
        self._chain.rpc.run_on_first(lambda endpoint: endpoint.identify())
        return "as configured"

    def commitment_levels(self) -> str:
        read = [calls.slot(level) for level in (CommitmentLevel.Finalized, CommitmentLevel.Confirmed)]
        self._chain.rpc.run(*read)
        finalized, confirmed = (call.result for call in read)
        if finalized > confirmed:
            raise UnexpectedAnswer(f"finalized is slot {finalized}, confirmed is slot {confirmed}")
        return f"finalized {finalized}, confirmed {confirmed}"

    def batches(self) -> str:
        self._chain.rpc.run(*(calls.slot(CommitmentLevel.Confirmed) for _ in range(MAX_BATCH)))
        return f"up to {self._chain.rpc.endpoints[0].batch_limit} calls in a request"

    def balances(self) -> str:
        amounts = self._chain.balances(_ADDRESS).amounts
        return ", ".join(f"{amount} {amount.token.symbol}" for amount in amounts)

    def fees_and_simulation(self) -> str:
        try:
            self._chain.draft(TransferIntent(_ADDRESS, _ADDRESS, TokenAmount(1, SOL)))
        except Rejected as refusal:
            # Fees, rent and the simulation were read before it.
            if refusal.reason not in {"insufficient_funds", "leaves_dust"}:
                raise
        return "read, with a simulated transfer"

    def signature_statuses(self) -> str:
        query = TransactionQuery("probe", _ADDRESS, None, (str(Signature(bytes([1] * 64))),))
        if self._chain.outcomes([query])["probe"].status is not TransactionStatus.WAITING:
            raise UnexpectedAnswer("a transaction that was never signed has a status")
        return "a signature that was never used is unknown"

    def history_and_blocks(self) -> str:
        newest = account_history.page(self._chain.deployment.usdc_mint, limit=1)
        self._chain.rpc.run(newest)
        if not newest.result:
            return "USDC has no transactions yet"
        call = account_history.transaction(newest.result[0].signature, CommitmentLevel.Confirmed, LandedTransaction)
        self._chain.rpc.run(call)
        landed = call.result_or_none
        if landed is None:
            raise UnexpectedAnswer("the newest transaction of USDC cannot be read")
        orphaned, _ = self._chain.orphaned_blocks([BlockRef(landed.slot, newest.result[0].signature)])
        if orphaned:
            raise UnexpectedAnswer(f"the newest transaction of USDC is not in its slot {landed.slot}")
        return f"the newest transaction of USDC is in slot {landed.slot}"

    def deposit_scan(self) -> str:
        state = self._chain.scan_state(_ADDRESS)
        scan = self._chain.deposits([WatchedAddress(_ADDRESS, state)], cursor=None)
        return "nothing to scan yet" if scan.cursor is None else f"up to slot {scan.cursor.number}"
