"""The output of a swap, to the unit, from the logs of its own transaction."""

from __future__ import annotations

from app.adapters.evm.client.wire import TransactionReceipt
from app.adapters.evm.contracts.abi import ContractEvent
from app.adapters.evm.contracts.calls import TRANSFER_EVENT
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.core.chains import USDC, Token

_WITHDRAWAL_EVENT = ContractEvent("weth9", "Withdrawal")


def swap_output(receipt: TransactionReceipt, owner: str, token: Token, *, deployment: EvmDeployment) -> int:
    """Return how much of a token a transaction paid its owner.

    USDC logs each transfer. Ether does not; but the router pays out all of what it unwraps.
    """
    received = 0
    for log in receipt.logs:
        if token != USDC and log.contract == deployment.weth and (fields := _WITHDRAWAL_EVENT.decode(log)):
            holder, units = fields
            received += units * (holder == deployment.uniswap_router)
        if token == USDC and log.contract == deployment.usdc and (fields := TRANSFER_EVENT.decode(log)):
            payer, recipient, units = fields
            received += units * ((recipient == owner) - (payer == owner))
    return max(received, 0)
