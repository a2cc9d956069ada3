"""Tokens that this service does not know, of SPL Token and Token-2022: anybody can make some and send them."""

from collections.abc import Sequence

from solders.pubkey import Pubkey

from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaConnection
from app.adapters.solana.client.wire import AccountState, OwnedToken
from app.adapters.solana.send import drafts, tokens
from app.core.chains import MAX_DECIMALS
from app.core.foreign import claimed_text
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, Shortage, Terms, TransactionDraft, TransferIntent
from app.ports.errors import Rejected

_METADATA = Pubkey.from_string("metaqbxxUerdq28cj1RbAWkYQm3ybzjb6a8bt518x1s")


class SplTokenReader(SolanaConnection):
    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        """Read the first token accounts of an address, and what their tokens claim."""
        owner = Pubkey.from_string(address)
        if not (held := self._owned(owner)[:50]):
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
        owner, token = Pubkey.from_string(intent.sender), intent.amount.token
        mint = Pubkey.from_string(token.contract or "")
        own = [each for each in self._owned(owner) if (each.mint, _refusal(owner, each)) == (mint, None)]
        if mint == self.mint or (own and own[0].token != token):
            refusal = "USDC" if mint == self.mint else f"a token with {own[0].decimals} decimals"
            raise Rejected("invalid_token", details={"token_is": refusal})
        Shortage.check(token, "insufficient_funds", own[0].units if own else 0, intent.amount.units)
        return drafts.draft_transfer(self.rpc, intent, mint=mint, level=self.level, held=own[0])


def _refusal(owner: Pubkey, held: OwnedToken) -> str | None:
    if held.address != tokens.account_of(owner, held.mint, held.program):
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
