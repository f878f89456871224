"""Containers are emptied in slices."""

import pytest

from app.runtime.release import release


@pytest.mark.parametrize("n", [0, 1, 1_000, 2_500])
def test_a_container_is_empty_afterwards(n: int) -> None:
    items, by_number = list(range(n)), dict.fromkeys(range(n))
    release(items)
    release(by_number)
    assert not items
    assert not by_number
