"""The `TransferSponsor` port for Solana: one transaction has a transfer and its fee; the sponsor pays the network.

The wallet signs it first; only the sponsor can complete it.
"""

from dataclasses import replace

from solders.instruction import Instruction
from solders.message import to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.send import drafts, tokens, transactions
from app.adapters.solana.send.simulation import simulate
from app.adapters.solana.track.authorizations import FEE_SUFFIX, OpenTransfer
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import AvailableFunds, Shortage, TransferIntent
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedTransfer, SignedPart, SponsoredDraft, SponsoredTransfer
from app.ports.vault import Signer


class SolanaTransferSponsor:
    def __init__(self, chain: SolanaChain) -> None:
        self._chain = chain
        self._mint = chain.mint

    def draft(self, transfer: SponsoredTransfer) -> SponsoredDraft:
        owners = [Pubkey.from_string(each) for each in (transfer.sender, transfer.recipient)]
        submitter = Pubkey.from_string(transfer.sponsor.submitter)
        keys = [*owners, *(tokens.account_of(owner, self._mint) for owner in owners), submitter]
        reference = transactions.new_reference()
        sample = self._instructions(transfer, reference, fee_units=1)  # its size does not matter
        trial = transactions.compiled(submitter, sample, budget=(transactions.MAX_COMPUTE_UNITS, 0))
        readings = simulate(self._chain.rpc, self._chain.level, trial, keys)
        _sender, recipient, sender_tokens, recipient_tokens, payer = readings.before
        intent = TransferIntent(transfer.sender, transfer.recipient, TokenAmount(transfer.units, USDC))
        drafts.assert_valid_recipient(intent, recipient, recipient_tokens, readings.empty_rent, mint=self._mint)
        token_units = tokens.units_of(sender_tokens, owner=owners[0], mint=self._mint)
        Shortage.check(USDC, "insufficient_funds", token_units, transfer.units)
        readings.assert_succeeded()
        creates_account = not tokens.is_account(recipient_tokens)
        units, price = transactions.compute_unit_limit(readings.simulation.compute_units), readings.price
        # Two sign, and an account that is created needs its rent.
        cost = transactions.fee_lamports(units, price) + transactions.BASE_FEE_LAMPORTS
        cost += readings.missing_rent(recipient_tokens, place=3) if creates_account else 0
        lamports = payer.lamports if payer else 0
        if lamports < cost + readings.empty_rent:
            raise Rejected("gas_unavailable")
        own = TransferIntent(transfer.sponsor.submitter, self._chain.deployment.usdc_mint, TokenAmount(0, SOL))
        terms = {
            **transactions.blockhash_terms(readings.latest),
            "reference": reference,
            "units": units,
            "price": price,
        }
        kind = drafts.recipient_kind(transfer.recipient, recipient)
        submission = readings.draft(own, terms, cost, (lamports, lamports), kind)
        funds = AvailableFunds(token_units, None, readings.slot)
        return SponsoredDraft(transfer, TokenAmount(cost, SOL), funds, submission, creates_account)

    def authorize(self, draft: SponsoredDraft, *, fee_units: int, signer: Signer, now: int) -> AuthorizedTransfer:
        transfer, terms = draft.transfer, draft.submission.terms
        creation, *body = self._instructions(transfer, str(terms["reference"]), fee_units)
        message = transactions.compiled(
            Pubkey.from_string(transfer.sponsor.submitter), [creation, *body] if draft.creates_account else body,
            str(terms["blockhash"]), budget=(int(terms["units"] or 0), int(terms["price"] or 0)),
        )  # fmt: skip
        signature = Signature.from_bytes(signer.sign_message(to_bytes_versioned(message)))
        partial = VersionedTransaction.populate(message, [Signature.default(), signature])
        submission = replace(draft.submission, terms={**terms, "transaction": transactions.encode(partial)})
        opened = OpenTransfer(int(terms["blockhash_slot"] or 0), int(terms["last_valid_block_height"] or 0))
        paid = SignedPart(str(signature), opened.as_terms())
        # One signature is over both.
        fee = SignedPart(f"{signature}{FEE_SUFFIX}", opened.as_terms()) if fee_units else None
        return AuthorizedTransfer(paid, fee, submission)

    def _instructions(self, transfer: SponsoredTransfer, reference: str, fee_units: int) -> list[Instruction]:
        """Return the creation of the recipient's account, the payment, and the fee if there is one."""
        sender, recipient = Pubkey.from_string(transfer.sender), Pubkey.from_string(transfer.recipient)
        sponsor = transfer.sponsor
        paying = self._payment(sender, recipient, transfer.units)
        charging = self._payment(sender, Pubkey.from_string(sponsor.fee_recipient), fee_units)
        return [
            tokens.create_account(Pubkey.from_string(sponsor.submitter), recipient, self._mint),
            transactions.with_reference(paying, reference),
            *([charging] if fee_units else []),
        ]

    def _payment(self, sender: Pubkey, recipient: Pubkey, units: int) -> Instruction:
        return tokens.transfer_checked(sender, recipient, self._mint, units=units, decimals=USDC.decimals)
