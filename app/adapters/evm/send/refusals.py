"""Nodes' error messages, in one table: clients differ in their codes, so the messages decide."""

import re

from app.adapters.evm.contracts.calls import Function
from app.adapters.jsonrpc.calls import RpcError
from app.core.foreign import MalformedResponseError

ALREADY_KNOWN = "already_known"
"""The node has these very bytes: success."""

SEND_REFUSALS: tuple[tuple[str, str], ...] = (
    ("already known", ALREADY_KNOWN),  # geth, op-geth, reth, erigon, besu: ErrAlreadyKnown
    ("already imported", ALREADY_KNOWN),  # anvil, reth
    ("known transaction", ALREADY_KNOWN),  # besu, older geth
    ("alreadyknown", ALREADY_KNOWN),  # nethermind
    ("existing tx with same hash", ALREADY_KNOWN),  # erigon: DuplicateHash
    ("nonce too low", "nonce_too_low"),  # geth, reth, anvil: core.ErrNonceTooLow
    ("nonce is too low", "nonce_too_low"),  # openethereum's message, still used by some gateways
    ("oldnonce", "nonce_too_low"),  # nethermind
    ("replacement transaction underpriced", "replacement_underpriced"),  # geth, anvil: ErrReplaceUnderpriced
    ("replacementnotallowed", "replacement_underpriced"),  # nethermind
    ("could not replace existing", "replacement_underpriced"),  # erigon
    ("underpriced", "fee_too_low"),  # geth: txpool.ErrUnderpriced; erigon: UnderPriced
    ("fee too low", "fee_too_low"),  # erigon: FeeTooLow
    ("gas price below", "fee_too_low"),  # besu: GAS_PRICE_TOO_LOW, GAS_PRICE_BELOW_CURRENT_BASE_FEE
    ("max fee per gas less than block base fee", "fee_too_low"),  # anvil, reth, geth: core.ErrFeeCapTooLow
    ("fee cap less than block base fee", "fee_too_low"),  # erigon
    ("feetoolow", "fee_too_low"),  # nethermind
    ("insufficient funds", "insufficient_funds"),  # geth, anvil, reth: core.ErrInsufficientFunds
    ("insufficientfunds", "insufficient_funds"),  # nethermind
    ("upfront cost exceeds account balance", "insufficient_funds"),  # besu
    ("overshot", "insufficient_funds"),  # geth's second sentence, when the first was cut off
    ("max priority fee per gas higher than max fee", "invalid_transaction"),  # geth, anvil: ErrTipAboveFeeCap
    ("max priority fee per gas exceeds max fee", "invalid_transaction"),  # besu
    ("intrinsic gas too", "invalid_transaction"),  # geth, anvil: ErrIntrinsicGas
    ("exceeds block gas limit", "invalid_transaction"),  # geth: txpool.ErrGasLimit
    ("gas limit too high", "invalid_transaction"),  # EIP-7825's cap of 2^24, geth
    ("invalid chain id", "wrong_chain"),  # geth, anvil: types.ErrInvalidChainId
    ("wrong chainid", "wrong_chain"),  # besu
    ("invalid sender", "invalid_transaction"),  # geth: txpool.ErrInvalidSender
    ("oversized data", "invalid_transaction"),  # geth: txpool.ErrOversizedData
    ("nonce too high", "nonce_too_high"),  # anvil; some gateways
    ("future transaction tries to replace pending", "pool_full"),  # geth: ErrFutureReplacePending
    ("txpool is full", "pool_full"),  # geth: ErrTxPoolOverflow
    ("transaction pool is full", "pool_full"),  # reth
    ("sub-pool is full", "pool_full"),  # erigon: PendingPoolOverflow, BaseFeePoolOverflow, QueuedPoolOverflow
)

_REVERTS = (
    "revert",  # geth, anvil, reth, erigon, besu, nethermind
    "out of gas",  # geth
    "gas required exceeds",  # geth: the call needs more than a block holds
    "invalid opcode",  # geth, anvil
    "invalidfeopcode",  # anvil
    "stack underflow",  # geth, anvil
    "insufficient funds",  # geth, anvil: the value is more than the sender has
    "insufficient balance",  # geth: ErrInsufficientBalance inside the call
    "vm execution error",  # nethermind, openethereum
)

_ERROR = Function("solidity", "Error")  # Solidity's require and revert
_PANIC = Function("solidity", "Panic")  # Solidity's assert and arithmetic
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9 .,:;_()<>=!+*/'-]")
_MAX_TEXT = 120


def is_revert(error: RpcError) -> bool:
    """Return whether an estimate or call failed because of its effect, and not because of the node."""
    text = error.message.lower()
    return error.code == 3 or any(words in text for words in _REVERTS)  # noqa: PLR2004 - geth's code of reverts


def revert_text(error: RpcError) -> str:
    """Return a contract's revert message in a short form that is safe to show: such texts are untrusted."""
    try:
        data = bytes.fromhex((error.data or "").removeprefix("0x"))
    except ValueError:
        data = b""
    try:
        if data[:4] == _ERROR.selector:
            return _sanitized(_ERROR.decode(data)[0])
        if data[:4] == _PANIC.selector:
            return f"panic {_PANIC.decode(data)[0]:#04x}"
    except MalformedResponseError:
        return "execution reverted"
    if len(data) >= 4:  # noqa: PLR2004 - a selector
        return f"custom error 0x{data[:4].hex()}"
    _, found, words = error.message.partition("execution reverted: ")
    return _sanitized(words) if found else "execution reverted"


def _sanitized(text: str) -> str:
    # Neither URLs nor markup survive this.
    cleaned = _UNSAFE_CHARACTERS.sub("", text).replace("//", "/").strip()[:_MAX_TEXT]
    return cleaned or "execution reverted"
