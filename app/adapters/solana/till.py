"""The `Till` port for Solana: differences of one exact token account say what was paid; we co-sign as fee payer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.rpc.config import (
    RpcAccountInfoConfig,
    RpcContextConfig,
    RpcSimulateTransactionConfig,
    RpcTransactionConfig,
)
from solders.rpc.requests import (
    GetLatestBlockhash,
    GetMinimumBalanceForRentExemption,
    GetMultipleAccounts,
    GetTransaction,
    SimulateVersionedTransaction,
)
from solders.signature import Signature
from solders.transaction_status import UiTransactionEncoding

from app.adapters.json_rpc import MalformedAnswerError
from app.adapters.solana import arrivals, payments, refusals, tokens, transactions
from app.adapters.solana.arrivals import Holder
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.endpoint import Call
from app.adapters.solana.wire import Landed, accounts, blockhash, landed_or_none, members, number, simulation
from app.core.chains import SOL, ChainName
from app.core.money import TokenAmount
from app.ports.chain import Draft, Intent, Terms
from app.ports.errors import Rejected
from app.ports.till import Arrival, Asset, Authorization, Demand, Readiness

_FINALIZED = RpcTransactionConfig(
    encoding=UiTransactionEncoding.Base64,
    commitment=CommitmentLevel.Finalized,
    max_supported_transaction_version=0,
)
_CONFIRMED = CommitmentLevel.Confirmed
_ACCOUNTS = RpcAccountInfoConfig(encoding=UiAccountEncoding.Base64, commitment=_CONFIRMED)
# The payer's signature is checked before; ours is not there yet.
_SIMULATION = RpcSimulateTransactionConfig(
    sig_verify=False, replace_recent_blockhash=False, commitment=_CONFIRMED
)
_CAIP_LETTERS = 32
_OPENING_UNITS = 40_000


class SolanaTill:
    """The till of one cluster."""

    def __init__(self, chain: SolanaChain) -> None:
        """Take the chain; a payment by hash is final when it is finalized."""
        genesis = chain.deployment.genesis_hash
        self._rpc = chain.rpc
        self._mint = Pubkey.from_string(chain.deployment.usdc_mint)
        self._asset = Asset(
            network=f"solana:{genesis[:_CAIP_LETTERS] if genesis else 'sandbox'}",
            legacy_network=None,
            address=chain.deployment.usdc_mint,
        )

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return ChainName.SOLANA

    @property
    def asset(self) -> Asset:
        """USDC on this cluster."""
        return self._asset

    def canonical_hash(self, text: str) -> str | None:
        """Return a signature in its one base58 spelling, None for anything else."""
        try:
            canonical = str(Signature.from_string(text))
        except ValueError:
            return None
        return canonical if canonical == text else None

    def arrival(self, tx_hash: str, recipient: str) -> Arrival | None:
        """Read what a finalized transaction brought to the recipient's own token account. Raises: Unreachable."""
        call = Call(GetTransaction(Signature.from_string(tx_hash), _FINALIZED), _landed_at(tx_hash))
        self._rpc.run(call)
        if call.answer is None:
            return None
        landed, landed_at = call.answer
        account = str(tokens.account_of(Pubkey.from_string(recipient), self._mint))
        change = arrivals.change_of(Holder(recipient, account, str(self._mint)), landed)
        return Arrival(
            tx_hash=tx_hash,
            succeeded=not landed.failed,
            units=max(change.usdc_units, 0),
            payers=_payers(landed, str(self._mint)),
            claims=(self._claim(to_bytes_versioned(landed.transaction.message)),),
            landed_at=landed_at,
            is_final=True,
        )

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of a transaction that its payer has signed. Raises: Rejected."""
        return self._claim(payments.read_signed(payload))

    def read(self, payload: Mapping[str, Any], demand: Demand, *, now: int) -> Authorization:  # noqa: ARG002
        """Read and check a partially signed transaction. Raises: Rejected."""
        partial = payments.read(payload, demand, mint=self._mint)
        claim = self._claim(to_bytes_versioned(partial.message))
        terms: Terms = {
            "transaction": payments.encoded(partial.transaction),
            "fee_lamports": partial.fee_lamports,
        }
        return Authorization(claim, partial.payer, demand.recipient, partial.units, terms)

    def draft(self, authorization: Authorization, *, settler: str) -> Draft:
        """Simulate a payment and draft its completion. Raises: Rejected, Unreachable."""
        text = str(authorization.terms["transaction"])
        fee_units = int(authorization.terms["fee_lamports"] or 0)
        return self._draft(settler, text, fee_units)

    def carried_out(self, authorization: Authorization) -> str | None:  # noqa: ARG002 - only we can submit it
        """Return None: nobody else can complete a transaction whose fee we pay."""
        return None

    def readiness(self, settler: str, recipient: str) -> Readiness:
        """Read the settler's lamports beyond rent, and whether the recipient has its token account.

        Raises: Unreachable.
        """
        account = tokens.account_of(Pubkey.from_string(recipient), self._mint)
        rent = Call(GetMinimumBalanceForRentExemption(0), number)
        found = Call(GetMultipleAccounts([Pubkey.from_string(settler), account], _ACCOUNTS), accounts(2))
        self._rpc.run(rent, found)
        ours, receiving = found.answer.states
        held = tokens.read_account(receiving)
        is_open = held is not None and (held.owner, held.mint) == (Pubkey.from_string(recipient), self._mint)
        spendable = max((ours.lamports if ours else 0) - rent.answer, 0)
        return Readiness(spendable, payments.MOST_FEE_LAMPORTS, recipient_is_open=is_open)

    def opening(self, settler: str, recipient: str) -> Draft | None:
        """Draft the making of the recipient's token account, unless it is there. Raises: Rejected, Unreachable."""
        if self.readiness(settler, recipient).recipient_is_open:
            return None
        latest = Call(GetLatestBlockhash(RpcContextConfig(commitment=_CONFIRMED)), blockhash)
        rent = Call(GetMinimumBalanceForRentExemption(tokens.TOKEN_ACCOUNT_BYTES), number)
        self._rpc.run(latest, rent)
        payer = Pubkey.from_string(settler)
        message = MessageV0.try_compile(
            payer,
            [
                set_compute_unit_limit(_OPENING_UNITS),
                set_compute_unit_price(1),
                tokens.create_account(payer, Pubkey.from_string(recipient), self._mint),
            ],
            [],
            Hash.from_string(latest.answer.blockhash),
        )
        text = payments.encoded(transactions.unsigned(message))
        return self._draft(settler, text, rent.answer + payments.MOST_FEE_LAMPORTS)

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        """Tell whether a key signed a text; the signature is in base58."""
        try:
            return Signature.from_string(signature).verify(Pubkey.from_string(payer), text.encode())
        except ValueError:
            return False

    def _claim(self, message: bytes) -> str:
        return f"auth:{self.name.value}:{payments.claim_of(message)}"

    def _draft(self, settler: str, text: str, fee_units: int) -> Draft:
        latest = Call(GetLatestBlockhash(RpcContextConfig(commitment=_CONFIRMED)), blockhash)
        found = Call(GetMultipleAccounts([Pubkey.from_string(settler)], _ACCOUNTS), accounts(1))
        trying = Call(SimulateVersionedTransaction(payments.decoded(text), _SIMULATION), simulation)
        self._rpc.run(latest, found, trying)
        if trying.answer.error is not None:
            raise Rejected("simulation_failed", details={"revert": refusals.simulated(trying.answer.error)})
        state = found.answer.states[0]
        lamports = state.lamports if state else 0
        if lamports < fee_units:
            raise Rejected("insufficient_gas")
        # The blockhash in it is the payer's, and no newer than the newest: it is void no later. It cannot have
        # landed before this slot, for our signature was missing.
        terms: Terms = {
            "transaction": text,
            "last_valid_block_height": latest.answer.last_valid_block_height,
            "blockhash_slot": latest.answer.slot,
        }
        return Draft(
            intent=Intent(settler, self._asset.address, TokenAmount(0, SOL)),
            fee_units=fee_units,
            native_units=lamports,
            token_units=lamports,
            sequence=None,
            terms=terms,
            as_of=found.answer.slot,
        )


def _landed_at(tx_hash: str) -> Any:
    landed = landed_or_none(tx_hash)

    def read(answer: object) -> tuple[Landed, int] | None:
        found = landed(answer)
        if found is None:
            return None
        time = members(answer).get("blockTime")
        if time is None:
            raise MalformedAnswerError("expected a block's time")
        return found, number(time)

    return read


def _payers(landed: Landed, mint: str) -> frozenset[str]:
    gave: dict[str, int] = {}
    for sign, side in ((1, landed.tokens_before), (-1, landed.tokens_after)):
        for balance in side:
            if balance.mint == mint and balance.owner:
                gave[balance.owner] = gave.get(balance.owner, 0) + sign * balance.units
    return frozenset(owner for owner, units in gave.items() if units > 0)
