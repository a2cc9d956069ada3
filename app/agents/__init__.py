"""Registration of agents and gateway-only keys, and the claim codes with which people claim agents.

Only this package writes `claim_codes`. Claim codes are neither stored in plain text nor logged.
"""
