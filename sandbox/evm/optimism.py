"""The OP stack's predeploys for the L1 data fee (Ecotone and Fjord rules)."""

import time
from dataclasses import dataclass

from eth_utils.crypto import keccak

from sandbox.evm.builder import Builder

_L1_BLOCK = "0x4200000000000000000000000000000000000015"
_DEPOSITOR = "0xDeaDDEaDDeAdDeAdDEAdDEaddeAddEAdDEAd0001"  # the only account that may call these contracts


@dataclass(frozen=True, slots=True)
class L1Fees:
    """Parameters of the L1 data fee; the defaults are typical of Base."""

    l1_base_fee_wei: int = 8 * 10**9
    blob_base_fee_wei: int = 1
    base_fee_scalar: int = 2269
    blob_base_fee_scalar: int = 1055762


def place_predeploys(builder: Builder) -> None:
    """Place GasPriceOracle and L1Block on an OP-stack chain, and set the fees; do nothing elsewhere."""
    oracle = builder.deployment.gas_price_oracle
    if oracle is None:
        return
    builder.set_runtime("GasPriceOracle", oracle)
    builder.set_runtime("L1Block", _L1_BLOCK)
    builder.set_balance(_DEPOSITOR, 10**18)
    builder.client.call("anvil_impersonateAccount", _DEPOSITOR)
    builder.transact(oracle, "setEcotone()", sender=_DEPOSITOR)
    builder.transact(oracle, "setFjord()", sender=_DEPOSITOR)
    set_l1_fees(builder, L1Fees())


def set_l1_fees(builder: Builder, fees: L1Fees) -> None:
    """Set L1's fees on L2, as the sequencer does in the first transaction of each block."""
    data = (
        keccak(text="setL1BlockValuesEcotone()")[:4]
        + fees.base_fee_scalar.to_bytes(4, "big")
        + fees.blob_base_fee_scalar.to_bytes(4, "big")
        + (0).to_bytes(8, "big")  # sequence number within the epoch
        + int(time.time()).to_bytes(8, "big")
        + (1).to_bytes(8, "big")  # L1 block number
        + fees.l1_base_fee_wei.to_bytes(32, "big")
        + fees.blob_base_fee_wei.to_bytes(32, "big")
        + bytes(64)  # L1 block hash, batcher
    )
    builder.client.call("anvil_impersonateAccount", _DEPOSITOR)
    builder.transact_raw(_L1_BLOCK, "0x" + data.hex(), sender=_DEPOSITOR)
