"""The faults can be planted in the product as it is now; `planted.py` runs the fuzzers."""

from __future__ import annotations

import pytest

from tests.fuzz.planted import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_can_be_put_into_the_product(fault: Fault) -> None:
    assert compile(fault.source(), fault.module, "exec").co_names
