"""The `Exchange` port for Solana: what Jupiter offers, made into a transaction here, simulated and signed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from solders.account_decoder import UiAccountEncoding
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcAccountInfoConfig,
    RpcContextConfig,
    RpcSimulateTransactionAccountsConfig,
    RpcSimulateTransactionConfig,
)
from solders.rpc.requests import (
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetRecentPrioritizationFees,
    SimulateVersionedTransaction,
)
from solders.system_program import TransferParams, transfer

from app.adapters.jupiter import effects, floors, lookup_tables, routes
from app.adapters.jupiter.api import Build, JupiterApi
from app.adapters.jupiter.effects import Holdings
from app.adapters.jupiter.floors import Floors
from app.adapters.jupiter.routes import Pair
from app.adapters.solana import fees, refusals, tokens, transactions
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.drafts import refuse_dust, require
from app.adapters.solana.endpoint import Call
from app.adapters.solana.wire import (
    Accounts,
    Simulation,
    accounts,
    blockhash,
    number,
    priority_prices,
    simulation_with,
)
from app.core.chains import SOL, USDC
from app.ports.chain import Draft, Intent, Signed, Terms
from app.ports.errors import Rejected
from app.ports.swaps import Ask, Beside, Offer
from app.ports.vault import Signer

_NO_BLOCKHASH = Hash.default()
_U64 = 2**64
_MOST_BYTES = 1232
_MOST_LOCKS = 64
"""Of accounts in one transaction, `MAX_TX_ACCOUNT_LOCKS` of Agave."""
_SLIPPAGE_EXCEEDED = "custom program error 0x1771"
"""6001, `SlippageToleranceExceeded` of Jupiter's IDL, as `refusals.simulated` shows it."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the cluster says about a swap, before and after it was tried."""

    blockhash: str
    blockhash_slot: int
    last_valid_block_height: int
    slot: int
    before: Holdings
    after: Holdings | None
    simulation: Simulation
    empty_rent: int
    token_rent: int
    price: int


