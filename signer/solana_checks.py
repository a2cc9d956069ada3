"""Checks of what is signed for Solana: messages, instruction by instruction.

Accounts of lookup tables are unknown here, so that only routes of swaps and mints of bridges may have some.
"""

import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.instruction import CompiledInstruction
from solders.message import MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address as account_of
from spl.token.constants import ASSOCIATED_TOKEN_PROGRAM_ID, WRAPPED_SOL_MINT

from app.adapters.bridges import deployments as bridges
from app.adapters.bridges.cctp import instructions as cctp
from app.adapters.bridges.cctp import messages
from app.adapters.solana.deployments import DEPLOYMENTS
from app.adapters.solana.send import tokens, transactions
from app.adapters.solana.x402.payments import MEMO_PROGRAM
from app.adapters.swaps.jupiter import exchange as jupiter
from app.core.chains import SOL, USDC, ChainName, Family
from signer.intended import SERVICE_KINDS, Intended, Refused, Signable, require

MAX_FEE_LAMPORTS = 20_000_000
"""No network fee is higher: 0.02 SOL."""
VALID_SECONDS = 300
"""Far longer than a blockhash is accepted. A durable nonce needs an instruction that no kind with a hold has."""
_TRANSFER, _TRANSFER_CHECKED, _CLOSE, _SYNC, _REVOKE, _SET_AUTHORITY = 2, 12, 9, 17, 5, 6
_CREATE_IDEMPOTENT = 1


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction: its program, its data, and its accounts, None for those of lookup tables."""

    program: Pubkey
    data: bytes
    accounts: Sequence[Pubkey | None]


@dataclass(frozen=True, slots=True)
class _Message:
    message: MessageV0
    steps: Sequence[Step]
    mint: Pubkey
    owner: Pubkey

    @property
    def pays_fee(self) -> bool:
        return self.message.account_keys[0] == self.owner

    def token_account(self, owner: str | Pubkey) -> Pubkey:
        of = Pubkey.from_string(owner) if isinstance(owner, str) else owner
        return tokens.account_of(of, self.mint)


def check_message(raw: bytes, candidates: Sequence[Intended], network: str) -> list[Signable]:
    """Return what a message is for the intents that it carries out, all of them together. Raises: Refused."""
    try:
        message = from_bytes_versioned(raw)
    except ValueError:
        raise Refused("malformed") from None
    if not isinstance(message, MessageV0) or to_bytes_versioned(message) != raw:
        raise Refused("malformed")
    keys = message.account_keys
    require(len(set(keys)) == len(keys), "malformed")
    mint = Pubkey.from_string(DEPLOYMENTS[network].usdc_mint)
    on_chain = [each for each in candidates if each.chain is ChainName.SOLANA]
    require(bool(on_chain), "not_recorded")
    owner = Pubkey.from_string(on_chain[0].solana_address)
    require(owner in keys[: message.header.num_required_signatures], "another_signer")
    found = _Message(message, [_step(each, keys) for each in message.instructions], mint, owner)
    rest = _without_budget(found)
    reason, digest = "not_recorded", hashlib.sha256(raw).digest()
    for kinds, check in _CHECKS:
        meant = [each for each in on_chain if kinds(each)]
        if not meant:
            continue
        try:
            carried_out = check(found, rest, meant)
        except (Refused, struct.error, IndexError, ValueError) as refusal:
            reason = str(refusal) if isinstance(refusal, Refused) else "not_as_recorded"
            continue
        until = int(time.time()) + VALID_SECONDS
        return [
            Signable(carried_out, "transaction", ChainName.SOLANA, str(owner), digest, digest.hex(), valid_until=until)
        ]
    raise Refused(reason)


def _step(instruction: CompiledInstruction, keys: Sequence[Pubkey]) -> Step:
    require(instruction.program_id_index < len(keys), "malformed")
    accounts = [keys[index] if index < len(keys) else None for index in bytes(instruction.accounts)]
    return Step(keys[instruction.program_id_index], bytes(instruction.data), accounts)


def _without_budget(found: _Message) -> list[Step]:
    """Return the instructions but those of the compute budget, whose fee is bounded if the wallet pays it."""
    units, price = transactions.MAX_COMPUTE_UNITS, 0
    rest = []
    for step in found.steps:
        if step.program != COMPUTE_BUDGET:
            rest.append(step)
        elif step.data[:1] == b"\x02":
            units = int.from_bytes(step.data[1:], "little")
        elif step.data[:1] == b"\x03":
            price = int.from_bytes(step.data[1:], "little")
        else:
            raise Refused("not_as_recorded")
    fee = transactions.fee_lamports(units, price)
    require(not found.pays_fee or fee <= MAX_FEE_LAMPORTS, "network_fee_too_high")
    return rest


def _payment(found: _Message, rest: Sequence[Step], meant: Sequence[Intended]) -> list[Intended]:
    """Check that a message makes recorded payments, and nothing else; a fee is paid by the same message."""
    require(not found.message.address_table_lookups, "lookup_table")
    open_intents, paid = list(meant), []
    for step in rest:
        if step.program == MEMO_PROGRAM:
            continue
        if _creates_account(found, step):
            receivers = [found.token_account(each.recipient) for each in meant]
            require(step.accounts[1] in receivers, "not_as_recorded")
            continue
        if any(_creates_for(step, each) for each in meant if each.amount.token.contract is not None):
            continue
        match = next((each for each in open_intents if _pays(found, step, each)), None)
        require(match is not None, "not_as_recorded")
        assert match is not None  # noqa: S101 - for the type checker
        require(match.may_pay, "hold_missing")
        open_intents.remove(match)
        paid.append(match)
    require(bool(paid), "not_as_recorded")
    return paid


def _pays(found: _Message, step: Step, intended: Intended) -> bool:
    units = intended.amount.units
    if intended.amount.token == SOL:
        data = struct.pack("<IQ", _TRANSFER, units)
        to = Pubkey.from_string(intended.recipient)
        return (step.program, step.data, list(step.accounts[:2])) == (SYSTEM_PROGRAM, data, [found.owner, to])
    if intended.amount.token.contract is not None:
        return _pays_foreign(found, step, intended)
    data = struct.pack("<BQB", _TRANSFER_CHECKED, units, USDC.decimals)
    own, to = found.token_account(found.owner), found.token_account(intended.recipient)
    return (step.program, step.data, list(step.accounts[:4])) == (
        TOKEN_PROGRAM, data, [own, found.mint, to, found.owner],
    )  # fmt: skip


def _pays_foreign(found: _Message, step: Step, intended: Intended) -> bool:
    """Return whether a step transfers a recorded foreign token; USDC counts against the limits, and is none."""
    token, program = intended.amount.token, step.program
    mint = Pubkey.from_string(str(token.contract))
    require(mint != found.mint and program in tokens.TOKEN_PROGRAMS, "not_a_foreign_token")
    data = struct.pack("<BQB", _TRANSFER_CHECKED, intended.amount.units, token.decimals)
    to = account_of(Pubkey.from_string(intended.recipient), mint, program)
    accounts = [account_of(found.owner, mint, program), mint, to, found.owner]
    # One more is the reference; a hook of the token would need others.
    return (step.data, list(step.accounts[:4])) == (data, accounts) and len(step.accounts) <= len(accounts) + 1


def _creates_for(step: Step, intended: Intended) -> bool:
    """Return whether a step creates the recipient's account for a recorded foreign token."""
    if step.program != ASSOCIATED_TOKEN_PROGRAM_ID or step.data != bytes([_CREATE_IDEMPOTENT]):
        return False
    payer, recipient = Pubkey.from_string(intended.solana_address), Pubkey.from_string(intended.recipient)
    mint = Pubkey.from_string(str(intended.amount.token.contract))
    return any(
        list(step.accounts) == [payer, account_of(recipient, mint, each), recipient, mint, SYSTEM_PROGRAM, each]
        for each in tokens.TOKEN_PROGRAMS
    )


