"""Reads all that signing needs in one HTTP request, and refuses what would fail for certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.adapters.evm import contracts, fees, refusals
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.fees import FeeTerms, Price
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.transactions import ContractCall, Target, Unsigned, target_of
from app.adapters.evm.wire import block_time, count, fee, fee_history, fee_units
from app.adapters.json_rpc import MalformedAnswerError
from app.core.chains import Token
from app.core.money import TokenAmount
from app.ports.chain import Attempt, Draft, Intent, Terms
from app.ports.errors import Rejected

_FEE_BLOCKS = 5
_TIP_PERCENTILE = 50
# The L1 data fee depends on the size of fields that are not known yet: these have the size of large ones, and
# bytes that do not compress.
_PLACEHOLDER_NONCE = 0xF1E2_D3C4
_PLACEHOLDER_GAS = 0x01A2_B3C4
_PLACEHOLDER_FEE = 0x1F2E_3D4C_5B6A_7988


@dataclass(frozen=True, slots=True)
class _Readings:
    sequence: int
    native_units: int
    token_units: int
    price: Price
    l1_fee_units: int
    gas: int | None
    revert: str | None


class Drafter:
    """Makes the drafts of one chain."""

    def __init__(self, rpc: JsonRpc, deployment: Deployment, native_token: Token) -> None:
        """Take the chain's nodes and contracts."""
        self._rpc = rpc
        self._deployment = deployment
        self._native = native_token

    def draft(self, intent: Intent) -> Draft:
        """Draft a new movement. Raises: Rejected, Unreachable."""
        target = target_of(intent, {}, usdc=self._deployment.usdc)
        usual = fees.TRANSFER_GAS if intent.amount.token == self._native else fees.TOKEN_TRANSFER_GAS
        return self._new(intent, target, usual_gas=usual, simulates=True, terms={})

    def draft_call(self, intent: Intent, call: ContractCall, *, gas: int, simulates: bool) -> Draft:
        """Draft a call that takes the intent's amount from the sender. Raises: Rejected, Unreachable."""
        return self._new(intent, call.target, usual_gas=gas, simulates=simulates, terms=call.as_terms())

    def submission(self, sender: str, call: ContractCall) -> Draft:
        """Draft a call that moves nothing of the sender's but its fee. Raises: Rejected, Unreachable."""
        target = call.target
        intent = Intent(sender, target.to, TokenAmount(target.value_units, self._native))
        readings = self._read(intent, target, estimates=True)
        if readings.revert is not None or readings.gas is None:
            raise Rejected("simulation_failed", details={"revert": readings.revert or ""})
        most = FeeTerms(fees.gas_limit(readings.gas), readings.price, readings.l1_fee_units)
        _require(self._native, "insufficient_gas", readings.native_units, most.most_units)
        return self._affordable(intent, readings, most, call.as_terms())

    def replacement(self, attempt: Attempt) -> Draft:
        """Draft the same movement for the same slot at a higher fee.

        Raises: Rejected("deadline_passed") when it can only fail by now, Rejected, Unreachable.
        """
        previous = FeeTerms.from_terms(attempt.terms)
        call = ContractCall.from_terms(attempt.terms)
        if call is not None and call.valid_until is not None:
            self._assert_in_time(call.valid_until)
        target = target_of(attempt.intent, attempt.terms, usdc=self._deployment.usdc)
        terms = call.as_terms() if call is not None else {}
        return self._again(attempt.intent, target, previous, gas=previous.gas, terms=terms)

    def cancellation(self, attempt: Attempt) -> Draft:
        """Draft an empty transaction to oneself in the attempt's slot. Raises: Rejected, Unreachable."""
        previous = FeeTerms.from_terms(attempt.terms)
        sender = attempt.intent.sender
        nothing = Intent(sender, sender, TokenAmount(0, self._native))
        return self._again(nothing, Target(sender, 0, b""), previous, gas=fees.TRANSFER_GAS, terms={})

    def _new(self, intent: Intent, target: Target, *, usual_gas: int, simulates: bool, terms: Terms) -> Draft:
        readings = self._read(intent, target, estimates=simulates)
        gas = usual_gas if readings.gas is None else fees.gas_limit(readings.gas)
        # Want of money goes first: it makes the simulation fail too, in words that say less.
        fee_terms = FeeTerms(gas, readings.price, readings.l1_fee_units)
        draft = self._affordable(intent, readings, fee_terms, terms)
        if readings.revert is not None:
            raise Rejected("simulation_failed", details={"revert": readings.revert})
        return draft

    def _again(self, intent: Intent, target: Target, previous: FeeTerms, *, gas: int, terms: Terms) -> Draft:
        readings = self._read(intent, target, estimates=False)
        price = fees.replacing(previous.price, readings.price)
        return self._affordable(intent, readings, FeeTerms(gas, price, readings.l1_fee_units), terms)

    def _assert_in_time(self, valid_until: int) -> None:
        """Compare a deadline with the time of the newest block, which no later block is before."""
        latest = Call("eth_getBlockByNumber", ("latest", False), read=block_time)
        self._rpc.run(latest)
        if latest.answer > valid_until:
            raise Rejected("deadline_passed")

    def _affordable(self, intent: Intent, readings: _Readings, most: FeeTerms, terms: Terms) -> Draft:
        amount = intent.amount
        if amount.token == self._native:
            required = amount.units + most.most_units
            _require(self._native, "insufficient_funds", readings.native_units, required)
        else:
            _require(amount.token, "insufficient_funds", readings.token_units, amount.units)
            _require(self._native, "insufficient_gas", readings.native_units, most.most_units)
        return Draft(
            intent=intent,
            fee_units=most.most_units,
            native_units=readings.native_units,
            token_units=readings.native_units if amount.token == self._native else readings.token_units,
            sequence=readings.sequence,
            terms={**most.as_terms(), **terms},
        )

    def _read(self, intent: Intent, target: Target, *, estimates: bool) -> _Readings:
        # The nonce goes first: read after the balances, a transaction mined in between would be counted as
        # mined although the balance still holds its amount.
        deployment = self._deployment
        inner = [
            contracts.eth_balance(deployment.multicall3, intent.sender),
            contracts.balance_of(deployment.usdc, intent.sender),
        ]
        if deployment.gas_price_oracle is not None:
            inner.append(contracts.l1_fee(deployment.gas_price_oracle, self._placeholder(target)))
        sequence = Call("eth_getTransactionCount", (intent.sender, "latest"), read=count)
        figures = Call(
            "eth_call",
            (contracts.aggregate(deployment.multicall3, inner), "latest"),
            read=lambda answer: _figures(contracts.read_numbers(answer, expected=len(inner))),
        )
        history = Call("eth_feeHistory", (hex(_FEE_BLOCKS), "latest", [_TIP_PERCENTILE]), read=fee_history)
        tip = Call("eth_maxPriorityFeePerGas", (), read=fee, tolerates=_anything)
        estimate = Call(
            "eth_estimateGas",
            (_estimated(intent.sender, target), "latest"),
            read=_gas,
            tolerates=refusals.is_revert,
        )
        self._rpc.run(sequence, figures, history, tip, *([estimate] if estimates else []))
        native_units, token_units, l1_fee_units = figures.answer
        suggested = None if tip.error else tip.answer
        return _Readings(
            sequence=sequence.answer,
            native_units=native_units,
            token_units=token_units,
            price=fees.market(history.answer, suggested_tip=suggested),
            l1_fee_units=l1_fee_units,
            gas=estimate.answer if estimates and estimate.error is None else None,
            revert=refusals.revert_text(estimate.error) if estimate.error is not None else None,
        )

    def _placeholder(self, target: Target) -> bytes:
        return Unsigned(
            chain_id=self._deployment.chain_id,
            nonce=_PLACEHOLDER_NONCE,
            max_priority_fee_per_gas=_PLACEHOLDER_FEE,
            max_fee_per_gas=_PLACEHOLDER_FEE,
            gas=_PLACEHOLDER_GAS,
            target=target,
        ).encoded()


def _estimated(sender: str, target: Target) -> Mapping[str, str]:
    asked = {"from": sender, "to": target.to, "value": hex(target.value_units)}
    # `input` is the standard's name; some gateways still read only `data`, so it goes under that one.
    return {**asked, "data": "0x" + target.data.hex()} if target.data else asked


def _figures(numbers: Sequence[int]) -> tuple[int, int, int]:
    """Name native balance, token balance and L1 data fee, which only chains with an oracle have."""
    native_units, token_units, *l1 = numbers
    return native_units, token_units, fee_units(l1[0]) if l1 else 0


def _gas(answer: object) -> int:
    estimate = count(answer)
    if estimate < fees.TRANSFER_GAS:
        raise MalformedAnswerError("expected at least the gas of a transfer")
    return estimate


def _require(token: Token, reason: str, available: int, required: int) -> None:
    if available >= required:
        return
    raise Rejected(
        reason,
        details={
            "currency": token.symbol,
            "available": str(TokenAmount(available, token)),
            "required": str(TokenAmount(required, token)),
            "missing": str(TokenAmount(required - available, token)),
        },
    )


def _anything(_error: RpcError) -> bool:
    return True
