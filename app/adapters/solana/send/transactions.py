"""Solana transactions: bytes, signature, fees, lookup tables, and the check that they match the intent.

No I/O but the reading of lookup tables, from the cluster itself: their indexes must resolve to the accounts that were
checked. Layout of a table: solana-sdk `address_lookup_table::state`, 56 bytes, then addresses, which are only appended.
"""

import base64
import hashlib
import secrets
from collections.abc import Sequence

from solders.address_lookup_table_account import ID as LOOKUP_TABLE_PROGRAM
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.errors import BincodeError
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaRpc
from app.adapters.solana.client.wire import AccountState, Blockhash
from app.ports.chain import Terms
from app.ports.errors import Rejected
from app.ports.vault import Signer

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


NO_BLOCKHASH = str(Hash.default())
MAX_BYTES = 1232
"""The size of a transaction that fits one packet."""


def new_reference() -> str:
    """Generate a public key without a private one; 256 random bits never repeat.

    A payment lists it without using it, as in Solana Pay: two equal payments with the same blockhash would have one
    signature, and the chain would execute only one of them.
    """
    return str(Pubkey.from_bytes(secrets.token_bytes(Pubkey.LENGTH)))


def compiled(
    payer: Pubkey,
    instructions: Sequence[Instruction],
    blockhash: str = NO_BLOCKHASH,
    *,
    budget: tuple[int, int] | None = None,
    tables: Sequence[AddressLookupTableAccount] = (),
) -> MessageV0:
    """Return a message, with a compute budget if it is given: units, and micro-lamports for each."""
    prefix = [] if budget is None else [set_compute_unit_limit(budget[0]), set_compute_unit_price(budget[1])]
    return MessageV0.try_compile(payer, [*prefix, *instructions], list(tables), Hash.from_string(blockhash))


def unsigned_transaction(message: MessageV0) -> VersionedTransaction:
    return VersionedTransaction.populate(message, [Signature.default()] * message.header.num_required_signatures)


def sign(partial: VersionedTransaction, signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Add the fee payer's signature; return the transaction's bytes and that signature, which is its hash.

    Raises: ValueError when a signature is missing or invalid afterwards.
    """
    message = partial.message
    signature = Signature.from_bytes(signer.sign_message(to_bytes_versioned(message)))
    raw = bytes(VersionedTransaction.populate(message, [signature, *partial.signatures[1:]]))
    decoded = VersionedTransaction.from_bytes(raw)
    if decoded.message != message:
        raise ValueError("the signed transaction does not match the intent")
    if str(decoded.message.account_keys[0]) != sender or not all(decoded.verify_with_results()):
        raise ValueError("the transaction is signed by another key than the sender's")
    return raw, str(signature)


def signature_of(raw: bytes) -> str:
    """Return the signature that identifies signed bytes on the chain. Raises: ValueError."""
    try:
        return str(VersionedTransaction.from_bytes(raw).signatures[0])
    except (BincodeError, ValueError, IndexError):
        raise ValueError("not a signed Solana transaction") from None


def with_reference(paying: Instruction, reference: str) -> Instruction:
    """Return an instruction that lists a key without using it (see `new_reference`)."""
    named = AccountMeta(Pubkey.from_string(reference), is_signer=False, is_writable=False)
    return Instruction(paying.program_id, paying.data, [*paying.accounts, named])


def encode(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


def decode(text: str) -> VersionedTransaction:
    return VersionedTransaction.from_bytes(base64.b64decode(text))


def transaction_terms(transaction: VersionedTransaction, latest: Blockhash) -> Terms:
    """Return the terms of a transaction that lacks only the signature of its fee payer."""
    return {"transaction": encode(transaction), **blockhash_terms(latest)}


def blockhash_terms(latest: Blockhash) -> Terms:
    """Return a blockhash with the slot before which no transaction with it can land, and the last height that can."""
    height = latest.last_valid_block_height
    return {"blockhash": latest.blockhash, "blockhash_slot": latest.slot, "last_valid_block_height": height}


def discriminator(name: str) -> bytes:
    """Return the first bytes of an Anchor program's instruction ("global:<name>") or account ("account:<Name>")."""
    return hashlib.sha256(name.encode()).digest()[:8]


BASE_FEE_LAMPORTS = 5_000
"""Per signature; fixed by the protocol (solana.com/docs/core/fees), and our transactions have one."""
MAX_COMPUTE_UNITS = 1_400_000
_MAX_MICRO_LAMPORTS_PER_UNIT = 5_000_000
"""A ceiling for the market's price: 0.00015 SOL for our most expensive transfer."""
_MAX_ESTIMATE_FACTOR, _MAX_QUIET_ESTIMATE = 10, 200_000
_RETRY_FACTOR, _MIN_RETRY_PRICE = 4, 50_000
_MICRO = 1_000_000


def compute_unit_limit(simulated: int) -> int:
    return min(-(-simulated * 6 // 5) + 300, MAX_COMPUTE_UNITS)


def priority_price(recent: Sequence[int], estimate: int | None = None) -> int:
    """Return the price, in micro-lamports per unit, that half of the recent slots would have accepted.

    Anybody can raise the price of a slot with one transaction, and of a minority of them without any effect. An
    endpoint's own estimate counts up to a multiple of that median.
    """
    ordered = sorted(recent)
    market = ordered[(len(ordered) - 1) // 2] if ordered else 0
    if estimate is not None:
        market = min(estimate, max(_MAX_ESTIMATE_FACTOR * market, _MAX_QUIET_ESTIMATE))
    return min(max(market, 1), _MAX_MICRO_LAMPORTS_PER_UNIT)


def retry_price(previous: int) -> int:
    """Return the least price of a second transaction after one that did not land at this price."""
    return min(max(previous * _RETRY_FACTOR, _MIN_RETRY_PRICE), _MAX_MICRO_LAMPORTS_PER_UNIT)


def fee_lamports(units: int, micro_lamports_per_unit: int) -> int:
    """Return the network's charge for a transaction with one signature, landed or failed."""
    return BASE_FEE_LAMPORTS + -(-units * micro_lamports_per_unit // _MICRO)
