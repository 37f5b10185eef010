"""`diff` and `apply`: what jobs changed, printed and merged."""
