"""Earnings of services: payouts to their sellers, and refunds to the payers of their calls."""
