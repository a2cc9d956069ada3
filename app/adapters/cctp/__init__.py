"""Bridges of USDC by Circle's CCTP V2: burned on one chain, attested by Circle, minted on another.

Everything needed to go on is in the source transaction: attestation and mint can be asked for and made at any time,
by anybody, once.
"""
