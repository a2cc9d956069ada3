"""Former names of log events and metrics, published along with the new ones for one release; then removed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# New name -> former name.
EVENTS = MappingProxyType(
    {
        "attestation_fees_invalid": "attestation_fees_unreadable",
        "attestation_mismatch": "attestation_of_something_else",
        "attestation_response_invalid": "attestation_unreadable",
        "block_unverifiable": "block_unprovable",
        "bridge_blocked": "bridge_held_up",
        "bridge_deferred_to_workers": "bridge_left_to_the_workers",
        "bridge_route_unavailable": "bridge_way_closed",
        "bridge_step_failed": "bridge_not_carried_on",
        "connection_shed": "caller_let_go",
        "connections_evicted": "callers_gave_way",
        "database_unavailable": "database_not_available",
        "expiry_unverifiable": "void_unprovable",
        "faucet_payment_failed": "faucet_did_not_pay",
        "faucet_payment_requested": "faucet_asked",
        "fleet_controls_retried_individually": "fleet_one_by_one",
        "gas_reserve_check_failed": "payment_supply_failed",
        "health_check_failed": "health_unreadable",
        "idempotency_key_not_released": "idempotency_key_not_forgotten",
        "idempotent_response_not_stored": "idempotent_answer_not_stored",
        "job_rejected": "job_refused",
        "jupiter_response_invalid": "jupiter_unreadable",
        "key_store_network_mismatch": "key_store_of_another_network",
        "lifi_response_invalid": "lifi_unreadable",
        "market_list_store_failed": "exchange_markets_not_stored",
        "movement_deferred_to_workers": "movement_left_to_the_workers",
        "movement_processing_failed": "movement_not_carried_on",
        "movement_rebroadcast": "movement_sent_again",
        "payment_resolution_failed": "payment_not_resolved",
        "payment_reversed": "payment_lost",
        "payment_status_changed": "payment_moved",
        "purchase_crashed": "purchase_broken",
        "purchase_outcome_unknown": "purchase_unknown",
        "purchase_status_changed": "purchase_moved",
        "purchase_worker_lost": "purchase_lost",
        "queue_recovered": "queue_reachable_again",
        "relay_response_invalid": "relay_unreadable",
        "replacement_skipped": "replacement_not_possible",
        "request_rejected": "request_refused",
        "retired_key_check_failed": "retired_key_not_checked",
        "retired_key_not_empty": "retired_key_still_holds",
        "rpc_response_invalid": "rpc_answer_unreadable",
        "settlement_capacity_unavailable": "payment_readiness_unreadable",
        "settlement_gas_low": "settlement_key_low",
        "settlement_lookup_failed": "payment_unreadable",
        "specification_reader_start_failed": "specification_reader_not_started",
        "swap_output_unavailable": "proceeds_not_shown",
        "topup_close_failed": "topup_not_closed",
        "transaction_status_changed": "transaction_moved",
        "transaction_unavailable": "transaction_not_shown",
        "untrusted_forwarded_headers": "forwarded_unbelieved",
        "upstream_rejected_credential": "provider_refuses_us",
        "waiting_for_redis": "redis_awaited",
    }
)
METRICS = MappingProxyType(
    {
        "connections_shed": "callers_let_go",
        "jobs_rejected": "jobs_refused",
        "payments_reversed": "payments_lost",
        "settlement_capacity": "settlements_left",
        "settlement_capacity_age_seconds": "settlements_left_age_seconds",
        "untrusted_forwarded_headers": "forwarded_unbelieved",
    }
)
_SHED_REASONS = MappingProxyType(
    {
        "slow_sender": "sends_slowly",
        "slow_reader": "reads_slowly",
        "too_many_waiting": "too_many_wait",
        "body_memory_exhausted": "bodies_too_large_together",
        "idle": "rested",
        "incomplete_request": "half_sent",
    }
)


def labels(metric: str, current: Mapping[str, str]) -> dict[str, str]:
    """Return the former labels of a metric: `connections_shed` had `why` with other values, the others are the same."""
    if not metric.endswith("connections_shed"):
        return dict(current)
    reason = current["reason"]
    return {"why": _SHED_REASONS.get(reason, reason)}
