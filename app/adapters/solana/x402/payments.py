"""x402's `exact` payments on Solana: a transaction signed by the payer, completed by us as fee payer.

No I/O. The fee payer signs everything in the transaction, so it is checked instruction by instruction (x402's
`specs/schemes/exact/scheme_exact_svm.md`, and stricter where that leaves a choice).
"""

import base64
import binascii
import hashlib
import secrets
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from solders.commitment_config import CommitmentLevel
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.errors import BincodeError
from solders.hash import Hash
from solders.instruction import CompiledInstruction, Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token import ID as TOKEN_PROGRAM
from solders.transaction import SanitizeError, VersionedTransaction

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.deployments import SolanaDeployment
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.track.authorizations import OpenTransfer
from app.core.chains import USDC
from app.ports.chain import Terms, payable_address
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment, ExpectedPayment, PaymentAsset, PaymentIntent
from app.ports.vault import Signer

MEMO_PROGRAM = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
MAX_MEMO_BYTES = 256
_LIGHTHOUSE = Pubkey.from_string("L2TExMFKdjpN9kozasaurPirfHy9P8sbXoAN1qA3S95")
# Compute limit, compute price and transfer; then up to three of Lighthouse or Memo, which wallets inject, and a Memo.
_INSTRUCTIONS = range(3, 8)
_TRANSFER_INDEX, _MEMO_INDEX = 2, 6
_SET_LIMIT, _SET_PRICE, _TRANSFER_CHECKED = 2, 3, 12
_MAX_MICRO_LAMPORTS_PER_UNIT = 5_000_000
# The payer chooses the priority fee, and we pay it: about a cent at most.
MAX_FEE_LAMPORTS = 60_000
USUAL_FEE_LAMPORTS = 20_000
"""Above it, what a payment costs that fails is the payer's choice."""
_SIGNATURES = 2
# Two signatures, and the priority fee that x402's own clients offer. No account is created, so there is no rent.
TYPICAL_FEE_LAMPORTS = _SIGNATURES * transactions.BASE_FEE_LAMPORTS + 1


def usdc_asset(deployment: SolanaDeployment) -> PaymentAsset:
    genesis = deployment.genesis_hash
    # CAIP-2 has room for 32 letters.
    return PaymentAsset(
        network=f"solana:{genesis[:32] if genesis else 'sandbox'}", legacy_network=None, address=deployment.usdc_mint
    )


def verify(
    payload: Mapping[str, Any], expected: ExpectedPayment, *, mint: Pubkey
) -> tuple[VersionedTransaction, str, int]:
    """Check every instruction of a client's payload; return it with its digest and fee. Raises: Rejected."""
    transaction = _transaction(payload.get("transaction"))
    message = _message(transaction)
    keys = message.account_keys
    if str(keys[0]) != expected.settler:
        raise Rejected("fee_payer_not_managed_by_facilitator")
    instructions = message.instructions
    if len(instructions) not in _INSTRUCTIONS:
        raise Rejected("invalid_exact_solana_payload_transaction_instructions_length")
    if any(0 in bytes(instruction.accounts) for instruction in instructions):
        raise Rejected("invalid_exact_solana_payload_transaction_fee_payer_included_in_instruction_accounts")
    fee_lamports = _fee(message)
    if _transferred_units(message, instructions[_TRANSFER_INDEX], expected, mint=mint) != expected.units:
        raise Rejected("invalid_exact_solana_payload_amount_mismatch")
    for place, instruction in enumerate(instructions[_TRANSFER_INDEX + 1 :], _TRANSFER_INDEX + 1):
        program = keys[instruction.program_id_index]
        if program != MEMO_PROGRAM and (program != _LIGHTHOUSE or place == _MEMO_INDEX):
            raise Rejected("invalid_exact_solana_payload_transaction_instructions")
    return transaction, _signed_digest(transaction, message), fee_lamports


def digest_of(payload: Mapping[str, Any]) -> str:
    """Return the hash of a message that its payer has signed, whatever it contains. Raises: Rejected."""
    transaction = _transaction(payload.get("transaction"))
    return _signed_digest(transaction, _message(transaction))


def payer_of(transaction: VersionedTransaction) -> str:
    return str(transaction.message.account_keys[1])