def _creates_account(found: _Message, step: Step, *mints: Pubkey) -> bool:
    """Return whether a step creates an associated token account: its rent is all that it can take."""
    if step.program != ASSOCIATED_TOKEN_PROGRAM_ID or step.data != bytes([_CREATE_IDEMPOTENT]):
        return False
    return step.accounts[3] in (mints or (found.mint,)) and step.accounts[4] == SYSTEM_PROGRAM


def _submission(found: _Message, rest: Sequence[Step], meant: Sequence[Intended]) -> list[Intended]:
    """Check that the service pays the fee of others' instructions, and of one new account at most."""
    require(meant[0].is_service and found.pays_fee, "not_of_the_service")
    require(not found.message.address_table_lookups, "lookup_table")
    created = [step for step in rest if found.owner in step.accounts]
    is_rent = all(_creates_account(found, step) and step.accounts[0] == found.owner for step in created)
    require(len(created) <= 1 and is_rent, "not_as_recorded")
    require(all(found.owner not in step.accounts[1:] for step in created), "not_as_recorded")
    return list(meant[:1])


def _swap(found: _Message, rest: Sequence[Step], meant: Sequence[Intended]) -> list[Intended]:
    """Check that a message swaps the recorded amount into the wallet's own accounts by one route of Jupiter's."""
    (intended,) = meant
    require(intended.may_pay and found.message.header.num_required_signatures == 1, "hold_missing")
    owner, sells_sol = found.owner, intended.amount.token == SOL
    wrapped, usdc = tokens.account_of(owner, WRAPPED_SOL_MINT), found.token_account(owner)
    routes = 0
    for step in rest:
        if step.program == jupiter.JUPITER:
            pair = (wrapped, usdc) if sells_sol else (usdc, wrapped)
            _check_route(step, owner, pair, intended)
            routes += 1
        elif step.program == SYSTEM_PROGRAM:
            kind, lamports = struct.unpack("<IQ", step.data)
            wraps = sells_sol and step.accounts[1] == wrapped and lamports == intended.amount.units
            is_own = kind == _TRANSFER and step.accounts[0] == owner and (wraps or step.accounts[1] == owner)
            require(is_own, "not_as_recorded")
        elif step.program == TOKEN_PROGRAM:
            require(_keeps_tokens(step, owner, {wrapped, usdc}), "not_as_recorded")
        else:
            creates = _creates_account(found, step, found.mint, WRAPPED_SOL_MINT)
            require(creates and step.accounts[1] in (wrapped, usdc), "program_not_used")
    require(routes == 1, "not_as_recorded")
    return [intended]


