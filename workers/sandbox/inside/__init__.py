"""Code that runs inside containers: standard library only, Python 3.8 or later."""
