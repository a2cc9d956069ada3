"""The L1 data fee of landed transactions where receipts leave it out (anvil's do; op-geth's tell it).

Reckoned from the bytes that were signed and the chain's own figures at the block that holds them: what was
charged, to the wei. Source: specs.optimism.io, "Fjord: L1-Cost fees".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.adapters.evm import contracts
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.fastlz import compressed_length
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.transactions import Target, Unsigned, signed_form
from app.adapters.evm.wire import Receipt, Transaction, address, block_or_none, fee_units, octets, quantity
from app.adapters.json_rpc import MalformedAnswerError

_EIP_1559 = 2
_SCALE = 10**12
_PER_BYTE = 836_500
_INTERCEPT = 42_585_600
_SMALLEST = 100_000_000
"""A linear model of what a batch of transactions compresses to, in millionths of a byte (`estimatedSizeScaled`)."""


def fjord_units(signed: bytes, figures: Sequence[int]) -> int:
    """Return the fee of signed bytes in wei, from the four figures of the chain's oracle."""
    l1_base_fee, blob_base_fee, base_fee_scalar, blob_base_fee_scalar = figures
    size = max(_SMALLEST, _PER_BYTE * compressed_length(signed) - _INTERCEPT)
    return size * (16 * base_fee_scalar * l1_base_fee + blob_base_fee_scalar * blob_base_fee) // _SCALE


def charged(rpc: JsonRpc, deployment: Deployment, receipts: Sequence[Receipt]) -> Mapping[str, int]:
    """Return the fees by hash; one that cannot be found out now is left out. Raises: Unreachable."""
    missing = [receipt for receipt in receipts if receipt.l1_fee_units is None]
    oracle = deployment.gas_price_oracle
    if oracle is None or not missing:
        return {}
    signed = _signed(rpc, missing)
    fees: dict[str, int] = {}
    # Old states are pruned; then the oracle's present figures are the nearest ones.
    for tag in (None, "latest"):
        open_ = [r for r in missing if r.tx_hash in signed and r.tx_hash not in fees]
        asked = {
            number: _question(deployment.multicall3, oracle, tag or hex(number))
            for number in sorted({receipt.block.number for receipt in open_})
        }
        rpc.run(*asked.values())
        for receipt in open_:
            call = asked[receipt.block.number]
            if call.error is None:
                fees[receipt.tx_hash] = fee_units(fjord_units(signed[receipt.tx_hash], call.answer))
    return fees


def _signed(rpc: JsonRpc, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
    # Whole blocks, for many of our transactions share one; chains with large blocks tell the fee themselves.
    hashes = {receipt.tx_hash for receipt in receipts}
    blocks = [
        Call("eth_getBlockByNumber", (hex(number), True), read=block_or_none, tolerates=_anything)
        for number in sorted({receipt.block.number for receipt in receipts})
    ]
    rpc.run(*blocks)
    found: dict[str, bytes] = {}
    for call in blocks:
        if call.error is None and call.answer is not None:
            ours = (entry for entry in call.answer.transactions if entry.tx_hash in hashes)
            found |= {entry.tx_hash: raw for entry in ours if (raw := _raw(entry)) is not None}
    return found


def _question(multicall: str, oracle: str, block: str) -> Call[tuple[int, ...]]:
    inner = contracts.l1_fee_figures(oracle)
    return Call(
        "eth_call",
        (contracts.aggregate(multicall, inner), block),
        read=lambda answer: contracts.read_numbers(answer, expected=len(inner)),
        tolerates=_anything,
    )


def _raw(entry: Transaction) -> bytes | None:
    """Return the signed bytes of a transaction of the kind that we send."""
    fields = entry.fields
    try:
        if quantity(fields.get("type")) != _EIP_1559 or fields.get("accessList") or entry.recipient is None:
            return None
        target = Target(address(entry.recipient), entry.value_units, octets(fields.get("input")))
        unsigned = Unsigned(
            chain_id=quantity(fields.get("chainId")),
            nonce=quantity(fields.get("nonce")),
            max_priority_fee_per_gas=quantity(fields.get("maxPriorityFeePerGas")),
            max_fee_per_gas=quantity(fields.get("maxFeePerGas")),
            gas=quantity(fields.get("gas")),
            target=target,
        )
        parity = fields.get("yParity", fields.get("v"))
        return signed_form(unsigned, quantity(parity), quantity(fields.get("r")), quantity(fields.get("s")))
    except MalformedAnswerError:
        return None


def _anything(_error: RpcError) -> bool:
    return True
