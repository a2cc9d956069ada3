"""Solana as a chain whose balances can be read. Moving money on it is not offered here."""

from __future__ import annotations

from collections.abc import Sequence

from solders.account import Account
from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig
from solders.rpc.requests import GetLatestBlockhash, GetMultipleAccounts
from solders.rpc.responses import GetLatestBlockhashResp, GetMultipleAccountsResp
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.token.state import TokenAccount

from app.adapters.solana.deployments import Deployment
from app.adapters.solana.rpc import SolanaRpc
from app.core.chains import SOL, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import Balances, BlockRef

_TOKEN_ACCOUNT_BYTES = 165
_ZERO_ADDRESS = str(Pubkey.default())


class SolanaChain:
    """One cluster behind the configured endpoints, seen at commitment `confirmed`."""

    def __init__(self, deployment: Deployment, *, rpc_urls: Sequence[str] = ()) -> None:
        """Take the network's facts, and endpoints if others than its public ones are meant."""
        self._deployment = deployment
        self._usdc_mint = Pubkey.from_string(deployment.usdc_mint)
        self._rpc = SolanaRpc(rpc_urls or deployment.default_rpc_urls, accepts=deployment.accepts)

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return ChainName.SOLANA

    def verify_identity(self) -> None:
        """Compare genesis hashes with the network's. Raises: Rejected("wrong_chain"), Unreachable."""
        self._rpc.verify()

    def explorer_url(self, tx_hash: str) -> str | None:
        """Return Solscan's page of a transaction; the sandbox has no explorer."""
        template = self._deployment.explorer_tx_url
        return None if template is None else template.format(tx_hash=tx_hash)

    def refusal_of(self, recipient: str, token: Token) -> str | None:
        """Return why a recipient can never be paid: the zero address, or the mint of the token itself."""
        if recipient == _ZERO_ADDRESS:
            return "must not be the zero address"
        if token == USDC and recipient == self._deployment.usdc_mint:
            return "must not be the token's own mint"
        return None

    def balances(self, address: str) -> Balances:
        """Read SOL and USDC in one request, so both are of the same slot. Raises: Unreachable."""
        owner = Pubkey.from_string(address)
        usdc_account = get_associated_token_address(owner, self._usdc_mint)
        config = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=CommitmentLevel.Confirmed)
        answer = self._rpc.ask(
            GetMultipleAccounts([owner, usdc_account], config),
            GetMultipleAccountsResp,
            fits=lambda answer: len(answer.value) == 2,  # noqa: PLR2004 - both accounts
        )
        wallet, usdc = answer.value
        return Balances(
            (
                TokenAmount(wallet.lamports if wallet else 0, SOL),
                TokenAmount(self._usdc_units(usdc, owner=owner), USDC),
            )
        )

    def head(self) -> BlockRef:
        """Return the newest confirmed slot with its blockhash. Raises: Unreachable."""
        config = RpcContextConfig(commitment=CommitmentLevel.Confirmed)
        answer = self._rpc.ask(GetLatestBlockhash(config), GetLatestBlockhashResp)
        return BlockRef(number=answer.context.slot, hash=str(answer.value.blockhash))

    def _usdc_units(self, account: Account | None, *, owner: Pubkey) -> int:
        # Anybody can send SOL to the address before the token account exists, and an owner can give the
        # account away: such an account holds nothing of the wallet's.
        if account is None or account.owner != TOKEN_PROGRAM or len(account.data) != _TOKEN_ACCOUNT_BYTES:
            return 0
        state = TokenAccount.from_bytes(account.data)
        return state.amount if (state.mint, state.owner) == (self._usdc_mint, owner) else 0
