"""A constant-product exchange at Jupiter's address that executes Jupiter's routes.

The output is `in * 997 * reserve_out // (reserve_in * 1000 + in * 997)`, 0.3 % below a swap without fees. Less than the
quote less the slippage fails with Jupiter's error; tokens move only with the signature of their owner.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

from solders.pubkey import Pubkey

from solana_node.sbpf_assembler import SbpfProgram

JUPITER: Final = Pubkey.from_string("JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4")
ROUTE_V2: Final = bytes.fromhex("bb64facc31c4af14")
SHARED_ACCOUNTS_ROUTE_V2: Final = bytes.fromhex("d19853937cfed8e9")
SLIPPAGE_EXCEEDED: Final = 6001
_SEED: Final = b"amm"
POOL, _BUMP = Pubkey.find_program_address([_SEED], JUPITER)
"""The owner of both vaults: an address derived from the program."""


@dataclass(frozen=True, slots=True)
class _RouteShape:
    """An instruction: the offset of its figures and the positions of its accounts."""

    discriminator: bytes
    accounts: int
    amounts_offset: int
    named: tuple[int, ...]
    """The user's two accounts, the two vaults, the authority, and the token program."""


_SHAPES: Final = {
    ROUTE_V2: _RouteShape(ROUTE_V2, accounts=13, amounts_offset=8, named=(1, 2, 10, 11, 0, 12, 5)),
    SHARED_ACCOUNTS_ROUTE_V2: _RouteShape(
        SHARED_ACCOUNTS_ROUTE_V2, accounts=15, amounts_offset=9, named=(2, 5, 12, 13, 1, 14, 8)
    ),
}
_VAULT_IN, _VAULT_OUT, _TOKEN = 2, 3, 6
"""Positions in the list of accounts."""

# Layout of a serialised account: header, data, spare space, padding, rent epoch.
_KEY, _OWNER, _LAMPORTS, _LENGTH, _DATA, _SPARE = 8, 40, 72, 80, 88, 10_240
_AMOUNT_IN_TOKEN_ACCOUNT: Final = 64
_INFO_BYTES: Final = 56
# Offsets on the stack.
_INFOS, _METAS, _INSTRUCTION, _CALL_DATA, _SEEDS, _SIGNERS, _SEED_AT, _TABLE = (
    -512, -560, -600, -616, -648, -664, -672, -800,
)  # fmt: skip
_STACK: Final = 10


def quote(units: int, *, reserve_in: int, reserve_out: int) -> int:
    """Return the output of the program."""
    paid = units * 997
    return paid * reserve_out // (reserve_in * 1000 + paid)


@cache
def exchange_program(*, route: bytes = ROUTE_V2, greed: int = 1) -> bytes:
    """Assemble the program for one kind of route; `greed` multiplies the amount taken, to test checks."""
    shape = _SHAPES[route]
    in_units, out_units, slippage_bps = (8 + shape.amounts_offset + at for at in (0, 8, 16))
    program = SbpfProgram()
    program.op("mov", 6, "r1")
    program.load(8, 0, 6)
    program.jump_if("ne", 0, shape.accounts, "bad")
    _find_accounts(program, shape.accounts)
    for place, named in enumerate(shape.named):
        program.load(8, 8, _STACK, _TABLE + 8 * named)
        _describe(program, 8, _INFOS + _INFO_BYTES * place)
    program.load(8, 1, 7)
    program.jump_if("lt", 1, shape.amounts_offset + 22, "bad")
    for place, byte in enumerate(shape.discriminator):
        program.load(1, 1, 7, 8 + place)
        program.jump_if("ne", 1, byte, "bad")
    for register, vault in ((8, _VAULT_IN), (9, _VAULT_OUT)):
        program.load(8, 1, _STACK, _TABLE + 8 * shape.named[vault])
        program.load(8, register, 1, _DATA + _AMOUNT_IN_TOKEN_ACCOUNT)
    program.load(8, 4, 7, in_units)
    program.jump_if("eq", 4, 0, "bad")
    _compute_output(program)
    _assert_enough(program, out_units, slippage_bps)
    _sign_as_pool(program)
    program.load(8, 1, 7, in_units)
    program.op("mul", 1, greed)
    _transfer(program, source=0, target=2, authority=4, signers=0)
    program.op("mov", 1, "r9")
    _transfer(program, source=3, target=1, authority=5, signers=1)
    program.op("mov", 0, 0)
    program.label("out")
    program.exit()
    program.label("slippage")
    program.exit(SLIPPAGE_EXCEEDED)
    program.label("bad")
    program.exit(1)
    return program.elf()


def _find_accounts(program: SbpfProgram, count: int) -> None:
    """Write each account's address to the table, duplicates resolved; register 7 points past the last."""
    program.address(7, 6, 8)
    program.address(8, _STACK, _TABLE)
    program.address(9, _STACK, _TABLE + 8 * count)
    program.label("next")
    program.load(1, 1, 7)
    program.jump_if("ne", 1, 255, "repeated")
    program.store(8, 8, 0, "r7")
    program.load(8, 1, 7, _LENGTH)
    program.op("add", 1, _SPARE + 7)
    program.op("and", 1, -8)
    program.op("add", 7, "r1")
    program.op("add", 7, _DATA + 8)
    program.jump("step")
    program.label("repeated")
    program.op("lsh", 1, 3)
    program.address(2, _STACK, _TABLE)
    program.op("add", 2, "r1")
    program.load(8, 1, 2)
    program.store(8, 8, 0, "r1")
    program.op("add", 7, 8)
    program.label("step")
    program.op("add", 8, 8)
    program.jump_if("lt", 8, "r9", "next")


