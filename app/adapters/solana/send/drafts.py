"""Drafts: reads everything that signing needs in one HTTP request, and refuses what would fail or lose the money."""

from dataclasses import replace

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.adapters.solana.client.calls import SolanaRpc
from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import CONTRACT, Shortage, TransactionDraft, TransferIntent
from app.ports.errors import Rejected


def draft_transfer(rpc: SolanaRpc, intent: TransferIntent, *, mint: Pubkey, level: CommitmentLevel) -> TransactionDraft:
    trial = transactions.trial_plan()
    message = transactions.transfer_message(intent, trial, mint=mint)
    owners = [Pubkey.from_string(each) for each in (intent.sender, intent.recipient)]
    keys = [*owners, *(tokens.account_of(owner, mint) for owner in owners)]
    readings = simulate(rpc, level, message, keys)
    sender, recipient, sender_tokens, recipient_tokens = readings.before
    assert_valid_recipient(intent, recipient, recipient_tokens, readings.empty_rent, mint=mint)
    creates_account = intent.amount.token == USDC and tokens.read_account(recipient_tokens) is None
    plan = readings.plan(trial.reference, creates_account=creates_account)
    fee_units = transactions.fee_lamports(plan.compute_units, plan.micro_lamports_per_unit)
    lamports = sender.lamports if sender else 0
    assert_payer_rent_exempt(readings.empty_rent, lamports=lamports, network_fee=fee_units)
    rent_units = readings.missing_rent(recipient_tokens) if creates_account else 0
    fee_units += rent_units
    token_units = tokens.units_of(sender_tokens, owner=owners[0], mint=mint)
    assert_affordable(intent, lamports, token_units, fee_units, readings.empty_rent)
    held = lamports, lamports if intent.amount.token == SOL else token_units
    draft = readings.draft(intent, plan.as_terms(), fee_units, held, recipient_kind(intent.recipient, recipient))
    if not _lacks_only_fee(intent, readings, lamports, fee_units):
        readings.assert_succeeded()
    return replace(draft, rent_units=rent_units)


def assert_affordable(intent: TransferIntent, lamports: int, token_units: int, fee_units: int, empty_rent: int) -> None:
    amount, outflow = intent.amount, fee_units + _leaving_lamports(intent)
    if amount.token == SOL:
        Shortage.check(SOL, "insufficient_funds", lamports, amount.units + fee_units)
    else:
        Shortage.check(amount.token, "insufficient_funds", token_units, amount.units)
        # An empty wallet is allowed, but a wallet cannot be topped up by less than the minimum.
        if lamports < fee_units or 0 < lamports - outflow < empty_rent:
            Shortage.check(SOL, "insufficient_gas", lamports, fee_units + empty_rent)
    assert_rent_exempt(empty_rent, remaining=lamports - outflow)


def _leaving_lamports(intent: TransferIntent) -> int:
    """Return what leaves the wallet, fees aside."""
    return intent.amount.units if intent.amount.token == SOL and intent.sender != intent.recipient else 0


def assert_valid_recipient(
    intent: TransferIntent,
    found: AccountState | None,
    token_account: AccountState | None,
    empty_rent: int,
    *,
    mint: Pubkey,
) -> None:
    """Refuse recipients that could not use the money. Raises: Rejected."""
    sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
    if recipient == tokens.account_of(sender, mint):
        raise _invalid("token_account_or_mint")
    kind = refusals.account_refusal(found)
    if kind is not None:
        raise _invalid(kind)
    if intent.amount.token == SOL:
        missing = empty_rent - (found.lamports if found else 0)
        if intent.recipient != intent.sender and intent.amount.units < missing:
            details = {"currency": SOL.symbol, "minimum": str(TokenAmount(missing, SOL))}
            raise Rejected("amount_below_rent", details=details)
        return
    account_found = tokens.read_account(token_account)
    # Programs own addresses off the curve, as multi-signature vaults do. One that neither exists nor has a token
    # account is as likely a token account that was not created yet, and tokens of such an owner are lost.
    if account_found is None:
        if found is None and not recipient.is_on_curve():
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
    return lamports == _leaving_lamports(intent) + fee_units and readings.simulation.error == {
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
