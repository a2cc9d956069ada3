"""The `TransferSponsor` port for Solana: one transaction has a transfer and its fee; the sponsor pays the network.

The wallet signs it first; only the sponsor can complete it.
"""

from dataclasses import replace

from solders.instruction import Instruction
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client.wire import Blockhash
from app.adapters.solana.send import drafts, tokens, transactions
from app.adapters.solana.send.simulation import simulate
from app.adapters.solana.send.transactions import TransactionPlan
from app.adapters.solana.track.authorizations import FEE_SUFFIX, OpenTransfer
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import AvailableFunds, Shortage, TransferIntent
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedTransfer, SignedPart, SponsoredDraft, SponsoredTransfer
from app.ports.vault import Signer

# The simulated fee: its size does not matter.
_SAMPLE_FEE = 1


class SolanaTransferSponsor:
    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self._mint = chain.mint

    def draft(self, transfer: SponsoredTransfer) -> SponsoredDraft:
        trial = transactions.trial_plan()
        owners = [Pubkey.from_string(each) for each in (transfer.sender, transfer.recipient)]
        submitter = Pubkey.from_string(transfer.sponsor.submitter)
        keys = [*owners, *(tokens.account_of(owner, self._mint) for owner in owners), submitter]
        message = self._message(transfer, trial, _SAMPLE_FEE)
        readings = simulate(self._chain.rpc, self._chain.level, message, keys)
        _sender, recipient, sender_tokens, recipient_tokens, payer = readings.before
        intent = TransferIntent(transfer.sender, transfer.recipient, TokenAmount(transfer.units, USDC))
        drafts.assert_valid_recipient(intent, recipient, recipient_tokens, readings.empty_rent, mint=self._mint)
        token_units = tokens.units_of(sender_tokens, owner=owners[0], mint=self._mint)
        Shortage.check(USDC, "insufficient_funds", token_units, transfer.units)
        readings.assert_succeeded()
        creates_account = tokens.read_account(recipient_tokens) is None
        plan = readings.plan(trial.reference, creates_account=creates_account)
        # Two sign, and an account that is created needs its rent.
        cost = transactions.fee_lamports(plan.compute_units, plan.micro_lamports_per_unit)
        cost += transactions.BASE_FEE_LAMPORTS
        cost += readings.missing_rent(recipient_tokens) if creates_account else 0
        lamports = payer.lamports if payer else 0
        if lamports < cost + readings.empty_rent:
            raise Rejected("gas_unavailable")
        own = TransferIntent(transfer.sponsor.submitter, self._chain.deployment.usdc_mint, TokenAmount(0, SOL))
        kind = drafts.recipient_kind(transfer.recipient, recipient)
        submission = readings.draft(own, plan.as_terms(), cost, (lamports, lamports), kind)
        funds = AvailableFunds(token_units, None, readings.slot)
        return SponsoredDraft(transfer, TokenAmount(cost, SOL), funds, submission, creates_account)

    def authorize(self, draft: SponsoredDraft, *, fee_units: int, signer: Signer, now: int) -> AuthorizedTransfer:
        plan = TransactionPlan.from_terms(draft.submission.terms)
        message = self._message(draft.transfer, plan, fee_units)
        signature = Signature.from_bytes(signer.sign_message(to_bytes_versioned(message)))
        partial = VersionedTransaction.populate(message, [Signature.default(), signature])
        latest = Blockhash.model_construct(
            slot=plan.blockhash_slot, blockhash=plan.blockhash, last_valid_block_height=plan.last_valid_block_height
        )
        submission = replace(draft.submission, terms=transactions.transaction_terms(partial, latest))
        opened = OpenTransfer(plan.blockhash_slot, plan.last_valid_block_height)
        paid = SignedPart(str(signature), opened.as_terms())
        # One signature is over both.
        fee = SignedPart(f"{signature}{FEE_SUFFIX}", opened.as_terms()) if fee_units else None
        return AuthorizedTransfer(paid, fee, submission)

    def _message(self, transfer: SponsoredTransfer, plan: TransactionPlan, fee_units: int) -> MessageV0:
        sender, recipient = Pubkey.from_string(transfer.sender), Pubkey.from_string(transfer.recipient)
        submitter = Pubkey.from_string(transfer.sponsor.submitter)
        creating = tokens.create_account(submitter, recipient, self._mint)
        paying = self._payment(sender, recipient, transfer.units)
        charging = self._payment(sender, Pubkey.from_string(transfer.sponsor.fee_recipient), fee_units)
        instructions = [
            *([creating] if plan.creates_account else []),
            transactions.with_reference(paying, plan.reference),
            *([charging] if fee_units else []),
        ]
        return plan.compile(submitter, instructions)

    def _payment(self, sender: Pubkey, recipient: Pubkey, units: int) -> Instruction:
        return tokens.transfer_checked(sender, recipient, self._mint, units=units, decimals=USDC.decimals)
