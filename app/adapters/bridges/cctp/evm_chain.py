"""CCTP on an EVM chain: a burn by two transactions, a mint by one, and the search for the mint of a message.

A used nonce proves that some message was received; only the logs of Circle's contract show which.
"""

from dataclasses import dataclass
from itertools import islice

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.deployments import CctpDeployment
from app.adapters.evm import calls
from app.adapters.evm.calls import EventLog, EvmRpc, read_logs
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.calls import ContractEvent, Function
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import USDC, native
from app.core.money import TokenAmount
from app.ports.bridges import ArrivalNotFound, BridgeArrival, BridgeLegKind, BridgeRequest, BridgeStep
from app.ports.chain import Shortage, TransactionDraft, TransferIntent

_USED_NONCES = Function("cctp_transmitter", "usedNonces")
_RECEIVED_EVENT = ContractEvent("cctp_transmitter", "MessageReceived")
"""Submitter, source domain, nonce, sender, finality threshold, the message's body."""
_MAX_RANGES = 200


def nonce_used_call(transmitter: str, message: messages.CctpMessage, *, block: str | int = "latest") -> RpcCall[bool]:
    return calls.contract_call(
        {"to": transmitter, "data": _USED_NONCES.encode(message.nonce)},
        lambda returned: bool(_USED_NONCES.decode_result(returned)),
        block,
        tolerates=None if block == "latest" else accept_any_error,
    )


@dataclass(frozen=True, slots=True)
class MintSearch:
    """A search for the transaction that received a message with a used nonce, not before block `since`."""

    transmitter: str
    message: messages.CctpMessage
    since: int

    def run(self, rpc: EvmRpc, *, hint: str | None) -> BridgeArrival | ArrivalNotFound:
        return messages.first_arrival(rpc.run_on_each(lambda endpoint: self._find(endpoint, hint)))

    def _find(self, endpoint: RpcEndpoint, hint: str | None) -> BridgeArrival | ArrivalNotFound:
        found = self._mint_in_transaction(endpoint, hint) if hint else ArrivalNotFound.NOT_FOUND
        return found if isinstance(found, BridgeArrival) else self._search_logs(endpoint)

    def _mint_in_transaction(self, endpoint: RpcEndpoint, tx_hash: str) -> BridgeArrival | ArrivalNotFound:
        """Return what a transaction has minted for the message's burn. Raises: EndpointError."""
        call = calls.receipt(tx_hash, tolerates=accept_any_error)
        endpoint.run([call])
        if call.error is not None:
            return ArrivalNotFound.UNREADABLE
        receipt = call.result
        if receipt is None or not receipt.succeeded:
            return ArrivalNotFound.NOT_FOUND
        for log in receipt.logs:
            received_message = self._received_message(log) if log.contract == self.transmitter else None
            if received_message is not None and received_message.burn == self.message.burn:
                return BridgeArrival(
                    received_message.burn.units - received_message.fee_units, receipt.tx_hash, receipt.block
                )
        return ArrivalNotFound.NOT_FOUND

    def _received_message(self, log: EventLog) -> messages.CctpMessage | None:
        """Read the message as the chain received it, or None for another nonce, form or source chain."""
        fields = _RECEIVED_EVENT.decode(log)
        if fields is None:
            return None
        _submitter, domain, nonce, _sender, _finality, body = fields
        if (nonce, domain) != (self.message.nonce, self.message.burn.source_domain):
            return None
        try:
            return messages.read(self.message.raw[: messages.BODY_OFFSET] + body)
        except messages.MessageMismatchError:
            return None

    def _search_logs(self, endpoint: RpcEndpoint) -> BridgeArrival | ArrivalNotFound:
        """Search all blocks, or where they are too many the one that old states show. Raises: EndpointError."""
        newest = endpoint.ask(calls.head())
        found = self._mint_in_blocks(endpoint, self.since, newest)
        if found is ArrivalNotFound.UNREADABLE and (block := self._block_of_use(endpoint, newest)) is not None:
            found = self._mint_in_blocks(endpoint, block, block)
        return found

    def _mint_in_blocks(self, endpoint: RpcEndpoint, first: int, last: int) -> BridgeArrival | ArrivalNotFound:
        """Search for the event, in a limited number of ranges. Raises: EndpointError."""
        topics = _RECEIVED_EVENT.topics(None, self.message.nonce)
        ranges = read_logs(endpoint, self.transmitter, topics, first=first, last=last)
        for reached, logs in islice(ranges, _MAX_RANGES):
            if logs:
                return self._mint_in_transaction(endpoint, logs[0].tx_hash)
            if reached == last:
                return ArrivalNotFound.NOT_FOUND
        return ArrivalNotFound.UNREADABLE if last >= first else ArrivalNotFound.NOT_FOUND

    def _block_of_use(self, endpoint: RpcEndpoint, newest: int) -> int | None:
        """Return the block that used the nonce, None if the node keeps no old states. Raises: EndpointError."""
        first, last = self.since, newest
        while first < last:
            middle = (first + last) // 2
            used = nonce_used_call(self.transmitter, self.message, block=middle)
            endpoint.run([used])
            if used.error is not None:
                return None
            first, last = (first, middle) if used.result else (middle + 1, last)
        return last


