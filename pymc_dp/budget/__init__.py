"""Budgets: plans of releases, their cost, and the cost charged so far."""
