"""Methods that return landed transactions."""

from collections.abc import Callable
from typing import Final

from solders.signature import Signature

from solana_node.chain import Chain
from solana_node.clock import Commitment, block_height
from solana_node.errors import (
    BLOCK_CLEANED_UP,
    BLOCK_NOT_AVAILABLE,
    UNSUPPORTED_TRANSACTION_VERSION,
    InvalidParamsError,
    JsonObject,
    RpcError,
)
from solana_node.history import TransactionRecord
from solana_node.parameters import NODE_VERSION, Config, read_address, read_history_commitment, require_context_slot
from solana_node.transaction_json import ENCODINGS, transaction_json

STATUS_CACHE_SLOTS: Final = 150
"""Number of slots with statuses without `searchTransactionHistory`."""
MAX_STATUSES: Final = 256
MAX_SIGNATURES: Final = 1000
BLOCK_DETAILS: Final = ("signatures", "none")


def get_signature_statuses(chain: Chain, signatures: list[str], config: Config = None) -> JsonObject:
    """Return the status of each signature; null for unknown ones."""
    if len(signatures) > MAX_STATUSES:
        raise InvalidParamsError(f"Too many inputs provided; max {MAX_STATUSES}")
    oldest = 0 if (config or {}).get("searchTransactionHistory") else chain.slot - STATUS_CACHE_SLOTS
    statuses = []
    for signature in signatures:
        record = chain.history.get(_read_signature(signature))
        statuses.append(_status_json(chain, record) if record and record.slot >= oldest else None)
    return {"context": {"apiVersion": NODE_VERSION, "slot": chain.slot}, "value": statuses}


def get_transaction(chain: Chain, signature: str, config: Config | str = None) -> JsonObject | None:
    """Return a landed transaction; null below the given commitment, by default `finalized`."""
    options = {"encoding": config} if isinstance(config, str) else config or {}
    commitment = read_history_commitment(options)
    encoding = options.get("encoding") or "json"
    if encoding not in ENCODINGS:
        raise InvalidParamsError(f"unsupported encoding {encoding}")
    record = chain.history.get(_read_signature(signature), up_to_slot=chain.slot_at(commitment))
    if record is None:
        return None
    shown = transaction_json(record, encoding)
    if options.get("maxSupportedTransactionVersion") is None:
        if shown["version"] != "legacy":
            raise RpcError(
                UNSUPPORTED_TRANSACTION_VERSION,
                "Transaction version (0) is not supported by the requesting client. Please try the request "
                'again with the following configuration parameter: "maxSupportedTransactionVersion": 0',
            )
        del shown["version"]
    return shown


def get_signatures_for_address(chain: Chain, address: str, config: Config = None) -> list[JsonObject]:
    """Return the transactions that name an account, newest first."""
    options = config or {}
    commitment = read_history_commitment(options)
    require_context_slot(options, chain.slot_at(commitment))
    limit = options.get("limit") or MAX_SIGNATURES
    if not 1 <= limit <= MAX_SIGNATURES:
        raise InvalidParamsError(f"Invalid limit; max {MAX_SIGNATURES}")
    records = chain.history.of_address(
        str(read_address(address)),
        up_to_slot=chain.slot_at(commitment),
        before=options.get("before"),
        until=options.get("until"),
    )
    return [
        {
            "blockTime": record.block_time,
            "confirmationStatus": chain.commitment_of(record).name.lower(),
            "err": record.error,
            "memo": record.memo,
            "signature": record.signature,
            "slot": record.slot,
        }
        for record in records[:limit]
    ]


def get_block(chain: Chain, slot: int, config: Config = None) -> JsonObject:
    """Return the block of a slot with its signatures."""
    options = config or {}
    details = options.get("transactionDetails") or "full"
    if details not in BLOCK_DETAILS:
        raise InvalidParamsError(f"transactionDetails {details} is not served here")
    if slot > chain.slot_at(read_history_commitment(options)):
        raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
    if slot < chain.first_available_slot:
        raise RpcError(
            BLOCK_CLEANED_UP,
            f"Block {slot} cleaned up, does not exist on node. First available block: {chain.first_available_slot}",
        )
    shown = {
        "blockHeight": block_height(slot),
        "blockTime": None,
        "blockhash": chain.blockhashes.of_slot(slot),
        "parentSlot": slot - 1,
        "previousBlockhash": chain.blockhashes.of_slot(slot - 1),
    }
    return shown | ({"signatures": chain.history.of_slot(slot)} if details == "signatures" else {})


def get_blocks_with_limit(chain: Chain, start: int, limit: int, config: Config = None) -> list[int]:
    """Return the slots of the next blocks; here each slot has one."""
    newest = chain.slot_at(read_history_commitment(config or {}))
    return list(range(max(start, chain.first_available_slot), min(start + limit, newest + 1)))


def get_first_available_block(chain: Chain) -> int:
    """Return the first available slot."""
    return chain.first_available_slot


def _status_json(chain: Chain, record: TransactionRecord) -> JsonObject:
    commitment = chain.commitment_of(record)
    return {
        "confirmationStatus": commitment.name.lower(),
        "confirmations": None if commitment is Commitment.FINALIZED else chain.slot - record.slot,
        "err": record.error,
        "slot": record.slot,
        "status": record.status_json,
    }


def _read_signature(text: str) -> str:
    try:
        return str(Signature.from_string(text))
    except ValueError:
        raise InvalidParamsError("Invalid param: Invalid") from None


METHODS: Final[dict[str, Callable[..., object]]] = {
    "getSignatureStatuses": get_signature_statuses,
    "getTransaction": get_transaction,
    "getSignaturesForAddress": get_signatures_for_address,
    "getBlock": get_block,
    "getBlocksWithLimit": get_blocks_with_limit,
    "getFirstAvailableBlock": get_first_available_block,
}
