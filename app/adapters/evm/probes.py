"""Probes of an EVM endpoint: the reads of each feature, by the feature's own code."""

from app.adapters.evm import calls
from app.adapters.evm.calls import MAX_BATCH, read_logs
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.prices import ChainlinkPrices, describe_prices
from app.core.chains import Family, native
from app.core.money import TokenAmount
from app.ports.chain import TransferIntent, WatchedAddress
from app.ports.errors import Rejected
from app.ports.probes import ADDRESSES, UnexpectedAnswer

_ADDRESS = ADDRESSES[Family.EVM]
"""On public chains it holds ether, so that a transfer from it can be simulated."""


class EvmEndpointProbes:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain

    def chain_id(self) -> str:
        return str(self._chain.rpc.w3.eth.chain_id)

    def finality_tags(self) -> str:
        read = {tag: calls.block(tag) for tag in ("finalized", "safe", "latest")}
        self._chain.rpc.run(*read.values())
        numbers = [call.result.number for call in read.values()]
        if numbers != sorted(numbers):
            raise UnexpectedAnswer(f"finalized, safe and latest are blocks {numbers}")
        return ", ".join(f"{tag} {call.result.number}" for tag, call in read.items())

    def batches(self) -> str:
        w3 = self._chain.rpc.w3
        with w3.batch_requests() as batch:
            for _ in range(MAX_BATCH):
                batch.add(w3.eth.block_number)
            batch.execute()
        return f"up to {self._chain.rpc.endpoints[0].batch_limit} calls in a request"

    def balances(self) -> str:
        return ", ".join(f"{amount} {amount.token.symbol}" for amount in self._chain.balances(_ADDRESS).amounts)

    def fees_and_estimates(self) -> str:
        one_unit = TokenAmount(1, native(self._chain.name))
        try:
            draft = self._chain.draft(TransferIntent(_ADDRESS, _ADDRESS, one_unit))
        except Rejected as refusal:
            # Private chains have no ether at this address; everything was read before the refusal.
            if refusal.reason != "insufficient_funds":
                raise
            return "read; the address holds too little to simulate a transfer"
        return f"a transfer costs at most {TokenAmount(draft.fee_units, one_unit.token)} {one_unit.token.symbol}"

    def simulation(self) -> str:
        effects = simulation.simulate(self._chain, _ADDRESS, [CallTarget(_ADDRESS, 0, b"")])
        if effects is None:
            return "no eth_simulateV1: swaps and bridges are sent without a simulation of their effects"
        return "eth_simulateV1"

    def logs(self) -> str:
        rpc, last = self._chain.rpc, self._chain.head().number
        topics = contracts.TRANSFER_EVENT.topics(None, [_ADDRESS])
        usdc = self._chain.deployment.usdc
        first = max(0, last - 2_000 + 1)
        found = rpc.run_on_first(lambda endpoint: [*read_logs(endpoint, usdc, topics, first=first, last=last)])
        return f"{sum(len(logs) for _, logs in found)} in {last - first + 1} blocks, read in {len(found)} queries"

    def blocks_and_receipts(self) -> str:
        number = self._chain.head().number
        block = self._chain.rpc.ask(calls.whole_block(number))
        if block is None:
            raise UnexpectedAnswer(f"block {number}, the newest one, is not found")
        if not block.transactions:
            return f"block {number} is empty"
        if self._chain.rpc.ask(calls.receipt(block.transactions[0].tx_hash)) is None:
            raise UnexpectedAnswer(f"a transaction of block {number} has no receipt")
        return f"block {number} has {len(block.transactions)} transactions"

    def deposit_scan(self) -> str:
        state = self._chain.scan_state(_ADDRESS)
        scan = self._chain.deposits([WatchedAddress(_ADDRESS, state)], cursor=None)
        return "nothing to scan yet" if scan.cursor is None else f"up to block {scan.cursor.number}"

    def price_feeds(self) -> str:
        return describe_prices(ChainlinkPrices(self._chain.rpc, self._chain.deployment))
