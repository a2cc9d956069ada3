"""What the node's ten development accounts are for. Their keys are public: they are worthless elsewhere."""

from __future__ import annotations

OWNER = 0
"""Deploys, owns the contracts and the pool's liquidity, and may mint USDC."""
FAUCET = 1
"""Holds the stock of ETH and USDC that real transfers to users come from."""
RELAYER = 6
"""Submits mints for those who asked for it, and pays out what Relay promises."""
ATTESTER = 7
"""Attests CCTP's messages, and gets the fees."""
LOST_AND_FOUND = 8
PROXY_ADMIN = 9
"""Can upgrade the USDC proxy and therefore cannot call through it."""

FAUCET_KEY = "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"
"""The key of FAUCET: m/44'/60'/0'/0/1 of the development mnemonic that every anvil starts with."""
ATTESTER_KEY = "0x4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356"
"""The key of ATTESTER, from the same mnemonic."""
ACCOUNTS = 10

FAUCET_WEI = 10**9 * 10**18
FAUCET_USDC_UNITS = 10**12 * 10**6
