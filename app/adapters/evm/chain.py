"""The `Chain` port for Ethereum and Base. Methods that use the network refuse to run inside a unit of work."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from app.adapters.evm import calls
from app.adapters.evm.calls import EvmRpc
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import MULTICALL3, EvmDeployment, dead_end
from app.adapters.evm.deposits.scanner import EvmDepositScanner
from app.adapters.evm.send import refusals, transactions
from app.adapters.evm.send.drafts import EvmDrafter
from app.adapters.evm.send.transactions import FeeTerms, hash_of
from app.adapters.evm.track.receipts import EvmReceiptPoller, NonceHistoryReader
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.jsonrpc.rpc import Broadcaster
from app.core.chains import USDC, ChainName, Token, native
from app.core.foreign import MalformedResponseError
from app.core.money import TokenAmount
from app.ports.chain import Balances, BlockRef, ChainDiagnosis, SignedTransaction, TransactionDraft
from app.ports.errors import OutcomeUnknown, Unreachable
from app.ports.vault import Signer


class EvmChain(EvmDrafter, EvmReceiptPoller, NonceHistoryReader, EvmDepositScanner):
    """One EVM chain behind one or more JSON-RPC endpoints. Opens no connection before the first call."""

    def __init__(
        self,
        name: ChainName,
        deployment: EvmDeployment,
        *,
        rpc_urls: Sequence[str],
        private_rpc_urls: Sequence[str] = (),
        deposit_confirmations: int,
        connect_seconds: float = 3.0,
        read_seconds: float = 10.0,
    ) -> None:
        """Store contracts, endpoints and when deposits count; `private_rpc_urls`, if any, only get transactions.

        Raises: ValueError for deposits that count before their block.
        """
        if deposit_confirmations < 1:
            raise ValueError("a deposit needs at least one confirmation")
        self.name = name
        self._deposit_confirmations = deposit_confirmations
        self.block_time = timedelta(seconds=deployment.block_seconds)
        rpc = partial(
            EvmRpc, name, chain_id=deployment.chain_id, connect_seconds=connect_seconds, read_seconds=read_seconds
        )
        super().__init__(rpc(urls=rpc_urls), deployment, native(name))
        self._public_sender = self._sender = _broadcaster(self.rpc, reads=self.rpc)
        if private_rpc_urls:
            private = rpc(urls=private_rpc_urls, first_number=len(rpc_urls) + 1)
            self._sender = _broadcaster(private, reads=self.rpc)
        self.broadcast = self._sender.broadcast

    def diagnose(self) -> ChainDiagnosis:
        def missing_contracts(endpoint: RpcEndpoint) -> list[str]:
            codes = {name: calls.code(address) for name, address in self.deployment.contracts()}
            endpoint.run([*codes.values()])
            return [name for name, call in codes.items() if not call.result]

        return self.rpc.diagnose(calls.head, missing_contracts)

    def rebroadcast(self, raws: Sequence[bytes], *, publicly: bool = True) -> None:
        (self._public_sender if publicly else self._sender).rebroadcast(raws)

    def explorer_url(self, tx_hash: str) -> str | None:
        template = self.deployment.explorer_tx_url
        return None if template is None else template.format(tx_hash=tx_hash)

    def balances(self, address: str) -> Balances:
        """Read native and USDC balance at one block, in one call. Raises: Unreachable."""
        inner = [contracts.ETH_BALANCE.at(MULTICALL3, address), contracts.BALANCE_OF.at(self.deployment.usdc, address)]
        native_units, usdc_units = self.rpc.ask(contracts.multicall(inner))
        return Balances((TokenAmount(native_units, self.native), TokenAmount(usdc_units, USDC)))

    def recipient_rejection(self, recipient: str, token: Token) -> str | None:
        if recipient.lower() in (self.deployment.usdc.lower(), (token.contract or "").lower()):
            return "is the token's own contract, from which tokens cannot be recovered"
        known = dead_end(recipient)
        return None if known is None else f"is {known}, from which tokens cannot be recovered"

    def receiving_refusal(self, address: str, token: Token) -> str | None:
        if token == self.native:
            return None
        usdc = self.deployment.usdc
        inner = [contracts.IS_BLACKLISTED.at(usdc, address), contracts.PAUSED.at(usdc)]
        is_blacklisted, is_paused = self.rpc.ask(contracts.multicall(inner))
        return "blacklisted" if is_blacklisted else "paused" if is_paused else None

    def sign(self, draft: TransactionDraft, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        """Sign a draft with a nonce. No I/O. Raises: ValueError without a nonce or with a wrong signer."""
        if sequence is None:
            raise ValueError("an EVM transaction needs a nonce")
        terms = FeeTerms.from_terms(draft.terms)
        intent = draft.intent
        target = transactions.target_of(intent, draft.terms, usdc=self.deployment.usdc)
        fields = transactions.fields_of(self.deployment.chain_id, sequence, terms, target)
        raw, tx_hash = transactions.sign(fields, signer, sender=intent.sender)
        return SignedTransaction(tx_hash=tx_hash, raw=raw, sequence=sequence, expires_at_height=None, terms=draft.terms)

    def head(self) -> BlockRef:
        return self.rpc.ask(calls.block("latest"))


def _broadcaster(rpc: EvmRpc, *, reads: EvmRpc) -> Broadcaster:
    """Return what broadcasts to these endpoints; receipts are read from the others."""

    def is_accepted(reason: str, raw: bytes) -> bool:
        if reason != "nonce_too_low":
            return reason == refusals.ALREADY_KNOWN
        try:
            # A used nonce may be the effect of these very bytes.
            return reads.ask(calls.receipt(hash_of(raw))) is not None
        except Unreachable:
            raise OutcomeUnknown("answer_lost") from None

    return Broadcaster(rpc, _send_call, refusals=refusals.SEND_REFUSALS, is_accepted=is_accepted)


def _send_call(raw: bytes) -> RpcCall[None]:
    """Return the call that sends, which web3 allows in no batch."""
    expected = hash_of(raw)

    def read(result: object) -> None:
        if not isinstance(result, str) or result.lower() != expected:
            raise MalformedResponseError("expected the transaction's hash")

    return RpcCall("eth_sendRawTransaction", ("0x" + raw.hex(),), read=read, tolerates=accept_any_error)
