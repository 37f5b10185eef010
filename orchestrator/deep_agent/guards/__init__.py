"""Limits and repairs of runs: budgets, repeated calls, unanswered calls, unusable replies."""
