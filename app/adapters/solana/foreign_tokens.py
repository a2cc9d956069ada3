"""Tokens that this service does not know, of SPL Token and Token-2022: anybody can make some and send them."""

from collections.abc import Sequence
from dataclasses import replace

from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address as account_of

from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaConnection
from app.adapters.solana.client.wire import AccountState, OwnedToken
from app.adapters.solana.send import drafts, refusals, tokens, transactions
from app.adapters.solana.send.simulation import simulate
from app.core.chains import MAX_DECIMALS
from app.core.foreign import claimed_text
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, Shortage, Terms, TransactionDraft, TransferIntent
from app.ports.errors import Rejected

_MAX_LISTED = 50
_METADATA = Pubkey.from_string("metaqbxxUerdq28cj1RbAWkYQm3ybzjb6a8bt518x1s")


class SplTokenReader(SolanaConnection):
    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        """Read the first token accounts of an address, and what their tokens claim."""
        owner = Pubkey.from_string(address)
        if not (held := self._owned(owner)[:_MAX_LISTED]):
            return []
        places = [
            _METADATA.find_program_address([b"metadata", bytes(_METADATA), bytes(each.mint)], _METADATA)[0]
            for each in held
        ]
        states = self.rpc.ask(calls.accounts([*(each.mint for each in held), *places], self.level)).found
        return [
            ForeignToken(TokenAmount(each.units, each.token), *_claims(each.mint, pair), _refusal(owner, each))
            for each, *pair in zip(held, states[: len(held)], states[len(held) :], strict=True)
        ]

    def _owned(self, owner: Pubkey) -> list[OwnedToken]:
        found = [calls.token_accounts(owner, each, self.level) for each in sorted(tokens.TOKEN_PROGRAMS, key=str)]
        self.rpc.run(*found)
        every = (each for call in found for each in call.result.found)
        return [each for each in every if each and each.units and each.mint != self.mint]

    def draft_foreign(self, intent: TransferIntent) -> TransactionDraft:
        """Draft a transfer between the associated accounts. Raises: Rejected, Unreachable."""
        from spl.token import instructions, models  # noqa: PLC0415 - as in `tokens`

        sender, recipient = Pubkey.from_string(intent.sender), Pubkey.from_string(intent.recipient)
        mint, amount = Pubkey.from_string(intent.amount.token.contract or ""), intent.amount
        own = [each for each in self._owned(sender) if (each.mint, _refusal(sender, each)) == (mint, None)]
        if mint == self.mint or (own and own[0].token != amount.token):
            raise _invalid("USDC" if mint == self.mint else f"a token with {own[0].decimals} decimals")
        Shortage.check(amount.token, "insufficient_funds", own[0].units if own else 0, amount.units)
        program, decimals = own[0].program, own[0].decimals
        source, target = (account_of(each, mint, program) for each in (sender, recipient))
        transfer = models.TransferCheckedParams(
            program_id=program, mint=mint, source=source, dest=target, owner=sender, amount=amount.units,
            decimals=decimals,
        )  # fmt: skip
        paying = transactions.with_reference(instructions.transfer_checked(transfer), transactions.new_reference())
        steps = [instructions.create_idempotent_associated_token_account(sender, recipient, mint, program), paying]
        trial = transactions.compiled(sender, steps, budget=(transactions.MAX_COMPUTE_UNITS, 0))
        readings = simulate(self.rpc, self.level, trial, [sender, recipient, target])
        payer, paid, existing = readings.before
        drafts.assert_valid_recipient(intent, paid, None, readings.empty_rent, mint=mint)
        budget = transactions.compute_unit_limit(readings.simulation.compute_units), readings.price
        network_fee, lamports = transactions.fee_lamports(*budget), payer.lamports if payer else 0
        drafts.assert_payer_rent_exempt(readings.empty_rent, lamports=lamports, network_fee=network_fee)
        created = readings.after[2] if readings.after else None  # extensions make accounts larger
        rent_units = readings.token_rent if created is None else created.lamports
        rent_units = max(rent_units - (existing.lamports if existing else 0), 0)
        held = lamports, own[0].units
        drafts.assert_affordable(intent, *held, network_fee + rent_units, readings.empty_rent)
        if readings.simulation.error is not None:
            raise _invalid(f"a token that refuses: {refusals.simulation_error(readings.simulation.error)}")
        message = transactions.compiled(sender, steps, readings.latest.blockhash, budget=budget)
        terms = transactions.transaction_terms(transactions.unsigned_transaction(message), readings.latest)
        kind = drafts.recipient_kind(intent.recipient, paid)
        return replace(readings.draft(intent, terms, network_fee + rent_units, held, kind), rent_units=rent_units)


def _invalid(what: str) -> Rejected:
    return Rejected("invalid_token", details={"token_is": what})


def _refusal(owner: Pubkey, held: OwnedToken) -> str | None:
    if held.address != account_of(owner, held.mint, held.program):
        return "it is not in the associated token account"
    if held.decimals > MAX_DECIMALS:
        return "it has too many decimals"
    return "its issuer has frozen the account" if held.state == "frozen" else None


def _claims(mint: Pubkey, states: Sequence[AccountState | None]) -> tuple[str | None, str | None]:
    """Return symbol and name, which follow the mint's key in the metadata of Token-2022 and of Metaplex."""
    for _, key, text in ((state.data if state else b"").rpartition(bytes(mint)) for state in states):
        ends = 4 + int.from_bytes(text[:4], "little")
        length = int.from_bytes(text[ends : ends + 4], "little")
        name, symbol = claimed_text(text[4:ends]), claimed_text(text[ends + 4 :][:length])
        if key and (name or symbol):
            return symbol, name
    return None, None
