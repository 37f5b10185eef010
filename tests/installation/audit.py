"""`python -m tests.installation.audit`: known vulnerabilities of the packages in requirements.lock.

It fails when there is one. Where the service that knows them cannot be reached it says so, and does
not fail: what was not asked is no answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.architecture.sources import REPOSITORY

UV = str(Path(sys.executable).with_name("uv"))
AUDIT = ["pip-audit", "--format", "json", "--progress-spinner", "off", "--disable-pip"]


def main() -> int:
    """The program; 1 when a package has a known vulnerability."""
    lock = ["--require-hashes", "--requirement", str(REPOSITORY / "requirements.lock")]
    ended = subprocess.run(
        [UV, "tool", "run", *AUDIT, *lock], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        last = "".join(ended.stderr.strip().splitlines()[-1:])
        print(f"Nothing was audited, pip-audit could not ask: {last}", file=sys.stderr)
        return 0
    found = [line for package in packages for line in vulnerabilities(package)]
    skipped = sum("skip_reason" in package for package in packages)
    print(f"{len(packages) - skipped} packages audited, {len(found)} known vulnerabilities")
    if skipped:
        print(f"{skipped} packages were not audited: their service was not reached.")
    for line in found:
        print(line)
    return 1 if found else 0


def vulnerabilities(package: dict[str, Any]) -> list[str]:
    return [
        f"{package['name']} {package['version']}: {known['id']}, "
        f"fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for known in package.get("vulns", [])
    ]


if __name__ == "__main__":
    sys.exit(main())