def _describe(program: SbpfProgram, register: int, at: int) -> None:
    """Write the C `SolAccountInfo` of an account to the stack."""
    for source, place in ((_KEY, 0), (_LAMPORTS, 8), (_DATA, 24), (_OWNER, 32)):
        program.address(1, register, source)
        program.store(8, _STACK, at + place, "r1")
    program.load(8, 1, register, _LENGTH)
    program.store(8, _STACK, at + 16, "r1")
    program.store(8, _STACK, at + 40, 0)
    for source, place in ((1, 48), (2, 49), (3, 50)):
        program.load(1, 1, register, source)
        program.store(1, _STACK, at + place, "r1")


def _compute_output(program: SbpfProgram) -> None:
    """Compute the output into register 9 from input r4 and reserves r8 and r9, by 128-bit long division."""
    program.op("mul", 4, 997)
    program.op("mov", 5, "r8")
    program.op("mul", 5, 1000)
    program.op("add", 5, "r4")
    program.op("mov", 3, -1)
    program.op("rsh", 3, 32)
    for low, high, source in ((1, 4, 4), (2, 8, 9)):
        program.op("mov", low, f"r{source}")
        if high != source:
            program.op("mov", high, f"r{source}")
        program.op("and", low, "r3")
        program.op("rsh", high, 32)
    program.op("mov", 0, "r1")
    for target, factor in ((0, "r2"), (2, "r4"), (1, "r8"), (4, "r8")):
        program.op("mul", target, factor)
    program.op("mov", 8, "r0")
    program.op("rsh", 8, 32)
    for middle in (1, 2):
        program.op("mov", 9, f"r{middle}")
        program.op("and", 9, "r3")
        program.op("add", 8, "r9")
        program.op("rsh", middle, 32)
        program.op("add", 4, f"r{middle}")
    program.op("mov", 9, "r8")
    program.op("rsh", 9, 32)
    program.op("add", 4, "r9")
    program.op("and", 0, "r3")
    program.op("lsh", 8, 32)
    program.op("or", 0, "r8")
    # r1:r2 is the numerator, r3 the remainder, r4 the quotient.
    program.op("mov", 1, "r4")
    program.op("mov", 2, "r0")
    program.op("mov", 3, 0)
    program.op("mov", 4, 0)
    program.op("mov", 0, 128)
    program.label("divide")
    for target, source in ((3, 1), (1, 2)):
        program.op("lsh", target, 1)
        program.op("mov", 8, f"r{source}")
        program.op("rsh", 8, 63)
        program.op("or", target, "r8")
    program.op("lsh", 2, 1)
    program.op("lsh", 4, 1)
    program.jump_if("lt", 3, "r5", "smaller")
    program.op("sub", 3, "r5")
    program.op("or", 4, 1)
    program.label("smaller")
    program.op("sub", 0, 1)
    program.jump_if("ne", 0, 0, "divide")
    program.op("mov", 9, "r4")


def _assert_enough(program: SbpfProgram, out_units: int, slippage_bps: int) -> None:
    """Compare register 9 with the quote less the slippage."""
    program.jump_if("eq", 9, 0, "slippage")
    program.load(8, 1, 7, out_units)
    program.load(2, 2, 7, slippage_bps)
    program.op("mov", 3, 10_000)
    program.op("sub", 3, "r2")
    program.op("mul", 1, "r3")
    program.op("div", 1, 10_000)
    program.jump_if("lt", 9, "r1", "slippage")


def _sign_as_pool(program: SbpfProgram) -> None:
    program.store(4, _STACK, _SEED_AT, int.from_bytes(_SEED.ljust(4, b"\0"), "little"))
    program.store(1, _STACK, _SEED_AT + 4, _BUMP)
    for place, (offset, length) in enumerate(((0, len(_SEED)), (4, 1))):
        program.address(1, _STACK, _SEED_AT + offset)
        program.store(8, _STACK, _SEEDS + 16 * place, "r1")
        program.store(8, _STACK, _SEEDS + 16 * place + 8, length)
    program.address(1, _STACK, _SEEDS)
    program.store(8, _STACK, _SIGNERS, "r1")
    program.store(8, _STACK, _SIGNERS + 8, 2)


def _transfer(program: SbpfProgram, *, source: int, target: int, authority: int, signers: int) -> None:
    """Call SPL Token's Transfer of the amount in register 1, between accounts given by position."""
    program.store(1, _STACK, _CALL_DATA, 3)
    program.store(8, _STACK, _CALL_DATA + 1, "r1")
    for place, (named, writable, signer) in enumerate(((source, 1, 0), (target, 1, 0), (authority, 0, 1))):
        program.load(8, 1, _STACK, _INFOS + _INFO_BYTES * named)
        program.store(8, _STACK, _METAS + 16 * place, "r1")
        program.store(8, _STACK, _METAS + 16 * place + 8, writable | signer << 8)
    program.load(8, 1, _STACK, _INFOS + _INFO_BYTES * _TOKEN)
    program.store(8, _STACK, _INSTRUCTION, "r1")
    for offset, value in ((8, _METAS), (24, _CALL_DATA)):
        program.address(1, _STACK, value)
        program.store(8, _STACK, _INSTRUCTION + offset, "r1")
    program.store(8, _STACK, _INSTRUCTION + 16, 3)
    program.store(8, _STACK, _INSTRUCTION + 32, 9)
    program.address(1, _STACK, _INSTRUCTION)
    program.address(2, _STACK, _INFOS)
    program.op("mov", 3, _TOKEN + 1)
    program.address(4, _STACK, _SIGNERS)
    program.op("mov", 5, signers)
    program.call("sol_invoke_signed_c")
    program.jump_if("ne", 0, 0, "out")