_APPROVE = Function("fiat_token", "approve")
_BURN = Function("cctp_messenger", "depositForBurn")
_BURN_WITH_HOOK = Function("cctp_messenger", "depositForBurnWithHook")
_RECEIVE = Function("cctp_transmitter", "receiveMessage")

_APPROVE_GAS = 80_000
_BURN_GAS = 200_000
_MINT_GAS = 300_000
"""Half more than each was measured at: a burn cannot be estimated before its approval is mined."""
_PLACEHOLDER = b"\xa5" * 376, b"\xa5" * 130
"""As long as a message and two attestations; bytes that do not compress."""


class EvmCctpChain:
    """Burns and mints of USDC; methods that use the network raise Unreachable."""

    def __init__(self, chain: EvmChain, deployment: CctpDeployment) -> None:
        self.name = chain.name
        self._chain = chain
        self.sign, self.receiving_refusal, self.head = chain.sign, chain.receiving_refusal, chain.head
        self._deployment = deployment
        self.token = messages.address_word(chain.deployment.usdc, chain.name)

    def mint_recipient(self, owner: str) -> bytes:
        return messages.address_word(owner, self.name)

    def draft_burn(
        self, request: BridgeRequest, burn: messages.CctpBurn, *, finality: int, is_forwarded: bool
    ) -> tuple[BridgeStep, ...]:
        """Draft and simulate the approval of exactly this amount and the burn. Raises: Rejected, Unreachable."""
        usdc, messenger = self._chain.deployment.usdc, self._deployment.messenger
        approval = CallTarget(usdc, 0, _APPROVE.encode(messenger, request.amount.units))
        burning = CallTarget(messenger, 0, _burn_data(burn, usdc, finality=finality, is_forwarded=is_forwarded))
        no_amount = TransferIntent(request.sender, messenger, TokenAmount(0, USDC))
        first = self._chain.draft_call(no_amount, approval, gas=_APPROVE_GAS, simulates=False, next_gas=_BURN_GAS)
        second = self._chain.draft_call(
            TransferIntent(request.sender, messenger, request.amount), burning, gas=_BURN_GAS, simulates=False
        )
        max_fee_units = first.fee_units + second.fee_units
        Shortage.check(native(self.name), "insufficient_gas", second.native_units, max_fee_units)
        effects = simulation.simulate(self._chain, request.sender, [approval, burning], spender=messenger)
        if effects is not None and (
            effects.usdc_units != -request.amount.units
            or effects.native_units < -max_fee_units
            or effects.allowance_units != 0
        ):
            raise simulation.unsafe(effects, amount_units=request.amount.units, max_fee_units=max_fee_units)
        return BridgeStep(BridgeLegKind.APPROVE, self.name, first), BridgeStep(BridgeLegKind.SOURCE, self.name, second)

    def assert_can_mint(self, owner: str) -> None:
        """Check that the owner could pay for a mint now. Raises: Rejected("insufficient_gas"), Unreachable."""
        self._draft_mint_call(owner, *_PLACEHOLDER, simulates=False)

    def draft_mint(self, owner: str, message: messages.CctpMessage, attestation: bytes, *, failures: int) -> BridgeStep:
        """Draft the mint; gas is estimated after failures as before, and a stuck transaction replaced."""
        draft = self._draft_mint_call(owner, message.raw, attestation, simulates=True)
        return BridgeStep(BridgeLegKind.DESTINATION, self.name, draft)

    def is_minted(self, message: messages.CctpMessage) -> bool:
        return self._chain.rpc.ask(nonce_used_call(self._deployment.transmitter, message))

    def find_mint(
        self, message: messages.CctpMessage, *, hint: str | None, since: int
    ) -> BridgeArrival | ArrivalNotFound:
        search = MintSearch(self._deployment.transmitter, message, since)
        return search.run(self._chain.rpc, hint=hint)

    def _draft_mint_call(self, owner: str, message: bytes, attestation: bytes, *, simulates: bool) -> TransactionDraft:
        transmitter = self._deployment.transmitter
        target = CallTarget(transmitter, 0, _RECEIVE.encode(message, attestation))
        no_amount = TransferIntent(owner, transmitter, TokenAmount(0, USDC))
        return self._chain.draft_call(no_amount, target, gas=_MINT_GAS, simulates=simulates)


def _burn_data(burn: messages.CctpBurn, usdc: str, *, finality: int, is_forwarded: bool) -> bytes:
    arguments = burn.units, burn.destination_domain, burn.recipient, usdc, bytes(32), burn.max_fee_units, finality
    return _BURN_WITH_HOOK.encode(*arguments, messages.FORWARDING) if is_forwarded else _BURN.encode(*arguments)
