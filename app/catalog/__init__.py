"""Third-party services: registered, browsed, subscribed to, called through the proxy, and counted.

Alone writes `services`, `service_specifications`, `service_texts`, `subscriptions` and the counters `service_totals`,
`service_minutes`, `service_latencies` and `service_callers`. Never resolves, follows or believes what a seller wrote.
"""
