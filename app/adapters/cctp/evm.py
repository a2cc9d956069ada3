"""CCTP's side on an EVM chain: burning by two transactions, minting by one, and looking whether that is done."""

from __future__ import annotations

from eth_abi.abi import encode

from app.adapters.cctp import evm_mints, messages
from app.adapters.cctp.deployments import Deployment
from app.adapters.cctp.messages import Message
from app.adapters.cctp.sides import BurnOrder, Unseen
from app.adapters.evm import contracts, rehearsal
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.transactions import ContractCall, Target
from app.core.chains import USDC, ChainName, native
from app.core.money import TokenAmount
from app.ports.bridges import Arrival, Ask, Leg, Step
from app.ports.chain import Draft, Intent, Signed
from app.ports.errors import Rejected
from app.ports.vault import Signer

_APPROVE = bytes.fromhex("095ea7b3")  # ERC-20 approve(address,uint256)
_BURN = bytes.fromhex("8e0250ee")  # depositForBurn(uint256,uint32,bytes32,address,bytes32,uint256,uint32)
_BURN_WITH_HOOK = bytes.fromhex("779b432d")  # depositForBurnWithHook(…, bytes)
_RECEIVE = bytes.fromhex("57ecfd28")  # receiveMessage(bytes,bytes)

_APPROVE_GAS = 80_000
_BURN_GAS = 200_000
_MINT_GAS = 300_000
"""Half more than each was measured at: a burn cannot be estimated before its approval is mined."""
_PLACEHOLDER = b"\xa5" * 376, b"\xa5" * 130
"""As long as a message and two attestations; bytes that do not compress."""


class EvmSide:
    """CCTP on one EVM chain."""

    def __init__(self, chain: EvmChain, deployment: Deployment) -> None:
        """Take the chain, through whose nodes everything is read."""
        self._chain = chain
        self._deployment = deployment

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return self._chain.name

    def token(self) -> bytes:
        """Return USDC as messages name it."""
        return messages.as_word(self._chain.deployment.usdc, self.name)

    def recipient_of(self, owner: str) -> bytes:
        """Return whom a mint for an owner pays."""
        return messages.as_word(owner, self.name)

    def position(self) -> int:
        """Return the newest block's number, by which messages expire. Raises: Unreachable."""
        return self._chain.head().number

    def burn(self, ask: Ask, order: BurnOrder) -> tuple[Step, ...]:
        """Draft the approval of exactly this amount and the burn, and rehearse both. Raises: Rejected, Unreachable."""
        usdc, messenger = self._chain.deployment.usdc, self._deployment.messenger
        approval = Target(
            usdc, 0, _APPROVE + contracts.word_of_address(messenger) + encode(["uint256"], [ask.amount.units])
        )
        burning = Target(messenger, 0, _burn_data(ask.amount.units, usdc, order))
        nothing = Intent(ask.sender, messenger, TokenAmount(0, USDC))
        first = self._chain.draft_call(nothing, ContractCall(approval), gas=_APPROVE_GAS, simulates=False)
        second = self._chain.draft_call(
            Intent(ask.sender, messenger, ask.amount), ContractCall(burning), gas=_BURN_GAS, simulates=False
        )
        _require_gas(second, also=first.fee_units, token_chain=self.name)
        seen = rehearsal.rehearse(self._chain, ask.sender, [approval, burning], spender=messenger)
        if seen is not None and (
            seen.usdc_units != -ask.amount.units
            or seen.native_units < -(first.fee_units + second.fee_units)
            or seen.allowance_units != 0
        ):
            raise Rejected("unsafe_instructions")
        return Step(Leg.APPROVE, self.name, first), Step(Leg.SOURCE, self.name, second)

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft of this side. Pure."""
        return self._chain.sign(draft, signer, sequence=sequence)

    def assert_can_mint(self, owner: str) -> None:
        """Make sure that the owner could pay for a mint now. Raises: Rejected("insufficient_gas"), Unreachable."""
        self._draft_mint(owner, *_PLACEHOLDER, simulates=False)

    def mint(self, owner: str, message: Message, attestation: bytes) -> Step:
        """Draft the mint. Raises: Rejected("insufficient_gas", "simulation_failed"), Unreachable."""
        draft = self._draft_mint(owner, message.raw, attestation, simulates=True)
        return Step(Leg.DESTINATION, self.name, draft)

    def is_minted(self, message: Message) -> bool:
        """Tell whether a message was received, by whomever. Raises: Unreachable."""
        used = evm_mints.is_used(self._deployment.transmitter, message)
        self._chain.rpc.run(used)
        return used.answer

    def arrival(self, message: Message, *, hint: str | None, since: int) -> Arrival | Unseen:
        """Find the transaction that minted this burn, or say why it is not found."""
        search = evm_mints.Search(self._deployment.transmitter, message, since)
        return search.run(self._chain.rpc, hint=hint)

    def _draft_mint(self, owner: str, message: bytes, attestation: bytes, *, simulates: bool) -> Draft:
        transmitter = self._deployment.transmitter
        target = Target(transmitter, 0, _RECEIVE + encode(["bytes", "bytes"], [message, attestation]))
        nothing = Intent(owner, transmitter, TokenAmount(0, USDC))
        return self._chain.draft_call(nothing, ContractCall(target), gas=_MINT_GAS, simulates=simulates)


def _burn_data(units: int, usdc: str, order: BurnOrder) -> bytes:
    types = ["uint256", "uint32", "bytes32", "address", "bytes32", "uint256", "uint32"]
    said: list[object] = [
        units, order.domain, order.recipient, usdc, bytes(32), order.most_fee_units, order.finality,
    ]  # fmt: skip
    if not order.is_forwarded:
        return _BURN + encode(types, said)
    return _BURN_WITH_HOOK + encode([*types, "bytes"], [*said, messages.FORWARDING])


def _require_gas(draft: Draft, *, also: int, token_chain: ChainName) -> None:
    token, required = native(token_chain), draft.fee_units + also
    if draft.native_units < required:
        raise Rejected(
            "insufficient_gas",
            details={
                "currency": token.symbol,
                "available": str(TokenAmount(draft.native_units, token)),
                "required": str(TokenAmount(required, token)),
                "missing": str(TokenAmount(required - draft.native_units, token)),
            },
        )
