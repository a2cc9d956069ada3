"""Finds deposits on many addresses in few requests, at the depth at which they count.

A whole scan is made on one endpoint, so that all of its figures belong to one view of the chain; when a block
was reorganised away under it, the scan is worth nothing and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.adapters.evm import native_deposits, token_deposits
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed
from app.adapters.evm.marks import Mark
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import block_ref, block_ref_or_none, count, quantity
from app.core.chains import Token
from app.ports.chain import BlockRef, Scan, Terms, WatchedAddress

_REWIND_BLOCKS = 256
_LONGEST_SCAN_BLOCKS = 50_000
"""After a long standstill a scan stops here and the next one goes on."""


class DepositScanner:
    """Looks for deposits on one chain."""

    def __init__(
        self, rpc: JsonRpc, deployment: Deployment, *, native_token: Token, confirmations: int
    ) -> None:
        """Take the depth at which a deposit counts; 1 is the newest block. Raises: ValueError below 1."""
        if confirmations < 1:
            raise ValueError("a deposit needs at least one confirmation")
        self._rpc = rpc
        self._deployment = deployment
        self._native = native_token
        self._confirmations = confirmations

    def mark(self, address: str) -> Terms:
        """Take note of what an address has in the newest block. Raises: Unreachable."""
        return self._rpc.first(lambda endpoint: _mark(endpoint, address)).as_terms()

    def scan(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find deposits since the cursor and marks. Raises: Unreachable."""
        return self._rpc.first(lambda endpoint: self._scan(endpoint, watched, cursor))

    def _scan(self, endpoint: Endpoint, watched: Sequence[WatchedAddress], cursor: BlockRef | None) -> Scan:
        head = _block(endpoint, "latest")
        number = head.number - self._confirmations + 1
        if number < 0:
            return Scan(cursor, {}, ())
        block = _block(endpoint, hex(number))
        floors = _floors(watched, cursor, is_gone=cursor is not None and _is_gone(endpoint, cursor))
        first = min(floors.values(), default=number) + 1
        last = min(number, max(first, 0 if cursor is None else cursor.number) + _LONGEST_SCAN_BLOCKS)
        usdc = self._deployment.usdc
        tokens = token_deposits.find(endpoint, usdc, watched, floors=floors, last=last)
        marks, natives = native_deposits.find(
            endpoint, self._deployment, watched, native_token=self._native, block=block
        )
        reached = block if last == number else _block(endpoint, hex(last))
        if _block(endpoint, hex(number)) != block:
            raise EndpointFailed("reorganised", perhaps_executed=True, rests=False)
        is_behind = cursor is not None and cursor.number > reached.number
        return Scan(
            cursor=cursor if is_behind else reached,
            marks=_terms(watched, marks, was_complete=not is_behind),
            deposits=(*tokens, *natives),
        )


def _floors(
    watched: Sequence[WatchedAddress], cursor: BlockRef | None, *, is_gone: bool
) -> Mapping[str, int]:
    """Return the block after which each address's logs are new."""
    floors: dict[str, int] = {}
    for entry in watched:
        mark = Mark.of(entry.mark)
        passed = 0 if cursor is None else cursor.number - _REWIND_BLOCKS if is_gone else cursor.number
        floors[entry.address] = mark.since if mark.fresh else max(mark.since, passed)
    return floors


def _terms(
    watched: Sequence[WatchedAddress], marks: Mapping[str, Mark], *, was_complete: bool
) -> Mapping[str, Terms]:
    """Return the marks that changed."""
    changed: dict[str, Terms] = {}
    for entry in watched:
        before = Mark.of(entry.mark)
        after = marks.get(entry.address, before)
        if was_complete:
            after = after.scanned()
        if after != before:
            changed[entry.address] = after.as_terms()
    return changed


def _mark(endpoint: Endpoint, address: str) -> Mark:
    head = _block(endpoint, "latest")
    tag = hex(head.number)
    used = Call("eth_getTransactionCount", (address, tag), read=count)
    balance = Call("eth_getBalance", (address, tag), read=quantity)
    endpoint.run([used, balance])
    return Mark(head.number, head.number, balance.answer, used.answer, fresh=True)


def _block(endpoint: Endpoint, tag: str) -> BlockRef:
    call = Call("eth_getBlockByNumber", (tag, False), read=block_ref)
    endpoint.run([call])
    return call.answer


def _is_gone(endpoint: Endpoint, cursor: BlockRef) -> bool:
    """Tell whether the cursor's block was reorganised away; a node that lags behind cannot tell."""
    call = Call("eth_getBlockByNumber", (hex(cursor.number), False), read=block_ref_or_none)
    endpoint.run([call])
    return call.answer is not None and call.answer.hash != cursor.hash
