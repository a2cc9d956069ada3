"""What nodes say when they refuse, in one table: clients differ in their codes, so the words decide."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError

from app.adapters.evm.endpoint import RpcError

ALREADY_KNOWN = "already_known"
"""The node holds these very bytes: success."""

_SENDING: tuple[tuple[str, str], ...] = (
    ("already known", ALREADY_KNOWN),  # geth, op-geth, reth, erigon, besu: ErrAlreadyKnown
    ("already imported", ALREADY_KNOWN),  # anvil, reth
    ("known transaction", ALREADY_KNOWN),  # besu, older geth
    ("alreadyknown", ALREADY_KNOWN),  # nethermind
    ("nonce too low", "nonce_too_low"),  # geth, reth, anvil: core.ErrNonceTooLow
    ("nonce is too low", "nonce_too_low"),  # openethereum's words, still used by some gateways
    ("oldnonce", "nonce_too_low"),  # nethermind
    ("replacement transaction underpriced", "replacement_underpriced"),  # geth, anvil: ErrReplaceUnderpriced
    ("replacementnotallowed", "replacement_underpriced"),  # nethermind
    ("could not replace existing", "replacement_underpriced"),  # erigon
    ("transaction underpriced", "fee_too_low"),  # geth: txpool.ErrUnderpriced
    ("max fee per gas less than block base fee", "fee_too_low"),  # anvil, reth, geth: core.ErrFeeCapTooLow
    ("fee cap less than block base fee", "fee_too_low"),  # erigon
    ("feetoolow", "fee_too_low"),  # nethermind
    ("insufficient funds", "insufficient_funds"),  # geth, anvil, reth: core.ErrInsufficientFunds
    ("insufficientfunds", "insufficient_funds"),  # nethermind
    ("upfront cost exceeds account balance", "insufficient_funds"),  # besu
    ("overshot", "insufficient_funds"),  # geth's second sentence, where the first was cut off
    ("max priority fee per gas higher than max fee", "invalid_transaction"),  # geth, anvil: ErrTipAboveFeeCap
    ("intrinsic gas too", "invalid_transaction"),  # geth, anvil: ErrIntrinsicGas
    ("exceeds block gas limit", "invalid_transaction"),  # geth: txpool.ErrGasLimit
    ("gas limit too high", "invalid_transaction"),  # EIP-7825's cap of 2^24, geth
    ("invalid chain id", "wrong_chain"),  # geth, anvil: types.ErrInvalidChainId
    ("invalid sender", "invalid_transaction"),  # geth: txpool.ErrInvalidSender
    ("oversized data", "invalid_transaction"),  # geth: txpool.ErrOversizedData
    ("nonce too high", "nonce_too_high"),  # anvil; some gateways
    ("future transaction tries to replace pending", "pool_full"),  # geth: ErrFutureReplacePending
    ("txpool is full", "pool_full"),  # geth: ErrTxPoolOverflow
    ("transaction pool is full", "pool_full"),  # reth
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

_ERROR_STRING = bytes.fromhex("08c379a0")  # Error(string), Solidity's require and revert
_PANIC = bytes.fromhex("4e487b71")  # Panic(uint256), Solidity's assert and arithmetic
_UNFIT = re.compile(r"[^A-Za-z0-9 .,:;_()<>=!+*/'-]")
_LONGEST_TEXT = 120


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node's refusal to take a transaction, as a stable reason."""

    reason: str

    @property
    def is_already_known(self) -> bool:
        """Tell whether the node holds the transaction already."""
        return self.reason == ALREADY_KNOWN


def of_sending(error: RpcError) -> Refusal | None:
    """Return why `eth_sendRawTransaction` was refused; None when the words are not in the table."""
    text = error.message.lower()
    return next((Refusal(reason) for words, reason in _SENDING if words in text), None)


def is_known_refusal(error: RpcError) -> bool:
    """Tell whether the table has the error."""
    return of_sending(error) is not None


def is_revert(error: RpcError) -> bool:
    """Tell whether an estimate or call failed by what it would do, and not by the node's trouble."""
    text = error.message.lower()
    return error.code == 3 or any(words in text for words in _REVERTS)  # noqa: PLR2004 - geth's code of reverts


def revert_text(error: RpcError) -> str:
    """Return what a contract said, in a short form that is fit to be shown: strangers write such texts."""
    try:
        data = bytes.fromhex((error.data or "").removeprefix("0x"))
    except ValueError:
        data = b""
    try:
        if data[:4] == _ERROR_STRING:
            return _presentable(str(decode(["string"], data[4:])[0]))
        if data[:4] == _PANIC:
            return f"panic {int(decode(['uint256'], data[4:])[0]):#04x}"
    except (DecodingError, UnicodeDecodeError, OverflowError):
        return "execution reverted"
    if len(data) >= 4:  # noqa: PLR2004 - a selector
        return f"custom error 0x{data[:4].hex()}"
    _, found, words = error.message.partition("execution reverted: ")
    return _presentable(words) if found else "execution reverted"


def _presentable(text: str) -> str:
    # Neither addresses of web pages nor markup survive this.
    cleaned = _UNFIT.sub("", text).replace("//", "/").strip()[:_LONGEST_TEXT]
    return cleaned or "execution reverted"
