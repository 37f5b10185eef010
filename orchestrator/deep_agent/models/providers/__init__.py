"""The clients of model services.

Each module needs a package that is large or an extra, so import it late.
"""
