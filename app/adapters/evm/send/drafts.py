"""Drafts: reads everything that signing needs in one HTTP request, and refuses what would fail."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from web3.types import TxParams, Wei

from app.adapters.evm import calls
from app.adapters.evm.calls import call, count, fee
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.foreign_tokens import CONTRACT_TERM, EvmTokenReader
from app.adapters.evm.send import refusals, transactions
from app.adapters.evm.send.transactions import CallTarget, FeeTerms, GasPrice, encode, fields_of, target_of
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.core.money import TokenAmount
from app.ports.chain import CONTRACT, Shortage, StoredTransaction, Terms, TransactionDraft, TransferIntent
from app.ports.errors import Rejected

# The L1 data fee depends on the size of fields that are not known yet: these have the size of large ones, and bytes
# that do not compress.
_PLACEHOLDER_NONCE = 0xF1E2_D3C4
_PLACEHOLDER_PRICE = 0x1F2E_3D4C_5B6A_7988
_PLACEHOLDER_FEE = FeeTerms(0x01A2_B3C4, GasPrice(_PLACEHOLDER_PRICE, _PLACEHOLDER_PRICE), l1_fee_units=0)


@dataclass(frozen=True, slots=True)
class EvmDraftData:
    """What a draft is made of; without an estimate, `gas` is None and `revert` says why if the call reverts."""

    sequence: int
    native_units: int
    token_units: int
    price: GasPrice
    l1_fee_units: int
    gas: int | None
    revert: str | None


class EvmDrafter(EvmTokenReader):
    def draft(self, intent: TransferIntent) -> TransactionDraft:
        target = target_of(intent, {}, usdc=self.deployment.usdc)
        usual = transactions.TRANSFER_GAS if intent.amount.token == self.native else transactions.TOKEN_TRANSFER_GAS
        code = calls.has_code(intent.recipient)
        held = None if intent.amount.token.contract is None else self.movable_units(intent)
        drafted = self.draft_call(intent, target, gas=usual, simulates=True, terms={}, also=[code])
        token_units = drafted.token_units if held is None else held
        return replace(drafted, token_units=token_units, recipient_is=CONTRACT if code.result else None)

    def draft_call(
        self,
        intent: TransferIntent,
        target: CallTarget,
        *,
        gas: int,
        simulates: bool,
        terms: Terms | None = None,
        next_gas: int = 0,
        also: Sequence[RpcCall[Any]] = (),
    ) -> TransactionDraft:
        """Draft a call whose sender must also afford a next one with its gas; without an estimate, it gets `gas`.

        The terms are those of the call, unless others are given. Raises: Rejected, Unreachable.
        """
        readings = self.read_costs(intent.sender, target, estimates=simulates, also=also)
        gas = gas if readings.gas is None else transactions.gas_limit(readings.gas)
        # Insufficient funds are checked first: they make the simulation fail too, with a less specific error.
        fee_terms = FeeTerms(gas, readings.price, readings.l1_fee_units)
        if next_gas:
            # The data of the next call may be larger.
            both = FeeTerms(gas + next_gas, readings.price, 3 * readings.l1_fee_units)
            Shortage.check(self.native, "insufficient_gas", readings.native_units, both.max_units)
        draft = self.affordable(intent, readings, fee_terms, target.as_terms() if terms is None else terms)
        if readings.revert is not None:
            raise Rejected("simulation_failed", details={"revert": readings.revert})
        return draft

    def draft_submission(self, sender: str, target: CallTarget, *, most_gas: int | None = None) -> TransactionDraft:
        """Draft a call that costs the sender only its fee.

        With `most_gas`, it is simulated with that much, at the price that will be signed: foreign code that it runs
        can see both.

        Raises: Rejected, Unreachable.
        """
        intent = TransferIntent(sender, target.to, TokenAmount(target.value_units, self.native))
        readings = self.read_costs(intent.sender, target, estimates=most_gas is None)
        if most_gas is not None:
            readings = self._simulate_priced(intent.sender, target, readings, most_gas)
        # A sender that can pay for no transaction at all makes the simulation fail, too.
        least_fee_units = transactions.TRANSFER_GAS * readings.price.max_fee
        Shortage.check(self.native, "insufficient_gas", readings.native_units, least_fee_units)
        if readings.revert is not None or readings.gas is None:
            raise Rejected("simulation_failed", details={"revert": readings.revert or ""})
        max_fee_terms = FeeTerms(transactions.gas_limit(readings.gas), readings.price, readings.l1_fee_units)
        Shortage.check(self.native, "insufficient_gas", readings.native_units, max_fee_terms.max_units)
        return self.affordable(intent, readings, max_fee_terms, target.as_terms())

    def draft_replacement(self, attempt: StoredTransaction) -> TransactionDraft:
        """Draft it with a higher fee. Raises: Rejected (`deadline_passed`: it can only fail), Unreachable."""
        previous = FeeTerms.from_terms(attempt.terms)
        signed = CallTarget.from_terms(attempt.terms)
        deadline = None if signed is None else signed.valid_until
        # No later block can be before the newest one.
        if deadline is not None and self.rpc.ask(calls.header("latest")).time > deadline:
            raise Rejected("deadline_passed")
        target = target_of(attempt.intent, attempt.terms, usdc=self.deployment.usdc)
        terms = signed.as_terms() if signed is not None else {}
        return self._redraft(attempt.intent, target, previous, gas=previous.gas, terms=terms)

    def draft_cancellation(self, attempt: StoredTransaction) -> TransactionDraft:
        previous = FeeTerms.from_terms(attempt.terms)
        sender = attempt.intent.sender
        no_amount = TransferIntent(sender, sender, TokenAmount(0, self.native))
        return self._redraft(no_amount, CallTarget(sender, 0, b""), previous, gas=transactions.TRANSFER_GAS, terms={})

    def _redraft(
        self, intent: TransferIntent, target: CallTarget, previous: FeeTerms, *, gas: int, terms: Terms
    ) -> TransactionDraft:
        readings = self.read_costs(intent.sender, target, estimates=False)
        price = transactions.replacement_price(previous.price, readings.price)
        return self.affordable(intent, readings, FeeTerms(gas, price, readings.l1_fee_units), terms)

    def affordable(
        self, intent: TransferIntent, readings: EvmDraftData, max_fee_terms: FeeTerms, terms: Terms
    ) -> TransactionDraft:
        amount = intent.amount
        if amount.token == self.native:
            required = amount.units + max_fee_terms.max_units
            Shortage.check(self.native, "insufficient_funds", readings.native_units, required)
        else:
            if amount.token.contract is None:
                Shortage.check(amount.token, "insufficient_funds", readings.token_units, amount.units)
            else:
                terms = {**terms, CONTRACT_TERM: amount.token.contract}
            Shortage.check(self.native, "insufficient_gas", readings.native_units, max_fee_terms.max_units)
        return TransactionDraft(
            intent=intent, fee_units=max_fee_terms.max_units, native_units=readings.native_units,
            token_units=readings.native_units if amount.token == self.native else readings.token_units,
            sequence=readings.sequence, terms={**max_fee_terms.as_terms(), **terms},
        )  # fmt: skip

    def read_costs(
        self, sender: str, target: CallTarget, *, estimates: bool, also: Sequence[RpcCall[Any]] = ()
    ) -> EvmDraftData:
        """Read what a call needs, and more, in one HTTP request. Raises: Unreachable."""
        # The nonce is read first: if it were read after the balances, a transaction mined in between would count as
        # mined although the balance still includes its amount.
        deployment = self.deployment
        inner = [contracts.ETH_BALANCE.at(MULTICALL3, sender), contracts.BALANCE_OF.at(deployment.usdc, sender)]
        if deployment.gas_price_oracle is not None:
            # As large as possible, and a few bytes too many: the oracle adds a signature itself.
            placeholder = fields_of(deployment.chain_id, _PLACEHOLDER_NONCE, _PLACEHOLDER_FEE, target)
            inner.append(contracts.L1_FEE.at(deployment.gas_price_oracle, encode(placeholder, 1, 1, 1)))
        sequence = calls.nonce(sender)
        figures = contracts.multicall(inner, read=_balances_and_l1_fee)
        # As many blocks as geth's own suggestion is made of.
        history = calls.fee_history(blocks=20, percentile=50)
        tip = call(lambda eth: eth.max_priority_fee, fee, tolerates=accept_any_error)
        estimate = _estimate(_estimated(sender, target))
        self.rpc.run(sequence, figures, history, tip, *([estimate] if estimates else []), *also)
        native_units, token_units, l1_fee_units = figures.result
        price = transactions.market_price(
            history.result, suggested_tip=tip.result_or_none, is_rollup=deployment.gas_price_oracle is not None
        )
        return EvmDraftData(
            sequence=sequence.result, native_units=native_units, token_units=token_units, price=price,
            l1_fee_units=l1_fee_units, gas=estimate.result_or_none,
            revert=refusals.revert_text(estimate.error) if estimate.error is not None else None,
        )  # fmt: skip

    def _simulate_priced(self, sender: str, target: CallTarget, readings: EvmDraftData, most_gas: int) -> EvmDraftData:
        price = readings.price
        # Nodes refuse to simulate what the sender could not pay for.
        Shortage.check(self.native, "insufficient_gas", readings.native_units, most_gas * price.max_fee)
        prices: TxParams = {"maxFeePerGas": Wei(price.max_fee), "maxPriorityFeePerGas": Wei(price.tip)}
        priced: TxParams = {**_estimated(sender, target), **prices}
        estimate = _estimate(priced)
        bounded = calls.contract_call({**priced, "gas": most_gas}, bytes, tolerates=refusals.is_revert)
        self.rpc.run(estimate, bounded)
        if estimate.error is not None:
            return replace(readings, revert=refusals.revert_text(estimate.error))
        # More gas than that is refused for its cost.
        fails = bounded.error is not None and transactions.gas_limit(estimate.result) <= most_gas
        return replace(readings, gas=estimate.result, revert="execution reverted" if fails else None)


def _estimated(sender: str, target: CallTarget) -> TxParams:
    fields: TxParams = {"from": sender, "to": target.to, "value": Wei(target.value_units)}
    # `input` is the standard's name; some gateways still read only `data`, so that name is used.
    return {**fields, "data": target.data} if target.data else fields


def _balances_and_l1_fee(numbers: Sequence[int]) -> tuple[int, int, int]:
    """Return native balance, token balance and the L1 data fee, which only chains with an oracle have."""
    native_units, token_units, *l1 = numbers
    return native_units, token_units, fee(l1[0]) if l1 else 0


def _estimate(transaction: TxParams) -> RpcCall[int]:
    return call(lambda eth: eth.estimate_gas(transaction, "latest"), _gas, tolerates=refusals.is_revert)


def _gas(estimate: int) -> int:
    if count(estimate) < transactions.TRANSFER_GAS:
        raise ValueError("expected at least the gas of a transfer")
    return estimate
