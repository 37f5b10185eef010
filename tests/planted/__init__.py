"""Faults that are put into the product, and the tests that have to fail with them."""
