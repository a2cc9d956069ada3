"""The JSON-RPC endpoints of a Solana cluster, and calls from the typed requests of solders.

The calls that several features make.
"""

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcAccountInfoConfig,
    RpcContextConfig,
    RpcSimulateTransactionAccountsConfig,
    RpcSimulateTransactionConfig,
    RpcTokenAccountsFilterProgramId,
)
from solders.rpc.requests import (
    Body,
    GetEpochInfo,
    GetGenesisHash,
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetSlot,
    GetTokenAccountsByOwner,
    SimulateVersionedTransaction,
)
from solders.transaction import VersionedTransaction

from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcError
from app.adapters.jsonrpc.rpc import JsonRpc
from app.adapters.solana.client import wire
from app.adapters.solana.client.wire import text
from app.core.chains import ChainName

T = TypeVar("T")

MAX_BATCH = 50
MAX_LARGE_BATCH = 8
"""Calls in one HTTP request where others decide on the size of the responses: a transaction may be a megabyte."""


class SolanaRpcCall(RpcCall[T]):
    """A call with a typed request. Anyone can place a transaction that is unreadable in an address's history."""

    __slots__ = ()

    def __init__(
        self, request: Body, read: Callable[[object], T], *, tolerates: Callable[[RpcError], bool] | None = None
    ) -> None:
        typed = json.loads(request.to_json())
        super().__init__(
            typed["method"], typed.get("params", ()), read=read, tolerates=tolerates, tolerates_malformed=True
        )


class SolanaRpc(JsonRpc):
    def __init__(
        self,
        urls: Sequence[str],
        *,
        accepts: Callable[[str], bool],
        total_seconds: float = 5.0,
        busy_accounts: Sequence[str] = (),
        estimates_fees: bool = False,
    ) -> None:
        """Store the endpoints in the order of preference, and whose fees priority fees follow. Raises: ValueError."""
        self.busy_accounts = tuple(Pubkey.from_string(account) for account in busy_accounts)
        self.estimates_fees = estimates_fees

        def check(result: object) -> None:
            if not accepts(text(result)):
                raise EndpointError("wrong_chain", perhaps_executed=False)

        http = HttpClient(connect_seconds=min(2.0, total_seconds), total_seconds=total_seconds, max_bytes=8 * 2**20)
        super().__init__(
            ChainName.SOLANA, urls, lambda: SolanaRpcCall(GetGenesisHash(), check), http=http, max_batch=MAX_BATCH
        )


class SolanaConnection:
    """The endpoints of a cluster and its USDC, as the parts of `SolanaChain` use them."""

    def __init__(self, rpc: SolanaRpc, mint: Pubkey, level: CommitmentLevel) -> None:
        """Use a commitment level for balances, and to decide that a movement has landed."""
        self.rpc = rpc
        self.mint = mint
        self.level = level


def accounts(
    keys: Sequence[Pubkey], level: CommitmentLevel, *, at_least: int | None = None
) -> SolanaRpcCall[wire.Accounts]:
    """Return a call for accounts; `at_least` is the slot that the node must have reached."""
    config = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=level, min_context_slot=at_least)
    return SolanaRpcCall(GetMultipleAccounts(list(keys), config), wire.accounts(len(keys)))


def token_accounts(owner: Pubkey, program: Pubkey, level: CommitmentLevel) -> SolanaRpcCall[wire.OwnedTokens]:
    config = RpcAccountInfoConfig(encoding=UiAccountEncoding.JsonParsed, commitment=level)
    of_program = RpcTokenAccountsFilterProgramId(program)
    return SolanaRpcCall(GetTokenAccountsByOwner(owner, of_program, config), wire.OwnedTokens.read)


def blockhash(level: CommitmentLevel) -> SolanaRpcCall[wire.Blockhash]:
    return SolanaRpcCall(GetLatestBlockhash(RpcContextConfig(commitment=level)), wire.Blockhash.read)


def epoch_info(level: CommitmentLevel) -> SolanaRpcCall[wire.EpochInfo]:
    return SolanaRpcCall(GetEpochInfo(RpcContextConfig(commitment=level)), wire.EpochInfo.read)


def slot(level: CommitmentLevel) -> SolanaRpcCall[int]:
    return SolanaRpcCall(GetSlot(RpcContextConfig(commitment=level)), wire.number)


def simulation(
    transaction: VersionedTransaction, level: CommitmentLevel, keys: Sequence[Pubkey] = (), *, is_new: bool = True
) -> SolanaRpcCall[wire.Simulation]:
    """Return a call that tries an unsigned transaction, by default with a new blockhash, and reads accounts after."""
    after = RpcSimulateTransactionAccountsConfig(list(keys), UiAccountEncoding.Base64) if keys else None
    config = RpcSimulateTransactionConfig(
        sig_verify=False, replace_recent_blockhash=is_new, commitment=level, accounts=after
    )
    return SolanaRpcCall(SimulateVersionedTransaction(transaction, config), wire.simulation(len(keys)))


def rent(account_bytes: int) -> SolanaRpcCall[int]:
    return SolanaRpcCall(GetMinimumBalanceForRentExemption(account_bytes), wire.number)
