"""Helpers for swap tests: request a swap, move a pool's price, read the router's allowance."""

from __future__ import annotations

from typing import Any

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.calls import ALLOWANCE, multicall
from app.adapters.swaps.uniswap import UniswapExchange
from app.core.chains import ETH, USDC, Token
from app.core.money import TokenAmount
from app.ports.swaps import ConcurrentOutflows, SwapRequest
from sandbox.evm import EvmNode
from tests.support.agents import Agent
from tests.support.evm import await_mined, funded

ETHER = 10**18


def swap(agent: Agent, given: str, wanted: str, amount: object, *, chain: str = "base", **more: Any) -> Any:
    """Request a swap; headers are given by their names."""
    headers = {name: more.pop(name) for name in [*more] if name[0].isupper()}
    body = {"chain": chain, "input_token": given, "output_token": wanted, "amount": amount, **more}
    return agent.post(f"{agent.wallet_url}/swap", body, **headers)


def router_may_take(chain: EvmChain, owner: str) -> int:
    """Return the router's allowance."""
    deployment = chain.deployment
    call = multicall([ALLOWANCE.at(deployment.usdc, owner, deployment.uniswap_router)])
    chain.rpc.run(call)
    return int(call.result[0])


def move_price(node: EvmNode, chain: EvmChain, *, given: Token, units: int) -> None:
    """Trade against the pool from another account, on a node that mines immediately."""
    other = USDC if given == ETH else ETH
    trader = funded(node, wei=2 * max(units if given == ETH else 0, ETHER), usdc_units=10 * units)
    exchange = UniswapExchange(chain)
    offer = exchange.quote(SwapRequest(trader.address, TokenAmount(units, given), other, 500))
    draft = exchange.draft(offer, minimum_units=1, signer=trader)
    signed = exchange.sign(draft, trader, sequence=draft.sequence, concurrent=ConcurrentOutflows())
    chain.broadcast(signed.raw)
    await_mined(node, signed.tx_hash)
