"""The cost of a call: price table, rates, the quote before and the charge after it."""
