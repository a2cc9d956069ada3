"""Reads all that signing needs in one HTTP request, and refuses what would fail for certain or lose the money."""

from __future__ import annotations

from dataclasses import dataclass

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig, RpcSimulateTransactionConfig
from solders.rpc.requests import (
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetRecentPrioritizationFees,
    SimulateVersionedTransaction,
)

from app.adapters.solana import fees, refusals, tokens, transactions
from app.adapters.solana.endpoint import Call, Endpoint, EndpointFailedError
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.transactions import Plan
from app.adapters.solana.wire import (
    Accounts,
    AccountState,
    Blockhash,
    Simulation,
    accounts,
    blockhash,
    number,
    priority_prices,
    simulation,
)
from app.core.chains import SOL, USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import Draft, Intent
from app.ports.errors import Rejected

_NO_BLOCKHASH = str(Hash.default())


@dataclass(frozen=True, slots=True)
class _Readings:
    latest: Blockhash
    sender: AccountState | None
    recipient: AccountState | None
    sender_tokens: AccountState | None
    recipient_tokens: AccountState | None
    slot: int
    empty_rent: int
    """What an account without data must hold at least, if it holds anything."""
    token_rent: int
    price: int
    simulation: Simulation


class Drafter:
    """Makes the drafts of the cluster."""

    def __init__(self, rpc: SolanaRpc, mint: Pubkey, *, level: CommitmentLevel) -> None:
        """Take the cluster's endpoints, the mint of USDC and the level at which movements count as landed.

        Everything is read at that level: what balances of another one include could not be told.
        """
        self._rpc = rpc
        self._mint = mint
        self._context = RpcContextConfig(commitment=level)
        self._accounts = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=level)
        self._simulation = RpcSimulateTransactionConfig(
            sig_verify=False, replace_recent_blockhash=True, commitment=level
        )

    def draft(self, intent: Intent) -> Draft:
        """Draft a new movement. Raises: Rejected, Unreachable."""
        reference = transactions.new_reference()
        readings = self._rpc.first(lambda endpoint: self._read(endpoint, intent, reference))
        self._refuse_recipients(intent, readings)
        creates_account = (
            intent.amount.token == USDC and tokens.read_account(readings.recipient_tokens) is None
        )
        plan = Plan(
            blockhash=readings.latest.blockhash,
            blockhash_slot=readings.latest.slot,
            last_valid_block_height=readings.latest.last_valid_block_height,
            compute_units=fees.compute_units(readings.simulation.compute_units),
            micro_lamports_per_unit=readings.price,
            reference=reference,
            creates_account=creates_account,
        )
        fee_units = fees.fee_lamports(plan.compute_units, plan.micro_lamports_per_unit)
        if creates_account:
            # Whoever sent SOL to the address of the account beforehand has paid that much of its rent.
            there = readings.recipient_tokens.lamports if readings.recipient_tokens else 0
            fee_units += max(readings.token_rent - there, 0)
        draft = self._affordable(intent, readings, plan, fee_units)
        if readings.simulation.error is not None and not _leaves_only_the_fee(intent, readings, fee_units):
            raise Rejected(
                "simulation_failed", details={"revert": refusals.simulated(readings.simulation.error)}
            )
        return draft

    def _affordable(self, intent: Intent, readings: _Readings, plan: Plan, fee_units: int) -> Draft:
        amount = intent.amount
        lamports = readings.sender.lamports if readings.sender else 0
        token_units = tokens.units_of(
            readings.sender_tokens, owner=Pubkey.from_string(intent.sender), mint=self._mint
        )
        moves_native = amount.token == SOL
        leaving = fee_units + (amount.units if moves_native and intent.sender != intent.recipient else 0)
        if moves_native:
            require(SOL, "insufficient_funds", lamports, amount.units + fee_units)
        else:
            require(amount.token, "insufficient_funds", token_units, amount.units)
            # To be left with nothing is allowed, but a wallet cannot be topped up by less than the minimum.
            if lamports < fee_units or 0 < lamports - leaving < readings.empty_rent:
                require(SOL, "insufficient_gas", lamports, fee_units + readings.empty_rent)
        refuse_dust(readings.empty_rent, left=lamports - leaving)
        return Draft(
            intent=intent,
            fee_units=fee_units,
            native_units=lamports,
            token_units=lamports if moves_native else token_units,
            sequence=None,
            terms=plan.as_terms(),
            as_of=readings.slot,
        )

    def _refuse_recipients(self, intent: Intent, readings: _Readings) -> None:
        """Refuse recipients that could not use the money. Raises: Rejected."""
        sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
        if recipient == tokens.account_of(sender, self._mint):
            raise _invalid("token_account_or_mint")
        kind = refusals.of_account(readings.recipient)
        if kind is not None:
            raise _invalid(kind)
        if intent.amount.token != USDC:
            _refuse_too_little(intent, readings)
            return
        # Programs own addresses off the curve, which is how vaults of several signers work. One that holds nothing
        # is as likely the token account of somebody that is not there yet, and tokens of such an owner are lost.
        if readings.recipient is None and not recipient.is_on_curve():
            raise _invalid("no_wallet")
        held = tokens.read_account(readings.recipient_tokens)
        if held is not None and (held.owner, held.mint) != (recipient, self._mint):
            raise _invalid("given_away")

    def _read(self, endpoint: Endpoint, intent: Intent, reference: str) -> _Readings:
        sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
        sender_tokens = tokens.account_of(sender, self._mint)
        recipient_tokens = tokens.account_of(recipient, self._mint)
        # What is not known yet is taken at its most: the account is made as well, where there is one nothing happens.
        trial = Plan(_NO_BLOCKHASH, 0, 0, fees.MOST_COMPUTE_UNITS, 0, reference, creates_account=True)
        message = transactions.message_of(intent, trial, mint=self._mint)
        writable = [key for place, key in enumerate(message.account_keys) if message.is_maybe_writable(place)]

        latest = Call(GetLatestBlockhash(self._context), blockhash)
        keys = [sender, recipient, sender_tokens, recipient_tokens]
        found = Call(GetMultipleAccounts(keys, self._accounts), accounts(len(keys)))
        empty_rent = Call(GetMinimumBalanceForRentExemption(0), number)
        token_rent = Call(GetMinimumBalanceForRentExemption(tokens.TOKEN_ACCOUNT_BYTES), number)
        prices = Call(GetRecentPrioritizationFees(writable), priority_prices)
        trying = Call(
            SimulateVersionedTransaction(transactions.unsigned(message), self._simulation), simulation
        )
        endpoint.run(latest, found, empty_rent, token_rent, prices, trying)
        _assert_one_view(latest.answer, found.answer, trying.answer)
        states = found.answer.states
        return _Readings(
            latest=latest.answer,
            sender=states[0],
            recipient=states[1],
            sender_tokens=states[2],
            recipient_tokens=states[3],
            slot=found.answer.slot,
            empty_rent=empty_rent.answer,
            token_rent=token_rent.answer,
            price=fees.price(prices.answer),
            simulation=trying.answer,
        )


