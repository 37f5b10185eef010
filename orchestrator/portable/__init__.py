"""Code that runs in this program and is copied into containers: standard library only, Python 3.8.

Containers get these modules with those of `workers.sandbox.inside`, under their names. Every start
of a sandbox pays for what they import.
"""
