"""Rows that a version was not trained on."""

import pickle

import numpy as np
from numpy.typing import NDArray

from app.engine.measurement_tables import to_runs
from app.engine.unlearned import MOST_ROWS, Group, Part
from app.store.operator_blocks import NO_TIME, Context, OperatorBlock, identities
from tests.unit.training.test_candidate import GPUS

GPU = GPUS.ids[0]
ROWS = MOST_ROWS + 50


def part(rows: NDArray[np.int_], fields: tuple[str, ...] = ("m", "n", "k"), source: str = "made up") -> Part:
    """Rows of `linear` with the given sizes."""
    n = len(rows)
    nan, none = np.full(n, np.nan), np.full((3, n), np.nan)
    context = Context("linear", "fp32", fields, GPU, "pytorch-2.1", source, None)
    unused = Context("linear", "fp32", fields, GPU, "pytorch-1.0", "another", None)
    sizes = np.stack([rows + k for k in range(len(fields))]).astype(float)
    times = (1e-6 * rows, nan, nan, nan, nan, np.full(n, NO_TIME), none, none)
    block = OperatorBlock((unused, context), np.ones(n, dtype=np.intp), sizes, *times)
    return block, identities(block)


def test_rows_that_come_one_by_one_are_those_of_one_upload_in_one_part() -> None:
    every, single = np.arange(1, ROWS + 1), Group()
    for row in every:
        single = single.joined([part(np.array([row]), source=f"made up {row % 3}")])
    whole = Group().joined([part(every[every % 3 == k], source=f"made up {k}") for k in range(3)])
    assert single.holds_same_rows(whole)
    assert [len(block) for block, _ in single.parts] == [MOST_ROWS]
    (one,), (other,) = (to_runs(group.parts, GPUS) for group in (single, whole))
    np.testing.assert_array_equal(one.rows.ops.dims, other.rows.ops.dims)
    np.testing.assert_array_equal(one.rows.latency_s, other.rows.latency_s)
    assert one.stacks == ("pytorch-2.1",), "and no contexts of rows that are not in it"
    assert len(pickle.dumps(single)) < 2 * MOST_ROWS * 200


def test_rows_with_other_fields_are_another_part() -> None:
    group = Group().joined([part(np.arange(1, 4))]).joined([part(np.arange(1, 3), ("m", "n", "k", "strided"))])
    assert [block.contexts[0].fields for block, _ in group.parts] == [("m", "n", "k"), ("m", "n", "k", "strided")]
    assert group.dtypes() == {"fp32"}
