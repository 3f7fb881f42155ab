"""Budgets: plans of what will be released, its price, and what has been spent."""
