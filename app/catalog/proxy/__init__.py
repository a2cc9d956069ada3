"""Paid calls to catalog services."""
