"""Tokens that this service does not know, of SPL Token and Token-2022: anybody can make some and send them.

Layouts: spl-token `state.rs` (a mint has 82 bytes), Token-2022 `extension/mod.rs` (a type at byte 165, then entries of
type, length and content), and Metaplex Token Metadata, whose account of a mint has the extension of that name at byte 1.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address

from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaConnection
from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import drafts, tokens, transactions
from app.adapters.solana.send.simulation import simulate
from app.core.chains import MAX_DECIMALS, foreign_token
from app.core.foreign import claimed_text
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, TokenSearch, TransactionDraft, TransferIntent
from app.ports.errors import Rejected

_MAX_LISTED = 100
_METADATA = Pubkey.from_string("metaqbxxUerdq28cj1RbAWkYQm3ybzjb6a8bt518x1s")
_DECIMALS_AT, _EXTENSIONS_AT, _NAMES_AT = 44, 166, 64
_NON_TRANSFERABLE, _TRANSFER_HOOK, _TOKEN_METADATA = 9, 14, 19


class ForeignTokenReader(SolanaConnection):
    def foreign_tokens(
        self, address: str, search: TokenSearch, *, age: timedelta | None
    ) -> tuple[TokenSearch, Sequence[ForeignToken]]:
        """Read the first token accounts of an address with their mints; nothing has to be searched."""
        owner, programs = Pubkey.from_string(address), sorted(tokens.TOKEN_PROGRAMS, key=str)
        owned = [calls.token_accounts(owner, each, self.level) for each in programs]
        self.rpc.run(*owned)
        every = [(each.address, _Held(each.account)) for call in owned for each in call.result.found]
        held = [(place, each) for place, each in every if each.units and each.mint != self.mint][:_MAX_LISTED]
        if not held:
            return TokenSearch(), []
        mints = [each.mint for _, each in held]
        found = calls.accounts(mints, self.level)
        named = calls.accounts([_metadata_of(each) for each in mints], self.level)
        self.rpc.run(found, named)
        both = zip(held, found.result.found, named.result.found, strict=True)
        return TokenSearch(), [_token(owner, *each, mint, metadata) for each, mint, metadata in both]

    def draft_foreign(self, intent: TransferIntent) -> TransactionDraft:
        """Draft a transfer between the associated accounts. Raises: Rejected, Unreachable."""
        from spl.token import instructions, models  # noqa: PLC0415 - as in `tokens`

        sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
        mint, amount = Pubkey.from_string(intent.amount.token.contract or ""), intent.amount
        state = self.rpc.ask(calls.accounts([mint], self.level)).found[0]
        refusal = "it is USDC" if mint == self.mint else _refusal(state)
        if state is None or refusal is not None or _decimals(state) != amount.token.decimals:
            raise Rejected("invalid_token", details={"token_is": refusal or f"it has {_decimals(state)} decimals"})
        places = [get_associated_token_address(each, mint, state.owner) for each in (sender, recipient)]
        transfer = models.TransferCheckedParams(
            program_id=state.owner, source=places[0], mint=mint, dest=places[1], owner=sender, amount=amount.units,
            decimals=amount.token.decimals,
        )  # fmt: skip
        creating = instructions.create_idempotent_associated_token_account(sender, recipient, mint, state.owner)
        steps = [creating, transactions.with_reference(instructions.transfer_checked(transfer), transactions.new_reference())]
        trial = transactions.compiled(sender, steps, budget=(transactions.MAX_COMPUTE_UNITS, 0))
        readings = simulate(self.rpc, self.level, trial, [sender, recipient, *places])
        payer, paid, source, target = readings.before
        drafts.assert_valid_recipient(intent, paid, None, readings.empty_rent, mint=mint)
        budget = transactions.compute_unit_limit(readings.simulation.compute_units), readings.price
        fee_units, lamports = transactions.fee_lamports(*budget), payer.lamports if payer else 0
        drafts.assert_payer_rent_exempt(readings.empty_rent, lamports=lamports, network_fee=fee_units)
        # Extensions make accounts larger.
        created = readings.after[3] if readings.after else None
        rent_units = 0 if target else created.lamports if created else readings.token_rent
        units = _Held(source).units if source and source.owner == state.owner else 0
        drafts.assert_affordable(intent, lamports, units, fee_units + rent_units, readings.empty_rent)
        readings.assert_succeeded()
        message = transactions.compiled(sender, steps, readings.latest.blockhash, budget=budget)
        terms = transactions.transaction_terms(transactions.unsigned_transaction(message), readings.latest)
        kind = drafts.recipient_kind(intent.recipient, paid)
        drafted = readings.draft(intent, terms, fee_units + rent_units, (lamports, units), kind)
        return replace(drafted, rent_units=rent_units)


class _Held:
    """What a token account of either program holds."""

    def __init__(self, account: AccountState) -> None:
        self.program, data = account.owner, account.data.ljust(tokens.TOKEN_ACCOUNT_BYTES, b"\0")
        self.mint, self.units = Pubkey.from_bytes(data[:32]), int.from_bytes(data[64:72], "little")
        self.is_frozen = data[108] == 2  # noqa: PLR2004 - AccountState::Frozen


def _token(
    owner: Pubkey, place: Pubkey, held: _Held, mint: AccountState | None, metadata: AccountState | None
) -> ForeignToken:
    decimals, refusal = _decimals(mint), _refusal(mint)
    if place != get_associated_token_address(owner, held.mint, held.program):
        refusal = refusal or "it is not in the associated token account"
    if held.is_frozen:
        refusal = refusal or "its issuer has frozen the account"
    token = foreign_token(str(held.mint), decimals if decimals <= MAX_DECIMALS else 0)
    own = b"" if mint is None else _extensions(mint).get(_TOKEN_METADATA, b"")
    if not own and metadata is not None and metadata.owner == _METADATA:
        own = metadata.data[1:]
    name, rest = _text(own[_NAMES_AT:])
    return ForeignToken(TokenAmount(held.units, token), _text(rest)[0], name, refusal)


def _refusal(mint: AccountState | None) -> str | None:
    if mint is None or mint.owner not in tokens.TOKEN_PROGRAMS or _decimals(mint) > MAX_DECIMALS:
        return "it has no usable mint"
    found = _extensions(mint)
    if _NON_TRANSFERABLE in found:
        return "it is not transferable"
    return "its transfers run another program" if any(found.get(_TRANSFER_HOOK, b"")[32:]) else None


def _decimals(mint: AccountState | None) -> int:
    return mint.data[_DECIMALS_AT] if mint is not None and len(mint.data) > _DECIMALS_AT else MAX_DECIMALS + 1


def _extensions(mint: AccountState) -> Mapping[int, bytes]:
    return dict(_entries(mint.data[_EXTENSIONS_AT:]))


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:  # noqa: PLR2004 - type and length
        kind, length = struct.unpack_from("<HH", data)
        yield kind, data[4 : 4 + length]
        data = data[4 + length :]


def _text(data: bytes) -> tuple[str | None, bytes]:
    """Read a text with its length before it; return the rest, too."""
    end = 4 + int.from_bytes(data[:4], "little")
    return claimed_text(data[4:end]), data[end:]


def _metadata_of(mint: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([b"metadata", bytes(_METADATA), bytes(mint)], _METADATA)[0]
