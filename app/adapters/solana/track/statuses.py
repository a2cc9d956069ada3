"""Outcomes of many transactions in few requests.

Nodes keep the statuses of some hundred recent slots, longer than bytes can land. Only what may be older is searched in
the history, for which providers charge ten times as much.

"Void" promises that the bytes can never land. It is returned only by the rule of decision 0012: the block height is
finalized past, every endpoint that answers does not know the signature, and one of them has the whole period on
record.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from solders.commitment_config import CommitmentLevel
from solders.rpc.config import RpcBlockConfig, RpcSignatureStatusConfig
from solders.rpc.requests import GetBlock, GetBlocksWithLimit, GetFirstAvailableBlock, GetSignatureStatuses
from solders.signature import Signature
from solders.transaction_status import TransactionDetails, UiTransactionEncoding
from spl.token.constants import ASSOCIATED_TOKEN_PROGRAM_ID

from app.adapters.jsonrpc.calls import RpcCall, accept_any_error, or_none
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import MAX_LARGE_BATCH, SolanaRpcCall
from app.adapters.solana.client.wire import LEVELS, EpochInfo, LandedTransaction, SignatureStatus, number, statuses
from app.adapters.solana.track import account_history
from app.adapters.solana.track.account_history import MAX_UNAVAILABLE_SLOTS
from app.adapters.solana.track.authorizations import OpenPayment, OpenTransfer, SponsoredTransferPoller
from app.adapters.solana.track.balance_changes import swap_output
from app.core.foreign import U64, ForeignModel, Items, Text, reader
from app.ports.chain import BlockRef, TransactionOutcome, TransactionQuery, TransactionStatus

_MAX_SIGNATURES = 256
"""The signatures in one `getSignatureStatuses`."""
_BLOCKHASH_BLOCKS = 150
_WAITING = TransactionOutcome(TransactionStatus.WAITING)
_SKIPPED_OR_MISSING = frozenset({-32007, -32009})
"""Agave `custom_error.rs`: SLOT_SKIPPED ("or missing due to ledger jump to recent snapshot") and
LONG_TERM_STORAGE_SLOT_SKIPPED ("or missing in long-term storage")."""

_SEARCH = RpcSignatureStatusConfig(search_transaction_history=True)
_WITH_SIGNATURES, _HEADER = (
    RpcBlockConfig(
        encoding=UiTransactionEncoding.Base64,
        transaction_details=details,
        rewards=False,
        commitment=CommitmentLevel.Finalized,
        max_supported_transaction_version=0,
    )
    for details in (TransactionDetails.Signatures, TransactionDetails.None_)
)

_log = structlog.get_logger(__name__)
_read_slots = reader(Items[U64])


class _BlockHeader(ForeignModel):
    parent_slot: U64


class _Block(ForeignModel):
    signatures: Items[Text]


@dataclass(frozen=True, slots=True)
class _StatusSnapshot:
    """One endpoint's view: statuses by signature, their slot, and the finalized moment before."""

    found: Mapping[str, SignatureStatus]
    slot: int
    finalized: EpochInfo
    first_slot: int = 0


