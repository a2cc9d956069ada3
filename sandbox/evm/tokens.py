"""The real USDC (Circle's FiatToken behind its proxy), WETH9 and Multicall3."""

from sandbox.evm import roles
from sandbox.evm.builder import Builder

_SIGNATURE_CHECKER = "0x00000000000000000000000000000000515C0DE1"  # a linked library: the address is arbitrary
_USDC_IMPLEMENTATION = "0x43506849D7C04F9138D1A2050bbF3A0c054402dd"
_MINT_ALLOWANCE = 10**30


def place_usdc(builder: Builder) -> None:
    """Place and initialize USDC, and mint the faucet's supply."""
    usdc = builder.deployment.usdc
    owner = builder.accounts[roles.OWNER]
    faucet = builder.accounts[roles.FAUCET]
    builder.place("SignatureChecker", _SIGNATURE_CHECKER)
    builder.place("FiatTokenV2_2", _USDC_IMPLEMENTATION, libraries={"SignatureChecker": _SIGNATURE_CHECKER})
    builder.place(
        "FiatTokenProxy",
        usdc,
        parameters="(address)",
        arguments=(_USDC_IMPLEMENTATION,),
        sender=builder.accounts[roles.PROXY_ADMIN],
    )
    builder.transact(
        usdc,
        "initialize(string,string,string,uint8,address,address,address,address)",
        *("USD Coin", "USDC", "USD", 6),
        *(owner, owner, owner, owner),  # master minter, pauser, blacklister, owner
    )
    builder.transact(usdc, "initializeV2(string)", "USD Coin")
    builder.transact(usdc, "initializeV2_1(address)", builder.accounts[roles.UNUSED_RECIPIENT])
    builder.transact(usdc, "initializeV2_2(address[],string)", [], "USDC")
    builder.transact(usdc, "configureMinter(address,uint256)", owner, _MINT_ALLOWANCE)
    mint_usdc(builder, faucet, roles.FAUCET_USDC_UNITS)
    builder.set_balance(faucet, roles.FAUCET_WEI)


def mint_usdc(builder: Builder, address: str, units: int) -> None:
    """Mint USDC to an address."""
    builder.transact(builder.deployment.usdc, "mint(address,uint256)", address, units)


def place_weth(builder: Builder) -> None:
    """Place WETH9; on OP-stack chains their predeploy."""
    if builder.deployment.gas_price_oracle is None:
        builder.place("WETH9", builder.deployment.weth)
    else:
        builder.set_runtime("OptimismWeth", builder.deployment.weth)


def place_multicall(builder: Builder) -> None:
    """Place Multicall3."""
    builder.place("Multicall3", builder.deployment.multicall3)
