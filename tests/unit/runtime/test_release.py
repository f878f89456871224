"""Lists are emptied in slices."""

import pytest

from app.runtime.release import release


@pytest.mark.parametrize("n", [0, 1, 1_000, 2_500])
def test_the_list_is_empty_afterwards(n: int) -> None:
    items = list(range(n))
    release(items)
    assert items == []
