"""The outcome of Solana transactions: signature statuses, histories, swap output."""
