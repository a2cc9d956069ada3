"""Circle's attestation service as its documentation describes it.

Read on 2026-11-23: https://developers.circle.com/cctp/howtos/resolve-stuck-attestation (404, 429, delays, expiry),
https://developers.circle.com/cctp/howtos/troubleshoot-transfers (statuses, empty lists),
https://developers.circle.com/api-reference/cctp/all/get-messages-v2,
https://developers.circle.com/api-reference/cctp/all/get-burn-usdc-fees,
https://developers.circle.com/cctp/concepts/forwarding-service (`forwardFee`, `forwardState`).
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.adapters.bridges.cctp.attestations import AttestationClient, BurnAttestation, BurnFees
from app.ports.errors import Unreachable
from tests.support.loopback_http import Reply, serve

HASH = "0x" + "ab" * 32


def _attested(status: int, body: object) -> BurnAttestation | None:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status)) as server, capture_logs():
        found = AttestationClient(server.url).burn_attestation(6, HASH)
        assert server.asked[0].target == f"/v2/messages/6?transactionHash={HASH}"
        return found


def _fees(status: int, body: object) -> BurnFees:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status)) as server, capture_logs():
        found = AttestationClient(server.url).fees(6, 0, forwarded=True)
        assert server.asked[0].target == "/v2/burn/USDC/fees/6/0?forward=true"
        return found


def _entry(**members: Any) -> dict[str, Any]:
    entry = {
        "message": "0x", "eventNonce": "0x", "attestation": "PENDING", "cctpVersion": 2,
        "status": "pending_confirmations", "delayReason": None,
    }  # fmt: skip
    return {"messages": [entry | members]}


@pytest.mark.parametrize("status", ["pending_confirmations", "pending"])
@pytest.mark.parametrize("delay", [None, "insufficient_fee", "amount_above_max", "insufficient_allowance_available"])
def test_a_pending_burn_has_no_attestation(status: str, delay: str | None) -> None:
    assert _attested(200, _entry(status=status, delayReason=delay)) == BurnAttestation(delay=delay)


def test_a_burn_that_is_not_seen_yet_is_awaited() -> None:
    assert _attested(404, {"code": 404, "error": "Message hash not found"}) is None
    assert _attested(200, {"messages": []}) is None


@pytest.mark.parametrize("state", [None, "PENDING", "CONFIRMED", "COMPLETE", "FAILED"])
def test_a_complete_burn_has_message_attestation_and_forwarding(state: str | None) -> None:
    forwarding = {} if state is None else {"forwardState": state, "forwardTxHash": HASH}
    body = _entry(message="0x0102", attestation="0x0304", status="complete", eventNonce="9682", **forwarding)
    assert _attested(200, body) == BurnAttestation.model_construct(
        message=b"\1\2",
        attestation=b"\3\4",
        delay=None,
        forwarding_state=state,
        forwarding_hash=None if state is None else HASH,
    )


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_is_an_outage_and_no_answer(status: int) -> None:
    with pytest.raises(Unreachable):
        _attested(status, {"code": status, "message": "Too many requests"})
    with pytest.raises(Unreachable):
        _fees(status, {"code": status, "message": "Too many requests"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            [{"finalityThreshold": 1000, "minimumFee": 1}, {"finalityThreshold": 2000, "minimumFee": 0}],
            BurnFees(Decimal(1), None),
        ),
        # Fractions of a basis point, as a number or as text.
        ([{"finalityThreshold": 1000, "minimumFee": 1.3}], BurnFees(Decimal("1.3"), None)),
        ([{"finalityThreshold": 1000, "minimumFee": "1.3"}], BurnFees(Decimal("1.3"), None)),
        # Chains with instant finality have no fast transfer.
        ([{"finalityThreshold": 2000, "minimumFee": 0}], BurnFees(None, None)),
        (
            [
                {
                    "finalityThreshold": threshold,
                    "minimumFee": fee,
                    "forwardFee": {"low": 200_000, "med": 201_000, "high": 202_000},
                }
                for threshold, fee in ((1000, 1), (2000, 0))
            ],
            BurnFees(Decimal(1), 202_000),
        ),
    ],
)
def test_fees_are_read_in_every_documented_form(body: object, expected: BurnFees) -> None:
    assert _fees(200, body) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"minimumFee": "1e200000"},
        {"minimumFee": 10_001},
        {"minimumFee": -1},
        {"minimumFee": "NaN"},
        {"minimumFee": True},
        {"finalityThreshold": True},
        {"forwardFee": {"high": -1}},
        {"forwardFee": {"high": True}},
        {"forwardFee": {"high": "1.5"}},
    ],
)
def test_a_fee_out_of_range_is_an_outage(changed: dict[str, Any]) -> None:
    with pytest.raises(Unreachable, match="attestation_service"):
        _fees(200, [{"finalityThreshold": 1000, "minimumFee": 1} | changed])


def test_no_forwarding_fee_is_requested_where_none_may_exist() -> None:
    body = json.dumps([{"finalityThreshold": 1000, "minimumFee": 1}]).encode()
    with serve(lambda _asked: Reply(body)) as server:
        AttestationClient(server.url).fees(6, 5, forwarded=False)
        assert server.asked[0].target == "/v2/burn/USDC/fees/6/5"


def test_a_fast_fee_is_rounded_up() -> None:
    assert BurnFees(Decimal("1.3"), None).fast_units(1_000_001) == 131


@pytest.mark.parametrize("status", [200, 400, 404])
def test_a_refused_renewal_is_requested_again_later(status: int) -> None:
    with serve(lambda _asked: Reply(b"{}", status)) as server:
        AttestationClient(server.url).request_reattestation(b"\7" * 32)
        assert (server.asked[0].method, server.asked[0].target) == ("POST", "/v2/reattest/0x" + "07" * 32)
