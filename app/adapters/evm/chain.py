"""The `Chain` port for Ethereum and Base. Every verb of the network refuses to run inside a unit of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.adapters.evm import contracts, diagnosis, transactions
from app.adapters.evm.broadcasts import Broadcaster
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.deposits import DepositScanner
from app.adapters.evm.drafts import Drafter
from app.adapters.evm.endpoint import Call
from app.adapters.evm.fees import FeeTerms
from app.adapters.evm.outcomes import Lookout
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.slots import SlotReader
from app.adapters.evm.transactions import ContractCall, Unsigned
from app.adapters.evm.wire import block_ref
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.chains import USDC, ChainName, Token, native
from app.core.money import TokenAmount
from app.ports.chain import (
    Attempt,
    Balances,
    BlockRef,
    Diagnosis,
    Draft,
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


class EvmChain:
    """One EVM chain behind one or more JSON-RPC endpoints. Opens no connection before the first verb."""

    def __init__(
        self,
        name: ChainName,
        deployment: Deployment,
        *,
        rpc_urls: Sequence[str],
        deposit_confirmations: int,
        connect_seconds: float = 3.0,
        read_seconds: float = 10.0,
    ) -> None:
        """Take the chain's contracts and endpoints; deposits count from `deposit_confirmations` blocks on."""
        self._name = name
        self._deployment = deployment
        self._native = native(name)
        self.rpc = JsonRpc(
            name,
            chain_id=deployment.chain_id,
            urls=rpc_urls,
            connect_seconds=connect_seconds,
            read_seconds=read_seconds,
        )
        self._drafter = Drafter(self.rpc, deployment, self._native)
        self._broadcaster = Broadcaster(self.rpc)
        self._lookout = Lookout(self.rpc, deployment)
        self._slots = SlotReader(self.rpc, deployment, self._native)
        self._scanner = DepositScanner(
            self.rpc, deployment, native_token=self._native, confirmations=deposit_confirmations
        )

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return self._name

    @property
    def deployment(self) -> Deployment:
        """Where the contracts stand that this chain serves."""
        return self._deployment

    def verify_identity(self) -> None:
        """Ask every endpoint for its chain id. Raises: Rejected("wrong_chain"), Unreachable."""
        self.rpc.verify_identity()

    def diagnose(self) -> Diagnosis:
        """Ask every endpoint by itself, and one for the contracts."""
        return diagnosis.of(self.rpc, self._deployment)

    def explorer_url(self, tx_hash: str) -> str | None:
        """Return a page that shows a transaction, or None where there is no explorer."""
        template = self._deployment.explorer_tx_url
        return None if template is None else template.format(tx_hash=tx_hash)

    def balances(self, address: str) -> Balances:
        """Read native and USDC balance at one block, in one call. Raises: Unreachable."""
        multicall = self._deployment.multicall3
        inner = [
            contracts.eth_balance(multicall, address),
            contracts.balance_of(self._deployment.usdc, address),
        ]
        call = contracts.numbers_call(multicall, inner, "latest")
        self.rpc.run(call)
        native_units, usdc_units = call.answer
        return Balances((TokenAmount(native_units, self._native), TokenAmount(usdc_units, USDC)))

    def refusal_of(self, recipient: str, token: Token) -> str | None:  # noqa: ARG002 - lost whatever the token
        """Return why a recipient can never be paid, as the end of a sentence about it, or None."""
        if recipient.lower() == ZERO_EVM_ADDRESS:
            return "is the zero address, from which nothing ever comes back"
        if recipient.lower() == self._deployment.usdc.lower():
            return "is the token's own contract, from which nothing ever comes back"
        return None

    def draft(self, intent: Intent) -> Draft:
        """Read balances, fees and simulate, in one HTTP request.

        Raises: Rejected("insufficient_funds", "insufficient_gas", "simulation_failed"), Unreachable.
        """
        return self._drafter.draft(intent)

    def draft_call(self, intent: Intent, call: ContractCall, *, gas: int, simulates: bool) -> Draft:
        """Draft a call that takes the intent's amount from the sender; `gas` is what it usually needs.

        For other adapters, which know what the call says. Raises: as `draft`.
        """
        return self._drafter.draft_call(intent, call, gas=gas, simulates=simulates)

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft for a nonce. Pure. Raises: ValueError without a nonce or with a wrong signer."""
        if sequence is None:
            raise ValueError("an EVM transaction needs a nonce")
        terms = FeeTerms.from_terms(draft.terms)
        intent = draft.intent
        unsigned = Unsigned(
            chain_id=self._deployment.chain_id,
            nonce=sequence,
            max_priority_fee_per_gas=terms.price.tip,
            max_fee_per_gas=terms.price.max_fee,
            gas=terms.gas,
            target=transactions.target_of(intent, draft.terms, usdc=self._deployment.usdc),
        )
        raw, tx_hash = transactions.sign(unsigned, signer, sender=intent.sender)
        return Signed(tx_hash=tx_hash, raw=raw, sequence=sequence, expires_at_height=None, terms=draft.terms)

    def replacement(self, attempt: Attempt) -> Draft | None:
        """Draft the same movement for the same nonce at a higher fee. Raises: Rejected, Unreachable."""
        return self._drafter.replacement(attempt)

    def cancellation(self, attempt: Attempt) -> Draft | None:
        """Draft an empty transaction to oneself for the attempt's nonce. Raises: Rejected, Unreachable."""
        return self._drafter.cancellation(attempt)

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
        """Return the blocks that were reorganised away and the newest `safe` number. Raises: Unreachable."""
        return self._lookout.orphaned(blocks)

    def sent_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return how many nonces each address has used. Raises: Unreachable."""
        return self._slots.counts(addresses)

    def sent_in_slot(self, sender: str, sequence: int, *, instead_of: Attempt | None = None) -> Sent | None:
        """Find the transaction that used a nonce. Raises: Unreachable."""
        return self._slots.sent(sender, sequence, instead_of=instead_of)

    def head(self) -> BlockRef:
        """Return the newest block. Raises: Unreachable."""
        call = Call("eth_getBlockByNumber", ("latest", False), read=block_ref)
        self.rpc.run(call)
        return call.answer

    def mark(self, address: str) -> Terms:
        """Take note of what an address has now. Raises: Unreachable."""
        return self._scanner.mark(address)

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find deposits at the depth that they must have. Raises: Unreachable."""
        return self._scanner.scan(watched, cursor=cursor)
