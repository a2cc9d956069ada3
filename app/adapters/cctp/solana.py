"""CCTP's side on Solana: burning and minting by one transaction each, the token account made before where it lacks."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from solders.account_decoder import UiAccountEncoding
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, from_bytes_versioned, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcAccountInfoConfig,
    RpcContextConfig,
    RpcSimulateTransactionAccountsConfig,
    RpcSimulateTransactionConfig,
)
from solders.rpc.requests import (
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetRecentPrioritizationFees,
    SimulateVersionedTransaction,
)
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.cctp import instructions, solana_mints
from app.adapters.cctp.instructions import Receipt
from app.adapters.cctp.messages import Message
from app.adapters.cctp.sides import BurnOrder, Unseen
from app.adapters.solana import fees, refusals, tokens, transactions
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.drafts import refuse_dust, require
from app.adapters.solana.endpoint import Call
from app.adapters.solana.wire import (
    Accounts,
    AccountState,
    Blockhash,
    Simulation,
    accounts,
    blockhash,
    number,
    priority_prices,
    simulation_with,
)
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import Arrival, Ask, Leg, Step
from app.ports.chain import Draft, Intent, Signed, Terms
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer

_MOST_BYTES = 1232
_NO_BLOCKHASH = Hash.default()
_U64 = 2**64
_KEPT_TERMS = ("last_valid_block_height", "blockhash_slot")


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the cluster says, before and after a transaction was tried."""

    latest: Blockhash
    slot: int
    before: Sequence[AccountState | None]
    after: Sequence[AccountState | None]
    tried: Simulation
    price: int
    empty_rent: int
    token_rent: int
    made_rent: int


