"""The `Chain` port for Solana. Every verb of the network refuses to run inside a unit of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig
from solders.rpc.requests import GetEpochInfo, GetLatestBlockhash, GetMultipleAccounts

from app.adapters.solana import payments, tokens, transactions
from app.adapters.solana.broadcasts import Broadcaster
from app.adapters.solana.deployments import Deployment
from app.adapters.solana.deposits import DepositScanner
from app.adapters.solana.drafts import Drafter
from app.adapters.solana.endpoint import Call, EndpointFailedError
from app.adapters.solana.histories import Portion
from app.adapters.solana.outcomes import Lookout
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.transactions import Plan
from app.adapters.solana.wire import accounts, blockhash, epoch_info
from app.core.chains import SOL, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import (
    Attempt,
    Balances,
    BlockRef,
    Diagnosis,
    Draft,
    EndpointState,
    Intent,
    Outcome,
    Scan,
    Sent,
    Signed,
    Terms,
    Watch,
    WatchedAddress,
)
from app.ports.vault import Signer

_PORTION = Portion()
_ZERO_ADDRESS = str(Pubkey.default())
_LEVELS = {"confirmed": CommitmentLevel.Confirmed, "finalized": CommitmentLevel.Finalized}
_CONFIRMED = RpcContextConfig(commitment=CommitmentLevel.Confirmed)


class SolanaChain:
    """One cluster behind the configured endpoints. Opens no connection before the first verb."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        rpc_urls: Sequence[str] = (),
        commitment: str = "confirmed",
        read_seconds: float = 5.0,
        portion: Portion = _PORTION,
    ) -> None:
        """Take the network's facts, and endpoints if others than its public ones are meant.

        Movements count as landed at `commitment`, and balances are those of that level; deposits always wait for
        `finalized`, and a look for them reads one `portion` of the histories.
        """
        self._deployment = deployment
        self._usdc_mint = Pubkey.from_string(deployment.usdc_mint)
        self.rpc = SolanaRpc(
            rpc_urls or deployment.default_rpc_urls, accepts=deployment.accepts, total_seconds=read_seconds
        )
        self.level = _LEVELS[commitment]
        self._accounts = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=self.level)
        self._drafter = Drafter(self.rpc, self._usdc_mint, level=self.level)
        self._broadcaster = Broadcaster(self.rpc)
        self._lookout = Lookout(self.rpc, self._usdc_mint, commitment=commitment)
        self._scanner = DepositScanner(self.rpc, self._usdc_mint, portion=portion)

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return ChainName.SOLANA

    @property
    def deployment(self) -> Deployment:
        """What this network's cluster is known by."""
        return self._deployment

    def verify_identity(self) -> None:
        """Compare genesis hashes with the network's. Raises: Rejected("wrong_chain"), Unreachable."""
        self.rpc.verify()

    def diagnose(self) -> Diagnosis:
        """Ask every endpoint by itself, and one for the USDC mint."""
        states, calls = [], []
        for endpoint in self.rpc.endpoints:
            height = Call(GetEpochInfo(_CONFIRMED), epoch_info)
            mint = Call(GetMultipleAccounts([self._usdc_mint], self._accounts), accounts(1))
            try:
                if not endpoint.serves_our_cluster():
                    states.append(EndpointState(endpoint.place, "wrong_chain"))
                    continue
                endpoint.run(height, mint)
            except EndpointFailedError as failure:
                states.append(EndpointState(endpoint.place, failure.reason))
                continue
            states.append(EndpointState(endpoint.place, height=height.answer.slot))
            calls.append(mint)
        gone = bool(calls) and calls[0].answer.states[0] is None
        return Diagnosis(tuple(states), ("usdc_mint",) if gone else ())

    def explorer_url(self, tx_hash: str) -> str | None:
        """Return Solscan's page of a transaction; the sandbox has no explorer."""
        template = self._deployment.explorer_tx_url
        return None if template is None else template.format(tx_hash=tx_hash)

    def refusal_of(self, recipient: str, token: Token) -> str | None:  # noqa: ARG002 - lost whatever the token
        """Return why a recipient can never be paid, as the end of a sentence about it, or None."""
        if recipient == _ZERO_ADDRESS:
            return "is the zero address, from which nothing ever comes back"
        if recipient == self._deployment.usdc_mint:
            return "is the token's own mint, from which nothing ever comes back"
        return None

    def balances(self, address: str) -> Balances:
        """Read SOL and USDC in one request, so both are of the same slot. Raises: Unreachable."""
        owner = Pubkey.from_string(address)
        usdc_account = tokens.account_of(owner, self._usdc_mint)
        call = Call(GetMultipleAccounts([owner, usdc_account], self._accounts), accounts(2))
        self.rpc.run(call)
        wallet, usdc = call.answer.states
        return Balances(
            (
                TokenAmount(wallet.lamports if wallet else 0, SOL),
                TokenAmount(tokens.units_of(usdc, owner=owner, mint=self._usdc_mint), USDC),
            )
        )

    def draft(self, intent: Intent) -> Draft:
        """Read balances, fees and simulate, in one HTTP request.

        Raises: Rejected (`docs/decisions/0012` lists the reasons), Unreachable.
        """
        return self._drafter.draft(intent)

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft. Pure. Raises: ValueError with a nonce, which this chain has not, or with a wrong signer."""
        if sequence is not None:
            raise ValueError("a Solana transaction has no nonce")
        if "transaction" in draft.terms:
            # Somebody else's payment, checked by the till, of which we pay the fee.
            text, until = str(draft.terms["transaction"]), draft.terms["last_valid_block_height"]
            raw, tx_hash = payments.complete(text, signer, sender=draft.intent.sender)
            return Signed(tx_hash, raw, None, int(until or 0), draft.terms)
        plan = Plan.from_terms(draft.terms)
        message = transactions.message_of(draft.intent, plan, mint=self._usdc_mint)
        raw, tx_hash = transactions.sign(message, signer, sender=draft.intent.sender)
        return Signed(
            tx_hash=tx_hash,
            raw=raw,
            sequence=None,
            expires_at_height=plan.last_valid_block_height,
            terms=draft.terms,
        )

    def replacement(self, attempt: Attempt) -> Draft | None:  # noqa: ARG002 - whatever it is
        """Return None: other bytes beside those that may still land could pay twice."""
        return None

    def cancellation(self, attempt: Attempt) -> Draft | None:  # noqa: ARG002 - whatever it is
        """Return None: there is no slot to use up, the bytes expire by themselves."""
        return None

    def broadcast(self, raw: bytes) -> None:
        """Send signed bytes. Raises: Rejected, Unreachable (certainly not sent), OutcomeUnknown."""
        self._broadcaster.broadcast(raw)

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many signed bytes again in few requests. Raises: Unreachable."""
        self._broadcaster.rebroadcast(raws)

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        """Find out about many movements in few requests. Raises: Unreachable."""
        return self._lookout.outcomes(watches)

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which transactions are gone from their slots and the newest finalized one. Raises: Unreachable."""
        return self._lookout.orphaned(blocks)

    def sent_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:  # noqa: ARG002 - whatever they are
        """Return nothing: there are no slots to count."""
        return {}

    def sent_in_slot(
        self,
        sender: str,  # noqa: ARG002 - whatever it is
        sequence: int,  # noqa: ARG002
        *,
        instead_of: Attempt | None = None,  # noqa: ARG002
    ) -> Sent | None:
        """Return None: there are no slots."""
        return None

    def head(self) -> BlockRef:
        """Return the newest confirmed slot with its blockhash. Raises: Unreachable."""
        call = Call(GetLatestBlockhash(_CONFIRMED), blockhash)
        self.rpc.run(call)
        return BlockRef(number=call.answer.slot, hash=call.answer.blockhash)

    def mark(self, address: str) -> Terms:
        """Take note of what an address has now. Raises: Unreachable."""
        return self._scanner.mark(address)

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find finalized deposits. Raises: Unreachable."""
        return self._scanner.scan(watched, cursor=cursor)
