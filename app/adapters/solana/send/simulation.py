"""The simulation of a transaction, and all that a draft needs of the cluster, in one HTTP request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import RpcSimulateTransactionAccountsConfig, RpcSimulateTransactionConfig
from solders.rpc.requests import GetRecentPrioritizationFees, SimulateVersionedTransaction
from solders.transaction import VersionedTransaction

from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import (
    AccountState,
    Blockhash,
    Simulation,
    priority_estimate,
    priority_prices,
    simulation,
)
from app.adapters.solana.send import refusals, tokens, transactions
from app.ports.chain import TransactionDraft, TransferIntent
from app.ports.errors import Rejected

_MAX_SLOT_SPREAD = 32


@dataclass(frozen=True, slots=True)
class SimulatedTransaction:
    """The cluster before and after a simulated transaction; `after` is empty if it failed."""

    latest: Blockhash
    slot: int
    before: Sequence[AccountState | None]
    after: Sequence[AccountState | None]
    simulation: Simulation
    price: int
    rents: Mapping[int, int]
    """The rent-exempt minimums of accounts by their bytes."""

    @property
    def empty_rent(self) -> int:
        return self.rents[0]

    @property
    def token_rent(self) -> int:
        return self.rents[tokens.TOKEN_ACCOUNT_BYTES]

    def assert_succeeded(self) -> None:
        """Refuse a transaction that fails. Raises: Rejected("simulation_failed")."""
        if self.simulation.error is not None:
            revert = refusals.simulation_error(self.simulation.error)
            raise Rejected("simulation_failed", details={"revert": revert})

    def draft(
        self, intent: TransferIntent, transaction: VersionedTransaction, fee_units: int, held: tuple[int, int]
    ) -> TransactionDraft:
        """Return the draft of a transaction; `held` are the sender's lamports and token units."""
        return TransactionDraft(
            intent=intent,
            fee_units=fee_units,
            native_units=held[0],
            token_units=held[1],
            sequence=None,
            terms=transactions.transaction_terms(transaction, self.latest),
            as_of=self.slot,
        )


def simulate(
    rpc: SolanaRpc, level: CommitmentLevel, message: MessageV0, keys: Sequence[Pubkey], *, new_account_bytes: int = 0
) -> SimulatedTransaction:
    """Simulate a message, and read these accounts before and after it. Raises: Unreachable.

    Everything is read at one level: which movements the balances of another level include is unknown.
    """
    return rpc.run_on_first(
        lambda endpoint: _simulate(
            rpc, endpoint, level, message, keys=keys, rent_bytes={0, tokens.TOKEN_ACCOUNT_BYTES, new_account_bytes}
        )
    )


def _simulate(
    rpc: SolanaRpc,
    endpoint: RpcEndpoint,
    level: CommitmentLevel,
    message: MessageV0,
    *,
    keys: Sequence[Pubkey],
    rent_bytes: set[int],
) -> SimulatedTransaction:
    config = RpcSimulateTransactionConfig(
        sig_verify=False,
        replace_recent_blockhash=True,
        commitment=level,
        accounts=RpcSimulateTransactionAccountsConfig(list(keys), UiAccountEncoding.Base64),
    )
    writable = [key for place, key in enumerate(message.account_keys) if message.is_maybe_writable(place)]
    latest, found = calls.blockhash(level), calls.accounts(keys, level)
    rents = {size: calls.rent(size) for size in rent_bytes}
    # Our own accounts are idle: the fees of busy ones show what landing costs now. A node returns the highest of all.
    priced = [*writable, *rpc.busy_accounts]
    prices = SolanaRpcCall(GetRecentPrioritizationFees(priced), priority_prices)
    # Without a usable response, recent prices decide.
    estimate = RpcCall(
        "getPriorityFeeEstimate",
        ({"accountKeys": [str(key) for key in priced], "options": {"recommended": True}},),
        read=priority_estimate,
        tolerates=accept_any_error,
        tolerates_malformed=True,
    )
    trial = SolanaRpcCall(
        SimulateVersionedTransaction(transactions.unsigned_transaction(message), config), simulation(len(keys))
    )
    estimates = [estimate] if rpc.estimates_fees else []
    endpoint.run([latest, found, *rents.values(), prices, *estimates, trial])
    tried = trial.result
    # A pool may send each call to another node.
    slots = (latest.result.slot, found.result.slot, tried.slot)
    if max(slots) - min(slots) > _MAX_SLOT_SPREAD:
        raise EndpointError("lagging", perhaps_executed=False)
    return SimulatedTransaction(
        latest=latest.result,
        slot=found.result.slot,
        before=found.result.found,
        after=tried.accounts if tried.error is None else (),
        simulation=tried,
        price=transactions.priority_price(
            prices.result, estimate.result if estimates and estimate.error is None else None
        ),
        rents={size: call.result for size, call in rents.items()},
    )