class SolanaSide:
    """CCTP on Solana."""

    def __init__(self, chain: SolanaChain) -> None:
        """Take the chain, through whose nodes everything is read."""
        self._chain = chain
        self._mint = Pubkey.from_string(chain.deployment.usdc_mint)
        self._accounts = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=chain.level)

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return ChainName.SOLANA

    def token(self) -> bytes:
        """Return USDC as messages name it."""
        return bytes(self._mint)

    def recipient_of(self, owner: str) -> bytes:
        """Return the owner's token account, which is whom a mint pays."""
        return bytes(tokens.account_of(Pubkey.from_string(owner), self._mint))

    def position(self) -> int:
        """Return the newest slot, by which messages expire. Raises: Unreachable."""
        return self._chain.head().number

    def burn(self, ask: Ask, order: BurnOrder) -> tuple[Step, ...]:
        """Draft the burn and try it. Raises: Rejected, Unreachable."""
        owner, event = Pubkey.from_string(ask.sender), Keypair()
        if ask.amount.units >= _U64:
            raise Rejected("insufficient_funds")  # more than the chain can count
        burning = instructions.burn(owner, self._mint, event.pubkey(), units=ask.amount.units, order=order)
        facts = self._try(owner, [burning], makes_bytes=instructions.EVENT_BYTES)
        units = fees.compute_units(facts.tried.compute_units)
        fee_units = (
            fees.fee_lamports(units, facts.price) + fees.BASE_FEE_LAMPORTS + facts.made_rent
        )  # two sign
        lamports, held = self._holdings(owner, facts.before)
        require(USDC, "insufficient_funds", held, ask.amount.units)
        require(SOL, "insufficient_gas", lamports, fee_units + facts.empty_rent)
        _refuse_failed(facts)
        lamports_after, held_after = self._holdings(owner, facts.after)
        if held_after != held - ask.amount.units or lamports_after < lamports - fee_units:
            raise Rejected("unsafe_instructions")
        budget = [set_compute_unit_limit(units), set_compute_unit_price(facts.price)]
        intent = Intent(ask.sender, str(instructions.MESSENGER), ask.amount)
        message = _compiled(owner, [*budget, burning], Hash.from_string(facts.latest.blockhash))
        draft = _draft(intent, message, facts, fee_units=fee_units, lamports=lamports, held=held)
        terms: Terms = {**draft.terms, "event_key": str(event)}
        return (Step(Leg.SOURCE, self.name, _with_terms(draft, terms)),)

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft of this side, with the burn's own key besides where it has one. Pure. Raises: ValueError."""
        if sequence is not None:
            raise ValueError("a Solana transaction has no nonce")
        message = from_bytes_versioned(base64.b64decode(str(draft.terms["message"])))
        if not isinstance(message, MessageV0):
            raise TypeError("not a message of version 0")
        signed_over = to_bytes_versioned(message)
        signatures = [Signature.from_bytes(signer.sign_message(signed_over))]
        if draft.terms.get("event_key"):
            event = Keypair.from_base58_string(str(draft.terms["event_key"]))
            signatures.append(event.sign_message(signed_over))
        transaction = VersionedTransaction.populate(message, signatures)
        if str(message.account_keys[0]) != draft.intent.sender or not all(transaction.verify_with_results()):
            raise ValueError("the transaction is signed by another key than the sender's")
        return Signed(
            tx_hash=str(transaction.signatures[0]),
            raw=bytes(transaction),
            sequence=None,
            expires_at_height=int(draft.terms["last_valid_block_height"] or 0),
            terms={name: draft.terms[name] for name in _KEPT_TERMS},
        )

    def assert_can_mint(self, owner: str) -> None:
        """Make sure that the owner could pay for a mint now. Raises: Rejected("insufficient_gas"), Unreachable."""
        key = Pubkey.from_string(owner)
        found = self._look(key)
        nonce_rent = Call(GetMinimumBalanceForRentExemption(instructions.USED_NONCE_BYTES), number)
        empty_rent = Call(GetMinimumBalanceForRentExemption(0), number)
        token_rent = Call(GetMinimumBalanceForRentExemption(tokens.TOKEN_ACCOUNT_BYTES), number)
        self._chain.rpc.run(found, nonce_rent, empty_rent, token_rent)
        wallet, token_account = found.answer.states
        lamports = wallet.lamports if wallet else 0
        makes_account = tokens.read_account(token_account) is None
        needed = fees.BASE_FEE_LAMPORTS + nonce_rent.answer + empty_rent.answer
        if makes_account:
            needed += fees.BASE_FEE_LAMPORTS + token_rent.answer
        require(SOL, "insufficient_gas", lamports, needed)

    def mint(self, owner: str, message: Message, attestation: bytes) -> Step:
        """Draft the mint, or the token account that it needs. Raises: Rejected, Unreachable."""
        key = Pubkey.from_string(owner)
        found = self._look(key)
        messenger = Call(GetMultipleAccounts([instructions.MESSENGER_ACCOUNT], self._accounts), accounts(1))
        self._chain.rpc.run(found, messenger)
        nothing = Intent(owner, str(instructions.TRANSMITTER), TokenAmount(0, USDC))
        if tokens.read_account(found.answer.states[1]) is None:
            making = tokens.create_account(key, key, self._mint)
            return Step(Leg.ACCOUNT, self.name, self._drafted(nothing, [making], makes_token_account=True))
        (state,) = messenger.answer.states
        try:
            fee_owner = instructions.fee_recipient(state.data if state else b"")
        except ValueError:
            raise Unreachable("chain_unreachable") from None
        receipt = Receipt(key, tokens.account_of(key, self._mint), tokens.account_of(fee_owner, self._mint))
        receiving = instructions.receive(receipt, self._mint, message, attestation)
        return Step(Leg.DESTINATION, self.name, self._drafted(nothing, [receiving]))

    def is_minted(self, message: Message) -> bool:
        """Tell whether a message was received, by whomever. Raises: Unreachable."""
        used = Call(GetMultipleAccounts([instructions.used_nonce(message)], self._accounts), accounts(1))
        self._chain.rpc.run(used)
        (state,) = used.answer.states
        return state is not None and state.owner == instructions.TRANSMITTER

    def arrival(self, message: Message, *, hint: str | None, since: int) -> Arrival | Unseen:  # noqa: ARG002 - its account tells
        """Find the transaction that received this burn's message, or say why it is not found."""
        return solana_mints.find(self._chain.rpc, message, hint=hint)

    def _drafted(
        self, intent: Intent, work: Sequence[Instruction], *, makes_token_account: bool = False
    ) -> Draft:
        """Draft a transaction that brings nothing away but its fee and rents, and try it. Raises: Rejected."""
        owner = Pubkey.from_string(intent.sender)
        marked = [_marked(work[0]), *work[1:]] if makes_token_account else list(work)
        facts = self._try(owner, marked, makes_bytes=instructions.USED_NONCE_BYTES)
        units = fees.compute_units(facts.tried.compute_units)
        budget = [set_compute_unit_limit(units), set_compute_unit_price(facts.price)]
        latest = Hash.from_string(facts.latest.blockhash)
        message = _compiled(owner, [*budget, *marked], latest)
        price = facts.price
        if _bytes_of(message) > _MOST_BYTES:
            # A message with two attestations leaves no room for more than itself.
            message, units, price = _compiled(owner, marked, latest), 0, 0
        if _bytes_of(message) > _MOST_BYTES:
            raise Rejected("simulation_failed", details={"revert": "transaction too large"})
        rent = facts.token_rent if makes_token_account else facts.made_rent
        fee_units = fees.fee_lamports(units, price) + rent
        lamports, held = self._holdings(owner, facts.before)
        if lamports < fee_units or 0 < lamports - fee_units < facts.empty_rent:
            require(SOL, "insufficient_gas", lamports, fee_units + facts.empty_rent)
        _refuse_failed(facts)
        refuse_dust(facts.empty_rent, left=lamports - fee_units)
        return _draft(intent, message, facts, fee_units=fee_units, lamports=lamports, held=held)

    def _look(self, owner: Pubkey) -> Call[Accounts]:
        keys = [owner, tokens.account_of(owner, self._mint)]
        return Call(GetMultipleAccounts(keys, self._accounts), accounts(len(keys)))

    def _holdings(self, owner: Pubkey, states: Sequence[AccountState | None]) -> tuple[int, int]:
        wallet, usdc = states
        return (
            wallet.lamports if wallet else 0,
            tokens.units_of(usdc, owner=owner, mint=self._mint),
        )

    def _try(self, owner: Pubkey, work: Sequence[Instruction], *, makes_bytes: int) -> _Facts:
        level = self._chain.level
        keys = [owner, tokens.account_of(owner, self._mint)]
        trial = _compiled(owner, work, _NO_BLOCKHASH)
        config = RpcSimulateTransactionConfig(
            sig_verify=False,
            replace_recent_blockhash=True,
            commitment=level,
            accounts=RpcSimulateTransactionAccountsConfig(keys, UiAccountEncoding.Base64),
        )
        writable = [key for place, key in enumerate(trial.account_keys) if trial.is_maybe_writable(place)]
        latest = Call(GetLatestBlockhash(RpcContextConfig(commitment=level)), blockhash)
        found = self._look(owner)
        empty_rent = Call(GetMinimumBalanceForRentExemption(0), number)
        token_rent = Call(GetMinimumBalanceForRentExemption(tokens.TOKEN_ACCOUNT_BYTES), number)
        made_rent = Call(GetMinimumBalanceForRentExemption(makes_bytes), number)
        prices = Call(GetRecentPrioritizationFees(writable), priority_prices)
        signatures = [Signature.default()] * trial.header.num_required_signatures
        unsigned = VersionedTransaction.populate(trial, signatures)
        trying = Call(SimulateVersionedTransaction(unsigned, config), simulation_with(len(keys)))
        self._chain.rpc.run(latest, found, empty_rent, token_rent, made_rent, prices, trying)
        tried, after = trying.answer
        return _Facts(
            latest=latest.answer,
            slot=found.answer.slot,
            before=found.answer.states,
            after=(None, None) if tried.error is not None else after,
            tried=tried,
            price=fees.price(prices.answer),
            empty_rent=empty_rent.answer,
            token_rent=token_rent.answer,
            made_rent=made_rent.answer,
        )


