"""Parsing of request parameters, with the error messages of a validator.

A config object may be absent, null, or contain nulls for unset members.
"""

import base64
import binascii
from typing import Final

from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from solana_node import base58
from solana_node.chain import Chain
from solana_node.clock import Commitment
from solana_node.errors import MIN_CONTEXT_SLOT_NOT_REACHED, InvalidParamsError, JsonObject, RpcError

Config = JsonObject | None

NODE_VERSION: Final = "3.0.0"
PACKET_BYTES: Final = 1232
"""Largest transaction on the wire: an IPv6 packet without its headers (solana `PACKET_DATA_SIZE`)."""
_COMMITMENTS: Final = {commitment.name.lower(): commitment for commitment in Commitment}
_MAX_ENCODED: Final = {"base58": 1683, "base64": 1644}
_TYPE: Final = "solana_transaction::versioned::VersionedTransaction"


def read_address(text: object) -> Pubkey:
    """Parse a base58 address.

    Raises:
        InvalidParamsError: it is malformed.
    """
    try:
        return Pubkey.from_string(str(text))
    except ValueError:
        raise InvalidParamsError("Invalid param: Invalid") from None


def read_commitment(config: Config, *, name: str = "commitment") -> Commitment:
    """Parse a commitment level; the default is `finalized`, as in all of Solana's RPC.

    Raises:
        InvalidParamsError: no such level.
    """
    level = (config or {}).get(name) or "finalized"
    try:
        return _COMMITMENTS[level]
    except (KeyError, TypeError):
        raise InvalidParamsError(
            f"Invalid params: unknown variant `{level}`, expected one of `processed`, `confirmed`, `finalized`."
        ) from None


def read_history_commitment(config: Config) -> Commitment:
    """Parse a commitment level for a method that does not read unconfirmed blocks.

    Raises:
        InvalidParamsError: `processed`, or no such level.
    """
    commitment = read_commitment(config)
    if commitment is Commitment.PROCESSED:
        raise InvalidParamsError("Method does not support commitment below `confirmed`")
    return commitment


def require_context_slot(config: Config, slot: int) -> None:
    """Refuse to answer from a state before `minContextSlot`.

    Raises:
        RpcError: `minContextSlot` is in the future.
    """
    if ((config or {}).get("minContextSlot") or 0) > slot:
        raise RpcError(
            MIN_CONTEXT_SLOT_NOT_REACHED, "Minimum context slot has not been reached", data={"contextSlot": slot}
        )


def context_slot(chain: Chain, config: Config) -> int:
    """Return the slot from which a request is answered.

    Raises:
        RpcError: it is older than `minContextSlot`.
    """
    slot = chain.slot_at(read_commitment(config))
    require_context_slot(config, slot)
    return slot


def with_context(chain: Chain, config: Config, value: object) -> JsonObject:
    """Return a value with its slot as context.

    Raises:
        RpcError: that slot is older than `minContextSlot`.
    """
    slot = context_slot(chain, config)
    return {"context": {"apiVersion": NODE_VERSION, "slot": slot}, "value": value}


def read_transaction(blob: str, config: Config) -> VersionedTransaction:
    """Decode a signed transaction, base58 unless the config specifies base64.

    Raises:
        InvalidParamsError: too large, wrongly encoded or malformed.
    """
    encoding = (config or {}).get("encoding") or "base58"
    if encoding not in _MAX_ENCODED:
        raise InvalidParamsError(f"unsupported encoding: {encoding}. Supported encodings: base58, base64")
    limit = _MAX_ENCODED[encoding]
    if len(blob) > limit:
        raise InvalidParamsError(
            f"{encoding} encoded {_TYPE} too large: {len(blob)} bytes (max: encoded/raw {limit}/{PACKET_BYTES})"
        )
    try:
        raw = base58.decode(blob) if encoding == "base58" else base64.b64decode(blob, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidParamsError(f"invalid {encoding} encoding: {error}") from None
    if len(raw) > PACKET_BYTES:
        raise InvalidParamsError(f"decoded {_TYPE} too large: {len(raw)} bytes (max: {PACKET_BYTES} bytes)")
    try:
        transaction = VersionedTransaction.from_bytes(raw)
        transaction.sanitize()
    except Exception as error:  # solders has one exception type per layer
        raise InvalidParamsError(f"invalid transaction: {error}") from None
    return transaction
