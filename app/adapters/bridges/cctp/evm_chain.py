"""CCTP on an EVM chain: a burn by two transactions, a mint by one."""

from __future__ import annotations

from app.adapters.bridges.cctp import evm_mints, messages
from app.adapters.bridges.cctp.chain_protocol import BurnParameters, MintNotFound
from app.adapters.bridges.cctp.deployments import CctpDeployment
from app.adapters.bridges.cctp.messages import CctpMessage
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.abi import Function
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget, ContractCall
from app.adapters.funds import require
from app.core.chains import USDC, native
from app.core.money import TokenAmount
from app.ports.bridges import BridgeArrival, BridgeLegKind, BridgeRequest, BridgeStep
from app.ports.chain import TransactionDraft, TransferIntent

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
        self.sign, self.receiving_refusal = chain.sign, chain.receiving_refusal
        self._deployment = deployment

    def token(self) -> bytes:
        return messages.address_word(self._chain.deployment.usdc, self.name)

    def mint_recipient(self, owner: str) -> bytes:
        return messages.address_word(owner, self.name)

    def expiry_position(self) -> int:
        """Return the newest block's number, which messages' expiry refers to. Raises: Unreachable."""
        return self._chain.head().number

    def draft_burn(self, request: BridgeRequest, order: BurnParameters) -> tuple[BridgeStep, ...]:
        """Draft and simulate the approval of exactly this amount and the burn. Raises: Rejected, Unreachable."""
        usdc, messenger = self._chain.deployment.usdc, self._deployment.messenger
        approval = CallTarget(usdc, 0, _APPROVE.encode(messenger, request.amount.units))
        burning = CallTarget(messenger, 0, _burn_data(request.amount.units, usdc, order))
        no_amount = TransferIntent(request.sender, messenger, TokenAmount(0, USDC))
        first = self._chain.draft_call(
            no_amount, ContractCall(approval), gas=_APPROVE_GAS, simulates=False, next_gas=_BURN_GAS
        )
        second = self._chain.draft_call(
            TransferIntent(request.sender, messenger, request.amount),
            ContractCall(burning),
            gas=_BURN_GAS,
            simulates=False,
        )
        max_fee_units = first.fee_units + second.fee_units
        require(native(self.name), "insufficient_gas", second.native_units, max_fee_units)
        rpc, deployment = self._chain.rpc, self._chain.deployment
        effects = simulation.simulate(rpc, deployment, request.sender, [approval, burning], spender=messenger)
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

    def draft_mint(
        self,
        owner: str,
        message: CctpMessage,
        attestation: bytes,
        *,
        failures: int,  # noqa: ARG002 - gas is estimated, and a stuck transaction replaced
    ) -> BridgeStep:
        draft = self._draft_mint_call(owner, message.raw, attestation, simulates=True)
        return BridgeStep(BridgeLegKind.DESTINATION, self.name, draft)

    def is_minted(self, message: CctpMessage) -> bool:
        return self._chain.rpc.ask(evm_mints.nonce_used_call(self._deployment.transmitter, message))

    def find_mint(self, message: CctpMessage, *, hint: str | None, since: int) -> BridgeArrival | MintNotFound:
        """Find the transaction that minted a message with a used nonce, which proves that some message was received."""
        search = evm_mints.MintSearch(self._deployment.transmitter, message, since)
        return search.run(self._chain.rpc, hint=hint)

    def _draft_mint_call(self, owner: str, message: bytes, attestation: bytes, *, simulates: bool) -> TransactionDraft:
        transmitter = self._deployment.transmitter
        target = CallTarget(transmitter, 0, _RECEIVE.encode(message, attestation))
        no_amount = TransferIntent(owner, transmitter, TokenAmount(0, USDC))
        return self._chain.draft_call(no_amount, ContractCall(target), gas=_MINT_GAS, simulates=simulates)


def _burn_data(units: int, usdc: str, order: BurnParameters) -> bytes:
    arguments = (
        units, order.domain, order.recipient, usdc, bytes(32), order.max_fee_units, order.finality,
    )  # fmt: skip
    if not order.is_forwarded:
        return _BURN.encode(*arguments)
    return _BURN_WITH_HOOK.encode(*arguments, messages.FORWARDING)
