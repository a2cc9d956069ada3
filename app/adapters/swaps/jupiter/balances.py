"""The effects of a swap, by its simulation: exact input, enough output, no new authority. No I/O.

A simulation shows one moment, and a program can behave differently later: minimum balances are enforced on chain by
our own instructions behind the route. A payment of an account to itself moves nothing, and fails unless that much is
there and the owner may still move it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solders.instruction import CompiledInstruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import tokens
from app.core.chains import SOL, USDC, Token
from app.ports.swaps import SwapRequest


@dataclass(frozen=True, slots=True)
class SwapBalances:
    """An owner's balances: lamports in the address and in both token accounts, USDC, and who else may move it."""

    lamports: int
    wrapped_lamports: int
    usdc_lamports: int
    usdc_units: int
    is_owner_controlled: bool

    @property
    def total_lamports(self) -> int:
        """All lamports, rent included: what only moves between the owner's accounts does not count."""
        return self.lamports + self.wrapped_lamports + self.usdc_lamports


def read_balances(usdc_mint: Pubkey, owner: Pubkey, states: Sequence[AccountState | None]) -> SwapBalances:
    wallet, wrapped, usdc = states
    return SwapBalances(
        lamports=wallet.lamports if wallet else 0,
        wrapped_lamports=wrapped.lamports if wrapped else 0,
        usdc_lamports=usdc.lamports if usdc else 0,
        usdc_units=tokens.units_of(usdc, owner=owner, mint=usdc_mint),
        is_owner_controlled=(wallet is None or (wallet.owner == SYSTEM_PROGRAM and not wallet.data))
        and not any(_has_other_authority(each, owner) for each in (wrapped, usdc)),
    )


def is_exactly_swap(
    before: SwapBalances, after: SwapBalances, request: SwapRequest, *, minimum_units: int, fee_units: int
) -> bool:
    """Return whether the two states differ by the swap, and by nothing else."""
    lamports = after.total_lamports - before.total_lamports + fee_units
    usdc = after.usdc_units - before.usdc_units
    if request.input_amount.token == SOL:
        is_right = lamports == -request.input_amount.units and usdc >= minimum_units
    else:
        is_right = usdc == -request.input_amount.units and lamports >= minimum_units
    return is_right and after.is_owner_controlled


def _has_other_authority(account: AccountState | None, owner: Pubkey) -> bool:
    state = tokens.read_account(account)
    return state is not None and (
        state.owner != owner or state.delegate is not None or state.close_authority is not None
    )


_TOKENS = struct.Struct("<BQB")
"""SPL Token's TransferChecked: its number, units, decimals."""
_LAMPORTS = struct.Struct("<IQ")
"""The System program's Transfer: its number, lamports."""


def minimum_balances(
    request: SwapRequest, before: SwapBalances, *, minimum_units: int, fee_units: int
) -> Mapping[Token, int]:
    """Return the balances less amount and fee, plus the minimum output; wrapped SOL is unwrapped by then."""
    change = {request.input_amount.token: -request.input_amount.units, request.output_token: minimum_units}
    return {
        SOL: max(before.lamports + before.wrapped_lamports + change[SOL] - fee_units, 0),
        USDC: max(before.usdc_units + change[USDC], 0),
    }


def lower_minimums(message: MessageV0, outflows: Mapping[Token, int]) -> MessageV0:
    """Return a message with its final instructions' minimums lowered by what else may leave before it lands."""
    *others, of_tokens, of_lamports = message.instructions
    number, units, decimals = _TOKENS.unpack(bytes(of_tokens.data))
    kind, lamports = _LAMPORTS.unpack(bytes(of_lamports.data))
    units, lamports = max(units - outflows.get(USDC, 0), 0), max(lamports - outflows.get(SOL, 0), 0)
    return MessageV0(
        message.header,
        message.account_keys,
        message.recent_blockhash,
        [
            *others,
            _with_data(of_tokens, _TOKENS.pack(number, units, decimals)),
            _with_data(of_lamports, _LAMPORTS.pack(kind, lamports)),
        ],
        message.address_table_lookups,
    )


def _with_data(instruction: CompiledInstruction, data: bytes) -> CompiledInstruction:
    return CompiledInstruction(instruction.program_id_index, data, bytes(instruction.accounts))
