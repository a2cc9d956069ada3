"""The `Chain` port for Solana. Methods that use the network refuse to run inside a unit of work."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import sub

from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcSendTransactionConfig
from solders.rpc.requests import GetFirstAvailableBlock, SendRawTransaction
from solders.token.state import TokenAccountState

from app.adapters.jsonrpc.calls import EndpointError, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.jsonrpc.rpc import Broadcaster
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import MAX_LARGE_BATCH, SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import LandedTransaction, number, text
from app.adapters.solana.deployments import DEAD_ENDS, SolanaDeployment
from app.adapters.solana.deposits import SolanaDepositScanner
from app.adapters.solana.foreign_tokens import SplTokenReader
from app.adapters.solana.send import drafts, refusals, tokens, transactions
from app.adapters.solana.track import account_history, balance_changes
from app.adapters.solana.track.account_history import HistoryCursor, HistoryProgress, HistoryReadLimits
from app.adapters.solana.track.authorizations import FEE_SUFFIX, OTHER_VERSION, OpenTransfer
from app.adapters.solana.track.statuses import SolanaReceiptPoller
from app.core.chains import SOL, USDC, ChainName, Token
from app.core.foreign import MalformedResponseError
from app.core.money import TokenAmount
from app.ports import chain
from app.ports.vault import Signer

_READ_LIMITS, _UNLIMITED = HistoryReadLimits(), HistoryReadLimits(pages=10**6)
# A node's preflight and its own retries are of no use: the same bytes are sent again until they land or expire.
_SENDING = RpcSendTransactionConfig(skip_preflight=True, max_retries=0)
_LEVELS = {"confirmed": CommitmentLevel.Confirmed, "finalized": CommitmentLevel.Finalized}


class SolanaChain(SolanaReceiptPoller, SolanaDepositScanner, SplTokenReader):
    """One cluster behind the configured endpoints. Opens no connection before the first call."""

    name = ChainName.SOLANA

    def __init__(
        self,
        deployment: SolanaDeployment,
        *,
        rpc_urls: Sequence[str] = (),
        commitment: str = "confirmed",
        estimates_fees: bool = False,
        read_seconds: float = 5.0,
        read_limits: HistoryReadLimits = _READ_LIMITS,
    ) -> None:
        """Store the network's deployment, and endpoints other than its public ones.

        Movements count as landed at `commitment`, and balances are those of that level; deposits always wait for
        `finalized`, and one scan reads at most `read_limits` of the histories. `estimates_fees` if the endpoints have
        Helius's `getPriorityFeeEstimate`.
        """
        self.deployment = deployment
        self.block_time = timedelta(seconds=deployment.block_seconds)
        self._read_limits = read_limits
        rpc = SolanaRpc(
            rpc_urls or deployment.default_rpc_urls, accepts=deployment.accepts, total_seconds=read_seconds,
            busy_accounts=deployment.busy_accounts, estimates_fees=estimates_fees,
        )  # fmt: skip
        super().__init__(rpc, Pubkey.from_string(deployment.usdc_mint), _LEVELS[commitment])
        sender = Broadcaster(
            self.rpc,
            _send_call,
            refusals=refusals.SEND_REFUSALS,
            is_accepted=lambda reason, _raw: reason == refusals.ALREADY_PROCESSED,
        )
        self.broadcast, self._rebroadcast = sender.broadcast, sender.rebroadcast

    def draft(self, intent: chain.TransferIntent) -> chain.TransactionDraft:
        if intent.amount.token.contract is not None:
            return self.draft_foreign(intent)
        return drafts.draft_transfer(self.rpc, intent, mint=self.mint, level=self.level)

    def diagnose(self) -> chain.ChainDiagnosis:
        def missing_contracts(endpoint: RpcEndpoint) -> list[str]:
            mint = endpoint.ask(calls.accounts([self.mint], self.level))
            return ["usdc_mint"] if mint.found[0] is None else []

        return self.rpc.diagnose(lambda: calls.slot(CommitmentLevel.Confirmed), missing_contracts)

    def rebroadcast(self, raws: Sequence[bytes], *, publicly: bool = True) -> None:
        self._rebroadcast(raws)

    def explorer_url(self, tx_hash: str) -> str | None:
        template = self.deployment.explorer_tx_url
        return None if template is None else template.format(tx_hash=tx_hash)

    def recipient_rejection(self, recipient: str, token: Token) -> str | None:
        known = "the token's own mint" if recipient == self.deployment.usdc_mint else DEAD_ENDS.get(recipient)
        if known is None and recipient.startswith("Sysvar") and recipient.endswith("1" * 16):
            known = "a system account"
        return None if known is None else f"is {known}, from which tokens cannot be recovered"

    def receiving_refusal(self, address: str, token: Token) -> str | None:
        if token == SOL:
            return None
        owner = Pubkey.from_string(address)
        found = self.rpc.ask(calls.accounts([tokens.account_of(owner, self.mint)], self.level))
        account = tokens.read_account(found.found[0])
        is_frozen = account is not None and account.state == TokenAccountState.Frozen
        return "frozen" if is_frozen else None

    def balances(self, address: str) -> chain.Balances:
        """Read SOL and USDC in one request, so both are of the same slot. Raises: Unreachable."""
        holder = self._holder(address)
        found = self.rpc.ask(self._holdings([holder], self.level, at_least=None))
        lamports, usdc_units = self._units(holder, found, place=0)
        return chain.Balances((TokenAmount(lamports, SOL), TokenAmount(usdc_units, USDC)))

    def sign(self, draft: chain.TransactionDraft, signer: Signer, *, sequence: int | None) -> chain.SignedTransaction:
        """Sign a draft. No I/O. Raises: ValueError with a nonce, which Solana does not have, or with a wrong signer."""
        if sequence is not None:
            raise ValueError("a Solana transaction has no nonce")
        terms = {name: draft.terms[name] for name in ("last_valid_block_height", "blockhash_slot")}
        partial = transactions.decode(str(draft.terms["transaction"]))
        raw, tx_hash = transactions.sign(partial, signer, sender=draft.intent.sender)
        return chain.SignedTransaction(tx_hash, raw, None, int(terms["last_valid_block_height"] or 0), terms)

    def draft_replacement(self, attempt: chain.StoredTransaction) -> chain.TransactionDraft | None:
        """Return None: other bytes in addition to those that may still land could pay twice."""
        return None

    def draft_cancellation(self, attempt: chain.StoredTransaction) -> chain.TransactionDraft | None:
        """Return None: there is no nonce to consume, the bytes expire automatically."""
        return None

    def transaction_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return nothing: there are no nonces to count."""
        return {}

    def transaction_at_nonce(
        self, sender: str, sequence: int, *, expected: chain.StoredTransaction | None = None
    ) -> chain.SentTransaction | None:
        return None

    def outflows(self, senders: Collection[str], *, since: int) -> Sequence[chain.SentTransaction]:
        return self.rpc.run_on_first(lambda endpoint: [*self._outflows(endpoint, senders, since)])

    def _outflows(self, endpoint: RpcEndpoint, senders: Collection[str], since: int) -> Iterator[chain.SentTransaction]:
        accounts = [account for each in map(self._holder, senders) for account in (each.address, each.token_account)]
        cursors = [HistoryCursor(account, HistoryProgress(), since) for account in accounts]
        read = account_history.continue_reading(endpoint, cursors, read_limits=_UNLIMITED, commitment=self.level)
        names = dict.fromkeys(entry.signature for _progress, entries in read.values() for entry in entries)
        reading = [account_history.transaction(name, self.level, LandedTransaction) for name in names]
        endpoint.run(reading, max_batch=MAX_LARGE_BATCH)
        if endpoint.ask(SolanaRpcCall(GetFirstAvailableBlock(), number)) > since:
            raise EndpointError("history_incomplete")
        for call in reading:
            if (landed := call.result_or_none) is not None and not landed.failed:
                for sender in {*landed.keys[: len(landed.transaction.signatures)]}.intersection(senders):
                    yield from self._taken(landed, sender)
            elif landed is None and (call.error is None or call.error.code != OTHER_VERSION):
                raise EndpointError("history_incomplete")

    def _taken(self, landed: LandedTransaction, sender: str) -> Iterator[chain.SentTransaction]:
        change, is_own = balance_changes.balance_change(self._holder(sender), landed), landed.keys[0] == sender
        units, token, paid = -change.usdc_units, USDC, balance_changes.token_payments(landed, str(self.mint))
        if units <= 0:
            units, token = -change.lamports - is_own * landed.fee_units, SOL
            paid = dict(zip(landed.keys, map(sub, landed.before, landed.after), strict=True))
        tx_hash, own = (str(landed.transaction.signatures[place]) for place in (0, landed.keys.index(sender)))
        terms = {} if is_own else OpenTransfer(landed.slot, landed.slot, tx_hash).as_terms()
        if units > 0:
            recipient, amount = min(paid, key=paid.__getitem__), TokenAmount(units, token)
            raw = bytes(landed.transaction) if is_own else None
            yield chain.SentTransaction(tx_hash, sender, recipient, amount, (own, own + FEE_SUFFIX), terms, raw=raw)

    def head(self) -> chain.BlockRef:
        """Return the newest confirmed slot with its blockhash. Raises: Unreachable."""
        latest = self.rpc.ask(calls.blockhash(CommitmentLevel.Confirmed))
        return chain.BlockRef(number=latest.slot, hash=latest.blockhash)


def _send_call(raw: bytes) -> SolanaRpcCall[None]:
    expected = transactions.signature_of(raw)

    def read(result: object) -> None:
        if text(result) != expected:
            raise MalformedResponseError("expected the transaction's signature")

    return SolanaRpcCall(SendRawTransaction(raw, _SENDING), read, tolerates=accept_any_error)
