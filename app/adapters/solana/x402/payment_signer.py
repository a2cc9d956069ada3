"""The `PaymentSigner` port for Solana: a transfer that the seller's fee payer completes and submits.

Every instruction is ours: what a seller states chooses the fee payer and the text of the memo, nothing else.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.track.authorizations import OpenTransfer
from app.adapters.solana.x402 import payments
from app.core import addresses
from app.core.addresses import AddressError
from app.core.chains import USDC, Family
from app.ports.chain import Terms
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment, ExpectedPayment, PaymentIntent
from app.ports.vault import Signer

_MEMO_BYTES = 16
# Like those of x402's own clients, so that every sponsor accepts them.
_COMPUTE_UNITS, _MICRO_LAMPORTS_PER_UNIT = 20_000, 1
# A memo of the seller may repeat: the limit makes two payments of one blockhash different.
_DIFFERENT_LIMITS = 20_000
_TRANSFER_METHODS = (None, "default")


class SolanaPaymentSigner:
    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self._rpc = chain.rpc
        self._mint = Pubkey.from_string(chain.deployment.usdc_mint)
        self.asset = replace(payments.usdc_asset(chain.deployment), legacy_network=chain.deployment.legacy_network)

    def canonical_recipient(self, text: str) -> str | None:
        try:
            recipient = addresses.parse(text, Family.SOLANA)
        except AddressError:
            return None
        return None if self._chain.recipient_rejection(recipient, USDC) else recipient

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        """Return whether a fee payer is named; another blockhash than ours is not used."""
        return (
            isinstance(extra.get("feePayer"), str)
            and self.canonical_recipient(extra["feePayer"]) is not None
            and extra.get("assetTransferMethod") in _TRANSFER_METHODS
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
        return {
            "blockhash": latest.result.blockhash,
            "blockhash_slot": latest.result.slot,
            "last_valid_block_height": latest.result.last_valid_block_height,
        }

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
        if payments.verify(payload, expected, mint=self._mint).payer != intent.payer:
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
            Instruction(payments.MEMO_PROGRAM, memo, []),
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
    return str(intent.extra.get("memo") or secrets.token_hex(_MEMO_BYTES)).encode()


def _is_memo(value: object) -> bool:
    try:
        return isinstance(value, str) and len(value.encode()) <= payments.MAX_MEMO_BYTES
    except UnicodeEncodeError:
        return False
