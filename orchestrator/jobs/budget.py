"""What is used, reserved and left of a budget."""

from __future__ import annotations

from collections.abc import Mapping

from .accounts import read_account
from .result import COST_DIGITS, Usage
from .spec import WireModel

NANODOLLARS = 1e9
"""Money is reserved in billionths of a dollar: whole numbers, whose sums return to zero."""


class BudgetLeft(WireModel):
    """What of a budget is reserved and left."""

    reserved_tokens: int = 0
    """What the model calls may use that have not ended."""
    reserved_cost_usd: float = 0.0
    max_tokens: int | None = None
    """The limit; null where there is none, and until a call has reserved of it."""
    max_cost_usd: float | None = None
    left_tokens: int | None = None
    """What further calls may reserve; null without a limit."""
    left_cost_usd: float | None = None


class BudgetState(BudgetLeft):
    """The budget of a job with all jobs below it; under the id of a tree's root, of the tree."""

    used: Usage = Usage()
    """What has been used, also by calls whose worker was lost."""

    @property
    def left_part(self) -> float:
        """How much is left of the limit of which least is left, from 0 to 1; 1 without a limit."""
        limits = (self.left_tokens, self.max_tokens), (self.left_cost_usd, self.max_cost_usd)
        return min([left / most for left, most in limits if left is not None and most], default=1)

    def if_limited(self) -> BudgetState | None:
        """Return the budget; None without a limit of tokens or money."""
        return None if self.max_tokens is None and self.max_cost_usd is None else self

    def left(self) -> BudgetLeft | None:
        """Return the budget without what is used; None without a limit of tokens or money."""
        limited = self.if_limited()
        return limited and BudgetLeft(**limited.model_dump(exclude={"used"}))


def read_budget(used: Mapping[str, str], reserved: Mapping[str, str]) -> BudgetState:
    """Return a budget as the ledger stores it.

    Args:
        used: The hash `usage` of the job.
        reserved: Its hash `reserved`.
    """
    usage = read_account(used).usage
    tokens, nanodollars = (int(reserved.get(name, 0)) for name in ("tokens", "nanodollars"))
    cost, spent = nanodollars / NANODOLLARS, usage.cost_usd or 0.0
    most, most_cost = reserved.get("max_tokens"), reserved.get("max_nanodollars")
    max_tokens = None if most is None else int(most)
    max_cost = None if most_cost is None else int(most_cost) / NANODOLLARS
    left = None if max_tokens is None else max_tokens - tokens - _tokens(usage)
    left_cost = None if max_cost is None else round(max_cost - cost - spent, COST_DIGITS)
    return BudgetState(
        used=usage,
        reserved_tokens=tokens,
        reserved_cost_usd=cost,
        max_tokens=max_tokens,
        max_cost_usd=max_cost,
        left_tokens=None if left is None else max(0, left),
        left_cost_usd=None if left_cost is None else max(0.0, left_cost),
    )


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens
