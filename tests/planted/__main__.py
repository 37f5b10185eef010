"""`python -m tests.planted`: puts each fault in, and shows that its test fails."""

from __future__ import annotations

import sys

from tests.planted.faults import FAULTS
from tests.planted.planting import print_findings

if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = [fault for fault in FAULTS if all(word in fault.what for word in words)]
    sys.exit(print_findings(chosen))
