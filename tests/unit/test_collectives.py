"""Collectives between nodes against their limits."""

from __future__ import annotations

import numpy as np
import pytest

from app.graphs.collectives import over_nodes
from app.graphs.rows import table_of
from app.ops import MIXED_FIELDS
from app.tables.ops import DTYPE_CODE, OpTable

LINK = np.array([300e9, 450e9, np.nan])
NETWORK = 25e9
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def _table(op: str, message: float, devices: float, nodes: float) -> OpTable:
    dtype = np.array([DTYPE_CODE["bf16"]])
    return table_of(op, dtype, MIXED_FIELDS, message_bytes=message, devices=devices, nodes=nodes)


def _time(op: str, message: float, devices: float, nodes: float) -> np.ndarray:
    return over_nodes(_table(op, message, devices, nodes), np.full((1, 3), 7.0), LINK, NETWORK)[0]


def test_within_a_node_predictors_have_the_word() -> None:
    assert _time("all_reduce", 1e6, 8, 1).tolist() == [7.0] * 3


@pytest.mark.parametrize(("op", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_large_messages_take_the_bandwidth_of_all_adapters(op: str, rounds: int) -> None:
    size, n = 8e9, 32.0
    bound = rounds * size * (n - 1) / n / min(0.7 * 300e9, 8 * 0.9 * NETWORK)
    assert _time(op, size, n, 4)[0] == pytest.approx(bound, rel=0.01)
    single = rounds * size * 3 / 4 / (0.9 * NETWORK)
    assert _time(op, size, 4, 4)[0] == pytest.approx(single, rel=0.01)


def test_small_all_reduces_take_the_tree() -> None:
    ring_hops = 2 * 64 * 5e-6
    assert _time("all_reduce", 8.0, 512, 64)[0] < 0.5 * ring_hops


@pytest.mark.parametrize("op", OPS)
def test_more_bytes_and_more_nodes_take_longer(op: str) -> None:
    times = [_time(op, size, 16, 2)[0] for size in (1e3, 1e6, 1e9)]
    assert times == sorted(times) and times[0] > 0
    if op != "send_recv":
        # As many devices each, on more nodes.
        assert _time(op, 1e9, 32, 4)[0] >= times[-1]
    assert np.isfinite(_time(op, 1e6, 16, 2)).all()
