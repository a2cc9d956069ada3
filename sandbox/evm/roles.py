"""Roles of the node's ten development accounts. Their keys are public and have no value elsewhere."""

OWNER = 0
"""Deploys, owns the contracts and the pool's liquidity, and may mint USDC."""
FAUCET = 1
"""Holds the ETH and USDC of the faucet."""
RELAYER = 6
"""Submits forwarded mints, and fills Relay's orders."""
ATTESTER = 7
"""Attests CCTP's messages, and gets the fees."""
UNUSED_RECIPIENT = 8
PROXY_ADMIN = 9
"""Admin of the USDC proxy, which therefore cannot call through it."""

ATTESTER_KEY = "0x4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356"
"""The key of ATTESTER: m/44'/60'/0'/0/7 of the development mnemonic that every anvil starts with."""
SECOND_ATTESTER_KEY = "0xdbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97"
"""The key of the next account, which attests messages to Solana as well: Circle has two attesters."""
ACCOUNTS = 10

FAUCET_WEI = 10**9 * 10**18
FAUCET_USDC_UNITS = 10**12 * 10**6
