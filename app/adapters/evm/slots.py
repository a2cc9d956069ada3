"""What used up the nonce slots of our addresses, as the chain tells it: for a database that was set back.

A node is asked how many transactions an address had sent at a block, and blocks are halved until one is left. A node
that keeps no old states finds the newest slots only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.adapters.evm import contracts, transactions
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.transactions import Target, Unsigned
from app.adapters.evm.wire import Transaction, block_or_none, count, octets, quantity
from app.adapters.json_rpc import MalformedAnswerError
from app.core.chains import USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import Attempt, Does, Sent
from app.ports.errors import Unreachable


class SlotReader:
    """Looks up what addresses have sent."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment, native_token: Token) -> None:
        """Take the chain's nodes and contracts."""
        self._rpc = rpc
        self._deployment = deployment
        self._native = native_token

    def counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return how many transactions each address has sent, by the latest block. Raises: Unreachable.

        All endpoints are asked, and the highest count is believed: one that lags would hide what was sent.
        """
        highest: dict[str, int] = {}
        answered = not addresses
        for endpoint in self._rpc.candidates() if addresses else ():
            calls = {
                address: Call("eth_getTransactionCount", (address, "latest"), read=count)
                for address in addresses
            }
            try:
                endpoint.run(list(calls.values()))
            except EndpointFailed as failure:
                self._rpc.note_failure(endpoint, failure)
                continue
            answered = True
            for address, call in calls.items():
                highest[address] = max(call.answer, highest.get(address, 0))
        if not answered:
            raise Unreachable("chain_unreachable")
        return highest

    def sent(self, sender: str, sequence: int, *, instead_of: Attempt | None) -> Sent | None:
        """Return what took a slot, None where no node can tell. Raises: Unreachable."""
        best: Sent | None = None
        answered = False
        # An endpoint may lag, keep no old states, or leave fields out: another one may know all.
        for endpoint in self._rpc.candidates():
            try:
                found = _taker(endpoint, sender, sequence)
                told = None if found is None else self._described(endpoint, found, sender, instead_of)
            except EndpointFailed as failure:
                self._rpc.note_failure(endpoint, failure)
                continue
            answered = True
            best = told or best
            if told is not None and (told.raw is not None or told.does is Does.OTHER):
                return told
        if not answered:
            raise Unreachable("chain_unreachable")
        return best

    def _described(
        self, endpoint: Endpoint, found: Transaction, sender: str, instead_of: Attempt | None
    ) -> Sent:
        data = _data(found)
        target = Target(found.recipient or "", found.value_units, data)
        recipient, amount = found.recipient, None
        if not data:
            amount = TokenAmount(found.value_units, self._native)
        elif found.recipient == self._deployment.usdc and (moved := contracts.read_transfer(data)):
            recipient, amount = moved[0], TokenAmount(moved[1], USDC)
        does = Does.OTHER
        if target == Target(sender, 0, b""):
            does = Does.NOTHING
        elif instead_of is not None and target == transactions.target_of(
            instead_of.intent, instead_of.terms, usdc=self._deployment.usdc
        ):
            does = Does.SAME
        raw = self._raw(found, target)
        if raw is None and does is not Does.OTHER:
            raw = _raw_by_hash(endpoint, found.tx_hash)
        return Sent(found.tx_hash, recipient, amount, does, raw)

    def _raw(self, found: Transaction, target: Target) -> bytes | None:
        """Put the signed bytes together again; None where they are not of the form that we sign."""
        fields = found.fields
        try:
            unsigned = Unsigned(
                chain_id=self._deployment.chain_id,
                nonce=quantity(fields.get("nonce")),
                max_priority_fee_per_gas=quantity(fields.get("maxPriorityFeePerGas")),
                max_fee_per_gas=quantity(fields.get("maxFeePerGas")),
                gas=quantity(fields.get("gas")),
                target=target,
            )
            told = fields.get("yParity")
            y_parity = quantity(fields.get("v") if told is None else told)
            raw = transactions.signed_form(
                unsigned, y_parity, quantity(fields.get("r")), quantity(fields.get("s"))
            )
        except ValueError:
            return None
        return raw if transactions.hash_of(raw) == found.tx_hash else None


def _taker(endpoint: Endpoint, sender: str, sequence: int) -> Transaction | None:
    head = Call("eth_blockNumber", (), read=count)
    endpoint.run([head])
    lowest, highest = 0, head.answer
    while lowest < highest:
        middle = (lowest + highest) // 2
        asked = _count(sender, hex(middle))
        endpoint.run([asked])
        # A state that the node does not keep is older than those that it has.
        if asked.error is None and asked.answer > sequence:
            highest = middle
        else:
            lowest = middle + 1
    block = Call("eth_getBlockByNumber", (hex(highest), True), read=block_or_none)
    endpoint.run([block])
    listed = () if block.answer is None else block.answer.transactions
    for each in listed:
        if each.sender == sender and quantity(each.fields.get("nonce")) == sequence:
            return each
    return None


def _raw_by_hash(endpoint: Endpoint, tx_hash: str) -> bytes | None:
    """Ask for signed bytes as they are; not every node has the method."""
    asked = Call("eth_getRawTransactionByHash", (tx_hash,), read=_octets_or_none, tolerates=_anything)
    endpoint.run([asked])
    raw = None if asked.error is not None else asked.answer
    return raw if raw and transactions.hash_of(raw) == tx_hash else None


def _octets_or_none(answer: object) -> bytes | None:
    return None if answer is None else octets(answer)


def _data(found: Transaction) -> bytes:
    told = found.fields.get("input", found.fields.get("data"))
    if told is None:
        raise MalformedAnswerError("expected a transaction's data")
    return octets(told)


def _count(address: str, block: str) -> Call[int]:
    return Call("eth_getTransactionCount", (address, block), read=count, tolerates=_anything)


def _anything(_error: RpcError) -> bool:
    return True
