"""Registration of agents and gateway-only keys, and the claim codes with which people claim agents.

Alone writes `claim_codes`. Never keeps a claim code in clear, and never logs one.
"""
