"""The simulation of a transaction, and all that a draft needs of the cluster, in one HTTP request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solders.commitment_config import CommitmentLevel
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.requests import GetRecentPrioritizationFees

from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import AccountState, Blockhash, Simulation, priority_estimate, priority_prices
from app.adapters.solana.send import refusals, tokens, transactions
from app.ports.chain import Terms, TransactionDraft, TransferIntent
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

    def missing_rent(self, account: AccountState | None, *, place: int, paid: int = 0) -> int:
        """Return the rent of a new token account at a place, less what was sent to its address in advance.

        `paid` are the lamports of a payment to it in wrapped SOL.
        """
        created = self.after[place] if self.after else None
        rent = self.token_rent if created is None else created.lamports - paid  # extensions make accounts larger
        return max(rent - (account.lamports if account else 0), 0)

    def draft(
        self,
        intent: TransferIntent,
        terms: Terms,
        fee_units: int,
        held: tuple[int, int],
        recipient_is: str | None = None,
    ) -> TransactionDraft:
        """Return the draft of a transaction; `held` are its payer's lamports and token units."""
        return TransactionDraft(
            intent, fee_units, *held, sequence=None, terms=terms, as_of=self.slot, recipient_is=recipient_is
        )


def simulate(
    rpc: SolanaRpc, level: CommitmentLevel, message: MessageV0, keys: Sequence[Pubkey], *, new_account_bytes: int = 0
) -> SimulatedTransaction:
    """Simulate a message, and read accounts before and after, all at one level. Raises: Unreachable."""
    rents = {size: calls.rent(size) for size in (0, tokens.TOKEN_ACCOUNT_BYTES, new_account_bytes)}

    def run(endpoint: RpcEndpoint) -> SimulatedTransaction:
        writable = [key for place, key in enumerate(message.account_keys) if message.is_maybe_writable(place)]
        latest, found = calls.blockhash(level), calls.accounts(keys, level)
        # Our own accounts are idle: the fees of busy ones show what landing costs now. A node returns the highest of
        # all.
        priced = [*writable, *rpc.busy_accounts]
        rated = {"accountKeys": [str(key) for key in priced], "options": {"recommended": True}}
        prices = SolanaRpcCall(GetRecentPrioritizationFees(priced), priority_prices)
        # Without a usable response, recent prices decide.
        estimate = RpcCall(
            "getPriorityFeeEstimate", (rated,), read=priority_estimate, tolerates=accept_any_error,
            tolerates_malformed=True,
        )  # fmt: skip
        trial = calls.simulation(transactions.unsigned_transaction(message), level, keys)
        estimates = [estimate] if rpc.estimates_fees else []
        endpoint.run([latest, found, *rents.values(), prices, *estimates, trial])
        tried = trial.result
        # A pool may send each call to another node.
        slots = (latest.result.slot, found.result.slot, tried.slot)
        if max(slots) - min(slots) > _MAX_SLOT_SPREAD:
            raise EndpointError("lagging", perhaps_executed=False)
        return SimulatedTransaction(
            latest=latest.result, slot=found.result.slot, before=found.result.found,
            after=tried.accounts if tried.error is None else (), simulation=tried,
            price=transactions.priority_price(prices.result, estimate.result_or_none),
            rents={size: call.result for size, call in rents.items()},
        )  # fmt: skip

    return rpc.run_on_first(run)
