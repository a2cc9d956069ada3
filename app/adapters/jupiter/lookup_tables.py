"""Address lookup tables, read from the cluster itself: what a transaction names by a number must be what was checked.

Entries are only ever added. Layout: solana-sdk `address_lookup_table::state`, 56 bytes, then the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from solders.account_decoder import UiAccountEncoding
from solders.address_lookup_table_account import ID as LOOKUP_TABLE_PROGRAM
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig
from solders.rpc.requests import GetMultipleAccounts

from app.adapters.solana.endpoint import Call
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.wire import AccountState, accounts
from app.ports.errors import Rejected

_HEADER_BYTES = 56
_CONFIG = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=CommitmentLevel.Confirmed)


def read(rpc: SolanaRpc, tables: Sequence[Pubkey]) -> list[AddressLookupTableAccount]:
    """Read tables. Raises: Rejected("unsafe_instructions") for what is none, Unreachable."""
    if not tables:
        return []
    call = Call(GetMultipleAccounts(list(tables), _CONFIG), accounts(len(tables)))
    rpc.run(call)
    return [_table(key, state) for key, state in zip(tables, call.answer.states, strict=True)]


def _table(key: Pubkey, state: AccountState | None) -> AddressLookupTableAccount:
    if state is None or state.owner != LOOKUP_TABLE_PROGRAM:
        raise Rejected("unsafe_instructions")
    body = state.data[_HEADER_BYTES:]
    if len(body) % Pubkey.LENGTH:
        raise Rejected("unsafe_instructions")
    found = [Pubkey.from_bytes(body[at : at + Pubkey.LENGTH]) for at in range(0, len(body), Pubkey.LENGTH)]
    return AddressLookupTableAccount(key, found)
