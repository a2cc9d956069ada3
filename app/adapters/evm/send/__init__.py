"""Outgoing EVM transactions: fees, simulation, signing and broadcast."""
