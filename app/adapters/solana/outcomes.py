"""Finds out what became of many transactions in few requests.

"Void" promises that the bytes can never land. It is said only by the rule of decision 0012: the block height is
finalized past, every endpoint that answers does not know the signature, and one of them has the whole time on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcBlockConfig, RpcContextConfig, RpcSignatureStatusConfig
from solders.rpc.requests import GetBlock, GetEpochInfo, GetFirstAvailableBlock, GetSignatureStatuses
from solders.signature import Signature
from solders.transaction_status import TransactionDetails, UiTransactionEncoding

from app.adapters.solana import histories, proceeds, tokens
from app.adapters.solana.endpoint import MAX_LARGE_BATCH, Call, Endpoint
from app.adapters.solana.histories import PATIENCE_SLOTS
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.wire import (
    LEVELS,
    EpochInfo,
    Landed,
    Status,
    Statuses,
    entries,
    epoch_info,
    field,
    number,
    statuses,
    text,
)
from app.ports.chain import BlockRef, Fate, Outcome, Watch

_MOST_SIGNATURES = 256
"""Of one `getSignatureStatuses`."""
_BLOCKHASH_BLOCKS = 150
_SKIPPED = frozenset(
    {-32007, -32009}
)  # Agave `rpc_custom_error.rs`: SLOT_SKIPPED, LONG_TERM_STORAGE_SLOT_SKIPPED

_SEARCH = RpcSignatureStatusConfig(search_transaction_history=True)
_FINALIZED = RpcContextConfig(commitment=CommitmentLevel.Finalized)
_BLOCK = RpcBlockConfig(
    encoding=UiTransactionEncoding.Base64,
    transaction_details=TransactionDetails.Signatures,
    rewards=False,
    commitment=CommitmentLevel.Finalized,
    max_supported_transaction_version=0,
)


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one endpoint says: statuses by signature, the slot they are of, and the finalized moment before."""

    found: Mapping[str, Status]
    slot: int
    finalized: EpochInfo
    first_slot: int = 0


@dataclass(frozen=True, slots=True)
class _Standing:
    """What one endpoint says about places on the chain: which are gone, and of which it can show neither."""

    gone: frozenset[BlockRef]
    unproven: frozenset[BlockRef]
    slot: int


