"""Limits and repairs around an agent's run: budgets, repeated calls, unanswered calls, replies."""