class SolanaReceiptPoller(SponsoredTransferPoller):
    def outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool = False
    ) -> Mapping[str, TransactionOutcome]:
        paid_by_others = {query.key for query in queries if OpenTransfer.from_terms(query.terms) is not None}
        queries = [OpenTransfer.submission_of(query) for query in queries]
        payments = [OpenPayment(query, found) for query in queries if (found := OpenTransfer.from_terms(query.terms))]
        hashes, void = self._search_payments(payments, landed_only=landed_only)
        keys = {each.query.key for each in payments}
        own = [query for query in queries if query.key not in keys]
        completed = [replace(query, tx_hashes=(hashes[query.key],)) for query in queries if query.key in hashes]
        outcomes = dict(self._transaction_outcomes([*own, *completed], landed_only=landed_only))
        outcomes |= {key: replace(outcomes[key], fee_units=0) for key in paid_by_others & outcomes.keys()}
        outcomes |= {key: _WAITING for key in keys if key not in hashes}
        return outcomes | dict.fromkeys(void, TransactionOutcome(TransactionStatus.VOID))

    def _transaction_outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool
    ) -> Mapping[str, TransactionOutcome]:
        if not queries:
            return {}
        snapshot = self.rpc.run_on_first(lambda endpoint: _status_snapshot(endpoint, _hashes(queries)))
        landed = self._landed(queries, snapshot.found)
        missing = [
            watch
            for watch in queries
            if not any(tx_hash in snapshot.found for tx_hash in watch.tx_hashes)
            and (watch.expires_at_height is None or _is_expired(watch, snapshot.finalized))
        ]
        void: list[str] = []
        if missing and not landed_only:
            snapshots = [*self.rpc.run_on_each(lambda endpoint: _finalized_snapshot(endpoint, _hashes(missing)))]
            later = {tx_hash: status for one in snapshots for tx_hash, status in one.found.items()}
            landed |= self._landed(missing, later)
            void = [watch.key for watch in missing if _is_void(watch, later, snapshots)]
        found = {watch.key: _WAITING for watch in queries}
        found |= dict.fromkeys(void, TransactionOutcome(TransactionStatus.VOID))
        found |= self._final_outcomes(landed, queries, finalized=snapshot.finalized.slot)
        return found

    def orphaned_blocks(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which transactions are missing from their slots, and up to which slot the others are final.

        That is the newest finalized one, or the one before the first that no endpoint can show. Only a finalized
        block that lacks the transaction, or a slot that the chain of blocks passes over, proves that it is gone; a
        node that does not know it proves nothing. Raises: Unreachable.
        """
        orphaned, unproven, slot = self.rpc.run_on_first(lambda endpoint: _check_blocks(endpoint, blocks))
        if unproven:
            # Another endpoint may have what this one cannot show.
            remaining = sorted(unproven, key=lambda block: block.number)
            for gone, unknown, _ in self.rpc.run_on_each(lambda endpoint: _check_blocks(endpoint, remaining)):
                orphaned |= gone & unproven
                unproven &= unknown
        for block in unproven:
            if block.number <= slot:
                _log.warning("block_unverifiable", slot=block.number, tx_hash=block.hash)
        return orphaned, min([slot, *(block.number - 1 for block in unproven)])

    def _landed(
        self, queries: Sequence[TransactionQuery], found: Mapping[str, SignatureStatus]
    ) -> dict[str, tuple[str, SignatureStatus]]:
        landed = {}
        for watch in queries:
            for tx_hash in watch.tx_hashes:
                status = found.get(tx_hash)
                if status is not None and LEVELS.index(status.level) >= int(self.level):
                    landed[watch.key] = (tx_hash, status)
        return landed

    def _final_outcomes(
        self, landed: Mapping[str, tuple[str, SignatureStatus]], queries: Sequence[TransactionQuery], *, finalized: int
    ) -> Mapping[str, TransactionOutcome]:
        if not landed:
            return {}
        calls = {
            tx_hash: account_history.transaction(tx_hash, CommitmentLevel.Confirmed, LandedTransaction)
            for tx_hash, _ in landed.values()
        }
        self.rpc.run(*calls.values())
        settled = {}
        for watch in queries:
            if watch.key not in landed:
                continue
            tx_hash, status = landed[watch.key]
            landed_transaction = calls[tx_hash].result_or_none
            received = None
            if watch.expected_token is not None and landed_transaction is not None:
                received = swap_output(landed_transaction, watch.sender, watch.expected_token, usdc_mint=self.mint)
            if watch.expected_token is not None and received is None and not status.failed:
                if finalized - status.slot <= MAX_UNAVAILABLE_SLOTS:
                    continue  # the received amount is not known yet
                _log.warning("swap_output_unavailable", transaction_id=watch.key, tx_hash=tx_hash)
            settled[watch.key] = TransactionOutcome(
                # The error is checked before the level: a failed transaction is confirmed as well.
                status=TransactionStatus.REVERTED if status.failed else TransactionStatus.SUCCEEDED,
                tx_hash=tx_hash,
                block=BlockRef(status.slot, tx_hash),
                confirmations=1,
                fee_units=None if landed_transaction is None else _fee_units(landed_transaction),
                received_units=received,
            )
        return settled


def _status_snapshot(endpoint: RpcEndpoint, hashes: Sequence[str]) -> _StatusSnapshot:
    """Read recent statuses and the finalized moment. Raises: EndpointError."""
    finalized = calls.epoch_info(CommitmentLevel.Finalized)
    found, slot = _read_statuses(endpoint, hashes, finalized)
    return _StatusSnapshot(found, slot, finalized.result)


def _finalized_snapshot(endpoint: RpcEndpoint, hashes: Sequence[str]) -> _StatusSnapshot:
    """Read the finalized moment, then statuses, which are no older than it. Raises: EndpointError."""
    finalized = calls.epoch_info(CommitmentLevel.Finalized)
    first = SolanaRpcCall(GetFirstAvailableBlock(), number)
    endpoint.run([finalized, first])
    found, slot = _read_statuses(endpoint, hashes, config=_SEARCH)
    return _StatusSnapshot(found, slot, finalized.result, first.result)


def _is_void(
    query: TransactionQuery, found: Mapping[str, SignatureStatus], snapshots: Sequence[_StatusSnapshot]
) -> bool:
    if any(tx_hash in found for tx_hash in query.tx_hashes):
        return False
    beyond = [look for look in snapshots if _is_expired(query, look.finalized) and look.slot >= look.finalized.slot]
    # It cannot land before the slot in which its blockhash was the newest: all later ones must be on record.
    # There are no more blocks than slots, so that the height is no later if the slot was not stored.
    since = int(query.terms.get("blockhash_slot") or (query.expires_at_height or 0) - _BLOCKHASH_BLOCKS)
    if any(look.first_slot <= since for look in beyond):
        return True
    if beyond:
        _log.warning("expiry_unverifiable", transaction_id=query.key, needs_history_since_slot=since)
    return False


def _is_expired(query: TransactionQuery, finalized: EpochInfo) -> bool:
    return query.expires_at_height is not None and finalized.block_height > query.expires_at_height


def _check_blocks(
    endpoint: RpcEndpoint, blocks: Sequence[BlockRef]
) -> tuple[frozenset[BlockRef], frozenset[BlockRef], int]:
    """Return the orphaned transactions, those shown neither way, and the finalized slot. Raises: EndpointError."""
    snapshot = _status_snapshot(endpoint, [block.hash for block in blocks])
    older = [block.hash for block in blocks if block.hash not in snapshot.found]
    found = {**snapshot.found, **_read_statuses(endpoint, older, config=_SEARCH)[0]}
    suspects = [block for block in blocks if (status := found.get(block.hash)) is None or status.slot != block.number]
    proofs = {
        block: SolanaRpcCall(GetBlock(block.number, _WITH_SIGNATURES), or_none(_Block.read), tolerates=accept_any_error)
        for block in suspects
        if block.number <= snapshot.finalized.slot
    }
    endpoint.run([*proofs.values()], max_batch=MAX_LARGE_BATCH)
    skipped = _skipped_slots(
        endpoint,
        {
            block.number
            for block, proof in proofs.items()
            if proof.error is not None and proof.error.code in _SKIPPED_OR_MISSING
        },
    )
    is_gone = {
        block: shown is None or block.hash not in shown.signatures
        for block, proof in proofs.items()
        if (shown := proof.result_or_none) is not None or block.number in skipped
    }
    orphaned = frozenset(block for block, is_orphaned in is_gone.items() if is_orphaned)
    return orphaned, frozenset(suspects) - is_gone.keys(), snapshot.finalized.slot


def _skipped_slots(endpoint: RpcEndpoint, slots: Collection[int]) -> frozenset[int]:
    """Return slots without a block, as parents prove: nodes also report so what they lack. Raises: EndpointError."""
    following = {
        slot: SolanaRpcCall(
            GetBlocksWithLimit(slot + 1, 1, CommitmentLevel.Finalized), _read_slots, tolerates=accept_any_error
        )
        for slot in slots
    }
    endpoint.run([*following.values()])
    parents = {
        slot: SolanaRpcCall(GetBlock(call.result[0], _HEADER), or_none(_BlockHeader.read), tolerates=accept_any_error)
        for slot, call in following.items()
        if call.result_or_none
    }
    endpoint.run([*parents.values()])
    headers = {slot: call.result_or_none for slot, call in parents.items()}
    return frozenset(slot for slot, header in headers.items() if header is not None and header.parent_slot < slot)


def _fee_units(landed: LandedTransaction) -> int:
    """Return the network's charge: the fee, and the rent of a token account that was created."""
    charged_units = landed.fee_units
    for instruction in landed.transaction.message.instructions:
        if landed.keys[instruction.program_id_index] == str(ASSOCIATED_TOKEN_PROGRAM_ID):
            for created_rent in bytes(instruction.accounts)[1:2]:
                # An existing account that is closed returns its lamports: that is no fee.
                charged_units += max(landed.after[created_rent] - landed.before[created_rent], 0)
    return charged_units


def _read_statuses(
    endpoint: RpcEndpoint, hashes: Sequence[str], *before: RpcCall[Any], config: RpcSignatureStatusConfig | None = None
) -> tuple[Mapping[str, SignatureStatus], int]:
    """Run other calls, then read statuses by hash; return them with the lowest slot. Raises: EndpointError."""
    reading = []
    for start in range(0, len(hashes), _MAX_SIGNATURES):
        chunk = [Signature.from_string(tx_hash) for tx_hash in hashes[start : start + _MAX_SIGNATURES]]
        reading.append(SolanaRpcCall(GetSignatureStatuses(chunk, config), statuses(len(chunk))))
    endpoint.run([*before, *reading])
    listed = zip(hashes, (status for call in reading for status in call.result.found), strict=True)
    found = {tx_hash: status for tx_hash, status in listed if status is not None}
    return found, min((call.result.slot for call in reading), default=0)


def _hashes(queries: Sequence[TransactionQuery]) -> list[str]:
    return [tx_hash for watch in queries for tx_hash in watch.tx_hashes]