class Lookout:
    """Looks for the ends of movements on the cluster."""

    def __init__(self, rpc: SolanaRpc, mint: Pubkey, *, commitment: str) -> None:
        """Take the cluster's endpoints, the mint of USDC and the level at which a movement counts as landed."""
        self._mint = mint
        self._rpc = rpc
        self._needed = LEVELS.index(commitment)

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        """Find out about movements, keyed like the watches. Raises: Unreachable."""
        look = self._rpc.first(lambda endpoint: _look(endpoint, _hashes(watches)))
        landed = self._landed(watches, look.found)
        missing = [
            watch
            for watch in watches
            if not any(tx_hash in look.found for tx_hash in watch.tx_hashes)
            and _is_past(watch, look.finalized)
        ]
        void: list[str] = []
        if missing:
            looks = self._rpc.each(lambda endpoint: _evidence(endpoint, _hashes(missing)))
            later = {tx_hash: status for one in looks for tx_hash, status in one.found.items()}
            landed |= self._landed(missing, later)
            void = [watch.key for watch in missing if _is_void(watch, later, looks)]
        found = {watch.key: Outcome(Fate.WAITING) for watch in watches}
        found |= dict.fromkeys(void, Outcome(Fate.VOID))
        found |= self._settled(landed, watches, finalized=look.finalized.slot)
        return found

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which transactions are gone from their slots, and the newest slot up to which the others stand.

        That is the newest finalized one, or the one before the first of which nobody can show what is there. Only a
        finalized block that lacks the transaction, or a slot that was skipped for good, says that it is gone; that
        a node does not know it says nothing. Raises: Unreachable.
        """
        told = self._rpc.first(lambda endpoint: _standing(endpoint, blocks))
        gone, unproven = told.gone, told.unproven
        if unproven:
            # Another endpoint may have what this one cannot show.
            asked = sorted(unproven, key=lambda block: block.number)
            for other in self._rpc.each(lambda endpoint: _standing(endpoint, asked)):
                gone |= other.gone & unproven
                unproven &= other.unproven
        for block in unproven:
            if block.number <= told.slot:
                _log.warning("block_unprovable", slot=block.number, tx_hash=block.hash)
        return gone, min([told.slot, *(block.number - 1 for block in unproven)])

    def _landed(self, watches: Sequence[Watch], found: Mapping[str, Status]) -> dict[str, tuple[str, Status]]:
        landed = {}
        for watch in watches:
            for tx_hash in watch.tx_hashes:
                status = found.get(tx_hash)
                if status is not None and LEVELS.index(status.level) >= self._needed:
                    landed[watch.key] = (tx_hash, status)
        return landed

    def _settled(
        self, landed: Mapping[str, tuple[str, Status]], watches: Sequence[Watch], *, finalized: int
    ) -> Mapping[str, Outcome]:
        if not landed:
            return {}
        calls = {
            tx_hash: histories.transaction(tx_hash, CommitmentLevel.Confirmed)
            for tx_hash, _ in landed.values()
        }
        self._rpc.run(*calls.values())
        settled = {}
        for watch in watches:
            if watch.key not in landed:
                continue
            tx_hash, status = landed[watch.key]
            shown = histories.shown(calls[tx_hash])
            received = self._received(watch, shown)
            if watch.receives is not None and received is None and not status.failed:
                if finalized - status.slot <= PATIENCE_SLOTS:
                    continue  # what it brought is not known yet
                _log.warning("proceeds_not_shown", transaction_id=watch.key, tx_hash=tx_hash)
            settled[watch.key] = Outcome(
                # The error goes before the level: a failed transaction is confirmed as well.
                fate=Fate.REVERTED if status.failed else Fate.SUCCEEDED,
                tx_hash=tx_hash,
                block=BlockRef(status.slot, tx_hash),
                confirmations=1,
                fee_units=None if shown is None else _fee_units(shown),
                received_units=received,
            )
        return settled

    def _received(self, watch: Watch, shown: Landed | None) -> int | None:
        if watch.receives is None or shown is None:
            return None
        return proceeds.of_exchange(shown, watch.sender, watch.receives, usdc_mint=self._mint)


def _look(endpoint: Endpoint, hashes: Sequence[str]) -> _Look:
    """Ask for statuses and the finalized moment. Raises: EndpointFailedError."""
    finalized = Call(GetEpochInfo(_FINALIZED), epoch_info)
    asked = _status_calls(hashes)
    endpoint.run(finalized, *asked)
    return _Look(
        _by_hash(hashes, asked), min((call.answer.slot for call in asked), default=0), finalized.answer
    )


def _evidence(endpoint: Endpoint, hashes: Sequence[str]) -> _Look:
    """Ask for the finalized moment, and only then for statuses: a later answer is no older than the first.

    Raises: EndpointFailedError.
    """
    finalized = Call(GetEpochInfo(_FINALIZED), epoch_info)
    first = Call(GetFirstAvailableBlock(), number)
    endpoint.run(finalized, first)
    asked = _status_calls(hashes)
    endpoint.run(*asked)
    slot = min((call.answer.slot for call in asked), default=0)
    return _Look(_by_hash(hashes, asked), slot, finalized.answer, first.answer)


def _is_void(watch: Watch, found: Mapping[str, Status], looks: Sequence[_Look]) -> bool:
    if any(tx_hash in found for tx_hash in watch.tx_hashes):
        return False
    beyond = [look for look in looks if _is_past(watch, look.finalized) and look.slot >= look.finalized.slot]
    # It cannot land before the slot in which its blockhash was the newest: all later ones must be on record.
    since = _blockhash_slot(watch)
    if any(look.first_slot <= since for look in beyond):
        return True
    if beyond:
        _log.warning("void_unprovable", transaction_id=watch.key, needs_history_since_slot=since)
    return False


def _blockhash_slot(watch: Watch) -> int:
    # There are no more blocks than slots, so that the height is no later where the slot was not kept.
    return int(watch.terms.get("blockhash_slot") or (watch.expires_at_height or 0) - _BLOCKHASH_BLOCKS)


def _is_past(watch: Watch, finalized: EpochInfo) -> bool:
    return watch.expires_at_height is not None and finalized.block_height > watch.expires_at_height


def _standing(endpoint: Endpoint, blocks: Sequence[BlockRef]) -> _Standing:
    """Look for transactions in their slots. Raises: EndpointFailedError."""
    look = _look(endpoint, [block.hash for block in blocks])
    suspects = [
        block
        for block in blocks
        if (status := look.found.get(block.hash)) is None or status.slot != block.number
    ]
    proofs = {
        block: Call(GetBlock(block.number, _BLOCK), _signatures, tolerates=lambda _error: True)
        for block in suspects
        if block.number <= look.finalized.slot
    }
    endpoint.run(*proofs.values(), at_once=MAX_LARGE_BATCH)
    is_gone = {block: _is_gone(block, proof) for block, proof in proofs.items()}
    return _Standing(
        gone=frozenset(block for block, gone in is_gone.items() if gone),
        unproven=frozenset(block for block in suspects if is_gone.get(block) is None),
        slot=look.finalized.slot,
    )


def _is_gone(block: BlockRef, proof: Call[frozenset[str] | None]) -> bool | None:
    """Tell whether a finalized block lacks a transaction, None where it cannot be shown."""
    if proof.error is not None:
        return True if proof.error.code in _SKIPPED else None
    return None if proof.answer is None else block.hash not in proof.answer


def _signatures(answer: object) -> frozenset[str] | None:
    if answer is None:
        return None
    return frozenset(text(entry) for entry in entries(field(answer, "signatures")))


def _fee_units(landed: Landed) -> int:
    """Return what the network took: the fee, and the rent of a token account that was made on the way."""
    taken = landed.fee_units
    for instruction in landed.transaction.message.instructions:
        if landed.keys[instruction.program_id_index] == str(tokens.ASSOCIATED_TOKEN_PROGRAM):
            for made in bytes(instruction.accounts)[1:2]:
                # One that was there, and is closed by the end, gives back what it held: that is no fee.
                taken += max(landed.after[made] - landed.before[made], 0)
    return taken


def _status_calls(hashes: Sequence[str]) -> list[Call[Statuses]]:
    calls = []
    for start in range(0, len(hashes), _MOST_SIGNATURES):
        chunk = [Signature.from_string(tx_hash) for tx_hash in hashes[start : start + _MOST_SIGNATURES]]
        calls.append(Call(GetSignatureStatuses(chunk, _SEARCH), statuses(len(chunk))))
    return calls


def _by_hash(hashes: Sequence[str], calls: Sequence[Call[Statuses]]) -> Mapping[str, Status]:
    found = [status for call in calls for status in call.answer.found]
    return {tx_hash: status for tx_hash, status in zip(hashes, found, strict=True) if status is not None}


def _hashes(watches: Sequence[Watch]) -> list[str]:
    return [tx_hash for watch in watches for tx_hash in watch.tx_hashes]
