"""The credit ledger: accounts of US dollars in nano-dollars, append-only postings, holds, and their audit.

Alone writes `credit_accounts`, `credit_postings`, `credit_holds` and `grant_budgets`. A balance is what was
granted less what was spent, always, and never below zero. A unit touches the credits of one account only.
"""
