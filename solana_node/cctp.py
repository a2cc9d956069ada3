"""Stand-ins for Circle's CCTP V2 programs, at their addresses, with Circle's accounts and encodings.

Burning reduces the supply of USDC. Receiving checks the attestation, the domain, the recipient and that the message is
new, and pays from a custody account the amount that the original mints.
"""

import struct
from functools import cache
from typing import Final

from solders.account import Account
from solders.address_lookup_table_account import ID as LOOKUP_TABLE_PROGRAM
from solders.pubkey import Pubkey

from solana_node import tokens
from solana_node.addresses import SYSTEM, TOKEN, associated_token_address
from solana_node.sbpf_assembler import SbpfProgram

MESSENGER: Final = Pubkey.from_string("CCTPV2vPZJS2u2BBsUoscuikbYjnpFmbFsvVuJdgUMQe")
TRANSMITTER: Final = Pubkey.from_string("CCTPV2Sm4AdWt5296sk4P66VBZ7bEhcARwFaaS9YPbeC")
ATTESTERS: Final = (
    bytes.fromhex("14dc79964da2c08b23698b3d3cc7ca32193d9955"),
    bytes.fromhex("23618e81e3f5cdf7f54c3d65f7fbc0abf5b21e8f"),
)
"""The EVM addresses of the attesters, in the order of their signatures: development accounts of the EVM chains."""
LOOKUP_TABLE: Final = "67MdBiNJFdaFs9HsHkoKBzCyiptXZUbAM3DyTrCq6TwU"
FEE_OWNER: Final = Pubkey.from_string("Fee1111111111111111111111111111111111111111")
_TABLE_HEADER_BYTES: Final = 56
_CUSTODY_UNITS: Final = 10**15
_TOKEN_RENT: Final = 2_039_280
_NONCE_RENT: Final = 953_520
_NONCE_BYTES: Final = 9
_FORGED: Final = 6010
_DOMAIN_BIG_ENDIAN: Final = 5 << 24
_TOKEN_MESSENGER: Final = bytes.fromhex("a204f23493f3dd60")  # Anchor's discriminator of the account

_BURN_ACCOUNTS, _RECEIVE_ACCOUNTS = 18, 20
_SHORTEST_MESSAGE, _SHORTEST_BURN, _SIGNATURE = 376, 96, 65
_ATTESTATION: Final = _SIGNATURE * len(ATTESTERS)
_BODY: Final = 148
# Layout of a serialised account: header, data, spare space, padding, rent epoch.
_KEY, _OWNER, _LAMPORTS, _LENGTH, _DATA, _SPARE = 8, 40, 72, 80, 88, 10_240
_INFO_BYTES: Final = 56
_STACK: Final = 10
_TABLE, _METAS, _INSTRUCTION = -800, -560, -600


def cctp_accounts(usdc: Pubkey) -> dict[str, Account]:
    """Return the initial accounts of the programs, by address."""
    authority = _at(TRANSMITTER, b"message_transmitter_authority", bytes(MESSENGER))
    token_program = Pubkey.from_string(TOKEN)
    custody = tokens.token_account_data(usdc, authority, _CUSTODY_UNITS, rent=None)
    fees = tokens.token_account_data(usdc, FEE_OWNER, 0, rent=None)
    messenger = _TOKEN_MESSENGER + bytes(3 * 32 + 4 + 1) + bytes(FEE_OWNER) + bytes(32 + 4)
    return {
        str(_at(MESSENGER, b"custody", bytes(usdc))): Account(_TOKEN_RENT, custody, token_program),
        str(associated_token_address(FEE_OWNER, usdc)): Account(_TOKEN_RENT, fees, token_program),
        str(_at(MESSENGER, b"token_messenger")): Account(10**7, messenger, MESSENGER),
        LOOKUP_TABLE: _lookup_table(usdc),
    }


def _lookup_table(usdc: Pubkey) -> Account:
    """Return the table of those accounts of a mint that do not depend on its message."""
    entries = [
        _at(TRANSMITTER, b"message_transmitter_authority", bytes(MESSENGER)),
        _at(TRANSMITTER, b"message_transmitter"),
        _at(TRANSMITTER, b"__event_authority"),
        *(_at(MESSENGER, seed) for seed in (b"token_messenger", b"token_minter", b"__event_authority")),
        *(_at(MESSENGER, seed, bytes(usdc)) for seed in (b"local_token", b"custody")),
        associated_token_address(FEE_OWNER, usdc),
        *(Pubkey.from_string(program) for program in (TOKEN, SYSTEM)),
        MESSENGER,
    ]
    # A table without an authority, never deactivated, last extended in slot 0.
    header = struct.pack("<IQQB", 1, 2**64 - 1, 0, 0).ljust(_TABLE_HEADER_BYTES, b"\0")
    return Account(10**7, header + b"".join(map(bytes, entries)), LOOKUP_TABLE_PROGRAM)


