"""Bridges of ether from Ethereum to Base by Base's own portal: no fee, no service, and a few minutes."""
