"""The transaction on an EVM chain that received a message: found in the logs of Circle's contract.

A used nonce proves that some message was received; only the logs show which.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.cctp.chain_protocol import MintNotFound, first_arrival
from app.adapters.bridges.cctp.messages import CctpMessage, MessageMismatchError
from app.adapters.evm.client import calls
from app.adapters.evm.client.logs import logs_call
from app.adapters.evm.client.rpc import EvmRpc
from app.adapters.evm.client.wire import EventLog
from app.adapters.evm.contracts.abi import ContractEvent, Function
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.ports.bridges import BridgeArrival

_USED_NONCES = Function("cctp_transmitter", "usedNonces")
_RECEIVED_EVENT = ContractEvent("cctp_transmitter", "MessageReceived")
"""Submitter, source domain, nonce, sender, finality threshold, the message's body."""
_LOG_RANGE = 2_000
_MAX_RANGES = 50


def nonce_used_call(transmitter: str, message: CctpMessage, *, block: str | int = "latest") -> RpcCall[bool]:
    return calls.contract_call(
        {"to": transmitter, "data": _USED_NONCES.encode(message.nonce)},
        lambda returned: bool(_USED_NONCES.decode_result(returned)),
        block,
        tolerates=None if block == "latest" else accept_any_error,
    )


@dataclass(frozen=True, slots=True)
class MintSearch:
    """A search for the transaction that received a message with a used nonce, not before block `since`."""

    transmitter: str
    message: CctpMessage
    since: int

    def run(self, rpc: EvmRpc, *, hint: str | None) -> BridgeArrival | MintNotFound:
        """Return what received it, or why that is unknown. Endpoints are queried until one knows."""
        return first_arrival(rpc.run_on_each(lambda endpoint: self._find(endpoint, hint)))

    def _find(self, endpoint: RpcEndpoint, hint: str | None) -> BridgeArrival | MintNotFound:
        found = self._mint_in_transaction(endpoint, hint) if hint else MintNotFound.NOT_FOUND
        return found if isinstance(found, BridgeArrival) else self._search_logs(endpoint)

    def _mint_in_transaction(self, endpoint: RpcEndpoint, tx_hash: str) -> BridgeArrival | MintNotFound:
        """Return what a transaction has minted for the message's burn. Raises: EndpointError."""
        call = calls.receipt(tx_hash, tolerates=accept_any_error)
        endpoint.run([call])
        if call.error is not None:
            return MintNotFound.UNREADABLE
        receipt = call.result
        if receipt is None or not receipt.succeeded:
            return MintNotFound.NOT_FOUND
        for log in receipt.logs:
            received_message = self._received_message(log) if log.contract == self.transmitter else None
            if received_message is not None and received_message.burn == self.message.burn:
                return BridgeArrival(
                    received_message.burn.units - received_message.fee_units, receipt.tx_hash, receipt.block
                )
        return MintNotFound.NOT_FOUND

    def _received_message(self, log: EventLog) -> CctpMessage | None:
        """Read the message as the chain received it, or None for another nonce, form or source chain."""
        fields = _RECEIVED_EVENT.decode(log)
        if fields is None:
            return None
        _submitter, domain, nonce, _sender, _finality, body = fields
        if (nonce, domain) != (self.message.nonce, self.message.burn.source_domain):
            return None
        try:
            return messages.with_body(self.message, body)
        except MessageMismatchError:
            return None

    def _search_logs(self, endpoint: RpcEndpoint) -> BridgeArrival | MintNotFound:
        """Search for the event, the newest blocks first, within a limit. Raises: EndpointError."""
        newest = last = endpoint.ask(calls.head())
        for _ in range(_MAX_RANGES):
            if last < self.since:
                return MintNotFound.NOT_FOUND
            first = max(self.since, last - _LOG_RANGE + 1)
            hashes = self._hashes_in_blocks(endpoint, first, last)
            if hashes is None:
                break
            if hashes:
                return self._mint_in_transaction(endpoint, hashes[0])
            last = first - 1
        return self._bisect_blocks(endpoint, newest)

    def _bisect_blocks(self, endpoint: RpcEndpoint, newest: int) -> BridgeArrival | MintNotFound:
        """Search the one block in which the nonce became used, found by binary search over old states.

        Nodes that keep old states often return logs of a few blocks only. Raises: EndpointError.
        """
        first, last = self.since, newest
        while first < last:
            middle = (first + last) // 2
            used = nonce_used_call(self.transmitter, self.message, block=middle)
            endpoint.run([used])
            if used.error is not None:
                return MintNotFound.UNREADABLE
            first, last = (first, middle) if used.result else (middle + 1, last)
        hashes = self._hashes_in_blocks(endpoint, last, last)
        if hashes is None:
            return MintNotFound.UNREADABLE
        return self._mint_in_transaction(endpoint, hashes[0]) if hashes else MintNotFound.NOT_FOUND

    def _hashes_in_blocks(self, endpoint: RpcEndpoint, first: int, last: int) -> tuple[str, ...] | None:
        """Return the transactions that used the nonce in a range of blocks; None if the endpoint cannot show it."""
        topics = _RECEIVED_EVENT.topics(None, self.message.nonce)
        logs = logs_call(self.transmitter, topics, first=first, last=last)
        endpoint.run([logs])
        return None if logs.error is not None else tuple(log.tx_hash for log in logs.result)
