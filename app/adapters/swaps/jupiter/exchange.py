"""The `SwapExchange` port for Solana: Jupiter's offers, built into a transaction here, simulated and signed.

The route instruction is decoded, compared with the request, and given our own minimum. Layouts: the program's
published Anchor IDL, `route_v2` and `shared_accounts_route_v2`. Both begin with their amounts, so that all of them are
readable whatever the route is; the older instructions, with amounts behind it, are refused.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.instruction import Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.token import ID as TOKEN_PROGRAM
from spl.token.constants import WRAPPED_SOL_MINT

from app.adapters.rate_limited_http import KEYLESS, ServiceAccess
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.send import refusals, tokens, transactions
from app.adapters.solana.send.drafts import assert_payer_rent_exempt, assert_rent_exempt
from app.adapters.solana.send.simulation import SimulatedTransaction, simulate
from app.adapters.solana.send.transactions import discriminator
from app.adapters.swaps.jupiter import balances
from app.adapters.swaps.jupiter.api import JupiterApi, JupiterRoute
from app.adapters.swaps.jupiter.balances import SwapBalances
from app.core.chains import SOL, USDC, Token
from app.ports.chain import Shortage, SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import Rejected
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from app.ports.vault import Signer

JUPITER = Pubkey.from_string("JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4")
_EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")
AMOUNTS = struct.Struct("<QQHHH")
"""In amount, quoted out amount, slippage, platform fee, positive-slippage fee; the last three in bps."""


@dataclass(frozen=True, slots=True)
class SwapAccounts:
    owner: Pubkey
    input_account: Pubkey
    output_account: Pubkey
    input_mint: Pubkey
    output_mint: Pubkey


@dataclass(frozen=True, slots=True)
class _RouteLayout:
    """An instruction: the place of its amounts, and its first accounts by name, None for those that differ by route."""

    discriminator: bytes
    amounts_offset: int
    accounts: tuple[str | None, ...]


_MINTS = "input_mint", "output_mint", "token_program", "token_program"
LAYOUTS = (
    _RouteLayout(
        discriminator("global:route_v2"), 8,
        ("owner", "input_account", "output_account", *_MINTS, "recipient", "event_authority", "jupiter"),
    ),
    _RouteLayout(
        discriminator("global:shared_accounts_route_v2"), 9,
        (None, "owner", "input_account", None, None, "output_account", *_MINTS, "event_authority", "jupiter"),
    ),
)  # fmt: skip


def with_minimum(route: Instruction, pair: SwapAccounts, *, units: int, minimum_units: int) -> Instruction:
    """Return the route with our minimum, after checking that it takes exactly `units` from the owner for the owner.

    The program compares the output with the quote less the slippage. With our minimum as the quote and no slippage
    that is our minimum to the unit, whatever Jupiter wrote there.

    Raises: Rejected("unsafe_instructions") for anything else.
    """
    data = bytes(route.data)
    layout = next((each for each in LAYOUTS if data.startswith(each.discriminator)), None)
    if route.program_id != JUPITER or layout is None:
        raise Rejected("unsafe_instructions")
    try:
        in_units, _quoted, _slippage, fee_bps, better_fee_bps = AMOUNTS.unpack_from(data, layout.amounts_offset)
        keys = [meta.pubkey for meta in route.accounts]
        is_right = _do_accounts_match(keys, layout, pair)
    except (struct.error, ValueError):
        raise Rejected("unsafe_instructions") from None
    signers = {meta.pubkey for meta in route.accounts if meta.is_signer}
    if not is_right or signers != {pair.owner} or (in_units, fee_bps, better_fee_bps) != (units, 0, 0):
        raise Rejected("unsafe_instructions")
    figures = AMOUNTS.pack(units, minimum_units, 0, 0, 0)
    end = layout.amounts_offset + AMOUNTS.size
    return Instruction(JUPITER, data[: layout.amounts_offset] + figures + data[end:], list(route.accounts))


def _do_accounts_match(keys: list[Pubkey], layout: _RouteLayout, pair: SwapAccounts) -> bool:
    """Compare the accounts with the swap's. Raises: ValueError if there are too few."""
    fixed = {
        "token_program": (TOKEN_PROGRAM,), "event_authority": (_EVENT_AUTHORITY,), "jupiter": (JUPITER,),
        "recipient": (pair.output_account, JUPITER),  # the program's own id means no other recipient
    }  # fmt: skip
    named = zip(keys[: len(layout.accounts)], layout.accounts, strict=True)
    return all(name is None or key in (fixed.get(name) or [getattr(pair, name)]) for key, name in named)


_U64 = 2**64
_MAX_ACCOUNT_LOCKS = 64
"""Accounts in one transaction, `MAX_TX_ACCOUNT_LOCKS` of Agave."""
_SLIPPAGE_EXCEEDED = "custom program error 0x1771"
"""6001, `SlippageToleranceExceeded` of Jupiter's IDL, as `refusals.simulation_error` formats it."""


