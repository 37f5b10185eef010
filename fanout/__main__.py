"""`python -P -m fanout` is `fanout`."""

from fanout.orchestrator import __main__  # noqa: F401 - it runs the command line
