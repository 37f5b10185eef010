"""`history` and `cost`: what was done, and what it has cost."""