def source_of(transaction: VersionedTransaction) -> Pubkey:
    message = transaction.message
    return message.account_keys[message.instructions[_TRANSFER_INDEX].accounts[0]]


def _transaction(value: object) -> VersionedTransaction:
    if not isinstance(value, str) or len(value) > 2 * transactions.MAX_BYTES:
        raise Rejected("invalid_payload")
    try:
        raw = base64.b64decode(value, validate=True)
        if len(raw) > transactions.MAX_BYTES:
            raise Rejected("invalid_payload")
        transaction = VersionedTransaction.from_bytes(raw)
        # Parsing does not check whether the account indexes of instructions exist.
        transaction.sanitize()
    except (binascii.Error, BincodeError, SanitizeError, ValueError):
        raise Rejected("invalid_payload") from None
    if bytes(transaction) != raw:
        raise Rejected("invalid_payload")
    return transaction


def _message(transaction: VersionedTransaction) -> MessageV0:
    message = transaction.message
    if (
        not isinstance(message, MessageV0)
        or message.address_table_lookups
        # With a second index, an account could be taken for another one.
        or len(set(message.account_keys)) != len(message.account_keys)
        or len(transaction.signatures) != _SIGNATURES
        or message.header.num_required_signatures != _SIGNATURES
    ):
        raise Rejected("invalid_payload")
    return message


def _signed_digest(transaction: VersionedTransaction, message: MessageV0) -> str:
    signed = to_bytes_versioned(message)
    if not transaction.signatures[1].verify(message.account_keys[1], signed):
        raise Rejected("invalid_exact_solana_payload_signature")
    return hashlib.sha256(signed).hexdigest()


def _fee(message: MessageV0) -> int:
    limit = _budget(message, message.instructions[0], _SET_LIMIT, "<BI")
    price = _budget(message, message.instructions[1], _SET_PRICE, "<BQ")
    fee = transactions.fee_lamports(limit, price) + (_SIGNATURES - 1) * transactions.BASE_FEE_LAMPORTS
    if price > _MAX_MICRO_LAMPORTS_PER_UNIT or fee > MAX_FEE_LAMPORTS:
        raise Rejected("invalid_exact_solana_payload_transaction_instructions_compute_price_too_high")
    return fee


def _budget(message: MessageV0, instruction: CompiledInstruction, kind: int, layout: str) -> int:
    data = bytes(instruction.data)
    if (
        message.account_keys[instruction.program_id_index] != COMPUTE_BUDGET
        or len(data) != struct.calcsize(layout)
        or data[0] != kind
    ):
        raise Rejected("invalid_exact_solana_payload_transaction_instructions_compute")
    return int(struct.unpack(layout, data)[1])


def _transferred_units(
    message: MessageV0, instruction: CompiledInstruction, expected: ExpectedPayment, *, mint: Pubkey
) -> int:
    keys, data = message.account_keys, bytes(instruction.data)
    places = bytes(instruction.accounts)
    if (
        keys[instruction.program_id_index] != TOKEN_PROGRAM
        or len(data) != struct.calcsize("<BQB")
        or data[0] != _TRANSFER_CHECKED
        or len(places) != 4  # noqa: PLR2004 - source, mint, destination, authority
    ):
        raise Rejected("invalid_exact_solana_payload_no_transfer_instruction")
    _, units, decimals = struct.unpack("<BQB", data)
    source, instruction_mint, destination, authority = (keys[place] for place in places)
    if instruction_mint != mint or decimals != USDC.decimals:
        raise Rejected("invalid_exact_solana_payload_mint_mismatch")
    if destination != tokens.account_of(Pubkey.from_string(expected.recipient), mint):
        raise Rejected("invalid_exact_solana_payload_recipient_mismatch")
    # The second signer is the payer, and pays from its own account.
    if authority != keys[1] or source == destination:
        raise Rejected("invalid_exact_solana_payload_transfer_authority")
    return int(units)


# Like those of x402's own clients, so that every sponsor accepts them.
_COMPUTE_UNITS, _MICRO_LAMPORTS_PER_UNIT = 20_000, 1
# A memo of the seller may repeat: the limit makes two payments of one blockhash different.
_DIFFERENT_LIMITS = 20_000


