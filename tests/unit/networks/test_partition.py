"""Cuts of a network over unequal GPUs: optimal, within memory, with the right bytes."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from app.networks.build import Builder
from app.networks.partition import Units, partition, units_of
from app.tables.workload import Workload

NO_LIMIT = np.inf


def units(n: int, *, resident: float = 0.0, working: float = 0.0) -> Units:
    zeros = np.zeros(n)
    index = np.arange(n)
    return Units(index, index, zeros + resident, zeros + working, zeros)


def tried_all(time_s: np.ndarray, link_s: np.ndarray) -> float:
    """The least bottleneck of all cuts."""
    n, stages = time_s.shape
    best = np.inf
    for cuts in combinations(range(1, n), stages - 1):
        ends = [0, *cuts, n]
        cost = [time_s[a:b, s].sum() + (link_s[a, s] if s else 0.0) for s, (a, b) in enumerate(pairwise(ends))]
        best = min(best, max(cost))
    return best


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_best_of_all_cuts_is_found(stages: int) -> None:
    random = np.random.default_rng(stages)
    for _ in range(20):
        time_s, link_s = random.uniform(0.1, 1.0, (9, stages)), random.uniform(0.0, 0.3, (9, stages))
        link_s[0] = link_s[:, 0] = 0.0
        found = partition(units(9), time_s, link_s, np.full(stages, NO_LIMIT), 0.0)
        assert found.bottleneck_s == pytest.approx(tried_all(time_s, link_s))
        assert found.first[0] == 0 and found.first[-1] == 9 and (np.diff(found.first) > 0).all()


def test_memory_limits_move_the_cut() -> None:
    time_s = np.ones((10, 2))
    free = partition(units(10, resident=1.0), time_s, np.zeros((10, 2)), np.array([NO_LIMIT, NO_LIMIT]), 0.0)
    tight = partition(units(10, resident=1.0), time_s, np.zeros((10, 2)), np.array([3.0, NO_LIMIT]), 1.0)
    assert free.first.tolist() == [0, 5, 10]
    assert tight.first.tolist() == [0, 2, 10] and tight.fits.all() and tight.bytes.tolist() == [3.0, 9.0]


def test_networks_that_do_not_fit_are_reported() -> None:
    found = partition(units(4, resident=5.0), np.ones((4, 2)), np.zeros((4, 2)), np.array([1.0, 100.0]), 0.0)
    assert found.fits.tolist() == [False, True] and found.bottleneck_s == 2.0


def test_more_stages_than_units() -> None:
    with pytest.raises(ValueError, match="2 units cannot be cut into 3 stages"):
        partition(units(2), np.ones((2, 3)), np.zeros((2, 3)), np.full(3, NO_LIMIT), 0.0)


def layered() -> Workload:
    """An embedding, three layers of two rows whose first feeds the second and the next layer's, and a head."""
    builder = Builder("fp32")
    first = builder.add("embedding", outputs=100, parameters=1000, b=10, h=10, vocabulary=100)
    builder.begin(3)
    up = builder.add("linear", [first], outputs=400, parameters=400, m=10, n=40, k=10)
    down = builder.add("linear", [up], outputs=100, parameters=400, m=10, n=10, k=40)
    builder.begin()
    builder.add("linear", [down], outputs=1000, parameters=1000, m=10, n=100, k=10)
    return builder.build()


def test_units_are_repetitions_of_blocks_and_single_rows() -> None:
    found = units_of(layered())
    assert found.block.tolist() == [0, 1, 1, 1, 2]
    assert found.row.tolist() == [0, -1, -1, -1, 3]
    assert found.resident_bytes.tolist() == [4000.0, 3200.0, 3200.0, 3200.0, 4000.0]
    assert found.sent_bytes[:4].tolist() == [400.0] * 4
    assert found.working_bytes.tolist() == [400.0, 2000.0, 2000.0, 2000.0, 4400.0]


def test_residual_tensors_cross_the_cut_with_the_branch() -> None:
    builder = Builder("fp32")
    x = builder.add("linear", outputs=100, m=10, n=10, k=10)
    y = builder.add("linear", [x], outputs=400, m=10, n=40, k=10)
    z = builder.add("linear", [y], outputs=100, m=10, n=10, k=40)
    builder.add("add", [x, z], outputs=100, b=10, h=10)
    assert units_of(builder.build()).sent_bytes.tolist() == [400.0, 2000.0, 800.0, 400.0]
