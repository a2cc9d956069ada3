"""What bridges need on a chain: CCTP and Relay's depository as stand-ins, and the real portal of Base on Ethereum."""

from __future__ import annotations

from app.adapters.cctp.deployments import DEPLOYMENTS, DOMAINS, SOLANA_MESSENGER
from app.core.chains import ChainName
from sandbox.evm import roles
from sandbox.evm.builder import Builder
from sandbox.evm.stand_ins import creation_code
from sandbox.solana import base58

CCTP = DEPLOYMENTS["sandbox"]
_MINT_ALLOWANCE = 10**30


def place_cctp(builder: Builder) -> None:
    """Place transmitter and messenger, and let the messenger mint USDC."""
    chain = builder.deployment
    here = ChainName.ETHEREUM if chain.gas_price_oracle is None else ChainName.BASE
    others = [name for name in DOMAINS if name is not here]
    remotes = [
        base58.decode(SOLANA_MESSENGER)
        if name is ChainName.SOLANA
        else bytes(12) + bytes.fromhex(CCTP.messenger[2:])
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
