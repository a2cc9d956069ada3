"""Outcomes of payments that our wallets have authorized (EIP-3009 or Permit2) and another party submits.

The contract's own state decides. "Void" promises that an authorization can never be used: a finalized block is past its
deadline, and the contract shows it unused at that block.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Self

import structlog

from app.adapters.evm import calls
from app.adapters.evm.calls import EventLog, read_logs
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import EvmConnection, Function, MulticallItem
from app.adapters.evm.contracts.deployments import MULTICALL3, PERMIT2
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.ports.chain import BlockRef, Terms, TransactionOutcome, TransactionStatus

NONCE_BITMAP = Function("permit2", "nonceBitmap")
"""Which nonces of a payer Permit2 has accepted, among the 256 of a word."""
_PER_CALL = 200
_FINAL_DEPTH = 64
"""Where a node does not support the tag `finalized`: two epochs of Ethereum."""
_log = structlog.get_logger(__name__)
_WAITING = TransactionOutcome(TransactionStatus.WAITING)


@dataclass(frozen=True, slots=True)
class OpenAuthorization:
    """What identifies an authorization on the chain, as the terms of its signed bytes hold it."""

    payer: str
    authorization_nonce: str
    valid_before: int
    since_block: int
    """No block before it can hold its use."""
    permit2_recipient: str | None = None
    """The recipient of a payment by Permit2, which logs nothing itself; None for EIP-3009."""

    @classmethod
    def from_terms(cls, terms: Terms) -> Self | None:
        """Read the output of `as_terms`; None for the terms of a transaction."""
        known: dict[str, Any] = {each.name: terms[each.name] for each in fields(cls) if each.name in terms}
        return cls(**known) if "authorization_nonce" in known else None

    def as_terms(self) -> Terms:
        return asdict(self)

    @property
    def nonce(self) -> bytes:
        return bytes.fromhex(self.authorization_nonce)

    def state_at(self, usdc: str) -> MulticallItem:
        """Return the call that reads whether it was used, for `is_used`."""
        if self.permit2_recipient is None:
            return contracts.AUTHORIZATION_STATE.at(usdc, self.payer, self.nonce)
        return NONCE_BITMAP.at(PERMIT2, self.payer, int.from_bytes(self.nonce[:-1], "big"))

    def is_used(self, state: int) -> bool:
        return bool(state if self.permit2_recipient is None else state >> self.nonce[-1] & 1)


class AuthorizationPoller(EvmConnection):
    def _authorization_outcomes(
        self, authorizations: Mapping[str, OpenAuthorization]
    ) -> Mapping[str, TransactionOutcome]:
        """Return outcomes by the same keys. Raises: Unreachable."""
        found: dict[str, TransactionOutcome] = {}
        entries = list(authorizations.items())
        for start in range(0, len(entries), _PER_CALL):
            # One endpoint for all evidence: another may lag behind.
            found |= self.rpc.run_on_first(partial(self._use_outcomes, dict(entries[start : start + _PER_CALL])))
        return found

    def _use_outcomes(
        self, authorizations: Mapping[str, OpenAuthorization], endpoint: RpcEndpoint
    ) -> Mapping[str, TransactionOutcome]:
        opened = authorizations.values()
        tag: str | int = "finalized"
        now, final, head = self._states(opened, "latest"), self._states(opened, tag), calls.head()
        endpoint.run([now, final, head])
        if final.error is not None and head.result >= _FINAL_DEPTH:
            tag = head.result - _FINAL_DEPTH
            final = self._states(opened, tag)
            endpoint.run([final])
        if now.error is not None:
            return dict.fromkeys(authorizations, _WAITING)
        _time, *are_used = _uses_at(now, opened)
        final_time, *were_used = _uses_at(final, opened) if final.error is None else (0, *are_used)
        uses = self._uses(endpoint, [each for each, is_used in zip(opened, are_used, strict=True) if is_used], head)
        outcomes = {}
        for (key, each), is_used, was_used in zip(authorizations.items(), are_used, were_used, strict=True):
            if is_used and each.nonce in uses:
                log = uses[each.nonce]
                outcomes[key] = _used(log.block, head=head.result, tx_hash=log.tx_hash)
            elif is_used and was_used and final.error is None:
                _log.error("authorization_use_not_found", transaction_id=key, nonce="0x" + each.nonce.hex())
                outcomes[key] = _used(endpoint.ask(calls.block(tag)), head=head.result)
            elif not is_used and not was_used and final_time >= each.valid_before:
                outcomes[key] = TransactionOutcome(TransactionStatus.VOID)
            else:
                outcomes[key] = _WAITING
        return outcomes

    def _states(self, authorizations: Collection[OpenAuthorization], block: str | int) -> RpcCall[tuple[Any, ...]]:
        """Return the call for a block's time, and the state of each authorization there."""
        items = [each.state_at(self.deployment.usdc) for each in authorizations]
        time = contracts.BLOCK_TIMESTAMP.at(MULTICALL3)
        return contracts.multicall([time, *items], block, tolerates=accept_any_error)

    def _uses(
        self, endpoint: RpcEndpoint, authorizations: Collection[OpenAuthorization], head: RpcCall[int]
    ) -> Mapping[bytes, EventLog]:
        by_token = [each for each in authorizations if each.permit2_recipient is None]
        by_permit2 = [each for each in authorizations if each.permit2_recipient is not None]
        found = dict(self._permit2_uses(endpoint, by_permit2, head))
        event = contracts.AUTHORIZATION_USED_EVENT
        payers, nonces = {each.payer for each in by_token}, {each.nonce for each in by_token}
        topics = event.topics(sorted(payers), sorted(nonces))
        for log in self._logs(endpoint, topics, by_token, head):
            if (used := event.decode(log)) is not None:
                found[used[1]] = log
        return found

    def _permit2_uses(
        self, endpoint: RpcEndpoint, authorizations: Collection[OpenAuthorization], head: RpcCall[int]
    ) -> Mapping[bytes, EventLog]:
        """Return the token's logs of the transfers, by the nonces in the input of their transactions."""
        payers = {each.payer for each in authorizations}
        recipients = {each.permit2_recipient for each in authorizations}
        topics = contracts.TRANSFER_EVENT.topics(sorted(payers), sorted(filter(None, recipients)))
        logs = {log.tx_hash: log for log in self._logs(endpoint, topics, authorizations, head)}
        inputs = {tx_hash: calls.transaction(tx_hash) for tx_hash in logs}
        endpoint.run([*inputs.values()])
        return {
            each.nonce: logs[tx_hash]
            for each in authorizations
            for tx_hash, call in inputs.items()
            if call.result is not None and each.nonce in call.result.data
        }

    def _logs(
        self,
        endpoint: RpcEndpoint,
        topics: Sequence[object],
        authorizations: Collection[OpenAuthorization],
        head: RpcCall[int],
    ) -> Iterator[EventLog]:
        if not authorizations:
            return
        # A reorg may have moved a use below the head that was read before it was signed.
        first = max(0, min(each.since_block for each in authorizations) - _FINAL_DEPTH)
        for _until, logs in read_logs(endpoint, self.deployment.usdc, topics, first=first, last=head.result):
            yield from logs


def _uses_at(reading: RpcCall[tuple[Any, ...]], authorizations: Collection[OpenAuthorization]) -> list[Any]:
    time, *states = reading.result
    return [time, *(each.is_used(state) for each, state in zip(authorizations, states, strict=True))]


def _used(block: BlockRef, *, head: int, tx_hash: str | None = None) -> TransactionOutcome:
    """Return the outcome of a use: a transaction that reverts leaves no logs, and its submitter pays the fee.

    Without a hash, a final block includes the use and no log shows it: paid, by an unknown transaction.
    """
    return TransactionOutcome(
        TransactionStatus.SUCCEEDED, tx_hash=tx_hash, block=block, confirmations=max(head - block.number + 1, 0),
        fee_units=0,
    )  # fmt: skip