def _refuse_failed(facts: _Facts) -> None:
    if facts.tried.error is not None:
        raise Rejected("simulation_failed", details={"revert": refusals.simulated(facts.tried.error)})


def _marked(instruction: Instruction) -> Instruction:
    """Name a fresh key, which makes every transaction another one (see `transactions.Plan`)."""
    reference = AccountMeta(
        Pubkey.from_string(transactions.new_reference()), is_signer=False, is_writable=False
    )
    return Instruction(instruction.program_id, bytes(instruction.data), [*instruction.accounts, reference])


def _compiled(owner: Pubkey, work: Sequence[Instruction], latest: Hash) -> MessageV0:
    return MessageV0.try_compile(owner, list(work), [], latest)


def _bytes_of(message: MessageV0) -> int:
    signatures = [Signature.default()] * message.header.num_required_signatures
    return len(bytes(VersionedTransaction.populate(message, signatures)))


def _draft(
    intent: Intent, message: MessageV0, facts: _Facts, *, fee_units: int, lamports: int, held: int
) -> Draft:
    return Draft(
        intent=intent,
        fee_units=fee_units,
        native_units=lamports,
        token_units=held,
        sequence=None,
        terms={
            "message": base64.b64encode(to_bytes_versioned(message)).decode(),
            "last_valid_block_height": facts.latest.last_valid_block_height,
            "blockhash_slot": facts.latest.slot,
        },
        as_of=facts.slot,
    )


def _with_terms(draft: Draft, terms: Terms) -> Draft:
    return Draft(
        draft.intent, draft.fee_units, draft.native_units, draft.token_units, None, terms, draft.as_of
    )
