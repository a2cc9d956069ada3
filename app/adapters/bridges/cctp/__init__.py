"""Bridges of USDC by Circle's CCTP V2: burned on one chain, attested by Circle, minted on another.

The source transaction contains everything needed to continue: attestation and mint can be requested and submitted at
any time, by anyone, once.
"""
