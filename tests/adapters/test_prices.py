"""Token prices: the order of the sources, which prices are accepted, and for how long."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.adapters.prices import CoinGeckoPrices, JupiterPrices, MarketPriceFeed, PriceSource, nanos_from_json
from app.core.chains import ETH, SOL, USDC, Token
from app.db.unit_of_work import UnitError, read_only_unit
from app.extensions import db
from app.ports.errors import Rejected, Unreachable
from app.ports.services import PriceFeed, PriceRange
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve, unused_url
from tests.support.waiting import wait_until

_USD = 10**9
_SOL_MINT = "So11111111111111111111111111111111111111112"
_ETH_MINT = "7vfCXTUXx5WJV5JADk17DUJ4ksgau7utNKj4b963voxs"


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _Source:
    """A source with prices set by the test, which counts its calls."""

    def __init__(self, prices: Mapping[Token, int] | Exception) -> None:
        self.prices = prices
        self.reads = 0

    def read(self) -> Mapping[Token, int]:
        self.reads += 1
        if isinstance(self.prices, Exception):
            raise self.prices
        return self.prices


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


def _market(onchain: list[PriceSource], fallback: list[PriceSource], clock: _Clock, **overrides: int) -> PriceFeed:
    tokens = {"ETH": ETH, "SOL": SOL, "USDC": USDC}
    wanted = {tokens[symbol]: nanos for symbol, nanos in overrides.items()}
    return MarketPriceFeed(onchain, fallback, overrides=wanted, clock=clock)


def test_usdc_is_always_one_dollar(clock: _Clock) -> None:
    source = _Source({USDC: 2 * _USD})
    market = _market([source], [], clock, USDC=3 * _USD)
    assert market.nanos_per_token(USDC) == _USD
    assert source.reads == 0


def test_an_override_replaces_every_source(clock: _Clock) -> None:
    source = _Source({ETH: 2000 * _USD, SOL: 150 * _USD})
    market = _market([source], [], clock, ETH=3000 * _USD)
    assert market.nanos_per_token(ETH) == 3000 * _USD
    assert source.reads == 0
    assert market.nanos_per_token(SOL) == 150 * _USD


def test_the_higher_of_two_prices_values_outputs_and_the_lower_inputs(clock: _Clock) -> None:
    low, high = _Source({ETH: 2999 * _USD, SOL: 151}), _Source({ETH: 3001 * _USD, SOL: 150})
    for order in ([low, high], [high, low]):
        market = _market(list(order), [], clock)
        assert (market.nanos_per_token(ETH), market.nanos_per_token(SOL)) == (3001 * _USD, 151)
        assert market.independent_range(ETH) == PriceRange(2999 * _USD, 3001 * _USD)
        assert market.independent_range(SOL) == PriceRange(150, 151)
        assert market.independent_range(USDC) == PriceRange(_USD, _USD)


def test_independent_prices_exclude_exchanges(clock: _Clock) -> None:
    onchain, provider, trader = _Source({ETH: 30}), _Source({}), _Source({ETH: 1, SOL: 15})
    market = MarketPriceFeed([onchain], [provider], exchanges=[trader], overrides={}, clock=clock)
    assert (market.nanos_per_token(SOL), market.independent_range(SOL)) == (15, None)
    assert market.independent_range(ETH) == PriceRange(30, 30)
    # Another source's price within the hour takes precedence over its present one.
    provider.prices = {SOL: 14}
    clock.now += 60
    assert (market.nanos_per_token(SOL), market.independent_range(SOL)) == (14, PriceRange(14, 14))
    provider.prices = Unreachable("away")
    trader.prices = {SOL: 99}
    clock.now += 60
    assert (market.nanos_per_token(SOL), market.independent_range(SOL)) == (99, PriceRange(14, 14))
    clock.now += 3600
    assert (market.nanos_per_token(SOL), market.independent_range(SOL)) == (99, None)


def test_fallback_sources_are_used_only_for_missing_prices(clock: _Clock) -> None:
    onchain, first, second = _Source({ETH: 30}), _Source({SOL: 15}), _Source({SOL: 14, ETH: 1})
    market = _market([onchain], [first, second], clock)
    assert (market.nanos_per_token(ETH), market.nanos_per_token(SOL)) == (30, 15)
    assert (first.reads, second.reads) == (1, 0)
    onchain.prices = {ETH: 31, SOL: 16}
    clock.now += 5
    assert market.nanos_per_token(SOL) == 16
    assert (first.reads, second.reads) == (1, 0)


@pytest.mark.parametrize("failure", [Unreachable("x"), Rejected("x")])
def test_a_failing_source_is_replaced_by_the_next_and_logged_once(clock: _Clock, failure: Exception) -> None:
    broken, fallback = _Source(failure), _Source({ETH: 30, SOL: 15})
    market = _market([broken], [fallback], clock)
    with capture_logs() as logs:
        for _ in range(5):
            assert market.nanos_per_token(ETH) == 30
            clock.now += 5
        broken.prices = {ETH: 31, SOL: 15}
        assert market.nanos_per_token(ETH) == 31
    assert [entry["event"] for entry in logs] == ["price_source_failed", "price_source_recovered"]


def test_public_services_are_called_once_a_minute_even_while_failing(clock: _Clock) -> None:
    fallback, broken = _Source({ETH: 30}), _Source(Unreachable("http_429"))
    market = _market([], [fallback, broken], clock)
    for _ in range(59):
        assert market.nanos_per_token(ETH) == 30
        assert market.nanos_per_token(SOL) is None
        clock.now += 1
    assert (fallback.reads, broken.reads) == (1, 1)
    clock.now += 1
    market.nanos_per_token(ETH)
    assert (fallback.reads, broken.reads) == (2, 2)


def test_the_last_known_price_is_used_for_an_hour(clock: _Clock) -> None:
    source = _Source({ETH: 30, SOL: 15})
    market = _market([source], [], clock)
    assert market.nanos_per_token(ETH) == 30
    source.prices = Unreachable("no_answer")
    clock.now += 3599
    assert market.nanos_per_token(ETH) == 30
    clock.now += 1
    assert market.nanos_per_token(ETH) is None
    assert market.nanos_per_token(SOL) is None


def test_a_missing_price_is_read_soon_after_its_source_recovers(clock: _Clock) -> None:
    source = _Source(Unreachable("no_answer"))
    market = _market([source], [], clock)
    assert market.nanos_per_token(ETH) is None
    source.prices = {ETH: 30, SOL: 15}
    clock.now += 1
    assert market.nanos_per_token(ETH) == 30


def test_without_sources_there_is_no_price_and_no_error(clock: _Clock) -> None:
    assert _market([], [], clock).nanos_per_token(ETH) is None


@pytest.mark.parametrize("lie", [0, -1, 10**18, True, 3000.5, float("nan"), None, "3000", Decimal(3000)])
def test_an_implausible_price_is_ignored_with_a_warning(clock: _Clock, lie: object) -> None:
    liar = _Source({ETH: lie, SOL: 15})  # type: ignore[dict-item]
    market = _market([liar], [_Source({ETH: 30})], clock)
    with capture_logs() as logs:
        assert market.nanos_per_token(ETH) == 30
        assert market.nanos_per_token(SOL) == 15
    assert [(entry["event"], entry["token"]) for entry in logs] == [("price_ignored", "ETH")]


def test_a_price_is_read_again_after_five_seconds(clock: _Clock) -> None:
    source = _Source({ETH: 30, SOL: 15})
    market = _market([source], [], clock)
    for _ in range(3):
        market.nanos_per_token(ETH)
        market.nanos_per_token(SOL)
    clock.now += 4.9
    market.nanos_per_token(ETH)
    assert source.reads == 1
    clock.now += 0.1
    market.nanos_per_token(ETH)
    assert source.reads == 2


class _SlowSource(_Source):
    def __init__(self, prices: Mapping[Token, int]) -> None:
        super().__init__(prices)
        self.go_on = threading.Event()

    def read(self) -> Mapping[Token, int]:
        prices = super().read()
        assert self.go_on.wait(20)
        return prices


def test_concurrent_threads_cause_one_read(clock: _Clock) -> None:
    source = _SlowSource({ETH: 30, SOL: 15})
    market = _market([source], [], clock)
    answers: list[int | None] = []
    threads = [threading.Thread(target=lambda: answers.append(market.nanos_per_token(ETH))) for _ in range(32)]
    for thread in threads:
        thread.start()
    wait_until(lambda: source.reads, what="one thread reads")
    assert answers == []
    source.go_on.set()
    for thread in threads:
        thread.join(20)
    assert answers == [30] * 32
    assert source.reads == 1


def test_a_slow_source_delays_no_caller_with_a_recent_price(clock: _Clock) -> None:
    source = _SlowSource({ETH: 30, SOL: 15})
    source.go_on.set()
    market = _market([source], [], clock)
    assert market.nanos_per_token(ETH) == 30
    source.go_on.clear()
    clock.now += 6
    reader = threading.Thread(target=market.nanos_per_token, args=[ETH])
    reader.start()
    wait_until(lambda: source.reads == 2, what="one thread reads")
    began = time.monotonic()
    assert [market.nanos_per_token(ETH) for _ in range(20)] == [30] * 20
    assert time.monotonic() - began < 1
    source.go_on.set()
    reader.join(20)


def test_prices_are_not_read_inside_a_unit_of_work(clock: _Clock, tmp_path: Path) -> None:
    app = Flask("a service with a database")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / 'database'}"
    db.init_app(app)
    market = _market([_Source({ETH: 30})], [], clock)
    with app.app_context(), read_only_unit(), pytest.raises(UnitError):
        market.nanos_per_token(ETH)


@pytest.mark.parametrize(
    ("number", "nanos"),
    [
        ("3123.4567", 3_123_456_700_000),
        ("3000", 3000 * _USD),
        ("3e3", 3000 * _USD),
        ("0.0000000001", 1),
        ("1e-999999", 1),
        ("147.4800000000000000000000000000000000000001", 147_480_000_001),
        ("999999999.9999999999", 10**18),
        ("1000000000", None),
        ("1e400", None),
        ("1e999999", None),
        ("1" * 4000, None),
        ("0", None),
        ("-1", None),
        ("true", None),
        ("null", None),
        ('"3000"', None),
        ("[]", None),
    ],
)
def test_a_json_number_becomes_nanos_exactly_and_is_rounded_up(number: str, nanos: int | None) -> None:
    value = json.loads(number, parse_float=Decimal)
    if nanos is None:
        with pytest.raises(ValueError, match="not a plausible price"):
            nanos_from_json(value)
    else:
        assert nanos_from_json(value) == nanos


@pytest.mark.parametrize("value", [*map(Decimal, ("NaN", "sNaN", "Infinity", "-Infinity")), 1.5])
def test_a_non_number_is_not_a_price(value: object) -> None:
    with pytest.raises(ValueError, match="not a plausible price"):
        nanos_from_json(value)


@given(st.decimals(min_value=Decimal("1e-12"), max_value=Decimal(10**8), allow_nan=False))
def test_rounding_adds_less_than_a_nano_and_never_subtracts(usd: Decimal) -> None:
    assert 0 <= Decimal(nanos_from_json(usd)).scaleb(-9) - usd < Decimal("1e-9")


def _coingecko(reply: Reply | None, *, path: str = "") -> tuple[Mapping[Token, int], RecordingServer]:
    with serve(lambda _asked: reply or Reply(None)) as server:
        return CoinGeckoPrices(f"{server.url}{path}/", api_key="canary-key").read(), server


def _coins(*, usd: str = "3123.4567", age: int = 0, made_at: str | None = None, solana: str = "null") -> Reply:
    made = made_at or str(int(time.time()) - age)
    ethereum = f'{{"usd": {usd}, "last_updated_at": {made}}}'
    return Reply(f'{{"ethereum": {ethereum}, "solana": {solana}}}'.encode())


def test_coingecko_gets_the_key_in_a_header_only() -> None:
    prices, server = _coingecko(
        _coins(solana=f'{{"usd": 187.12, "last_updated_at": {int(time.time())}}}'), path="/api/v3"
    )
    assert prices == {ETH: 3_123_456_700_000, SOL: 187_120_000_000}
    (asked,) = server.asked
    assert asked.target.startswith("/api/v3/simple/price?ids=ethereum%2Csolana&vs_currencies=usd")
    assert "include_last_updated_at=true" in asked.target
    assert asked.headers["x-cg-demo-api-key"] == "canary-key"
    assert "canary-key" not in asked.target


def test_a_paid_key_is_sent_to_the_paid_host() -> None:
    source = CoinGeckoPrices("https://pro-api.coingecko.com/api/v3", api_key="canary-key")
    assert source._headers == {"x-cg-pro-api-key": "canary-key"}
    assert "canary-key" not in repr(source)


@pytest.mark.parametrize(
    "reply",
    [
        _coins(age=601),
        _coins(made_at=str(int(time.time()) + 86_400)),
        _coins(made_at="null"),
        _coins(made_at="true"),
        _coins(made_at="1e12"),
        _coins(usd="0"),
        _coins(usd="-3000"),
        _coins(usd="null"),
        _coins(usd='"3000"'),
        Reply(b"{}"),
        Reply(b'{"ethereum": [], "solana": 5}'),
    ],
)
def test_a_stale_or_implausible_coingecko_price_is_ignored(reply: Reply) -> None:
    prices, _ = _coingecko(reply)
    assert prices == {}


_BROKEN = [
    None,
    Reply(b'{"status": {"error_code": 429}}', status=429),
    Reply(b"", status=302, headers={"Location": "/"}),
    Reply(b"<html>"),
    Reply(b'{"ethereum": {"usd": NaN}}'),
    Reply(b"[]"),
    Reply(b"[" * 100_000),
    Reply(b" " * (2**22 + 1)),
]


@pytest.mark.parametrize("reply", _BROKEN)
def test_a_malformed_response_makes_a_source_unreachable(reply: Reply | None) -> None:
    with pytest.raises(Unreachable) as caught:
        _coingecko(reply)
    assert "canary-key" not in repr([caught.value, caught.value.details])
    with serve(lambda _asked: reply or Reply(None)) as server, pytest.raises(Unreachable):
        JupiterPrices(server.url).read()


def test_absent_services_are_unreachable() -> None:
    for source in (CoinGeckoPrices(unused_url(), api_key="k"), JupiterPrices(unused_url())):
        with pytest.raises(Unreachable):
            source.read()


def test_jupiter_is_called_without_a_key_for_sol_and_ether() -> None:
    answer = {_SOL_MINT: {"usdPrice": 147.48, "decimals": 9}, _ETH_MINT: {"usdPrice": 3000, "decimals": 8}}
    with serve(lambda _asked: Reply(json.dumps(answer).encode())) as server:
        assert JupiterPrices(server.url).read() == {SOL: 147_480_000_000, ETH: 3000 * _USD}
    (asked,) = server.asked
    assert asked.target == f"/price/v3?ids={_SOL_MINT}%2C{_ETH_MINT}"
    assert not [name for name in asked.headers if "key" in name.lower() or name == "Authorization"]


@pytest.mark.parametrize("entry", ["null", "{}", '{"usdPrice": null}', '{"usdPrice": -1}', '{"usdPrice": "1"}'])
def test_an_implausible_jupiter_price_is_ignored(entry: str) -> None:
    with serve(lambda _asked: Reply(f'{{"{_SOL_MINT}": {entry}}}'.encode())) as server:
        assert JupiterPrices(server.url).read() == {}


def test_public_services_provide_prices_while_every_chain_is_down(clock: _Clock) -> None:
    def answer(asked: Asked) -> Reply:
        if "simple/price" in asked.target:
            return _coins(usd="3000.5")
        return Reply(f'{{"{_SOL_MINT}": {{"usdPrice": 150.25}}}}'.encode())

    with serve(answer) as server:
        sources: list[PriceSource] = [CoinGeckoPrices(server.url, api_key="k"), JupiterPrices(server.url)]
        market = _market([_Source(Unreachable("no_answer"))], sources, clock)
        assert market.nanos_per_token(ETH) == 3_000_500_000_000
        assert market.nanos_per_token(SOL) == 150_250_000_000
    assert len(server.asked) == 2
