"""The calls that several features make."""

from __future__ import annotations

from collections.abc import Sequence

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig
from solders.rpc.requests import (
    GetEpochInfo,
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetSlot,
)

from app.adapters.solana.client import wire
from app.adapters.solana.client.rpc import SolanaRpcCall


def accounts(
    keys: Sequence[Pubkey], level: CommitmentLevel, *, at_least: int | None = None
) -> SolanaRpcCall[wire.Accounts]:
    """Return a call for accounts; `at_least` is the slot that the node must have reached."""
    config = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=level, min_context_slot=at_least)
    return SolanaRpcCall(GetMultipleAccounts(list(keys), config), wire.accounts(len(keys)))


def blockhash(level: CommitmentLevel) -> SolanaRpcCall[wire.Blockhash]:
    return SolanaRpcCall(GetLatestBlockhash(RpcContextConfig(commitment=level)), wire.Blockhash.read)


def epoch_info(level: CommitmentLevel) -> SolanaRpcCall[wire.EpochInfo]:
    """Return a call for slot and block height."""
    return SolanaRpcCall(GetEpochInfo(RpcContextConfig(commitment=level)), wire.EpochInfo.read)


def slot(level: CommitmentLevel) -> SolanaRpcCall[int]:
    return SolanaRpcCall(GetSlot(RpcContextConfig(commitment=level)), wire.number)


def rent(account_bytes: int) -> SolanaRpcCall[int]:
    """Return a call for the rent-exempt minimum of an account of this size."""
    return SolanaRpcCall(GetMinimumBalanceForRentExemption(account_bytes), wire.number)
