"""The L1 data fee of landed transactions where receipts leave it out (anvil's do; op-geth's tell it).

The chain's own oracle is asked about the bytes that were signed, at the block that holds them: what was
charged, to the wei.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.adapters.evm import contracts
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.transactions import Target, Unsigned
from app.adapters.evm.wire import (
    MalformedAnswerError,
    Receipt,
    Transaction,
    address,
    block_or_none,
    fee_units,
    octets,
    quantity,
)

_EIP_1559 = 2


def charged(rpc: JsonRpc, deployment: Deployment, receipts: Sequence[Receipt]) -> Mapping[str, int]:
    """Return the fees by hash; one that cannot be found out now is left out. Raises: Unreachable."""
    missing = [receipt for receipt in receipts if receipt.l1_fee_units is None]
    oracle = deployment.gas_price_oracle
    if oracle is None or not missing:
        return {}
    unsigned = _unsigned(rpc, missing)
    fees: dict[str, int] = {}
    # Old states are pruned; then the oracle's present answer is the nearest one.
    for tag in (None, "latest"):
        blocks: dict[int, dict[str, bytes]] = {}
        for receipt in missing:
            if receipt.tx_hash in unsigned and receipt.tx_hash not in fees:
                of_block = blocks.setdefault(receipt.block.number, {})
                of_block[receipt.tx_hash] = unsigned[receipt.tx_hash]
        asked = {
            number: _question(deployment.multicall3, oracle, tuple(signed.values()), tag or hex(number))
            for number, signed in blocks.items()
        }
        rpc.run(*asked.values())
        for number, call in asked.items():
            answers = () if call.error else zip(blocks[number], call.answer, strict=True)
            fees |= {tx_hash: fee for tx_hash, fee in answers if fee is not None}
    return fees


def _unsigned(rpc: JsonRpc, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
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
            found |= {entry.tx_hash: signed for entry in ours if (signed := _signed_over(entry)) is not None}
    return found


def _question(
    multicall: str, oracle: str, signed: tuple[bytes, ...], block: str
) -> Call[tuple[int | None, ...]]:
    def read(answer: object) -> tuple[int | None, ...]:
        returned = contracts.read_aggregate(answer, expected=len(signed))
        return tuple(None if fee is None else fee_units(contracts.number(fee)) for fee in returned)

    inner = [contracts.l1_fee(oracle, data) for data in signed]
    return Call("eth_call", (contracts.aggregate(multicall, inner), block), read=read, tolerates=_anything)


def _signed_over(entry: Transaction) -> bytes | None:
    """Return the bytes that were signed, for transactions of the kind that we send."""
    fields = entry.fields
    try:
        if quantity(fields.get("type")) != _EIP_1559 or fields.get("accessList") or entry.recipient is None:
            return None
        target = Target(address(entry.recipient), entry.value_units, octets(fields.get("input")))
        return Unsigned(
            chain_id=quantity(fields.get("chainId")),
            nonce=quantity(fields.get("nonce")),
            max_priority_fee_per_gas=quantity(fields.get("maxPriorityFeePerGas")),
            max_fee_per_gas=quantity(fields.get("maxFeePerGas")),
            gas=quantity(fields.get("gas")),
            target=target,
        ).encoded()
    except MalformedAnswerError:
        return None


def _anything(_error: RpcError) -> bool:
    return True
