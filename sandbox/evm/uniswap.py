"""Uniswap V3 and the WETH/USDC 0.05 % pool, which gets its mainnet address."""

from math import isqrt

from sandbox.errors import SandboxError
from sandbox.evm import roles
from sandbox.evm.builder import NO_ADDRESS, Builder
from sandbox.evm.price_feeds import START_PRICES_USD
from sandbox.evm.tokens import mint_usdc

_FEE = 500
_WHOLE_RANGE_TICK = 887270  # the largest tick that is a multiple of this tier's spacing, 10
_POOL_WETH = 10_000
_NO_LIMIT = 2**256 - 1
_FAR_FUTURE = 2**40
_MAINNET_POOLS = {
    "0x1F98431c8aD98523631AE4a59f267346ea31F984": "0x88e6a0c2ddd26feeb64f039a2c41296fcb3f5640",
    "0x33128a8fC17869897dcE68Ed026d694621f6FDfD": "0xd0b53d9277642d899df5c87a3966a349a798f224",
}


def place_uniswap(builder: Builder) -> None:
    """Place factory, position manager, router and quoter, and fill the pool at the feed's price."""
    chain = builder.deployment
    builder.place("UniswapV3Factory", chain.uniswap_factory)
    builder.place(
        "NonfungiblePositionManager",
        chain.uniswap_position_manager,
        parameters="(address,address,address)",
        arguments=(chain.uniswap_factory, chain.weth, NO_ADDRESS),
    )
    builder.place(
        "SwapRouter02",
        chain.uniswap_router,
        parameters="(address,address,address,address)",
        arguments=(NO_ADDRESS, chain.uniswap_factory, chain.uniswap_position_manager, chain.weth),
    )
    builder.place(
        "QuoterV2", chain.uniswap_quoter, parameters="(address,address)", arguments=(chain.uniswap_factory, chain.weth)
    )
    _fill_pool(builder)


def _fill_pool(builder: Builder) -> None:
    chain = builder.deployment
    owner = builder.accounts[roles.OWNER]
    manager = chain.uniswap_position_manager
    weth_units = _POOL_WETH * 10**18
    usdc_units = int(_POOL_WETH * START_PRICES_USD["ETH"]) * 10**6
    builder.set_balance(owner, 100 * weth_units)
    mint_usdc(builder, owner, usdc_units)
    builder.transact(chain.weth, "deposit()", wei=weth_units)
    for token in (chain.usdc, chain.weth):
        builder.transact(token, "approve(address,uint256)", manager, _NO_LIMIT)
    (token0, amount0), (token1, amount1) = sorted(
        [(chain.usdc, usdc_units), (chain.weth, weth_units)], key=lambda side: int(side[0], 16)
    )
    builder.transact(
        manager,
        "createAndInitializePoolIfNecessary(address,address,uint24,uint160)",
        *(token0, token1, _FEE, isqrt((amount1 << 192) // amount0)),
    )
    builder.transact(
        manager,
        "mint((address,address,uint24,int24,int24,uint256,uint256,uint256,uint256,address,uint256))",
        (*(token0, token1, _FEE, -_WHOLE_RANGE_TICK, _WHOLE_RANGE_TICK), *(amount0, amount1, 0, 0, owner, _FAR_FUTURE)),
    )
    (pool,) = builder.read(
        chain.uniswap_factory, "getPool(address,address,uint24)", "(address)", *(chain.usdc, chain.weth, _FEE)
    )
    # The address is derived from factory, tokens and the pool's code, so it verifies all three.
    expected = _MAINNET_POOLS[chain.uniswap_factory]
    if pool != expected:
        raise SandboxError(f"the WETH/USDC pool has the address {pool} instead of {expected}")
