"""The keys that models need in the environment."""

from __future__ import annotations

import os
from typing import Protocol, runtime_checkable


@runtime_checkable
class KeyedModel(Protocol):
    """A model that needs a key in the environment."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables of which one has to be set; empty for none."""


def missing_key(model: object, name: str) -> str | None:
    """Return a sentence about the key that a model needs and the environment does not have.

    Args:
        model: The model.
        name: Its name as it was requested.
    """
    variables = model.key_variables if isinstance(model, KeyedModel) else ()
    if not variables or any(os.environ.get(variable) for variable in variables):
        return None
    return f"{name} needs {variables[0]} in the environment."