class SolanaPaymentSigner:
    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self._rpc = chain.rpc
        self._mint = chain.mint
        self.asset = replace(usdc_asset(chain.deployment), legacy_network=chain.deployment.legacy_network)
        self.canonical_recipient = partial(payable_address, chain)

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        """Return whether a fee payer is named; another blockhash than ours is not used."""
        return (
            isinstance(extra.get("feePayer"), str)
            and self.canonical_recipient(extra["feePayer"]) is not None
            and extra.get("assetTransferMethod") in (None, "default")
            and _is_memo(extra.get("memo", ""))
        )

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read a blockhash, and simulate: a payment that fails would hold its amount until it has expired.

        The blockhash is finalized, as x402's own clients take it: nodes of the sponsor know it for certain.
        """
        message = self._message(intent, Hash.default(), memo=_memo(intent), compute_units=_COMPUTE_UNITS)
        latest = calls.blockhash(CommitmentLevel.Finalized)
        owner = Pubkey.from_string(intent.recipient)
        receiving = calls.accounts([tokens.account_of(owner, self._mint)], self._chain.level)
        simulated = calls.simulation(transactions.unsigned_transaction(message), self._chain.level)
        self._rpc.run(latest, receiving, simulated)
        if tokens.held_account(receiving.result.found[0], owner=owner, mint=self._mint) is None:
            raise Rejected("recipient_cannot_receive")
        if (error := simulated.result.error) is not None:
            raise Rejected("simulation_failed", details={"revert": refusals.simulation_error(error)})
        return transactions.blockhash_terms(latest.result)

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign the transfer, which expires with its blockhash, for the fee payer to complete. Raises: Rejected."""
        memo = _memo(intent)
        different = secrets.randbelow(_DIFFERENT_LIMITS) if intent.extra.get("memo") else 0
        blockhash = Hash.from_string(str(prepared["blockhash"]))
        message = self._message(intent, blockhash, memo=memo, compute_units=_COMPUTE_UNITS + different)
        signature = Signature.from_bytes(signer.sign_message(to_bytes_versioned(message)))
        partial = VersionedTransaction.populate(message, [Signature.default(), signature])
        payload = {"transaction": transactions.encode(partial)}
        expected = ExpectedPayment(intent.units, intent.recipient, _fee_payer(intent))
        verified, *_ = verify(payload, expected, mint=self._mint)
        if payer_of(verified) != intent.payer:
            raise ValueError("the payment is signed by another key than the payer's")
        opened = OpenTransfer(int(prepared["blockhash_slot"] or 0), int(prepared["last_valid_block_height"] or 0))
        return AuthorizedPayment(str(signature), payload, opened.as_terms())

    def _message(self, intent: PaymentIntent, blockhash: Hash, *, memo: bytes, compute_units: int) -> MessageV0:
        """Return the message to sign. Raises: Rejected("invalid_fee_payer") if that is a party of the payment."""
        payer, fee_payer = Pubkey.from_string(intent.payer), Pubkey.from_string(_fee_payer(intent))
        instructions = [
            set_compute_unit_limit(compute_units),
            set_compute_unit_price(_MICRO_LAMPORTS_PER_UNIT),
            tokens.transfer_checked(
                payer, Pubkey.from_string(intent.recipient), self._mint, units=intent.units, decimals=USDC.decimals
            ),
            Instruction(MEMO_PROGRAM, memo, []),
        ]
        named = {meta.pubkey for each in instructions for meta in each.accounts}
        # It signs the transaction: as the wallet it would pay the fee, as another account it could do more.
        if fee_payer in named | {each.program_id for each in instructions}:
            raise Rejected("invalid_fee_payer")
        return MessageV0.try_compile(fee_payer, instructions, [], blockhash)


def _fee_payer(intent: PaymentIntent) -> str:
    return str(intent.extra["feePayer"])


def _memo(intent: PaymentIntent) -> bytes:
    """Return the seller's memo, or else a random one, which makes the payment unique."""
    return str(intent.extra.get("memo") or secrets.token_hex(16)).encode()


def _is_memo(value: object) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= MAX_MEMO_BYTES
    except UnicodeEncodeError:
        return False
