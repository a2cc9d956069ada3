"""Methods of the cluster: slots, heights, blockhashes, fees and rent."""

import base64
import math
import time
from collections.abc import Callable
from typing import Final

from solders.message import from_bytes_versioned

from solana_node.addresses import COMPUTE_BUDGET
from solana_node.chain import Chain
from solana_node.clock import MAX_PROCESSING_AGE, block_height
from solana_node.errors import InvalidParamsError, JsonObject
from solana_node.parameters import NODE_VERSION, Config, context_slot, read_commitment, with_context
from solana_node.runtime import AnyMessage

SLOTS_PER_EPOCH: Final = 432_000
FEATURE_SET: Final = 3_073_396_398
FEE_HISTORY_SLOTS: Final = 150
LAMPORTS_PER_SIGNATURE: Final = 5000
DEFAULT_COMPUTE_UNITS: Final = 200_000
MAX_COMPUTE_UNITS: Final = 1_400_000
MICRO: Final = 1_000_000
_SET_COMPUTE_UNIT_LIMIT: Final = 2
_SET_COMPUTE_UNIT_PRICE: Final = 3


def get_health(_chain: Chain) -> str:
    """Return "ok": the node follows the cluster."""
    return "ok"


def get_version(_chain: Chain) -> JsonObject:
    """Return the software version."""
    return {"feature-set": FEATURE_SET, "solana-core": NODE_VERSION}


def get_genesis_hash(chain: Chain) -> str:
    """Return the genesis hash."""
    return chain.genesis_hash


def get_slot(chain: Chain, config: Config = None) -> int:
    """Return the newest slot."""
    return context_slot(chain, config)


def get_block_height(chain: Chain, config: Config = None) -> int:
    """Return the newest block height, which is not the slot."""
    return block_height(context_slot(chain, config))


def get_epoch_info(chain: Chain, config: Config = None) -> JsonObject:
    """Return slot and block height of one moment."""
    slot = context_slot(chain, config)
    return {
        "absoluteSlot": slot,
        "blockHeight": block_height(slot),
        "epoch": slot // SLOTS_PER_EPOCH,
        "slotIndex": slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": len(chain.history),
    }


def get_transaction_count(chain: Chain, _config: Config = None) -> int:
    """Count the transactions that landed."""
    return len(chain.history)


def get_block_time(chain: Chain, slot: int) -> int:
    """Return the Unix second of a slot."""
    return int(time.time() - (chain.slot - slot) * chain.clock.slot_ms / 1000)


def get_latest_blockhash(chain: Chain, config: Config = None) -> JsonObject:
    """Return the newest blockhash and the last block height at which it is valid."""
    return with_context(chain, config, blockhash_json(chain, chain.slot_at(read_commitment(config))))


def is_blockhash_valid(chain: Chain, blockhash: str, config: Config = None) -> JsonObject:
    """Return whether a transaction with this blockhash may still land."""
    slot = chain.slot_at(read_commitment(config))
    return with_context(chain, config, chain.blockhashes.is_usable(blockhash, at_slot=slot))


def get_minimum_balance_for_rent_exemption(chain: Chain, data_bytes: int, _config: Config = None) -> int:
    """Return the rent-exempt lamports of an account of this size."""
    return chain.runtime.rent_exempt_lamports(data_bytes)


def get_fee_for_message(chain: Chain, message: str, config: Config = None) -> JsonObject:
    """Return the fee of a message in lamports; null if its blockhash has expired."""
    try:
        decoded = from_bytes_versioned(base64.b64decode(message))
    except Exception as error:  # solders has one exception type per layer
        raise InvalidParamsError(f"invalid message: {error}") from None
    young = chain.is_blockhash_valid(decoded, read_commitment(config))
    return with_context(chain, config, fee_lamports(decoded) if young else None)


def get_recent_prioritization_fees(chain: Chain, _addresses: list[str] | None = None) -> list[JsonObject]:
    """Return the lowest priority fees of the last slots, which are 0."""
    slots = range(chain.slot - FEE_HISTORY_SLOTS + 1, chain.slot + 1)
    return [{"prioritizationFee": 0, "slot": slot} for slot in slots]


def blockhash_json(chain: Chain, slot: int) -> JsonObject:
    """Return the blockhash of a slot with its last valid block height."""
    return {
        "blockhash": chain.blockhashes.of_slot(slot),
        "lastValidBlockHeight": block_height(slot) + MAX_PROCESSING_AGE,
    }


def fee_lamports(message: AnyMessage) -> int:
    """Return the fee: 5000 per signature, and the priority price for every unit of the compute limit."""
    limit: int | None = None
    price_micro_lamports = 0
    paying_instructions = 0
    for instruction in message.instructions:
        if str(message.account_keys[instruction.program_id_index]) != COMPUTE_BUDGET:
            paying_instructions += 1
            continue
        data = bytes(instruction.data)
        if data[0] == _SET_COMPUTE_UNIT_LIMIT:
            limit = int.from_bytes(data[1:5], "little")
        elif data[0] == _SET_COMPUTE_UNIT_PRICE:
            price_micro_lamports = int.from_bytes(data[1:9], "little")
    units = min(DEFAULT_COMPUTE_UNITS * paying_instructions if limit is None else limit, MAX_COMPUTE_UNITS)
    priority = math.ceil(units * price_micro_lamports / MICRO)
    return LAMPORTS_PER_SIGNATURE * message.header.num_required_signatures + priority


METHODS: Final[dict[str, Callable[..., object]]] = {
    "getHealth": get_health,
    "getVersion": get_version,
    "getGenesisHash": get_genesis_hash,
    "getSlot": get_slot,
    "getBlockHeight": get_block_height,
    "getEpochInfo": get_epoch_info,
    "getTransactionCount": get_transaction_count,
    "getBlockTime": get_block_time,
    "getLatestBlockhash": get_latest_blockhash,
    "isBlockhashValid": is_blockhash_valid,
    "getMinimumBalanceForRentExemption": get_minimum_balance_for_rent_exemption,
    "getFeeForMessage": get_fee_for_message,
    "getRecentPrioritizationFees": get_recent_prioritization_fees,
}
