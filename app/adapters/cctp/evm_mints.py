"""Which transaction on an EVM chain received a message: read out of the logs of Circle's contract.

That a nonce is used tells of some message; which one, only the logs tell.
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError

from app.adapters.cctp import messages
from app.adapters.cctp.messages import ForeignMessageError, Message
from app.adapters.cctp.sides import Unseen
from app.adapters.evm import contracts
from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import Log, octets, quantity, receipt_or_none
from app.adapters.json_rpc import MalformedAnswerError
from app.ports.bridges import Arrival

_USED_NONCES = bytes.fromhex("feb61724")  # usedNonces(bytes32)
_RECEIVED_TOPIC = "0xff48c13eda96b1cceacc6b9edeedc9e9db9d6226afbc30146b720c19d3addb1c"
"""keccak of `MessageReceived(address,uint32,bytes32,bytes32,uint32,bytes)`; the nonce is its second topic."""
_RECEIVED_DATA = ("uint32", "bytes32", "bytes")
"""What is not in its topics: source domain, sender, the message's body."""
_LOG_RANGE = 2_000
_MOST_RANGES = 50


def is_used(transmitter: str, message: Message, *, block: str = "latest") -> Call[bool]:
    """Return a call that tells whether a message's nonce is used."""
    data = "0x" + (_USED_NONCES + message.nonce).hex()
    return Call(
        "eth_call",
        ({"to": transmitter, "data": data}, block),
        read=lambda answer: contracts.number(octets(answer)) != 0,
        tolerates=None if block == "latest" else _anything,
    )


@dataclass(frozen=True, slots=True)
class Search:
    """A look for the transaction that received a message whose nonce is used, not before block `since`."""

    transmitter: str
    message: Message
    since: int

    def run(self, rpc: JsonRpc, *, hint: str | None) -> Arrival | Unseen:
        """Return what received it, or why that is not known. Every endpoint is asked until one knows."""
        seen = Unseen.UNREADABLE
        for endpoint in rpc.candidates():
            try:
                found = self._shown(endpoint, hint) if hint else Unseen.NOT_SEEN
                if not isinstance(found, Arrival):
                    found = self._searched(endpoint)
            except EndpointFailed as failure:
                rpc.note_failure(endpoint, failure)
                continue
            if isinstance(found, Arrival):
                return found
            seen = found if found is Unseen.NOT_SEEN else seen
        return seen

    def _shown(self, endpoint: Endpoint, tx_hash: str) -> Arrival | Unseen:
        """Return what a transaction has minted for the message's burn. Raises: EndpointFailed."""
        call = Call("eth_getTransactionReceipt", (tx_hash,), read=receipt_or_none, tolerates=_anything)
        endpoint.run([call])
        if call.error is not None:
            return Unseen.UNREADABLE
        receipt = call.answer
        if receipt is None or not receipt.succeeded:
            return Unseen.NOT_SEEN
        received = (_read(log, self.message) for log in receipt.logs if self._tells_of(log))
        for seen in received:
            if seen is not None and seen.burn == self.message.burn:
                return Arrival(seen.burn.units - seen.fee_units, receipt.tx_hash, receipt.block)
        return Unseen.NOT_SEEN

    def _tells_of(self, log: Log) -> bool:
        return (
            log.contract == self.transmitter
            and len(log.topics) == 4  # noqa: PLR2004 - the event and its three indexed fields
            and (log.topics[0], log.topics[2]) == (_RECEIVED_TOPIC, self._nonce)
        )

    def _searched(self, endpoint: Endpoint) -> Arrival | Unseen:
        """Look for the event, the newest blocks first, and not for ever. Raises: EndpointFailed."""
        head = Call("eth_blockNumber", (), read=quantity)
        endpoint.run([head])
        newest = last = head.answer
        for _ in range(_MOST_RANGES):
            if last < self.since:
                return Unseen.NOT_SEEN
            first = max(self.since, last - _LOG_RANGE + 1)
            hashes = self._hashes(endpoint, first, last)
            if hashes is None:
                break
            if hashes:
                return self._shown(endpoint, hashes[0])
            last = first - 1
        return self._halved(endpoint, newest)

    def _halved(self, endpoint: Endpoint, newest: int) -> Arrival | Unseen:
        """Look in the one block in which the nonce came to be used: nodes that keep old states tell which it was.

        Those are often the ones that give logs of a few blocks only. Raises: EndpointFailed.
        """
        first, last = self.since, newest
        while first < last:
            middle = (first + last) // 2
            used = is_used(self.transmitter, self.message, block=hex(middle))
            endpoint.run([used])
            if used.error is not None:
                return Unseen.UNREADABLE
            first, last = (first, middle) if used.answer else (middle + 1, last)
        hashes = self._hashes(endpoint, last, last)
        if hashes is None:
            return Unseen.UNREADABLE
        return self._shown(endpoint, hashes[0]) if hashes else Unseen.NOT_SEEN

    def _hashes(self, endpoint: Endpoint, first: int, last: int) -> tuple[str, ...] | None:
        """Return by which transactions the nonce was used in some blocks; None where the endpoint does not say."""
        query = {
            "address": self.transmitter,
            "topics": [_RECEIVED_TOPIC, None, self._nonce],
            "fromBlock": hex(first),
            "toBlock": hex(last),
        }
        call = Call("eth_getLogs", (query,), read=_hashes_of_logs, tolerates=_anything)
        endpoint.run([call])
        return None if call.error is not None else call.answer

    @property
    def _nonce(self) -> str:
        return "0x" + self.message.nonce.hex()


def _read(log: Log, message: Message) -> Message | None:
    """Read the message as the chain received it, None for one of another form or from another chain."""
    try:
        domain, _sender, body = decode(_RECEIVED_DATA, log.data)
        seen = messages.with_body(message, body)
    except (DecodingError, OverflowError, ForeignMessageError):
        return None
    return seen if domain == message.burn.source_domain else None


def _hashes_of_logs(answer: object) -> tuple[str, ...]:
    if not isinstance(answer, list) or not all(isinstance(entry, dict) for entry in answer):
        raise MalformedAnswerError("expected logs")
    return tuple(str(entry.get("transactionHash")) for entry in answer)


def _anything(_error: RpcError) -> bool:
    return True
