"""Address lookup tables, read from the cluster itself: indexes must resolve to the accounts that were checked.

Entries are only ever appended. Layout: solana-sdk `address_lookup_table::state`, 56 bytes, then the addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from solders.address_lookup_table_account import ID as LOOKUP_TABLE_PROGRAM
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey

from app.adapters.solana.client import calls
from app.adapters.solana.client.rpc import SolanaRpc
from app.adapters.solana.client.wire import AccountState
from app.ports.errors import Rejected

_HEADER_BYTES = 56


def read_tables(rpc: SolanaRpc, tables: Sequence[Pubkey]) -> list[AddressLookupTableAccount]:
    """Read tables. Raises: Rejected("unsafe_instructions") for any other account, Unreachable."""
    if not tables:
        return []
    states = rpc.ask(calls.accounts(tables, CommitmentLevel.Confirmed)).found
    return [_table(key, state) for key, state in zip(tables, states, strict=True)]


def _table(key: Pubkey, state: AccountState | None) -> AddressLookupTableAccount:
    if state is None or state.owner != LOOKUP_TABLE_PROGRAM:
        raise Rejected("unsafe_instructions")
    body = state.data[_HEADER_BYTES:]
    if len(body) % Pubkey.LENGTH:
        raise Rejected("unsafe_instructions")
    found = [Pubkey.from_bytes(body[at : at + Pubkey.LENGTH]) for at in range(0, len(body), Pubkey.LENGTH)]
    return AddressLookupTableAccount(key, found)
