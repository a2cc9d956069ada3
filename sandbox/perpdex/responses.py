"""Responses of the stand-in: the formats of the exchange's documentation, with fictitious figures.

The first twelve markets are numbered as on the real exchange. Prices are constant, times are current.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

UNKNOWN_ACCOUNT_PREFIX = "0x000000"
_NO_MARGIN = {"accountValue": "0.0", "totalNtlPos": "0.0", "totalRawUsd": "0.0", "totalMarginUsed": "0.0"}
_MARKETS: tuple[dict[str, Any], ...] = (
    {"name": "BTC", "szDecimals": 5, "maxLeverage": 40, "marginTableId": 56},
    {"name": "ETH", "szDecimals": 4, "maxLeverage": 25, "marginTableId": 55},
    {"name": "ATOM", "szDecimals": 2, "maxLeverage": 5, "marginTableId": 5},
    {"name": "MATIC", "szDecimals": 1, "maxLeverage": 20, "marginTableId": 20, "isDelisted": True},
    {"name": "DYDX", "szDecimals": 1, "maxLeverage": 5, "marginTableId": 5},
    {"name": "SOL", "szDecimals": 2, "maxLeverage": 20, "marginTableId": 54},
    {"name": "AVAX", "szDecimals": 2, "maxLeverage": 10, "marginTableId": 52},
    {"name": "BNB", "szDecimals": 3, "maxLeverage": 10, "marginTableId": 52},
    {"name": "APE", "szDecimals": 1, "maxLeverage": 5, "marginTableId": 5},
    {"name": "OP", "szDecimals": 1, "maxLeverage": 5, "marginTableId": 5},
    {"name": "LTC", "szDecimals": 2, "maxLeverage": 10, "marginTableId": 10},
    {"name": "ARB", "szDecimals": 1, "maxLeverage": 10, "marginTableId": 51},
    {"name": "kPEPE", "szDecimals": 0, "maxLeverage": 10, "marginTableId": 52},
    {"name": "HPOS", "szDecimals": 0, "maxLeverage": 3, "marginTableId": 3, "onlyIsolated": True},
)
_MIDS = {
    "BTC": "91284.5",
    "ETH": "3000.25",
    "ATOM": "2.4417",
    "DYDX": "0.21185",
    "SOL": "150.015",
    "AVAX": "13.2505",
    "BNB": "861.35",
    "APE": "0.2381",
    "OP": "0.31244",
    "LTC": "84.335",
    "ARB": "0.20815",
    "kPEPE": "0.004385",
    "HPOS": "0.03155",
    "@107": "32.7655",
    "PURR/USDC": "0.076935",
}


class UnknownQuery(Exception):
    """The body is no known request: the exchange answers 422 in plain text."""


class UnknownCoin(Exception):
    """An unknown coin: the exchange answers several requests with 500 and `null`."""


def answer(body: object) -> Any:
    """Return the response to a request. Raises: UnknownQuery, UnknownCoin."""
    if not isinstance(body, dict) or body.get("type") not in _QUERIES:
        raise UnknownQuery
    return _QUERIES[body["type"]](body)


def weight(body: object, document: Any) -> int:
    """Return the weight of a request with its response, by the rules of the exchange."""
    kind = body.get("type") if isinstance(body, dict) else None
    if kind in {"l2Book", "allMids", "clearinghouseState", "spotClearinghouseState"}:
        return 2
    return 20 + (-(-len(document) // 20) if kind in {"userFills", "fundingHistory"} else 0)


def _account(body: Mapping[str, Any]) -> Any:
    now = int(time.time() * 1000)
    if not _is_known_account(body):
        return {
            "marginSummary": dict(_NO_MARGIN),
            "crossMarginSummary": dict(_NO_MARGIN),
            "crossMaintenanceMarginUsed": "0.0",
            "withdrawable": "0.0",
            "assetPositions": [],
            "time": now,
        }
    position = {
        "coin": "ETH",
        "szi": "0.0335",
        "leverage": {"type": "isolated", "value": 20, "rawUsd": "-95.059824"},
        "entryPx": "2986.3",
        "positionValue": "100.508375",
        "unrealizedPnl": "0.467325",
        "returnOnEquity": "0.0934265",
        "liquidationPx": "2866.26936529",
        "marginUsed": "5.448551",
        "maxLeverage": 25,
        "cumFunding": {"allTime": "514.085417", "sinceOpen": "0.0", "sinceChange": "0.0"},
    }
    margin = {"totalNtlPos": "100.508375", "totalRawUsd": "13009.454678", "totalMarginUsed": "5.448551"}
    return {
        "marginSummary": {"accountValue": "13109.963053", **margin},
        "crossMarginSummary": {**_NO_MARGIN, "accountValue": "13104.514502", "totalRawUsd": "13104.514502"},
        "crossMaintenanceMarginUsed": "0.0",
        "withdrawable": "13104.514502",
        "assetPositions": [{"type": "oneWay", "position": position}],
        "time": now,
    }


def _spot(body: Mapping[str, Any]) -> Any:
    balance = {"coin": "USDC", "token": 0, "total": "14.625485", "hold": "0.0", "entryNtl": "0.0"}
    return {"balances": [balance] if _is_known_account(body) else []}


def _open_orders(body: Mapping[str, Any]) -> Any:
    if not _is_known_account(body):
        return []
    orders = [
        {"coin": "BTC", "side": "A", "limitPx": "99500.0", "sz": "0.002", "oid": 91490942, "origSz": "0.002"},
        {"coin": "ETH", "side": "B", "limitPx": "2750.0", "sz": "0.5", "oid": 91490955, "origSz": "0.5"},
    ]
    return [{**order, "timestamp": 1_763_000_000_000} for order in orders]


def _frontend_open_orders(body: Mapping[str, Any]) -> Any:
    more = {
        "orderType": "Limit",
        "tif": "Gtc",
        "isTrigger": False,
        "triggerPx": "0.0",
        "triggerCondition": "N/A",
        "isPositionTpsl": False,
        "reduceOnly": False,
        "children": [],
        "cloid": None,
    }
    return [{**order, **more} for order in _open_orders(body)]


def _fills(body: Mapping[str, Any]) -> Any:
    if not _is_known_account(body):
        return []
    fill = {
        "coin": "ETH",
        "px": "2986.3",
        "sz": "0.0335",
        "side": "B",
        "time": 1_763_000_000_000,
        "startPosition": "0.0",
        "dir": "Open Long",
        "closedPnl": "0.0",
        "hash": "0xa166e3fa63c25663024b03f2e0da011a00307e4017465df020210d3d432e7cb8",
        "oid": 90542681,
        "crossed": True,
        "fee": "0.045018",
        "feeToken": "USDC",
        "tid": 118906512037719,
        "twapId": None,
    }
    return [fill]


def _meta(_body: Mapping[str, Any]) -> Any:
    tiers = [{"lowerBound": "0.0", "maxLeverage": 40}, {"lowerBound": "150000000.0", "maxLeverage": 20}]
    return {
        "universe": [dict(market) for market in _MARKETS],
        "marginTables": [[56, {"description": "tiered 40x", "marginTiers": tiers}]],
        "collateralToken": 0,
    }


def _meta_and_contexts(body: Mapping[str, Any]) -> Any:
    return [_meta(body), [_context(_MIDS.get(market["name"])) for market in _MARKETS]]


def _context(mid: str | None) -> dict[str, Any]:
    return {
        "funding": "0.0000125" if mid else "0.0",
        "openInterest": "688.11" if mid else "0.0",
        "prevDayPx": mid or "0.37912",
        "dayNtlVlm": "1169046.29406" if mid else "0.0",
        "dayBaseVlm": "381.2" if mid else "0.0",
        "premium": "0.00031774" if mid else None,
        "oraclePx": mid or "0.37912",
        "markPx": mid or "0.37912",
        "midPx": mid,
        "impactPxs": [mid, mid] if mid else None,
    }


def _all_mids(_body: Mapping[str, Any]) -> Any:
    return dict(_MIDS)


def _book(body: Mapping[str, Any]) -> Any:
    coin = body.get("coin")
    if not isinstance(coin, str):
        raise UnknownQuery
    if coin not in _MIDS:
        return None
    digits = _MIDS[coin].replace(".", "")
    decimals = len(_MIDS[coin].partition(".")[2])

    def level(steps: int) -> dict[str, Any]:
        text = str(int(digits) + steps).rjust(decimals + 1, "0")
        return {"px": f"{text[:-decimals]}.{text[-decimals:]}", "sz": f"{abs(steps) * 3}.5", "n": abs(steps)}

    levels = [[level(-step) for step in range(1, 21)], [level(step) for step in range(1, 21)]]
    return {"coin": coin, "time": int(time.time() * 1000), "levels": levels}


def _funding_history(body: Mapping[str, Any]) -> Any:
    if body.get("coin") not in _MIDS:
        raise UnknownCoin
    row = {"fundingRate": "-0.00022196", "premium": "-0.00052196", "time": 1_763_000_000_000}
    return [{"coin": body["coin"], **row}]


def _is_known_account(body: Mapping[str, Any]) -> bool:
    user = body.get("user")
    if not isinstance(user, str) or not user.startswith("0x") or user != user.lower():
        raise UnknownQuery
    return not user.startswith(UNKNOWN_ACCOUNT_PREFIX)


_QUERIES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "clearinghouseState": _account,
    "spotClearinghouseState": _spot,
    "openOrders": _open_orders,
    "frontendOpenOrders": _frontend_open_orders,
    "userFills": _fills,
    "meta": _meta,
    "metaAndAssetCtxs": _meta_and_contexts,
    "allMids": _all_mids,
    "l2Book": _book,
    "fundingHistory": _funding_history,
}