class JupiterExchange:
    """Jupiter on one cluster. Opens no connection before the first verb."""

    def __init__(self, chain: SolanaChain, base_url: str) -> None:
        """Take the chain, through whose nodes everything is read, and the API's base."""
        self._chain = chain
        self._api = JupiterApi(base_url)
        self._usdc_mint = Pubkey.from_string(chain.deployment.usdc_mint)

    def quote(self, ask: Ask) -> Offer:
        """Ask Jupiter for the best way.

        Raises: Rejected("no_liquidity", "quote_unavailable", "insufficient_funds").
        """
        if ask.given.units >= _U64:
            # More than the chain can count, and so than anybody has.
            raise Rejected("insufficient_funds")
        pair = self._pair(ask)
        built = self._api.build(
            ask.owner, str(pair.given_mint), str(pair.wanted_mint),
            units=ask.given.units, slippage_bps=ask.slippage_bps,
        )  # fmt: skip
        return Offer(ask, built.output_units, "Jupiter: " + ", ".join(built.labels), built)

    def draft(self, offer: Offer, *, minimum_units: int, signer: Signer | None) -> Draft:  # noqa: ARG002 - unsigned
        """Write the swap's transaction around Jupiter's route, and simulate it.

        Raises: Rejected("price_moved", "unsafe_instructions", "simulation_failed", …), Unreachable.
        """
        ask, built = offer.ask, offer.facts
        if not isinstance(built, Build):
            raise TypeError("this is not an offer of Jupiter's")
        pair = self._pair(ask)
        instructions = self._instructions(ask, pair, built, minimum_units)
        tables = lookup_tables.read(self._chain.rpc, built.tables)

        def ending(least: Floors) -> list[Instruction]:
            return [*instructions, *floors.instructions(pair.owner, self._usdc_mint, least)]

        trial = _message(pair.owner, ending(Floors()), tables, blockhash=_NO_BLOCKHASH)
        facts = self._try(pair.owner, trial)
        if not _does_only(facts, ask, minimum_units):
            # Balances and simulation may be of two moments, between which something else moved: look again.
            facts = self._try(pair.owner, trial)
        units, price = fees.compute_units(facts.simulation.compute_units), facts.price
        draft = self._affordable(ask, facts, fees.fee_lamports(units, price))
        if facts.simulation.error is not None:
            revert = refusals.simulated(facts.simulation.error)
            if revert == _SLIPPAGE_EXCEEDED:
                raise Rejected("price_moved")
            raise Rejected("simulation_failed", details={"revert": revert})
        if not _does_only(facts, ask, minimum_units):
            raise Rejected("unsafe_instructions")
        least = floors.of_swap(ask, facts.before, minimum_units=minimum_units, fee_units=draft.fee_units)
        final = _message(
            pair.owner, ending(least), tables,
            blockhash=Hash.from_string(facts.blockhash), units=units, price=price,
        )  # fmt: skip
        terms: Terms = {
            "message": base64.b64encode(to_bytes_versioned(final)).decode(),
            "last_valid_block_height": facts.last_valid_block_height,
            "blockhash_slot": facts.blockhash_slot,
        }
        return Draft(
            draft.intent, draft.fee_units, draft.native_units, draft.token_units, None, terms, facts.slot
        )

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None, beside: Beside) -> Signed:
        """Sign a draft. Pure. Raises: ValueError with a nonce, which this chain has not, or with a wrong signer."""
        if sequence is not None:
            raise ValueError("a Solana transaction has no nonce")
        message = from_bytes_versioned(base64.b64decode(str(draft.terms["message"])))
        if not isinstance(message, MessageV0):
            raise TypeError("not a message of version 0")
        message = floors.lowered(message, beside.leaving)
        raw, tx_hash = transactions.sign(message, signer, sender=draft.intent.sender)
        return Signed(
            tx_hash=tx_hash,
            raw=raw,
            sequence=None,
            expires_at_height=int(draft.terms["last_valid_block_height"] or 0),
            terms={name: draft.terms[name] for name in ("last_valid_block_height", "blockhash_slot")},
        )

    def _pair(self, ask: Ask) -> Pair:
        owner = Pubkey.from_string(ask.owner)
        given, wanted = (
            self._usdc_mint if token == USDC else tokens.WRAPPED_SOL
            for token in (ask.given.token, ask.wanted)
        )
        return Pair(owner, tokens.account_of(owner, given), tokens.account_of(owner, wanted), given, wanted)

    def _instructions(self, ask: Ask, pair: Pair, built: Build, minimum_units: int) -> list[Instruction]:
        """Return all of the swap, written by ourselves but for the route.

        Raises: Rejected("unsafe_instructions") where Jupiter wants anything else besides.
        """
        owner = pair.owner
        wrapped = tokens.account_of(owner, tokens.WRAPPED_SOL)
        before = [tokens.create_account(owner, owner, tokens.WRAPPED_SOL)]
        if ask.given.token == SOL:
            before += [
                transfer(TransferParams(from_pubkey=owner, to_pubkey=wrapped, lamports=ask.given.units)),
                tokens.sync_native(wrapped),
                tokens.create_account(owner, owner, self._usdc_mint),
            ]
        after = [tokens.close_account(wrapped, owner)]
        known = [_said(each) for each in (*before, *after)]
        known += [_said(tokens.create_account(owner, owner, self._usdc_mint))]
        if built.strangers or any(_said(each) not in known for each in built.surroundings):
            raise Rejected("unsafe_instructions")
        route = routes.with_minimum(built.swap, pair, units=ask.given.units, minimum_units=minimum_units)
        first, *rest = before
        # A fresh key makes every transaction another one (see `transactions.Plan`).
        reference = AccountMeta(
            Pubkey.from_string(transactions.new_reference()), is_signer=False, is_writable=False
        )
        marked = Instruction(first.program_id, first.data, [*first.accounts, reference])
        return [marked, *rest, route, *after]

    def _try(self, owner: Pubkey, trial: MessageV0) -> _Facts:
        level = self._chain.level
        looked_at = [
            owner, tokens.account_of(owner, tokens.WRAPPED_SOL), tokens.account_of(owner, self._usdc_mint),
        ]  # fmt: skip
        config = RpcSimulateTransactionConfig(
            sig_verify=False,
            replace_recent_blockhash=True,
            commitment=level,
            accounts=RpcSimulateTransactionAccountsConfig(looked_at, UiAccountEncoding.Base64),
        )
        writable = [key for place, key in enumerate(trial.account_keys) if trial.is_maybe_writable(place)]
        latest = Call(GetLatestBlockhash(RpcContextConfig(commitment=level)), blockhash)
        as_they_are = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=level)
        found: Call[Accounts] = Call(GetMultipleAccounts(looked_at, as_they_are), accounts(len(looked_at)))
        empty_rent = Call(GetMinimumBalanceForRentExemption(0), number)
        token_rent = Call(GetMinimumBalanceForRentExemption(tokens.TOKEN_ACCOUNT_BYTES), number)
        prices = Call(GetRecentPrioritizationFees(writable), priority_prices)
        trying = Call(
            SimulateVersionedTransaction(transactions.unsigned(trial), config),
            simulation_with(len(looked_at)),
        )
        self._chain.rpc.run(latest, found, empty_rent, token_rent, prices, trying)
        tried, states = trying.answer
        mint = self._usdc_mint
        return _Facts(
            blockhash=latest.answer.blockhash,
            blockhash_slot=latest.answer.slot,
            last_valid_block_height=latest.answer.last_valid_block_height,
            slot=found.answer.slot,
            before=effects.holdings(found.answer.states, owner=owner, usdc_mint=mint),
            after=None if tried.error is not None else effects.holdings(states, owner=owner, usdc_mint=mint),
            simulation=tried,
            empty_rent=empty_rent.answer,
            token_rent=token_rent.answer,
            price=fees.price(prices.answer),
        )

    def _affordable(self, ask: Ask, facts: _Facts, fee_units: int) -> Draft:
        """Refuse what the wallet cannot pay. Raises: Rejected."""
        before, moves_native = facts.before, ask.given.token == SOL
        # Whoever sent SOL to the address of an account that is not there yet has paid that much of its rent.
        if moves_native:
            fee_units += max(facts.token_rent - before.usdc_lamports, 0)  # the account for USDC stays
        # Wrapping needs an account for as long as the swap takes.
        lent = max(facts.token_rent - before.wrapped_lamports, 0)
        if moves_native:
            require(SOL, "insufficient_funds", before.lamports, ask.given.units + fee_units + lent)
            refuse_dust(facts.empty_rent, left=before.lamports - ask.given.units - fee_units)
        else:
            require(ask.given.token, "insufficient_funds", before.usdc_units, ask.given.units)
            require(SOL, "insufficient_gas", before.lamports, fee_units + lent)
        return Draft(
            intent=Intent(ask.owner, ask.owner, ask.given),
            fee_units=fee_units,
            native_units=before.lamports,
            token_units=before.lamports if moves_native else before.usdc_units,
            sequence=None,
            terms={},
            as_of=facts.slot,
        )


