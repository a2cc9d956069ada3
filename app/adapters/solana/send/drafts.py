"""Drafts: reads everything that signing needs in one HTTP request, and refuses what would fail or lose the money."""

from dataclasses import replace

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import TransferParams, transfer
from solders.token import ID as TOKEN_PROGRAM
from spl.token.constants import WRAPPED_SOL_MINT

from app.adapters.solana.client.calls import SolanaRpc
from app.adapters.solana.client.wire import AccountState, OwnedToken
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.core.chains import SOL
from app.core.money import TokenAmount
from app.ports.chain import CONTRACT, Shortage, TransactionDraft, TransferIntent
from app.ports.errors import Rejected


def draft_transfer(
    rpc: SolanaRpc, intent: TransferIntent, *, mint: Pubkey, level: CommitmentLevel, held: OwnedToken | None = None
) -> TransactionDraft:
    """Draft a payment in SOL, in USDC, or from the sender's account `held` of a foreign token with this mint."""
    sender, recipient = (Pubkey.from_string(each) for each in (intent.sender, intent.recipient))
    token, units, creating, accounts = intent.amount.token, intent.amount.units, [], []
    if token == SOL:
        paying = transfer(TransferParams(from_pubkey=sender, to_pubkey=recipient, lamports=units))
    else:
        program = TOKEN_PROGRAM if held is None else held.program
        decimals = token.decimals if held is None else held.decimals
        creating = [tokens.create_account(sender, recipient, mint, program)]
        paying = tokens.transfer_checked(sender, recipient, mint, units=units, decimals=decimals, program=program)
        accounts = [tokens.account_of(each, mint, program) for each in (sender, recipient)]
    paying = transactions.with_reference(paying, transactions.new_reference())
    # What is not known yet is at its maximum, with a creation that may do nothing.
    trial = transactions.compiled(sender, [*creating, paying], budget=(transactions.MAX_COMPUTE_UNITS, 0))
    readings = simulate(rpc, level, trial, [sender, recipient, *accounts])
    payer, paid, *of_token = readings.before
    own, receiving = of_token or (None, None)
    assert_valid_recipient(intent, paid, receiving, readings.empty_rent, mint=mint)
    budget = transactions.compute_unit_limit(readings.simulation.compute_units), readings.price
    network_fee, lamports = transactions.fee_lamports(*budget), payer.lamports if payer else 0
    assert_payer_rent_exempt(readings.empty_rent, lamports=lamports, network_fee=network_fee)
    creating = [] if tokens.is_account(receiving) else creating
    wrapped_units = units if mint == WRAPPED_SOL_MINT else 0
    rent_units = readings.missing_rent(receiving, place=3, paid=wrapped_units) if creating else 0
    fee_units = network_fee + rent_units
    token_units = tokens.units_of(own, owner=sender, mint=mint) if held is None else held.units
    assert_affordable(intent, lamports, token_units, fee_units, readings.empty_rent)
    if held is not None and (error := readings.simulation.error) is not None:
        refusal = f"a token that refuses: {refusals.simulation_error(error)}"
        raise Rejected("invalid_token", details={"token_is": refusal})
    if not _lacks_only_fee(intent, readings, lamports, fee_units):
        readings.assert_succeeded()
    message = transactions.compiled(sender, [*creating, paying], readings.latest.blockhash, budget=budget)
    terms = transactions.transaction_terms(transactions.unsigned_transaction(message), readings.latest)
    balances = lamports, lamports if token == SOL else token_units
    draft = readings.draft(intent, terms, fee_units, balances, recipient_kind(intent.recipient, paid))
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
