"""Drafts: reads everything that signing needs in one HTTP request, and refuses what would fail or lose the money."""

from dataclasses import dataclass, replace

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.adapters.solana.client.calls import SolanaRpc
from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.adapters.solana.send.transactions import TransactionPlan
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import CONTRACT, Shortage, TransactionDraft, TransferIntent
from app.ports.errors import Rejected


@dataclass(frozen=True, slots=True)
class TransferParties:
    sender: AccountState | None
    recipient: AccountState | None
    sender_tokens: AccountState | None
    recipient_tokens: AccountState | None

    @property
    def lamports(self) -> int:
        return self.sender.lamports if self.sender else 0


class SolanaDrafter:
    def __init__(self, rpc: SolanaRpc, mint: Pubkey, *, level: CommitmentLevel) -> None:
        self._rpc = rpc
        self._mint = mint
        self._level = level

    def draft(self, intent: TransferIntent) -> TransactionDraft:
        trial = transactions.trial_plan()
        message = transactions.transfer_message(intent, trial, mint=self._mint)
        owners = [Pubkey.from_string(each) for each in (intent.sender, intent.recipient)]
        keys = [*owners, *(tokens.account_of(owner, self._mint) for owner in owners)]
        readings = simulate(self._rpc, self._level, message, keys)
        parties = TransferParties(*readings.before)
        assert_valid_recipient(intent, parties, readings.empty_rent, mint=self._mint)
        creates_account = intent.amount.token == USDC and tokens.read_account(parties.recipient_tokens) is None
        plan = readings.plan(trial.reference, creates_account=creates_account)
        fee_units = transactions.fee_lamports(plan.compute_units, plan.micro_lamports_per_unit)
        assert_payer_rent_exempt(readings.empty_rent, lamports=parties.lamports, network_fee=fee_units)
        rent_units = readings.missing_rent(parties.recipient_tokens) if creates_account else 0
        fee_units += rent_units
        draft = replace(self._assert_affordable(intent, readings, plan, fee_units), rent_units=rent_units)
        if not _lacks_only_fee(intent, readings, parties.lamports, fee_units):
            readings.assert_succeeded()
        return draft

    def _assert_affordable(
        self, intent: TransferIntent, readings: SimulatedTransaction, plan: TransactionPlan, fee_units: int
    ) -> TransactionDraft:
        amount, parties = intent.amount, TransferParties(*readings.before)
        lamports = parties.lamports
        token_units = tokens.units_of(parties.sender_tokens, owner=Pubkey.from_string(intent.sender), mint=self._mint)
        moves_native = amount.token == SOL
        outflow = fee_units + (amount.units if moves_native and intent.sender != intent.recipient else 0)
        if moves_native:
            Shortage.check(SOL, "insufficient_funds", lamports, amount.units + fee_units)
        else:
            Shortage.check(amount.token, "insufficient_funds", token_units, amount.units)
            # An empty wallet is allowed, but a wallet cannot be topped up by less than the minimum.
            if lamports < fee_units or 0 < lamports - outflow < readings.empty_rent:
                Shortage.check(SOL, "insufficient_gas", lamports, fee_units + readings.empty_rent)
        assert_rent_exempt(readings.empty_rent, remaining=lamports - outflow)
        held = lamports, lamports if moves_native else token_units
        kind = recipient_kind(intent.recipient, parties.recipient)
        return readings.draft(intent, plan.as_terms(), fee_units, held, kind)


def assert_valid_recipient(intent: TransferIntent, parties: TransferParties, empty_rent: int, *, mint: Pubkey) -> None:
    """Refuse recipients that could not use the money. Raises: Rejected."""
    sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
    if recipient == tokens.account_of(sender, mint):
        raise _invalid("token_account_or_mint")
    kind = refusals.account_refusal(parties.recipient)
    if kind is not None:
        raise _invalid(kind)
    if intent.amount.token != USDC:
        missing = empty_rent - (parties.recipient.lamports if parties.recipient else 0)
        if intent.recipient != intent.sender and intent.amount.units < missing:
            details = {"currency": SOL.symbol, "minimum": str(TokenAmount(missing, SOL))}
            raise Rejected("amount_below_rent", details=details)
        return
    account_found = tokens.read_account(parties.recipient_tokens)
    # Programs own addresses off the curve, as multi-signature vaults do. One that neither exists nor has a token
    # account is as likely a token account that was not created yet, and tokens of such an owner are lost.
    if account_found is None:
        if parties.recipient is None and not recipient.is_on_curve():
            raise _invalid("no_wallet")
    elif (account_found.owner, account_found.mint) != (recipient, mint):
        raise _invalid("given_away")


def recipient_kind(recipient: str, account: AccountState | None) -> str | None:
    """Return whether a program decides what becomes of a payment: it owns the account, or the address off the curve."""
    has_program = account is not None and account.owner != SYSTEM_PROGRAM
    return CONTRACT if has_program or not Pubkey.from_string(recipient).is_on_curve() else None


def _lacks_only_fee(intent: TransferIntent, readings: SimulatedTransaction, lamports: int, fee_units: int) -> bool:
    """Return whether a simulation failed only because it included no priority fee: the lamports that it left over.

    That is the case when a wallet is emptied, which leaves nothing after the fee.
    """
    leaving = intent.amount.units if intent.amount.token == SOL and intent.sender != intent.recipient else 0
    return lamports == leaving + fee_units and readings.simulation.error == {
        "InsufficientFundsForRent": {"account_index": 0}
    }


def assert_rent_exempt(minimum: int, *, remaining: int) -> None:
    """Refuse what the runtime refuses: an account that is not empty, but below the rent-exempt minimum."""
    if 0 < remaining < minimum:
        raise Rejected(
            "leaves_dust",
            details={
                "currency": SOL.symbol,
                "remaining": str(TokenAmount(remaining, SOL)),
                "minimum": str(TokenAmount(minimum, SOL)),
            },
        )


def assert_payer_rent_exempt(minimum: int, *, lamports: int, network_fee: int) -> None:
    """Refuse a payer that the runtime refuses: it checks the payer after the fee, before anything is transferred.

    What then is neither zero nor the rent-exempt minimum can never land, also not in a transaction that empties the
    account (agave `svm/src/account_loader.rs`, `validate_fee_payer`). Raises: Rejected("insufficient_gas").
    """
    if 0 < lamports - network_fee < minimum:
        Shortage.check(SOL, "insufficient_gas", lamports, network_fee + minimum)


def _invalid(kind: str) -> Rejected:
    return Rejected("invalid_recipient", details={"recipient_is": kind})
