"""Contract calls, deployed addresses and on-chain price feeds."""
