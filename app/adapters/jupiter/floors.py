"""What a wallet must be left with, said by instructions of our own behind the route, so that the chain enforces it.

A simulation shows what would happen at that moment, and a program can do otherwise later. A payment of an account to
itself moves nothing, and fails unless that much is there and is still its owner's to move. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from solders.instruction import CompiledInstruction, Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from app.adapters.jupiter.effects import Holdings
from app.adapters.solana import tokens
from app.core.chains import SOL, USDC, Token
from app.ports.swaps import Ask

_TOKENS = struct.Struct("<BQB")
"""SPL Token's TransferChecked: its number, units, decimals."""
_LAMPORTS = struct.Struct("<IQ")
"""The System program's Transfer: its number, lamports."""


@dataclass(frozen=True, slots=True)
class Floors:
    """The least that a wallet holds when its swap is done."""

    lamports: int = 0
    usdc_units: int = 0


def of_swap(ask: Ask, before: Holdings, *, minimum_units: int, fee_units: int) -> Floors:
    """Return what is left of the holdings at least: less the amount and the fee, and more by the minimum.

    What is wrapped by then is lamports again: the account that wraps is closed at the end.
    """
    change = {ask.given.token: -ask.given.units, ask.wanted: minimum_units}
    return Floors(
        lamports=max(before.lamports + before.wrapped_lamports + change[SOL] - fee_units, 0),
        usdc_units=max(before.usdc_units + change[USDC], 0),
    )


def instructions(owner: Pubkey, usdc_mint: Pubkey, floors: Floors) -> list[Instruction]:
    """Return what fails the whole transaction unless the floors hold and nobody else was let into the account."""
    return [
        *tokens.shut_others_out(owner, usdc_mint),
        tokens.transfer_checked(owner, owner, usdc_mint, units=floors.usdc_units, decimals=USDC.decimals),
        transfer(TransferParams(from_pubkey=owner, to_pubkey=owner, lamports=floors.lamports)),
    ]


def lowered(message: MessageV0, leaving: Mapping[Token, int]) -> MessageV0:
    """Return a message that ends with `instructions`, its floors lower by what else may leave before it lands."""
    *others, of_tokens, of_lamports = message.instructions
    number, units, decimals = _TOKENS.unpack(bytes(of_tokens.data))
    kind, lamports = _LAMPORTS.unpack(bytes(of_lamports.data))
    units, lamports = max(units - leaving.get(USDC, 0), 0), max(lamports - leaving.get(SOL, 0), 0)
    return MessageV0(
        message.header,
        message.account_keys,
        message.recent_blockhash,
        [
            *others,
            _saying(of_tokens, _TOKENS.pack(number, units, decimals)),
            _saying(of_lamports, _LAMPORTS.pack(kind, lamports)),
        ],
        message.address_table_lookups,
    )


def _saying(instruction: CompiledInstruction, data: bytes) -> CompiledInstruction:
    return CompiledInstruction(instruction.program_id_index, data, bytes(instruction.accounts))