_LONGEST_VIEW_SLOTS = 32


def _assert_one_view(latest: Blockhash, found: Accounts, trying: Simulation) -> None:
    """Refuse answers of several nodes that are far apart: a pool may send each call to another one."""
    slots = (latest.slot, found.slot, trying.slot)
    if max(slots) - min(slots) > _LONGEST_VIEW_SLOTS:
        raise EndpointFailedError("lagging", perhaps_executed=False)


def _leaves_only_the_fee(intent: Intent, readings: _Readings, fee_units: int) -> bool:
    """Tell whether a trial failed only because it knew no priority fee: the very lamports that it left over.

    That is what emptying a wallet looks like, which leaves nothing once the fee is taken.
    """
    lamports = readings.sender.lamports if readings.sender else 0
    leaving = intent.amount.units if intent.amount.token == SOL and intent.sender != intent.recipient else 0
    return lamports == leaving + fee_units and readings.simulation.error == {
        "InsufficientFundsForRent": {"account_index": 0}
    }


def refuse_dust(minimum: int, *, left: int) -> None:
    """Refuse what the runtime refuses: an account that holds something, but less than keeps it alive."""
    if 0 < left < minimum:
        raise Rejected(
            "leaves_dust",
            details={
                "currency": SOL.symbol,
                "remaining": str(TokenAmount(left, SOL)),
                "minimum": str(TokenAmount(minimum, SOL)),
            },
        )


def _refuse_too_little(intent: Intent, readings: _Readings) -> None:
    """Refuse what would not keep the recipient's account alive."""
    held = readings.recipient.lamports if readings.recipient else 0
    if intent.recipient == intent.sender or held + intent.amount.units >= readings.empty_rent:
        return
    raise Rejected(
        "amount_below_rent",
        details={"currency": SOL.symbol, "minimum": str(TokenAmount(readings.empty_rent - held, SOL))},
    )


def _invalid(kind: str) -> Rejected:
    return Rejected("invalid_recipient", details={"recipient_is": kind})


def require(token: Token, reason: str, available: int, required: int) -> None:
    """Refuse what there is not enough for. Raises: Rejected."""
    if available >= required:
        return
    raise Rejected(
        reason,
        details={
            "currency": token.symbol,
            "available": str(TokenAmount(available, token)),
            "required": str(TokenAmount(required, token)),
            "missing": str(TokenAmount(required - available, token)),
        },
    )