def _does_only(facts: _Facts, ask: Ask, minimum_units: int) -> bool:
    """Tell whether a trial did what was asked for and nothing else; one that failed did nothing."""
    if facts.simulation.error is not None:
        return True
    fee_units = fees.fee_lamports(0, 0)
    return effects.is_only(facts.before, facts.after, ask, minimum_units=minimum_units, fee_units=fee_units)


def _message(
    owner: Pubkey,
    instructions: Sequence[Instruction],
    tables: Sequence[AddressLookupTableAccount],
    *,
    blockhash: Hash,
    units: int = fees.MOST_COMPUTE_UNITS,
    price: int = 0,
) -> MessageV0:
    """Compile what is signed. Raises: Rejected("quote_unavailable") for a route too long for one transaction."""
    whole = [set_compute_unit_limit(units), set_compute_unit_price(price), *instructions]
    named = {meta.pubkey for each in whole for meta in each.accounts} | {each.program_id for each in whole}
    if len(named) > _MOST_LOCKS:
        raise Rejected("quote_unavailable")
    message = MessageV0.try_compile(owner, whole, list(tables), blockhash)
    if message.header.num_required_signatures != 1:
        raise Rejected("unsafe_instructions")
    if len(bytes(transactions.unsigned(message))) > _MOST_BYTES:
        raise Rejected("quote_unavailable")
    return message


def _said(instruction: Instruction) -> tuple[Pubkey, bytes, tuple[Pubkey, ...]]:
    """Return what an instruction says; with which rights it names accounts is ours to decide."""
    return (
        instruction.program_id,
        bytes(instruction.data),
        tuple(meta.pubkey for meta in instruction.accounts),
    )
