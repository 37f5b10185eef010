"""Models by name: clients, with retries, fallbacks and limits that are the same for all.

Begin with `resolve.py`, then `retries.py`. Each client has a module, which makes one attempt per
request and is imported inside a function: it needs a large or optional package.
"""
