"""Funding requests and deposits found on chain."""
