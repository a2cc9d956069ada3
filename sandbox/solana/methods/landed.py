"""Methods that ask what became of transactions."""

from collections.abc import Callable
from typing import Final

from solders.signature import Signature

from sandbox.solana.chain import Chain
from sandbox.solana.clock import Commitment, block_height
from sandbox.solana.errors import (
    BLOCK_CLEANED_UP,
    BLOCK_NOT_AVAILABLE,
    UNSUPPORTED_TRANSACTION_VERSION,
    InvalidParamsError,
    JsonObject,
    RpcError,
)
from sandbox.solana.history import TransactionRecord
from sandbox.solana.parameters import (
    NODE_VERSION,
    Config,
    read_address,
    read_history_commitment,
    require_context_slot,
)
from sandbox.solana.transaction_json import ENCODINGS, transaction_json

STATUS_CACHE_SLOTS: Final = 150
"""How far back statuses are known without `searchTransactionHistory`."""
MAX_STATUSES: Final = 256
MAX_SIGNATURES: Final = 1000
BLOCK_DETAILS: Final = ("signatures", "none")


def get_signature_statuses(chain: Chain, signatures: list[str], config: Config = None) -> JsonObject:
    """Tell the status of each signature; null for what never landed or was forgotten."""
    if len(signatures) > MAX_STATUSES:
        raise InvalidParamsError(f"Too many inputs provided; max {MAX_STATUSES}")
    oldest = 0 if (config or {}).get("searchTransactionHistory") else chain.slot - STATUS_CACHE_SLOTS
    statuses = []
    for signature in signatures:
        record = chain.history.get(_read_signature(signature))
        statuses.append(_status_json(chain, record) if record and record.slot >= oldest else None)
    return {"context": {"apiVersion": NODE_VERSION, "slot": chain.slot}, "value": statuses}


def get_transaction(chain: Chain, signature: str, config: Config | str = None) -> JsonObject | None:
    """Show a landed transaction; null below the commitment asked for, `finalized` by default."""
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
    """List the transactions that name an account, newest first."""
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
    """Show a block, with the signatures in it at most: every slot here has one."""
    options = config or {}
    details = options.get("transactionDetails") or "full"
    if details not in BLOCK_DETAILS:
        raise InvalidParamsError(f"transactionDetails {details} is not served here")
    if slot > chain.slot_at(read_history_commitment(options)):
        raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
    if slot < chain.first_available_slot:
        raise RpcError(
            BLOCK_CLEANED_UP,
            f"Block {slot} cleaned up, does not exist on node. "
            f"First available block: {chain.first_available_slot}",
        )
    shown = {
        "blockHeight": block_height(slot),
        "blockTime": None,
        "blockhash": chain.blockhashes.of_slot(slot),
        "parentSlot": slot - 1,
        "previousBlockhash": chain.blockhashes.of_slot(slot - 1),
    }
    return shown | ({"signatures": chain.history.of_slot(slot)} if details == "signatures" else {})


def get_first_available_block(chain: Chain) -> int:
    """Tell the first slot whose block is still known."""
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
    "getFirstAvailableBlock": get_first_available_block,
}
