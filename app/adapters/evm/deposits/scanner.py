"""Finds deposits on many addresses in few requests, at the depth at which they count.

A whole scan is made on one endpoint, so that all of its figures belong to one view of the chain; when a reorg removes
a block during the scan, the scan is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from app.adapters.evm.client import calls
from app.adapters.evm.client.rpc import EvmRpc
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.evm.deposits import native
from app.adapters.evm.deposits import tokens as token_deposits
from app.adapters.evm.deposits.scan_state import EvmScanState
from app.adapters.jsonrpc.calls import EndpointError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import Token
from app.ports.chain import BlockRef, DepositScan, Terms, WatchedAddress

_REWIND_BLOCKS = 256
_MAX_SCAN_BLOCKS = 50_000
"""After a long pause a scan stops here and the next one continues."""


class EvmDepositScanner:
    def __init__(self, rpc: EvmRpc, deployment: EvmDeployment, *, native_token: Token, confirmations: int) -> None:
        """Store the depth at which a deposit counts; 1 is the newest block. Raises: ValueError below 1."""
        if confirmations < 1:
            raise ValueError("a deposit needs at least one confirmation")
        self._rpc = rpc
        self._deployment = deployment
        self._native = native_token
        self._confirmations = confirmations

    def scan_state(self, address: str) -> Terms:
        """Return the state of an address in the newest block. Raises: Unreachable."""
        return self._rpc.run_on_first(lambda endpoint: _read_scan_state(endpoint, address)).as_terms()

    def scan(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        """Find deposits since the cursor and scan states. Raises: Unreachable."""
        return self._rpc.run_on_first(lambda endpoint: self._scan(endpoint, watched, cursor))

    def _scan(self, endpoint: RpcEndpoint, watched: Sequence[WatchedAddress], cursor: BlockRef | None) -> DepositScan:
        number = endpoint.ask(calls.head()) - self._confirmations + 1
        if number < 0:
            return DepositScan(cursor, {}, ())
        block, at_cursor = _blocks(endpoint, number, cursor)
        # A node that lags behind cannot show whether the cursor's block was removed by a reorg.
        is_gone = cursor is not None and at_cursor is not None and at_cursor.hash != cursor.hash
        floors = _start_blocks(watched, cursor, is_gone=is_gone)
        first = min(floors.values(), default=number) + 1
        known = 0 if cursor is None else cursor.number
        last = min(number, max(first, known) + _MAX_SCAN_BLOCKS)
        usdc = self._deployment.usdc
        tokens, last = token_deposits.find_deposits(
            endpoint, usdc, watched, start_blocks=floors, last=last, at_least=known
        )
        scan_states, natives = native.find_deposits(
            endpoint, self._deployment, watched, native_token=self._native, block=block
        )
        reached = block if last == number else endpoint.ask(calls.block(last))
        if endpoint.ask(calls.block(number)) != block:
            raise EndpointError("reorganised", perhaps_executed=True, backs_off=False)
        is_behind = cursor is not None and cursor.number > reached.number
        return DepositScan(
            cursor=cursor if is_behind else reached,
            scan_states=_changed_scan_states(watched, scan_states, was_complete=not is_behind),
            deposits=(*tokens, *natives),
        )


def _start_blocks(watched: Sequence[WatchedAddress], cursor: BlockRef | None, *, is_gone: bool) -> Mapping[str, int]:
    """Return the block after which each address's logs are new."""
    scanned_block = 0 if cursor is None else cursor.number - _REWIND_BLOCKS if is_gone else cursor.number
    states = {entry.address: EvmScanState.from_terms(entry.scan_state) for entry in watched}
    return {
        address: state.since if state.is_unscanned else max(state.since, scanned_block)
        for address, state in states.items()
    }


def _changed_scan_states(
    watched: Sequence[WatchedAddress], scan_states: Mapping[str, EvmScanState], *, was_complete: bool
) -> Mapping[str, Terms]:
    changed: dict[str, Terms] = {}
    for entry in watched:
        before = EvmScanState.from_terms(entry.scan_state)
        after = scan_states.get(entry.address, before)
        if was_complete:
            after = replace(after, is_unscanned=False)
        if after != before:
            changed[entry.address] = after.as_terms()
    return changed


def _read_scan_state(endpoint: RpcEndpoint, address: str) -> EvmScanState:
    head = endpoint.ask(calls.block("latest"))
    used, balance = calls.nonce(address, head.number), calls.balance(address, head.number)
    endpoint.run([used, balance])
    return EvmScanState(head.number, head.number, balance.result, used.result, is_unscanned=True)


def _blocks(endpoint: RpcEndpoint, number: int, cursor: BlockRef | None) -> tuple[BlockRef, BlockRef | None]:
    block = calls.block(number)
    if cursor is None or cursor.number == number:
        return (found := endpoint.ask(block)), found
    at_cursor = calls.header_or_none(cursor.number)
    endpoint.run([block, at_cursor])
    return block.result, None if at_cursor.result is None else at_cursor.result.ref
