"""The outcome of EVM transactions: receipts, nonce history, swap output."""
