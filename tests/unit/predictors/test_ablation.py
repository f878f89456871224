"""The mechanisms that benchmarks.ablation disables."""

import pytest

from benchmarks.ablation_mechanisms import MECHANISMS, Mechanism


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_each_mechanism_can_be_disabled(mechanism: Mechanism) -> None:
    with mechanism.off():  # AttributeError where a name is gone
        pass
