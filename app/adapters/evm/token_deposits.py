"""USDC that came in from outside, read from the token's own logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.adapters.evm import contracts
from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed, RpcError
from app.adapters.evm.wire import TransferLog, transfer_logs
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.ports.chain import Deposit, WatchedAddress

_ADDRESSES_PER_QUERY = 200


def find(
    endpoint: Endpoint, usdc: str, watched: Sequence[WatchedAddress], *, floors: Mapping[str, int], last: int
) -> tuple[Deposit, ...]:
    """Return the deposits of each address after its floor, up to the block `last`. Raises: EndpointFailed."""
    found: list[Deposit] = []
    for start in range(0, len(watched), _ADDRESSES_PER_QUERY):
        chunk = watched[start : start + _ADDRESSES_PER_QUERY]
        own = {entry.address: frozenset(ours.tx_hash for ours in entry.own) for entry in chunk}
        minted = frozenset(entry.address for entry in chunk if USDC in entry.awaits)
        first = min(floors[entry.address] for entry in chunk) + 1
        for log, ordinal in _numbered(_logs(endpoint, usdc, tuple(own), first=first, last=last)):
            is_new = log.block.number > floors[log.recipient]
            # A transfer to oneself brings nothing; one of nothing is what address poisoning sends.
            brings = log.payer != log.recipient and log.units > 0
            # A mint while a bridge is about to bring some is that bridge's.
            is_bridged = log.payer == ZERO_EVM_ADDRESS and log.recipient in minted
            if is_new and brings and not is_bridged and log.tx_hash not in own[log.recipient]:
                found.append(_deposit(log, ordinal))
    return tuple(found)


def _deposit(log: TransferLog, ordinal: int) -> Deposit:
    return Deposit(
        address=log.recipient,
        amount=TokenAmount(log.units, USDC),
        tx_hash=log.tx_hash,
        payer=log.payer,
        position=f"usdc:{log.recipient}:{ordinal}",
        block=log.block,
    )


def _numbered(logs: Sequence[TransferLog]) -> Iterator[tuple[TransferLog, int]]:
    """Count the transfers to one recipient within a transaction.

    A log's own index counts within its block: it changes when the transaction is mined again in another.
    """
    counted: dict[tuple[str, str], int] = {}
    for log in sorted(logs, key=lambda entry: (entry.block.number, entry.index)):
        key = (log.tx_hash, log.recipient)
        counted[key] = counted.get(key, -1) + 1
        yield log, counted[key]


def _logs(
    endpoint: Endpoint, usdc: str, addresses: Sequence[str], *, first: int, last: int
) -> list[TransferLog]:
    """Read logs in ranges as long as the endpoint takes; what it takes is remembered."""
    recipients = ["0x" + contracts.word_of_address(address).hex() for address in addresses]
    found: list[TransferLog] = []
    while first <= last:
        until = min(last, first + endpoint.log_range - 1)
        query = {
            "address": usdc,
            "topics": [contracts.TRANSFER_TOPIC, None, recipients],
            "fromBlock": hex(first),
            "toBlock": hex(until),
        }
        call = Call("eth_getLogs", (query,), read=transfer_logs, tolerates=_anything)
        endpoint.run([call])
        if call.error is not None:
            asked = until - first + 1
            if asked == 1:
                raise EndpointFailed("logs_refused", perhaps_executed=True, rests=False)
            endpoint.log_range = asked // 2
            continue
        for log in call.answer:
            if (
                log.contract != usdc
                or log.recipient not in addresses
                or not first <= log.block.number <= until
            ):
                raise EndpointFailed("unexpected_answer", perhaps_executed=True)
        found.extend(call.answer)
        first = until + 1
    return found


def _anything(_error: RpcError) -> bool:
    return True
