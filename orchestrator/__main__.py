"""`python -P -m fanout.orchestrator` is `fanout`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, which -m without -P puts first

from fanout.orchestrator.cli import main

main()
