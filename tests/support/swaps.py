"""What tests of swaps do: ask for one, move a pool's price, read what the router could still take."""

from __future__ import annotations

from typing import Any

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import aggregate, allowance, read_numbers
from app.adapters.evm.endpoint import Call
from app.adapters.uniswap.exchange import UniswapExchange
from app.core.chains import ETH, USDC, Token
from app.core.money import TokenAmount
from app.ports.swaps import ALONE, Ask
from sandbox.evm import EvmNode
from tests.support.agents import Agent
from tests.support.evm import await_mined, funded

ETHER = 10**18


def swap(agent: Agent, given: str, wanted: str, amount: object, *, chain: str = "base", **more: Any) -> Any:
    """Ask for a swap; headers are given by their names."""
    headers = {name: more.pop(name) for name in [*more] if name[0].isupper()}
    body = {"chain": chain, "input_token": given, "output_token": wanted, "amount": amount, **more}
    return agent.post(f"{agent.wallet_url}/swap", body, **headers)


def router_may_take(chain: EvmChain, owner: str) -> int:
    """Return the router's allowance."""
    deployment = chain.deployment
    inner = [allowance(deployment.usdc, owner, deployment.uniswap_router)]
    call = Call(
        "eth_call",
        (aggregate(deployment.multicall3, inner), "latest"),
        read=lambda answer: read_numbers(answer, expected=1),
    )
    chain.rpc.run(call)
    return call.answer[0]


def move_price(node: EvmNode, chain: EvmChain, *, given: Token, units: int) -> None:
    """Have a stranger trade against the pool, on a node that mines at once."""
    other = USDC if given == ETH else ETH
    stranger = funded(node, wei=2 * max(units if given == ETH else 0, ETHER), usdc_units=10 * units)
    exchange = UniswapExchange(chain)
    offer = exchange.quote(Ask(stranger.address, TokenAmount(units, given), other, 500))
    draft = exchange.draft(offer, minimum_units=1, signer=stranger)
    signed = exchange.sign(draft, stranger, sequence=draft.sequence, beside=ALONE)
    chain.broadcast(signed.raw)
    await_mined(node, signed.tx_hash)
