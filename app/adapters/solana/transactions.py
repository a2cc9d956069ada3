"""Solana transactions: their bytes, their signature, and the proof that they say what was meant.

Pure: no network, no clock; the only randomness is the reference that a draft draws.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.errors import BincodeError
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from app.adapters.solana import tokens
from app.core.chains import USDC
from app.ports.chain import Intent, Terms
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a draft fixes; stored as JSON among an attempt's terms.

    `blockhash_slot` is the slot at which the blockhash was read: the transaction cannot land before it.
    `reference` is a fresh public key that the payment names without any use of it, as Solana Pay does. It makes
    every transaction another one: two equal payments with the same blockhash would have one signature, and the
    chain would carry out one of them.
    """

    blockhash: str
    blockhash_slot: int
    last_valid_block_height: int
    compute_units: int
    micro_lamports_per_unit: int
    reference: str
    creates_account: bool

    def as_terms(self) -> Terms:
        """Write them as JSON values."""
        return {
            "blockhash": self.blockhash,
            "blockhash_slot": self.blockhash_slot,
            "last_valid_block_height": self.last_valid_block_height,
            "compute_units": self.compute_units,
            "micro_lamports_per_unit": self.micro_lamports_per_unit,
            "reference": self.reference,
            "creates_account": int(self.creates_account),
        }

    @classmethod
    def from_terms(cls, terms: Terms) -> Plan:
        """Read what `as_terms` wrote. Raises: ValueError."""
        try:
            return cls(
                blockhash=str(terms["blockhash"]),
                blockhash_slot=int(terms["blockhash_slot"] or 0),
                last_valid_block_height=int(terms["last_valid_block_height"] or 0),
                compute_units=int(terms["compute_units"] or 0),
                micro_lamports_per_unit=int(terms["micro_lamports_per_unit"] or 0),
                reference=str(terms["reference"]),
                creates_account=bool(terms["creates_account"]),
            )
        except KeyError:
            raise ValueError("these are not the terms of a Solana transaction") from None


def new_reference() -> str:
    """Draw a public key that nobody has; 256 random bits are never drawn twice."""
    return str(Pubkey.from_bytes(secrets.token_bytes(Pubkey.LENGTH)))


def instructions_of(intent: Intent, plan: Plan, *, mint: Pubkey) -> Sequence[Instruction]:
    """Return what carries an intent out, the budget for it first."""
    sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
    budget = [
        set_compute_unit_limit(plan.compute_units),
        set_compute_unit_price(plan.micro_lamports_per_unit),
    ]
    if intent.amount.token != USDC:
        paying = transfer(
            TransferParams(from_pubkey=sender, to_pubkey=recipient, lamports=intent.amount.units)
        )
        return [*budget, _with_reference(paying, plan.reference)]
    creating = [tokens.create_account(sender, recipient, mint)] if plan.creates_account else []
    paying = tokens.transfer_checked(
        sender, recipient, mint, units=intent.amount.units, decimals=USDC.decimals
    )
    return [*budget, *creating, _with_reference(paying, plan.reference)]


def message_of(intent: Intent, plan: Plan, *, mint: Pubkey) -> MessageV0:
    """Return what is signed; the sender pays the fee."""
    return MessageV0.try_compile(
        Pubkey.from_string(intent.sender),
        instructions_of(intent, plan, mint=mint),
        [],
        Hash.from_string(plan.blockhash),
    )


def unsigned(message: MessageV0) -> VersionedTransaction:
    """Return a transaction fit to be simulated."""
    return VersionedTransaction.populate(message, [Signature.default()])


def sign(message: MessageV0, signer: Signer, *, sender: str) -> tuple[bytes, str]:
    """Return the signed bytes and their signature, by which the chain knows them.

    Raises: ValueError when what was signed is not what was meant, by whatever fault.
    """
    signature = Signature.from_bytes(signer.sign_message(to_bytes_versioned(message)))
    raw = bytes(VersionedTransaction.populate(message, [signature]))
    _assert_says(raw, message, sender=sender)
    return raw, str(signature)


def signature_of(raw: bytes) -> str:
    """Return the signature by which the chain knows signed bytes. Raises: ValueError."""
    try:
        return str(VersionedTransaction.from_bytes(raw).signatures[0])
    except (BincodeError, ValueError, IndexError):
        raise ValueError("not a signed Solana transaction") from None


def _assert_says(raw: bytes, message: MessageV0, *, sender: str) -> None:
    decoded = VersionedTransaction.from_bytes(raw)
    if decoded.message != message or len(decoded.signatures) != 1:
        raise ValueError("the signed transaction does not say what was meant")
    if str(decoded.message.account_keys[0]) != sender or not all(decoded.verify_with_results()):
        raise ValueError("the transaction is signed by another key than the sender's")


def _with_reference(paying: Instruction, reference: str) -> Instruction:
    named = AccountMeta(Pubkey.from_string(reference), is_signer=False, is_writable=False)
    return Instruction(paying.program_id, paying.data, [*paying.accounts, named])
