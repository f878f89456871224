"""Columns of operators: errors of cells."""

import numpy as np
import pytest

from app.errors import MAX_ERRORS, BadInput
from app.wire.operator_columns import Problems, Words, text_to_numbers


@pytest.mark.parametrize(("most", "listed"), [(100, 50), (MAX_ERRORS, MAX_ERRORS)])
def test_a_reader_lists_as_many_errors_as_it_has_room_for(most: int, listed: int) -> None:
    problems = Problems((), most=most)
    problems.add("m", "must be at least 1", np.arange(50))
    with pytest.raises(BadInput) as refused:
        problems.refuse()
    assert len(refused.value.errors) == listed
    assert refused.value.detail == f"m.0: must be at least 1 (and {listed - 1} more)"


def test_of_many_unknown_words_only_those_are_looked_up_that_are_reported() -> None:
    looked_up = list[str]()

    def number(word: str) -> float:
        looked_up.append(word)
        raise ValueError(f"{word} is unknown")

    words = Words(tuple(f"w{k}" for k in range(1000)), np.arange(1000), False)
    problems = Problems((), most=10)
    assert np.isnan(text_to_numbers("gpu", words, number, np.arange(1000), problems)).all()
    assert looked_up == [f"w{k}" for k in range(10)]
    assert [error.msg for error in problems.errors] == [f"{word} is unknown" for word in looked_up]
