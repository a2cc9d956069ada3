"""Metering of paid calls: credits are held before a call, then settled, logged and summed in one unit.

Alone writes `usage_logs` and `usage_by_provider`. The costs in the log sum up to what was spent, always.
"""