@cache
def burning_program() -> bytes:
    """Assemble `deposit_for_burn`, with or without a hook: SPL Token's Burn, signed by the owner."""
    program, infos, payload = SbpfProgram(), -512, -616
    program.op("mov", 6, "r1")
    program.load(8, 0, 6)
    program.jump_if("ne", 0, _BURN_ACCOUNTS, "bad")
    _find_accounts(program, _BURN_ACCOUNTS)
    program.load(8, 1, 7)
    program.jump_if("lt", 1, _SHORTEST_BURN, "bad")
    program.load(8, 9, 7, 16)
    for place, named in enumerate((3, 10, 0, 14)):  # the owner's tokens, the mint, the owner, the token program
        program.load(8, 8, _STACK, _TABLE + 8 * named)
        _describe(program, 8, infos + _INFO_BYTES * place)
    program.store(1, _STACK, payload, 8)
    program.store(8, _STACK, payload + 1, "r9")
    _invoke(program, infos, count=4, target=3, metas=((0, 1, 0), (1, 1, 0), (2, 0, 1)), payload=(payload, 9))
    program.op("mov", 0, 0)
    program.label("out")
    program.exit()
    program.label("bad")
    program.exit(1)
    return program.elf()


_INFOS, _PAYLOAD, _HASH, _PUBLIC, _SEEDS = -1400, -1504, -1600, -1704, -1800
_SIGNERS, _TEXT, _BUMP, _ADDRESS, _SLICE = -1832, -1904, -1912, -1960, -1984


@cache
def receiving_program() -> bytes:
    """Assemble `receive_message`."""
    program = SbpfProgram()
    program.op("mov", 6, "r1")
    program.load(8, 0, 6)
    program.jump_if("ne", 0, _RECEIVE_ACCOUNTS, "bad")
    _find_accounts(program, _RECEIVE_ACCOUNTS)
    # Payer, used nonce, system program, custody, recipient, authority, token program, fee account.
    for place, named in enumerate((0, 4, 6, 16, 15, 2, 17, 14)):
        program.load(8, 8, _STACK, _TABLE + 8 * named)
        _describe(program, 8, _INFOS + _INFO_BYTES * place)
    _read_message(program)
    _check_attestation(program)
    _check_message(program)
    _use_nonce(program)
    _pay(program)
    program.op("mov", 0, 0)
    program.label("out")
    program.exit()
    program.label("forged")
    program.exit(_FORGED)
    program.label("bad")
    program.exit(1)
    return program.elf()


def _read_message(program: SbpfProgram) -> None:
    """Point register 8 at the message and 6 at the attestation; the length is in 9."""
    program.op("add", 7, 8)
    program.load(4, 9, 7, 8)
    program.jump_if("lt", 9, _SHORTEST_MESSAGE, "bad")
    program.address(8, 7, 12)
    program.address(1, 8, 0)
    program.op("add", 1, "r9")
    program.load(4, 2, 1)
    program.jump_if("ne", 2, _ATTESTATION, "bad")
    program.op("mov", 6, "r1")
    program.op("add", 6, 4)


def _check_attestation(program: SbpfProgram) -> None:
    """Recover the signers of the message's keccak hash, and compare them with the attesters."""
    for place, attester in enumerate(ATTESTERS):
        _check_signature(program, attester, at=_SIGNATURE * place)


def _check_signature(program: SbpfProgram, attester: bytes, *, at: int) -> None:
    program.store(8, _STACK, _SLICE, "r8")
    program.store(8, _STACK, _SLICE + 8, "r9")
    _hash_slice(program)
    program.address(1, _STACK, _HASH)
    program.load(1, 2, 6, at + 64)
    program.op("sub", 2, 27)
    program.address(3, 6, at)
    program.address(4, _STACK, _PUBLIC)
    program.call("sol_secp256k1_recover")
    program.jump_if("ne", 0, 0, "forged")
    program.address(1, _STACK, _PUBLIC)
    program.store(8, _STACK, _SLICE, "r1")
    program.store(8, _STACK, _SLICE + 8, 64)
    _hash_slice(program)
    for place, byte in enumerate(attester):
        program.load(1, 1, _STACK, _HASH + 12 + place)
        program.jump_if("ne", 1, byte, "forged")


def _hash_slice(program: SbpfProgram) -> None:
    program.address(1, _STACK, _SLICE)
    program.op("mov", 2, 1)
    program.address(3, _STACK, _HASH)
    program.call("sol_keccak256")


def _check_message(program: SbpfProgram) -> None:
    """Compare destination domain and recipient; register 9 points at this program's id afterwards."""
    program.load(4, 1, 8, 8)
    program.jump_if("ne", 1, _DOMAIN_BIG_ENDIAN, "bad")
    program.load(8, 9, _STACK, _TABLE + 8 * 15)
    for place in range(0, 32, 8):
        program.load(8, 1, 9, _KEY + place)
        program.load(8, 2, 8, _BODY + 36 + place)
        program.jump_if("ne", 1, "r2", "bad")
    program.load(4, 9, 7, 8)
    program.op("add", 9, "r8")
    program.op("add", 9, 4 + _ATTESTATION)


