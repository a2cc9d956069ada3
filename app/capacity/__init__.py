"""Admission control: limits on concurrent calls and on the rate of requests."""
