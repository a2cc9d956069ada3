"""The `Facilitator` port for Solana: reads payments from one token account's balances, and co-signs as fee payer."""

import hashlib
from collections.abc import Mapping
from typing import Any

from solders.commitment_config import CommitmentLevel
from solders.message import to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client import calls
from app.adapters.solana.client.wire import LandedTransaction
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.track import account_history, balance_changes
from app.adapters.solana.track.balance_changes import TokenHolder
from app.adapters.solana.x402 import payments
from app.core.chains import SOL, ChainName
from app.core.foreign import U64
from app.core.money import TokenAmount
from app.ports.chain import Terms, TransactionDraft, TransferIntent
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment, IncomingPayment, PaymentAuthorization, SettlementCapacity

_CONFIRMED = CommitmentLevel.Confirmed
_ACCOUNT_CREATION_UNITS = 40_000


class _DatedTransaction(LandedTransaction):
    block_time: U64


class SolanaFacilitator:
    name = ChainName.SOLANA
    metered = None

    def __init__(self, chain: SolanaChain) -> None:
        self._rpc = chain.rpc
        self._mint = chain.mint
        self.asset = payments.usdc_asset(chain.deployment)

    def canonical_hash(self, text: str) -> str | None:
        try:
            canonical = str(Signature.from_string(text))
        except ValueError:
            return None
        return canonical if canonical == text else None

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        """Read what a finalized transaction paid to the recipient's own token account. Raises: Unreachable."""
        final = CommitmentLevel.Finalized
        landed = self._rpc.ask(account_history.transaction(tx_hash, final, _DatedTransaction, tolerates=None))
        if landed is None:
            return None
        account = str(tokens.account_of(Pubkey.from_string(recipient), self._mint))
        paid = balance_changes.token_payments(landed, str(self._mint))
        change = balance_changes.balance_change(TokenHolder(recipient, account, str(self._mint)), landed)
        return IncomingPayment(
            tx_hash=tx_hash, succeeded=not landed.failed, units=max(change.usdc_units, 0),
            payers=frozenset(owner for owner, units in paid.items() if units > 0),
            claims=(self._claim(hashlib.sha256(to_bytes_versioned(landed.transaction.message)).hexdigest()),),
            block_time=landed.block_time, is_final=True,
        )  # fmt: skip

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        return self._claim(payments.digest_of(payload))

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        partial, digest, fee_lamports = payments.verify(payload, expected, mint=self._mint)
        terms: Terms = {"transaction": transactions.encode(partial), "fee_lamports": fee_lamports}
        parties = payments.payer_of(partial), expected.recipient
        return PaymentAuthorization(self._claim(digest), *parties, expected.units, terms)

    def assert_signed(self, authorization: PaymentAuthorization) -> None:
        """Do nothing: `verify` has checked the key's signature."""

    def draft_settlement(self, authorization: PaymentAuthorization, *, settler: str) -> TransactionDraft:
        payment = transactions.decode(str(authorization.terms["transaction"]))
        fee_lamports = int(authorization.terms["fee_lamports"] or 0)
        return self._draft(settler, payment, fee_lamports, source=payments.source_of(payment))

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        """Return None: only this service can complete a transaction whose fee it pays."""
        return None

    def settlement_capacity(self, settler: str, recipient: str) -> SettlementCapacity:
        owner, rent = Pubkey.from_string(recipient), calls.rent(0)
        found = calls.accounts([Pubkey.from_string(settler), tokens.account_of(owner, self._mint)], _CONFIRMED)
        self._rpc.run(rent, found)
        settler_state, receiving = found.result.found
        spendable = max((settler_state.lamports if settler_state else 0) - rent.result, 0)
        return SettlementCapacity(
            spendable,
            payments.MAX_FEE_LAMPORTS,
            max_fee_units=payments.TYPICAL_FEE_LAMPORTS,
            recipient_can_receive=tokens.held_account(receiving, owner=owner, mint=self._mint) is not None,
        )

    def draft_recipient_account(self, settler: str, recipient: str) -> TransactionDraft | None:
        if self.settlement_capacity(settler, recipient).recipient_can_receive:
            return None
        latest, rent = calls.blockhash(_CONFIRMED), calls.rent(tokens.TOKEN_ACCOUNT_BYTES)
        self._rpc.run(latest, rent)
        payer = Pubkey.from_string(settler)
        creating = tokens.create_account(payer, Pubkey.from_string(recipient), self._mint)
        budget = _ACCOUNT_CREATION_UNITS, 1
        message = transactions.compiled(payer, [creating], latest.result.blockhash, budget=budget)
        creation = transactions.unsigned_transaction(message)
        return self._draft(settler, creation, rent.result + payments.MAX_FEE_LAMPORTS)

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        try:
            return Signature.from_string(signature).verify(Pubkey.from_string(payer), text.encode())
        except ValueError:
            return False

    def _claim(self, digest: str) -> str:
        return f"auth:{self.name.value}:{digest}"

    def _draft(
        self, settler: str, partial: VersionedTransaction, fee_units: int, *, source: Pubkey | None = None
    ) -> TransactionDraft:
        latest = calls.blockhash(_CONFIRMED)
        found = calls.accounts([Pubkey.from_string(settler), *([source] if source else [])], _CONFIRMED)
        # The payer's signature is checked before; ours is still missing.
        simulated = calls.simulation(partial, _CONFIRMED, is_new=False)
        self._rpc.run(latest, found, simulated)
        if simulated.result.error is not None:
            raise Rejected("simulation_failed", details={"revert": refusals.simulation_error(simulated.result.error)})
        state, *paying = found.result.found
        held = tokens.read_account(paying[0]) if paying else None
        lamports = state.lamports if state else 0
        if lamports < fee_units:
            raise Rejected("insufficient_gas")
        # The blockhash is the payer's, and no newer than the newest: it expires no later. It cannot have landed
        # before this slot, because our signature was missing.
        return TransactionDraft(
            intent=TransferIntent(settler, self.asset.address, TokenAmount(0, SOL)), fee_units=fee_units,
            native_units=lamports, token_units=lamports, sequence=None,
            terms=transactions.transaction_terms(partial, latest.result), as_of=found.result.slot,
            payer_units=held.amount if held else None,
            is_risky=source is not None and fee_units > payments.USUAL_FEE_LAMPORTS,
        )  # fmt: skip
