"""Columns of operators: errors of cells."""

import numpy as np
import pytest

from app.errors import MAX_ERRORS, BadInput
from app.wire.operator_columns import Problems


@pytest.mark.parametrize(("most", "listed"), [(100, 50), (MAX_ERRORS, MAX_ERRORS)])
def test_a_reader_lists_as_many_errors_as_it_has_room_for(most: int, listed: int) -> None:
    problems = Problems((), most=most)
    problems.add("m", "must be at least 1", np.arange(50))
    with pytest.raises(BadInput) as refused:
        problems.refuse()
    assert len(refused.value.errors) == listed
    assert refused.value.detail == f"m.0: must be at least 1 (and {listed - 1} more)"
