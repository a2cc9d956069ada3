"""The `Exchange` port for Ethereum and Base: quoted, written, simulated and signed here."""

from __future__ import annotations

from dataclasses import replace

from app.adapters.evm import contracts
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call
from app.adapters.evm.transactions import ContractCall
from app.adapters.uniswap import calls, permits, simulation
from app.adapters.uniswap.calls import Swap
from app.adapters.uniswap.permits import PermitFacts
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, USDC
from app.core.money import decimal_string
from app.ports.chain import Draft, Intent, Signed
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import Ask, Beside, Offer
from app.ports.vault import Signer

_VALID_SECONDS = 600
"""Long enough for a stuck transaction to be replaced some times, short enough for its price to mean something."""
_MOST_AHEAD_SECONDS = 900
"""How far a chain's clock may be ahead of ours."""
_USUAL_GAS = 300_000
"""What a swap with permit and unwrapping is given where it cannot be simulated: half more than it was measured at."""
_ATTEMPTS = 2


class UniswapExchange:
    """Uniswap V3 on one EVM chain. Opens no connection before the first verb."""

    def __init__(self, chain: EvmChain) -> None:
        """Take the chain, through whose nodes everything is read."""
        self._chain = chain
        self._deployment = chain.deployment

    def quote(self, ask: Ask) -> Offer:
        """Ask the pools of all fee tiers at one block, and take the best.

        Raises: Rejected("no_liquidity"), Unreachable.
        """
        inner = [calls.quote(self._deployment, ask, tier) for tier in calls.FEE_TIERS]
        answers = Call(
            "eth_call",
            (contracts.aggregate(self._deployment.multicall3, inner), "latest"),
            read=lambda answer: [
                calls.read_quote(returned)
                for returned in contracts.read_aggregate(answer, expected=len(inner))
            ],
        )
        self._chain.rpc.run(answers)
        offered = [
            (units, tier)
            for units, tier in zip(answers.answer, calls.FEE_TIERS, strict=True)
            if units is not None
        ]
        if not offered:
            raise Rejected("no_liquidity")
        output_units, tier = max(offered)
        return Offer(ask, output_units, f"Uniswap V3, {decimal_string(tier, 4)} %", tier)

    def draft(self, offer: Offer, *, minimum_units: int, signer: Signer | None) -> Draft:
        """Write the swap's one call and simulate it; without a signer one that needs a permit is not simulated.

        Raises: Rejected("price_moved", "unsafe_instructions", "simulation_failed", …), Unreachable.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._draft(offer, minimum_units, signer)
            except Rejected as refusal:
                revert = refusal.details.get("revert", "")
                if calls.TOO_LITTLE in revert:
                    raise Rejected("price_moved") from None
                # Another swap of this wallet was mined between two questions, and used the permit's number.
                if attempt == _ATTEMPTS or not revert.startswith(calls.PERMIT_REVERT):
                    raise
        raise AssertionError("the loop returns or raises")

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None, beside: Beside) -> Signed:
        """Sign a draft for a nonce; its permit is numbered after those of the swaps ahead. Pure."""
        swap = _swap_in(draft)
        facts = PermitFacts.from_terms(draft.terms)
        if facts is not None:
            numbered = replace(facts, nonce=facts.nonce + beside.swaps)
            swap = self._permitted(swap, numbered, signer)
        call = self._call(swap)
        terms = {**draft.terms, **call.as_terms()}
        return self._chain.sign(replace(draft, terms=terms), signer, sequence=sequence)

    def _draft(self, offer: Offer, minimum_units: int, signer: Signer | None) -> Draft:
        ask = offer.ask
        facts, block_time = self._facts(ask)
        now = int(clock.now().timestamp())
        if block_time > now + _MOST_AHEAD_SECONDS:
            # A deadline that far away would be none.
            raise Unreachable("chain_unreachable")
        deadline = max(now, block_time) + _VALID_SECONDS
        swap = Swap(ask, _tier_of(offer), minimum_units, deadline, permit=None)
        if facts is not None and signer is not None:
            swap = self._permitted(swap, facts, signer)
        is_whole = facts is None or signer is not None
        # Without a permit the call is not what would be signed, but as long but for the permit.
        target = self._call(swap).target if is_whole else calls.write(self._deployment, swap)
        intent = Intent(ask.owner, ask.owner, ask.given)
        draft = self._chain.draft_call(
            intent, ContractCall(target, deadline), gas=_USUAL_GAS, simulates=is_whole
        )
        if is_whole:
            simulation.assert_only(self._chain, draft, target, swap)
        terms = {
            **draft.terms,
            "fee_tier": swap.fee_tier,
            "wanted": ask.wanted.symbol,
            "minimum": str(minimum_units),
            "slippage_bps": ask.slippage_bps,
            **(facts.as_terms() if facts is not None else {}),
        }
        return replace(draft, terms=terms)

    def _facts(self, ask: Ask) -> tuple[PermitFacts | None, int]:
        """Read the permit's side of the token, where one is needed, and the time of the newest block."""
        inner = [contracts.block_timestamp(self._deployment.multicall3)]
        if ask.given.token == USDC:
            inner += permits.questions(self._deployment, ask.owner)

        def read(answer: object) -> tuple[PermitFacts | None, int]:
            block_time, *rest = contracts.read_aggregate(answer, expected=len(inner))
            return (permits.read(tuple(rest)) if rest else None), contracts.number(block_time)

        call = Call(
            "eth_call", (contracts.aggregate(self._deployment.multicall3, inner), "latest"), read=read
        )
        self._chain.rpc.run(call)
        return call.answer

    def _permitted(self, swap: Swap, facts: PermitFacts, signer: Signer) -> Swap:
        units = swap.ask.given.units
        permit = permits.sign(self._deployment, facts, signer, units=units, deadline=swap.deadline)
        return replace(swap, permit=permit)

    def _call(self, swap: Swap) -> ContractCall:
        """Return the call of a swap, read back. Raises: Rejected("unsafe_instructions")."""
        target = calls.write(self._deployment, swap)
        calls.assert_says(self._deployment, target, swap)
        return ContractCall(target, swap.deadline)


def _tier_of(offer: Offer) -> int:
    if not isinstance(offer.facts, int):
        raise TypeError("this is not an offer of Uniswap's")
    return offer.facts


def _swap_in(draft: Draft) -> Swap:
    """Read back what `_draft` wrote among the terms, without its permit."""
    terms, intent = draft.terms, draft.intent
    wanted = TOKENS_BY_SYMBOL[str(terms["wanted"])]
    ask = Ask(intent.sender, intent.amount, wanted, int(terms["slippage_bps"] or 0))
    return Swap(
        ask,
        fee_tier=int(terms["fee_tier"] or 0),
        minimum_units=int(str(terms["minimum"])),
        deadline=int(terms["valid_until"] or 0),
        permit=None,
    )
