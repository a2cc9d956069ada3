"""The chains on which signed payments can be settled now: the settler holds gas, and the recipient can receive.

The capacity is read from the chains periodically, not for every request for the terms.
"""

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd
from app.db.unit_of_work import unit_of_work
from app.payments import treasury
from app.payments.models import SettlementGasReserve
from app.ports.errors import PortError, Rejected
from app.ports.facilitator import SettlementCapacity
from app.state import app_state
from app.wallets.core import network_fees

_log = structlog.get_logger(__name__)
_CACHE_TTL = timedelta(seconds=15)
# Some submissions may be in flight already.
_MIN_SUBMISSIONS = 5
# Payments that were accepted must be settled: the last gas is theirs. A sponsored transfer costs about two of them.
_MIN_SUBMISSIONS_FOR_SPONSORING = 20
# Fees rise quickly on Ethereum; elsewhere a price that covers the highest possible fee is enough.
_ETHEREUM_FEE_MULTIPLE = 20
NOT_OFFERED = "chain_not_offered"
FEE_TOO_HIGH = "network_fee_too_high"


class SettlementCapacityCache:
    """The settlement capacity of each chain, cached per process."""

    def __init__(self) -> None:
        self._cached: dict[ChainName, tuple[datetime, SettlementCapacity | None]] = {}
        self._locks = {name: threading.Lock() for name in ChainName}

    def get(self, chain: ChainName) -> SettlementCapacity | None:
        """Return the capacity as of some seconds ago at most; None while the chain cannot be read."""
        cached, lock = self._cached.get(chain), self._locks[chain]
        is_fresh = cached is not None and clock.now() - cached[0] < _CACHE_TTL
        # One thread reads the chain; the others use the stale value, if there is one.
        if not is_fresh and lock.acquire(blocking=cached is None):
            try:
                if self._cached.get(chain) is cached:
                    self._cached[chain] = (clock.now(), read_capacity(chain))
                cached = self._cached[chain]
            finally:
                lock.release()
        return cached[1] if cached else None

    def clear(self) -> None:
        self._cached.clear()


def submission_nanos(chain: ChainName, price_nanos: int, fee_units: int) -> int:
    """Return the dollar value of the fee of a submission that settles a payment of this price.

    Raises: Rejected if the price does not cover it, it exceeds the operator's cap, or `refusal_reason` has a reason.
    """
    nanos = fee_nanos(chain, fee_units)
    if nanos is None or nanos > min(price_nanos, nanos_from_usd(app_state().settings.max_network_fee_usd)):
        raise Rejected(FEE_TOO_HIGH)
    if refusal := refusal_reason(chain, price_nanos):
        raise Rejected(refusal)
    return nanos


def refusal_reason(chain: ChainName, price_nanos: int) -> str | None:
    """Return why a signed payment of this price cannot be settled on a chain at the moment; None if it can."""
    least_nanos = least_price_nanos(chain)
    return NOT_OFFERED if least_nanos is None else FEE_TOO_HIGH if price_nanos < least_nanos else None


def least_price_nanos(chain: ChainName) -> int | None:
    """Return the lowest price that covers the cost of settling a payment on a chain now; None if none is settled."""
    state = app_state().part(SettlementCapacityCache).get(chain)
    if state is None or obstacle(state) is not None:
        return None
    on_ethereum = chain is ChainName.ETHEREUM
    return fee_nanos(chain, _ETHEREUM_FEE_MULTIPLE * state.fee_units if on_ethereum else state.max_fee_units)


def fee_nanos(chain: ChainName, fee_units: int) -> int | None:
    """Return the dollar value of a network fee; None if no price is known. Reads the network."""
    return network_fees.usd_value_nanos(TokenAmount(fee_units, native(chain)))


def obstacle(state: SettlementCapacity | None) -> str | None:
    """Return why signed payments are not offered; None if they are."""
    if state is None:
        return "the chain cannot be read"
    if not covers_gas(state):
        return "the settlement key lacks gas"
    return None if state.recipient_can_receive else "the recipient has no USDC account yet"


def covers_gas(state: SettlementCapacity) -> bool:
    return state.native_units >= _MIN_SUBMISSIONS * state.fee_units


def reserve_for_payments(chain: ChainName, sold_units: int) -> int | None:
    """Return the gas that sponsoring must leave the settler; None if it has less, after it sold some."""
    state = app_state().part(SettlementCapacityCache).get(chain)
    if state is None:
        return None
    reserve_units = _MIN_SUBMISSIONS_FOR_SPONSORING * max(state.fee_units, 1)
    return reserve_units if state.native_units - sold_units >= reserve_units else None


def store_gas_reserve(chain: ChainName, state: SettlementCapacity, treasury_units: int | None = None) -> None:
    """Store the gas reserve of a chain, for readers that must not wait for the chain; opens its own unit.

    Without `treasury_units`, those that were read before are kept.
    """
    read = {"submissions_left": submissions_of(state), "read_at": clock.now()}
    read |= {} if treasury_units is None else {"treasury_units": treasury_units}
    with unit_of_work() as session:
        session.merge(SettlementGasReserve(chain=chain.value, **read))


def reserves(session: Session) -> Sequence[SettlementGasReserve]:
    """Return what the service's wallets held when they were last checked, by chain."""
    return session.scalars(select(SettlementGasReserve).order_by(SettlementGasReserve.chain)).all()


def submissions_left() -> dict[ChainName, int]:
    """Return how many signed payments the first settlement key can still submit, by chain that can be read."""
    if not treasury.has_wallets():
        return {}
    state = app_state()
    capacities = {chain: state.part(SettlementCapacityCache).get(chain) for chain in state.ports.facilitators}
    return {chain: submissions_of(capacity) for chain, capacity in capacities.items() if capacity is not None}


def submissions_of(state: SettlementCapacity) -> int:
    return state.native_units // max(state.fee_units, 1)


def read_capacity(chain: ChainName, settler: str | None = None) -> SettlementCapacity | None:
    """Read what a settlement key, or the first one, can submit on a chain; None while that cannot be read."""
    try:
        settler, recipient = settler or treasury.settler(chain), treasury.recipient(chain)
        return app_state().ports.facilitators[chain].settlement_capacity(settler, recipient)
    except PortError as error:
        _log.warning("settlement_capacity_unavailable", chain=chain, reason=error.reason)
        return None