def _check_route(step: Step, owner: Pubkey, pair: tuple[Pubkey, Pubkey], intended: Intended) -> None:
    layout = next((each for each in jupiter.LAYOUTS if step.data.startswith(each.discriminator)), None)
    require(layout is not None, "not_as_recorded")
    assert layout is not None  # noqa: S101 - for the type checker
    units, minimum, slippage, fee, better_fee = jupiter.AMOUNTS.unpack_from(step.data, layout.amounts_offset)
    require((units, slippage, fee, better_fee) == (intended.amount.units, 0, 0, 0), "not_as_recorded")
    require(intended.minimum_units is not None and minimum >= intended.minimum_units > 0, "minimum_too_low")
    named = dict(zip(layout.accounts, step.accounts[: len(layout.accounts)], strict=True))
    given = [named.get(name) for name in ("owner", "input_account", "output_account")]
    require(given == [owner, *pair], "not_as_recorded")
    require(named.get("recipient", jupiter.JUPITER) in (pair[1], jupiter.JUPITER), "not_as_recorded")


def _keeps_tokens(step: Step, owner: Pubkey, own: set[Pubkey]) -> bool:
    """Return whether a token instruction leaves what an own account holds with its owner."""
    if step.accounts[0] not in own:
        return False
    kind = step.data[0]
    if kind == _TRANSFER_CHECKED:
        return step.accounts[2] == step.accounts[0] and step.accounts[3] == owner
    if kind == _CLOSE:
        return step.accounts[1] == owner
    return kind in (_SYNC, _REVOKE) or step.data == b"\x06\x03\x00"


def _leg(found: _Message, rest: Sequence[Step], meant: Sequence[Intended]) -> list[Intended]:
    """Check that a message burns for the wallet itself on another chain, or receives what was burned."""
    (intended,) = meant
    require(sum(step.program == cctp.MESSENGER for step in rest) <= 1, "not_as_recorded")
    for step in rest:
        if step.program == cctp.TRANSMITTER:
            require(step.data[:8] == transactions.discriminator("global:receive_message"), "not_as_recorded")
        elif _creates_account(found, step):
            require(step.accounts[1] == found.token_account(found.owner), "not_as_recorded")
        else:
            require(step.program == cctp.MESSENGER and intended.may_pay, "program_not_used")
            _check_burn(found, step, intended)
    return [intended]


def _check_burn(found: _Message, step: Step, intended: Intended) -> None:
    kinds = [transactions.discriminator(f"global:deposit_for_burn{suffix}") for suffix in ("", "_with_hook")]
    require(step.data[:8] in kinds and intended.amount.token == USDC, "not_as_recorded")
    units, domain = struct.unpack_from("<QI", step.data, 8)
    recipient, caller = step.data[20:52], step.data[52:84]
    words = {
        number: messages.address_word(intended.evm_address, chain)
        for chain, number in bridges.DOMAINS.items()
        if chain.family is Family.EVM
    }
    is_own = recipient == words.get(domain) and caller == bytes(32) and intended.recipient == intended.evm_address
    require(is_own and units == intended.amount.units, "not_as_recorded")
    require(step.accounts[3] == found.token_account(found.owner), "not_as_recorded")


_Check = Callable[[_Message, Sequence[Step], Sequence[Intended]], list[Intended]]
_NOT_PAYMENTS = SERVICE_KINDS | {"swap", "bridge_leg"}
_CHECKS: Sequence[tuple[Callable[[Intended], bool], _Check]] = (
    (lambda each: each.kind == "swap", _swap),
    (lambda each: each.kind == "bridge_leg", _leg),
    (lambda each: each.kind in SERVICE_KINDS, _submission),
    (lambda each: each.kind not in _NOT_PAYMENTS, _payment),
)
