"""The mechanisms that benchmarks.ablation switches off."""

import pytest

from benchmarks.ablation_mechanisms import MECHANISMS, Mechanism


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.name)
def test_each_mechanism_exists_to_be_switched_off(mechanism: Mechanism) -> None:
    with mechanism.off():  # AttributeError where a name is gone
        pass
