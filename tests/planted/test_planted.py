"""The faults can be put into the product as it is now; `python -m tests.planted` runs the tests."""

from __future__ import annotations

import pytest

from tests.planted.faults import FAULTS
from tests.planted.planting import REPOSITORY, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_can_be_put_into_the_product_and_its_test_exists(fault: Fault) -> None:
    file, _, name = fault.test.partition("::")
    name = name.partition("[")[0]

    assert fault.text()
    assert f"def {name}" in (REPOSITORY / file).read_text(encoding="utf-8")
