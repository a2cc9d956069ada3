"""Price feeds with Chainlink's interface, as minimal bytecode.

`latestRoundData()` returns the price in storage slot 0 with the block's time as `updatedAt`, so that a feed is fresh at
every block; `decimals()` returns 8; everything else reverts. Writing the slot sets the price.
"""

from decimal import Decimal

from app.adapters.evm.contracts.deployments import EvmDeployment
from sandbox.evm.builder import Builder
from sandbox.evm.rpc import NodeClient

FEED_DECIMALS = 8
START_PRICES_USD = {"ETH": Decimal(3000), "SOL": Decimal(150), "USDC": Decimal(1)}

# JUMPDEST; mstore(0, roundId=1) (0x20, sload 0) (0x40, timestamp) (0x60, timestamp) (0x80, answeredInRound=1)
_LATEST_ROUND_DATA = bytes.fromhex("5b60015f525f546020524260405242606052600160805260a05ff3")
_DECIMALS = bytes.fromhex("5b60085f5260205ff3")  # JUMPDEST; mstore(0, 8); return 32 bytes


def feed_address(deployment: EvmDeployment, symbol: str) -> str:
    """Return the address of the feed of a symbol's USD price. Raises: KeyError."""
    feeds = {"ETH": deployment.eth_usd_feed, "SOL": deployment.sol_usd_feed, "USDC": deployment.usdc_usd_feed}
    feed = feeds[symbol]
    if feed is None:
        raise KeyError(symbol)
    return feed.address


def place_feeds(builder: Builder) -> None:
    """Place the three feeds with their first prices."""
    for symbol, usd in START_PRICES_USD.items():
        builder.set_code(feed_address(builder.deployment, symbol), "0x" + _runtime().hex())
        set_price(builder.client, builder.deployment, symbol=symbol, usd=usd)


def set_price(client: NodeClient, deployment: EvmDeployment, *, symbol: str, usd: Decimal) -> None:
    """Set the USD price that a feed returns."""
    answer = int(usd.scaleb(FEED_DECIMALS))
    address = feed_address(deployment, symbol)
    client.call("anvil_setStorageAt", address, f"0x{0:064x}", f"0x{answer:064x}")


def _runtime() -> bytes:
    first = len(_dispatch(0, 0))
    return _dispatch(first, first + len(_LATEST_ROUND_DATA)) + _LATEST_ROUND_DATA + _DECIMALS


def _dispatch(latest_round_data: int, decimals: int) -> bytes:
    # calldataload(0) >> 224; jump to the function of the selector, or revert(0, 0)
    return bytes.fromhex(f"5f3560e01c8063feaf968c1460{latest_round_data:02x}5763313ce5671460{decimals:02x}575f5ffd")
