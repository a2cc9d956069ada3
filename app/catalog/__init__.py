"""Third-party services: registration, search, subscriptions, proxied calls, and statistics.

Only writer of `services`, `service_specifications`, `service_texts`, `subscriptions` and the counters `service_totals`,
`service_minutes`, `service_latencies` and `service_callers`. Never resolves, follows or trusts what a seller wrote.
"""
