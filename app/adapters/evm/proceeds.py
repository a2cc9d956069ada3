"""What an exchange has brought, to the unit, by the logs of its own transaction."""

from __future__ import annotations

from app.adapters.evm import contracts
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.wire import Receipt
from app.core.chains import USDC, Token

_WITHDRAWAL_TOPIC = "0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65"
"""keccak of WETH9's `Withdrawal(address,uint256)`."""
_TRANSFER_TOPICS = 3


def of_exchange(receipt: Receipt, owner: str, token: Token, *, deployment: Deployment) -> int:
    """Return how much of a token a transaction brought its owner.

    USDC tells each transfer. Ether tells nothing; but the router pays out what it unwraps, all of it.
    """
    if token != USDC:
        unwrapped = [_WITHDRAWAL_TOPIC, _word(deployment.uniswap_router)]
        return sum(
            int.from_bytes(log.data, "big")
            for log in receipt.logs
            if log.contract == deployment.weth and list(log.topics) == unwrapped
        )
    mine = _word(owner)
    brought = 0
    for log in receipt.logs:
        is_transfer = len(log.topics) == _TRANSFER_TOPICS and log.topics[0] == contracts.TRANSFER_TOPIC
        if log.contract == deployment.usdc and is_transfer:
            units = int.from_bytes(log.data, "big")
            brought += units * ((log.topics[2] == mine) - (log.topics[1] == mine))
    return max(brought, 0)


def _word(address: str) -> str:
    return "0x" + contracts.word_of_address(address).hex()