def _use_nonce(program: SbpfProgram) -> None:
    """Create the account that marks this message as received; fails if it exists."""
    _text(program, b"used_nonce")
    _find_address(program, (_STACK, _TEXT, 10), (8, 12, 32))
    program.store(4, _STACK, _PAYLOAD, 0)
    program.store(8, _STACK, _PAYLOAD + 4, _NONCE_RENT)
    program.store(8, _STACK, _PAYLOAD + 12, _NONCE_BYTES)
    for place in range(0, 32, 8):
        program.load(8, 1, 9, place)
        program.store(8, _STACK, _PAYLOAD + 20 + place, "r1")
    _invoke(
        program, _INFOS, count=8, target=2, metas=((0, 1, 1), (1, 1, 1)), payload=(_PAYLOAD, 52), signers=(_SIGNERS, 1)
    )


def _pay(program: SbpfProgram) -> None:
    """Transfer from custody: the amount less the fee to the recipient, and the fee."""
    _text(program, b"message_transmitter_authority")
    program.load(8, 6, _STACK, _TABLE + 8 * 5)
    _find_address(program, (_STACK, _TEXT, 29), (6, _KEY, 32))
    for target, is_fee in ((4, False), (7, True)):
        program.load(8, 1, 8, _BODY + 188)  # the fee's low eight bytes
        program.swap(1)
        if is_fee:
            program.jump_if("eq", 1, 0, "done")
        else:
            program.load(8, 2, 8, _BODY + 92)
            program.swap(2)
            program.jump_if("lt", 2, "r1", "bad")
            program.op("sub", 2, "r1")
            program.op("mov", 1, "r2")
        program.store(1, _STACK, _PAYLOAD, 3)
        program.store(8, _STACK, _PAYLOAD + 1, "r1")
        metas = ((3, 1, 0), (target, 1, 0), (5, 0, 1))
        _invoke(program, _INFOS, count=8, target=6, metas=metas, payload=(_PAYLOAD, 9), signers=(_SIGNERS, 1))
    program.label("done")


def _find_address(program: SbpfProgram, *parts: tuple[int, int, int]) -> None:
    """Derive the program address of seeds (register, offset, length), and prepare the signer seeds."""
    for place, (register, offset, length) in enumerate((*parts, (_STACK, _BUMP, 1))):
        program.address(1, register, offset)
        program.store(8, _STACK, _SEEDS + 16 * place, "r1")
        program.store(8, _STACK, _SEEDS + 16 * place + 8, length)
    program.address(1, _STACK, _SEEDS)
    program.op("mov", 2, len(parts))
    program.op("mov", 3, "r9")
    program.address(4, _STACK, _ADDRESS)
    program.address(5, _STACK, _BUMP)
    program.call("sol_try_find_program_address")
    program.address(1, _STACK, _SEEDS)
    program.store(8, _STACK, _SIGNERS, "r1")
    program.store(8, _STACK, _SIGNERS + 8, len(parts) + 1)


def _text(program: SbpfProgram, text: bytes) -> None:
    for place in range(0, len(text), 4):
        piece = int.from_bytes(text[place : place + 4].ljust(4, b"\0"), "little")
        program.store(4, _STACK, _TEXT + place, piece)


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


def _invoke(
    program: SbpfProgram,
    infos: int,
    *,
    count: int,
    target: int,
    metas: tuple[tuple[int, int, int], ...],
    payload: tuple[int, int],
    signers: tuple[int, int] = (0, 0),
) -> None:
    """Call another program; `metas` are (described account, writable, signer)."""
    for place, (named, writable, signer) in enumerate(metas):
        program.load(8, 1, _STACK, infos + _INFO_BYTES * named)
        program.store(8, _STACK, _METAS + 16 * place, "r1")
        program.store(8, _STACK, _METAS + 16 * place + 8, writable | signer << 8)
    program.load(8, 1, _STACK, infos + _INFO_BYTES * target)
    program.store(8, _STACK, _INSTRUCTION, "r1")
    for offset, value in ((8, _METAS), (24, payload[0])):
        program.address(1, _STACK, value)
        program.store(8, _STACK, _INSTRUCTION + offset, "r1")
    program.store(8, _STACK, _INSTRUCTION + 16, len(metas))
    program.store(8, _STACK, _INSTRUCTION + 32, payload[1])
    program.address(1, _STACK, _INSTRUCTION)
    program.address(2, _STACK, infos)
    program.op("mov", 3, count)
    program.address(4, _STACK, signers[0] or payload[0])
    program.op("mov", 5, signers[1])
    program.call("sol_invoke_signed_c")
    program.jump_if("ne", 0, 0, "out")


def _at(program: Pubkey, *seeds: bytes) -> Pubkey:
    return Pubkey.find_program_address(list(seeds), program)[0]
