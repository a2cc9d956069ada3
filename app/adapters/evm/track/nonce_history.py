"""The transactions that used our addresses' nonces, as the chain shows them: for a restored database.

A node returns how many transactions an address had sent at a block, and a binary search finds the block. A node that
keeps no old states finds only the latest nonces.
"""

from collections.abc import Mapping, Sequence

from app.adapters.evm.client import calls
from app.adapters.evm.client.rpc import EvmRpc, RpcTransaction, call
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.evm.send import transactions
from app.adapters.evm.send.transactions import CallTarget, FeeTerms, GasPrice
from app.adapters.jsonrpc.calls import accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import NonceUse, SentTransaction, StoredTransaction, Terms
from app.ports.errors import Unreachable


class NonceHistoryReader:
    def __init__(self, rpc: EvmRpc, deployment: EvmDeployment, native_token: Token) -> None:
        self._rpc = rpc
        self._deployment = deployment
        self._native = native_token

    def transaction_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return the highest counts of all endpoints: one that lags would hide what was sent. Raises: Unreachable."""
        if not addresses:
            return {}
        counts = list(self._rpc.run_on_each(lambda endpoint: _latest_counts(endpoint, addresses)))
        if not counts:
            raise Unreachable("chain_unreachable")
        return dict(zip(addresses, map(max, *counts, [0] * len(addresses)), strict=True))

    def transaction_at_nonce(
        self, sender: str, sequence: int, *, expected: StoredTransaction | None = None
    ) -> SentTransaction | None:
        best: SentTransaction | None = None
        answered = False
        # An endpoint may lag, keep no old states, or omit fields: another one may have everything.
        for sent in self._rpc.run_on_each(lambda endpoint: self._find(endpoint, sender, sequence, expected)):
            answered = True
            best = sent or best
            if sent is not None and (sent.raw is not None or sent.nonce_use is NonceUse.OTHER):
                return sent
        if not answered:
            raise Unreachable("chain_unreachable")
        return best

    def _find(
        self, endpoint: RpcEndpoint, sender: str, sequence: int, expected: StoredTransaction | None
    ) -> SentTransaction | None:
        found = _find_by_nonce(endpoint, sender, sequence)
        if found is None:
            return None
        target = CallTarget(found.recipient or "", found.value_units, found.data)
        recipient, amount = found.recipient, None
        if not found.data:
            amount = TokenAmount(found.value_units, self._native)
        elif found.recipient == self._deployment.usdc and (moved := contracts.read_transfer(found.data)):
            recipient, amount = moved[0], TokenAmount(moved[1], USDC)
        nonce_use = NonceUse.OTHER
        if target == CallTarget(sender, 0, b""):
            nonce_use = NonceUse.NOTHING
        elif expected is not None and target == transactions.target_of(
            expected.intent, expected.terms, usdc=self._deployment.usdc
        ):
            nonce_use = NonceUse.SAME
        raw, terms = self._raw(found, target)
        if raw is None and nonce_use is not NonceUse.OTHER:
            raw = _raw_by_hash(endpoint, found.tx_hash)
        return SentTransaction(found.tx_hash, recipient, amount, nonce_use, raw, terms)

    def _raw(self, found: RpcTransaction, target: CallTarget) -> tuple[bytes | None, Terms | None]:
        """Reassemble the signed bytes, with their terms; None if they do not have the form that we sign."""
        fields = found.model_extra or {}
        try:
            price = GasPrice(fields["maxFeePerGas"], fields["maxPriorityFeePerGas"])
            fee = FeeTerms(fields["gas"], price, l1_fee_units=0)
            y_parity = fields["v"] if fields.get("yParity") is None else fields["yParity"]
            signature = y_parity, int.from_bytes(fields["r"]), int.from_bytes(fields["s"])
            unsigned = transactions.fields_of(self._deployment.chain_id, found.nonce, fee, target)
            raw = transactions.encode_signed(unsigned, *signature)
        except Exception:  # of any class, by what the node has sent
            return None, None
        return (raw, fee.as_terms()) if transactions.hash_of(raw) == found.tx_hash else (None, None)


def _latest_counts(endpoint: RpcEndpoint, addresses: Sequence[str]) -> list[int]:
    counts = [calls.nonce(address) for address in addresses]
    endpoint.run(counts)
    return [call.result for call in counts]


def _find_by_nonce(endpoint: RpcEndpoint, sender: str, sequence: int) -> RpcTransaction | None:
    lowest, highest = 0, endpoint.ask(calls.head())
    while lowest < highest:
        middle = (lowest + highest) // 2
        used = calls.nonce(sender, middle, tolerates=accept_any_error)
        endpoint.run([used])
        # A state that the node does not keep is older than those that it has.
        if used.error is None and used.result > sequence:
            highest = middle
        else:
            lowest = middle + 1
    block = endpoint.ask(calls.whole_block(highest))
    for each in () if block is None else block.transactions:
        if each.sender == sender and each.nonce == sequence:
            return each
    return None


def _raw_by_hash(endpoint: RpcEndpoint, tx_hash: str) -> bytes | None:
    """Read the raw signed bytes; not every node has the method."""
    found = call(lambda eth: eth.get_raw_transaction(tx_hash), bytes, tolerates=accept_any_error)
    endpoint.run([found])
    raw = found.result_or_none
    return raw if raw and transactions.hash_of(raw) == tx_hash else None
