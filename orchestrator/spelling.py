"""The nearest existing name, for the message that refuses an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_SIMILARITY = 0.6
"""The least similarity, in `difflib`'s measure and its default: a typing error, not another word.
"""


def nearest(
    name: str, known: Iterable[str], least_similarity: float = LEAST_SIMILARITY
) -> str | None:
    """Return the known name with the most similar spelling; None if none is similar."""
    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, 1, least_similarity)
    return by_folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest known name, after a space; empty without one."""
    found = nearest(name, known)
    return "" if found is None else f" Did you mean {found}?"
