"""A crash test of budgets: what is overspent or lost under races, retries, ten replicas and kills."""
