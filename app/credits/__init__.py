"""The credit ledger: accounts of US dollars in nano-dollars, append-only ledger entries, holds, and their audit.

The only writer of `credit_accounts`, `credit_postings`, `credit_holds` and `grant_budgets`. A balance always equals
what was granted less what was spent, and is never negative. A unit changes the credits of one account only.
"""
