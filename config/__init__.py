"""How an installation runs, and who its agents are."""