class JupiterExchange:
    def __init__(self, chain: SolanaChain, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._chain = chain
        self._api = JupiterApi(base_url, access)
        self._usdc_mint = chain.mint
        self._balances = partial(balances.read_balances, self._usdc_mint)

    def quote(self, request: SwapRequest) -> SwapOffer:
        """Return Jupiter's best offer. Raises: Rejected, as the port does; Rejected("insufficient_funds")."""
        if request.input_amount.units >= _U64:
            # More than the chain can represent, and so more than any wallet holds.
            raise Rejected("insufficient_funds")
        pair = self._swap_accounts(request)
        built = self._api.build(
            request.owner, str(pair.input_mint), str(pair.output_mint),
            units=request.input_amount.units, slippage_bps=request.slippage_bps,
        )  # fmt: skip
        return SwapOffer(request, built.output_units, "Jupiter: " + ", ".join(built.labels), built)

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        """Build the transaction around Jupiter's route, and simulate it. Raises: as the port's `draft`."""
        built = offer.adapter_data
        if not isinstance(built, JupiterRoute):
            raise TypeError("this is not an offer of Jupiter's")
        try:
            return self._draft(offer.request, built, minimum_units)
        except Rejected:
            # The next quote may be usable.
            self._api.forget(offer.request.owner)
            raise

    def _draft(self, request: SwapRequest, built: JupiterRoute, minimum_units: int) -> TransactionDraft:
        pair = self._swap_accounts(request)
        instructions = self._instructions(request, pair, built, minimum_units)
        tables = transactions.read_tables(self._chain.rpc, built.tables)

        def ending(minimums: Mapping[Token, int]) -> list[Instruction]:
            """Return the instructions. The last ones fail if less than a minimum arrives, or others have authority."""
            owner, mint = pair.owner, self._usdc_mint
            return [
                *instructions,
                *tokens.revoke_other_authorities(owner, mint),
                tokens.transfer_checked(owner, owner, mint, units=minimums[USDC], decimals=USDC.decimals),
                transfer(TransferParams(from_pubkey=owner, to_pubkey=owner, lamports=minimums[SOL])),
            ]

        unsimulated = _message(pair.owner, ending({SOL: 0, USDC: 0}), tables)
        simulated = self._simulate(pair.owner, unsimulated)
        if not self._is_exactly_swap(simulated, request, minimum_units):
            # Balances and simulation may be of two moments, with a change in between: read again.
            simulated = self._simulate(pair.owner, unsimulated)
        units, price = transactions.compute_unit_limit(simulated.simulation.compute_units), simulated.price
        before = self._balances(pair.owner, simulated.before)
        network_fee = transactions.fee_lamports(units, price)
        fee_units = self._assert_affordable(request, simulated, before, network_fee)
        assert_payer_rent_exempt(simulated.empty_rent, lamports=before.lamports, network_fee=network_fee)
        error = simulated.simulation.error
        if error is not None and refusals.simulation_error(error) == _SLIPPAGE_EXCEEDED:
            raise Rejected("price_moved")
        simulated.assert_succeeded()
        if not self._is_exactly_swap(simulated, request, minimum_units):
            raise Rejected("unsafe_instructions")
        minimums = balances.minimum_balances(request, before, minimum_units=minimum_units, fee_units=fee_units)
        final = _message(pair.owner, ending(minimums), tables, simulated.latest.blockhash, budget=(units, price))
        return simulated.draft(
            TransferIntent(request.owner, request.owner, request.input_amount),
            transactions.transaction_terms(transactions.unsigned_transaction(final), simulated.latest),
            fee_units,
            (before.lamports, before.lamports if request.input_amount.token == SOL else before.usdc_units),
        )

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        """Sign a draft. No I/O. Raises: ValueError with a nonce, which Solana does not have, or with a wrong signer."""
        self._api.forget(draft.intent.sender)
        message = transactions.decode(str(draft.terms["transaction"])).message
        if not isinstance(message, MessageV0):
            raise TypeError("not a message of version 0")
        message = balances.lower_minimums(message, concurrent.outflows)
        lowered = transactions.encode(transactions.unsigned_transaction(message))
        terms = {**draft.terms, "transaction": lowered}
        return self._chain.sign(replace(draft, terms=terms), signer, sequence=sequence)

    def _swap_accounts(self, request: SwapRequest) -> SwapAccounts:
        owner = Pubkey.from_string(request.owner)
        input_token, output_token = (
            self._usdc_mint if token == USDC else WRAPPED_SOL_MINT
            for token in (request.input_amount.token, request.output_token)
        )
        taken_from, paid_to = (tokens.account_of(owner, token) for token in (input_token, output_token))
        return SwapAccounts(owner, taken_from, paid_to, input_token, output_token)

    def _instructions(
        self, request: SwapRequest, pair: SwapAccounts, built: JupiterRoute, minimum_units: int
    ) -> list[Instruction]:
        """Return Jupiter's route among our instructions. Raises: Rejected("unsafe_instructions") for other ones."""
        owner, wrapped = pair.owner, tokens.account_of(pair.owner, WRAPPED_SOL_MINT)
        before = [tokens.create_account(owner, owner, WRAPPED_SOL_MINT)]
        if request.input_amount.token == SOL:
            before += [
                transfer(TransferParams(from_pubkey=owner, to_pubkey=wrapped, lamports=request.input_amount.units)),
                tokens.sync_native(wrapped),
                tokens.create_account(owner, owner, self._usdc_mint),
            ]
        after = [tokens.close_account(wrapped, owner)]
        expected = [_instruction_content(each) for each in (*before, *after)]
        expected += [_instruction_content(tokens.create_account(owner, owner, self._usdc_mint))]
        if built.unexpected_instructions or any(
            _instruction_content(each) not in expected for each in built.auxiliary_instructions
        ):
            raise Rejected("unsafe_instructions")
        route = with_minimum(built.swap, pair, units=request.input_amount.units, minimum_units=minimum_units)
        first, *rest = before
        # A new key makes every transaction unique (see `transactions.new_reference`).
        marked = transactions.with_reference(first, transactions.new_reference())
        return [marked, *rest, route, *after]

    def _simulate(self, owner: Pubkey, message: MessageV0) -> SimulatedTransaction:
        keys = [
            owner, tokens.account_of(owner, WRAPPED_SOL_MINT), tokens.account_of(owner, self._usdc_mint),
        ]  # fmt: skip
        return simulate(self._chain.rpc, self._chain.level, message, keys)

    def _is_exactly_swap(self, simulated: SimulatedTransaction, request: SwapRequest, minimum_units: int) -> bool:
        """Return whether a simulation did what was requested and nothing else; one that failed did nothing."""
        if simulated.simulation.error is not None:
            return True
        owner = Pubkey.from_string(request.owner)
        return balances.is_exactly_swap(
            self._balances(owner, simulated.before), self._balances(owner, simulated.after), request,
            minimum_units=minimum_units, fee_units=transactions.fee_lamports(0, 0),
        )  # fmt: skip

    def _assert_affordable(
        self, request: SwapRequest, swap_state: SimulatedTransaction, before: SwapBalances, fee_units: int
    ) -> int:
        """Return the fee with the rents that remain; refuse what the wallet cannot pay. Raises: Rejected."""
        moves_native = request.input_amount.token == SOL
        # SOL that was sent to the address of a missing account in advance pays that much of its rent.
        if moves_native:
            fee_units += max(swap_state.token_rent - before.usdc_lamports, 0)  # the account for USDC remains
        # Wrapping needs an account for the duration of the swap.
        temporary_rent = max(swap_state.token_rent - before.wrapped_lamports, 0)
        if moves_native:
            Shortage.check(
                SOL, "insufficient_funds", before.lamports, request.input_amount.units + fee_units + temporary_rent
            )
            assert_rent_exempt(
                swap_state.empty_rent, remaining=before.lamports - request.input_amount.units - fee_units
            )
        else:
            Shortage.check(
                request.input_amount.token, "insufficient_funds", before.usdc_units, request.input_amount.units
            )
            Shortage.check(SOL, "insufficient_gas", before.lamports, fee_units + temporary_rent)
        return fee_units


def _message(
    owner: Pubkey,
    instructions: Sequence[Instruction],
    tables: Sequence[AddressLookupTableAccount],
    blockhash: str = transactions.NO_BLOCKHASH,
    *,
    budget: tuple[int, int] = (transactions.MAX_COMPUTE_UNITS, 0),
) -> MessageV0:
    """Compile the message. Raises: Rejected("quote_unavailable") for a route too long for one transaction."""
    named = {COMPUTE_BUDGET, *(each.program_id for each in instructions)}
    named |= {meta.pubkey for each in instructions for meta in each.accounts}
    if len(named) > _MAX_ACCOUNT_LOCKS:
        raise Rejected("quote_unavailable")
    message = transactions.compiled(owner, instructions, blockhash, budget=budget, tables=tables)
    if message.header.num_required_signatures != 1:
        raise Rejected("unsafe_instructions")
    if len(bytes(transactions.unsigned_transaction(message))) > transactions.MAX_BYTES:
        raise Rejected("quote_unavailable")
    return message


def _instruction_content(instruction: Instruction) -> tuple[Pubkey, bytes, tuple[Pubkey, ...]]:
    """Return an instruction's content; the permissions of its accounts are set by us."""
    return (instruction.program_id, bytes(instruction.data), tuple(meta.pubkey for meta in instruction.accounts))
