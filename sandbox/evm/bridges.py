"""Contracts of bridges: stand-ins for CCTP and Relay's depository, and the real portal of Base on Ethereum."""

from eth_utils.crypto import keccak

from app.adapters.bridges.deployments import DEPLOYMENTS, DEPOSITORY, DOMAINS, LIFI_DIAMOND, PORTALS, SOLANA_MESSENGER
from app.core.chains import ChainName
from sandbox.evm import roles
from sandbox.evm.builder import NO_ADDRESS, Builder
from sandbox.evm.stand_ins import creation_code
from solana_node import base58

CCTP = DEPLOYMENTS["sandbox"]
PORTAL = PORTALS["sandbox"]
_SYSTEM_CONFIG = "0x73a79Fab69143498Ed3712e519A88a918e1f4072"
_SUPERCHAIN_CONFIG = "0x95703e0982140D16f8ebA6d158FccEde42f04a4C"
_START_BLOCK_SLOT = int.from_bytes(keccak(text="systemconfig.startBlock"), "big") - 1
_RESOURCES = (20_000_000, 10, 8, 10**9, 1_000_000, 2**128 - 1)
"""Resource metering of deposits, with the parameters of Base's portal."""
_PAUSED = False
_SYSTEM_CONFIG_TYPES = (
    "(address,uint32,uint32,bytes32,uint64,address,(uint32,uint8,uint8,uint32,uint32,uint128),address,"
    "(address,address,address,address,address,address,address))"
)
_MINT_ALLOWANCE = 10**30


def place_cctp(builder: Builder) -> None:
    """Place transmitter and messenger, and permit the messenger to mint USDC."""
    chain = builder.deployment
    here = ChainName.ETHEREUM if chain.gas_price_oracle is None else ChainName.BASE
    others = [name for name in DOMAINS if name is not here]
    remotes = [
        base58.decode(SOLANA_MESSENGER) if name is ChainName.SOLANA else bytes(12) + bytes.fromhex(CCTP.messenger[2:])
        for name in others
    ]
    builder.place_code(
        creation_code("transmitter"),
        CCTP.transmitter,
        parameters="(uint32,address)",
        arguments=(DOMAINS[here], builder.accounts[roles.ATTESTER]),
    )
    builder.place_code(
        creation_code("messenger"),
        CCTP.messenger,
        parameters="(address,address,address,uint32[],bytes32[])",
        arguments=(
            chain.usdc, CCTP.transmitter, builder.accounts[roles.ATTESTER],
            [DOMAINS[name] for name in others], [*remotes],
        ),
    )  # fmt: skip
    builder.transact(chain.usdc, "configureMinter(address,uint256)", CCTP.messenger, _MINT_ALLOWANCE)


def place_portal(builder: Builder) -> None:
    """Place Base's portal and its dependencies on Ethereum; do nothing elsewhere."""
    if builder.deployment.gas_price_oracle is not None:
        return
    owner = builder.accounts[roles.OWNER]
    for name, address in (("SuperchainConfig", _SUPERCHAIN_CONFIG), ("SystemConfig", _SYSTEM_CONFIG)):
        builder.place(name, address)
        builder.set_storage(address, 0, 0)  # their constructors disable initialisation, which belongs to a proxy
    builder.set_storage(_SYSTEM_CONFIG, _START_BLOCK_SLOT, 0)
    builder.transact(_SUPERCHAIN_CONFIG, "initialize(address,bool)", owner, _PAUSED)
    contracts = (NO_ADDRESS, NO_ADDRESS, NO_ADDRESS, NO_ADDRESS, PORTAL, NO_ADDRESS, NO_ADDRESS)
    builder.transact(
        _SYSTEM_CONFIG,
        "initialize" + _SYSTEM_CONFIG_TYPES,
        *(owner, 2269, 1_055_762, bytes(32), 60_000_000, owner, _RESOURCES, owner, contracts),
    )
    builder.place("OptimismPortal2", PORTAL, parameters="(uint256,uint256)", arguments=(604_800, 302_400))
    builder.set_storage(PORTAL, 0, 0)
    builder.transact(
        PORTAL, "initialize(address,address,address,uint32)", *(NO_ADDRESS, _SYSTEM_CONFIG, _SUPERCHAIN_CONFIG, 0)
    )


def place_relay(builder: Builder) -> None:
    """Place Relay's depository and LI.FI's contract that calls it."""
    builder.place_code(creation_code("depository"), DEPOSITORY)
    builder.place_code(creation_code("diamond"), LIFI_DIAMOND, parameters="(address)", arguments=(DEPOSITORY,))
