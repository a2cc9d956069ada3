"""Scanning of EVM blocks for incoming transfers."""
