"""The `SwapExchange` port for Ethereum and Base: quoted, encoded, simulated and signed here."""

from __future__ import annotations

from dataclasses import replace

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget, ContractCall
from app.adapters.swaps.uniswap import calls, permits
from app.adapters.swaps.uniswap.calls import UniswapSwap
from app.adapters.swaps.uniswap.permits import PermitFacts
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, USDC
from app.core.money import decimal_string
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from app.ports.vault import Signer

_VALID_SECONDS = 600
"""Long enough to replace a stuck transaction several times, short enough for its price to be meaningful."""
_MAX_CLOCK_AHEAD_SECONDS = 900
"""How far a chain's clock may be ahead of our own."""
_TYPICAL_GAS = 300_000
"""The gas limit of a swap with permit and unwrapping if it cannot be simulated: half more than measured."""
_ATTEMPTS = 2


class UniswapExchange:
    """Uniswap V3 on one EVM chain. Opens no connection before the first call."""

    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self._deployment = chain.deployment

    def quote(self, request: SwapRequest) -> SwapOffer:
        """Quote the pools of all fee tiers at one block, and return the best.

        Raises: Rejected("no_liquidity"), Unreachable.
        """
        inner = [calls.quote(self._deployment, request, tier) for tier in calls.FEE_TIERS]
        answers = self._chain.rpc.ask(contracts.multicall(self._deployment.multicall3, inner))
        quotes = zip(answers, calls.FEE_TIERS, strict=True)
        offered = [(quoted[0], tier) for quoted, tier in quotes if quoted is not None]
        if not offered:
            raise Rejected("no_liquidity")
        output_units, tier = max(offered)
        return SwapOffer(request, output_units, f"Uniswap V3, {decimal_string(tier, 4)} %", tier)

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        """Build and simulate the swap's call; without a signer one that needs a permit is not simulated.

        Raises: Rejected("price_moved", "unsafe_instructions", "simulation_failed", …), Unreachable.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._draft(offer, minimum_units, signer)
            except Rejected as refusal:
                revert = refusal.details.get("revert", "")
                if calls.TOO_LITTLE in revert:
                    raise Rejected("price_moved") from None
                # Another swap of this wallet was mined between two reads, and used the permit's nonce.
                if attempt == _ATTEMPTS or not revert.startswith(calls.PERMIT_REVERT):
                    raise
        raise AssertionError("the loop returns or raises")

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        """Sign a draft with a nonce; its permit's nonce follows those of the earlier swaps. No I/O."""
        swap = _swap_from_terms(draft)
        permit_facts = PermitFacts.from_terms(draft.terms)
        if permit_facts is not None:
            numbered = replace(permit_facts, nonce=permit_facts.nonce + concurrent.earlier_swaps)
            swap = self._with_permit(swap, numbered, signer)
        call = self._call(swap)
        terms = {**draft.terms, **call.as_terms()}
        return self._chain.sign(replace(draft, terms=terms), signer, sequence=sequence)

    def _draft(self, offer: SwapOffer, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        request = offer.request
        permit_facts, block_time = self._permit_facts(request)
        now = int(clock.now().timestamp())
        if block_time > now + _MAX_CLOCK_AHEAD_SECONDS:
            # A deadline that far in the future would be ineffective.
            raise Unreachable("chain_unreachable")
        deadline = max(now, block_time) + _VALID_SECONDS
        swap = UniswapSwap(request, _tier_of(offer), minimum_units, deadline, permit=None)
        if permit_facts is not None and signer is not None:
            swap = self._with_permit(swap, permit_facts, signer)
        is_whole = permit_facts is None or signer is not None
        # Without a permit the call is not what would be signed, but has its length except for the permit.
        target = self._call(swap).target if is_whole else calls.encode_swap(self._deployment, swap)
        intent = TransferIntent(request.owner, request.owner, request.input_amount)
        draft = self._chain.draft_call(intent, ContractCall(target, deadline), gas=_TYPICAL_GAS, simulates=is_whole)
        if is_whole:
            self._assert_exact_effects(draft, target, swap)
        terms = {
            **draft.terms,
            "fee_tier": swap.fee_tier,
            "wanted": request.output_token.symbol,
            "minimum": str(minimum_units),
            "slippage_bps": request.slippage_bps,
            **(permit_facts.as_terms() if permit_facts is not None else {}),
        }
        return replace(draft, terms=terms)

    def _permit_facts(self, request: SwapRequest) -> tuple[PermitFacts | None, int]:
        """Read the token's permit data, if one is needed, and the time of the newest block."""
        inner = [contracts.BLOCK_TIMESTAMP.at(self._deployment.multicall3)]
        if request.input_amount.token == USDC:
            inner += permits.permit_calls(self._deployment, request.owner)
        block_time, *facts = self._chain.rpc.ask(contracts.multicall(self._deployment.multicall3, inner))
        return (PermitFacts(*facts) if facts else None), block_time

    def _assert_exact_effects(self, draft: TransactionDraft, target: CallTarget, swap: UniswapSwap) -> None:
        """Simulate a swap: exact input, enough output, nothing else. Raises: Rejected, Unreachable.

        Where a node cannot simulate, the gas estimate has shown that it does not revert, and the call was decoded.
        """
        deployment, owner = self._deployment, swap.request.owner
        effects = simulation.simulate(self._chain.rpc, deployment, owner, [target], spender=deployment.uniswap_router)
        if effects is None:
            return
        amount, minimum = swap.request.input_amount.units, swap.minimum_units
        if swap.request.input_amount.token == USDC:
            is_right = effects.usdc_units == -amount and effects.native_units + draft.fee_units >= minimum
        else:
            # The refund includes whatever others have left with the router.
            maximum = effects.spender_native_units_before - amount
            is_right = -amount - draft.fee_units <= effects.native_units <= maximum
            is_right = is_right and effects.usdc_units >= minimum
        if not is_right or effects.added_allowance_units > 0:
            raise simulation.unsafe(effects, amount_units=amount, minimum_units=minimum, max_fee_units=draft.fee_units)

    def _with_permit(self, swap: UniswapSwap, permit_facts: PermitFacts, signer: Signer) -> UniswapSwap:
        units = swap.request.input_amount.units
        permit = permits.sign(self._deployment, permit_facts, signer, units=units, deadline=swap.deadline)
        return replace(swap, permit=permit)

    def _call(self, swap: UniswapSwap) -> ContractCall:
        """Return the call of a swap, after decoding it. Raises: Rejected("unsafe_instructions")."""
        target = calls.encode_swap(self._deployment, swap)
        calls.assert_encodes(self._deployment, target, swap)
        return ContractCall(target, swap.deadline)


def _tier_of(offer: SwapOffer) -> int:
    if not isinstance(offer.adapter_data, int):
        raise TypeError("this is not an offer of Uniswap's")
    return offer.adapter_data


def _swap_from_terms(draft: TransactionDraft) -> UniswapSwap:
    """Read the swap from the draft's terms, without its permit."""
    terms, intent = draft.terms, draft.intent
    output_token = TOKENS_BY_SYMBOL[str(terms["wanted"])]
    request = SwapRequest(intent.sender, intent.amount, output_token, int(terms["slippage_bps"] or 0))
    return UniswapSwap(
        request,
        fee_tier=int(terms["fee_tier"] or 0),
        minimum_units=int(str(terms["minimum"])),
        deadline=int(terms["valid_until"] or 0),
        permit=None,
    )
