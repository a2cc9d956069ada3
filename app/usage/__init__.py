"""Metering of paid calls: credits are held before a call, then settled, logged and summed in one unit.

Only this package writes `usage_logs` and `usage_by_provider`. The costs in the log always add up to what was spent.
"""
