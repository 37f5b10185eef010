"""The README's table of limits; `python -m tests.architecture.readme` writes it anew."""

from __future__ import annotations

import re

from orchestrator.cli.checks.limits import limit_table
from tests.architecture.sources import REPOSITORY

README = REPOSITORY / "README.md"
BEGIN, END = (
    "<!-- limits: made by `python -m tests.architecture.readme` -->",
    "<!-- end of limits -->",
)


def with_limits(text: str) -> str:
    """The README with the table that the source gives now."""
    table = f"{BEGIN}\n\n{limit_table()}\n\n{END}"
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table, text, count=1, flags=re.DOTALL
    )


def main() -> None:
    README.write_text(with_limits(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
