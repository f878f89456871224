"""Collectives of data parallelism: bytes, groups and buckets."""

from __future__ import annotations

import numpy as np
import pytest

from app.networks.build import Builder
from app.networks.exchanges import BUCKET_BYTES, with_gradient_exchange
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.ops import OP_CODE
from app.tables.workload import BACKWARD, FORWARD, UPDATE, Workload
from tests.unit.network_samples import gpt2


def _exchanged(parallelism: Parallelism, w: Workload | None = None) -> tuple[Workload, float]:
    """The workload with its collectives, and the bytes of its weights."""
    run = Run(mode="training", optimizer="adam", parallelism=parallelism)
    w = training(gpt2() if w is None else w, run)
    return with_gradient_exchange(w, run), float((w.weight_bytes * w.repeats[w.block]).sum())


def _messages(w: Workload, op: str, phase: int) -> float:
    rows = (w.ops.kind == OP_CODE[op]) & (w.phase == phase)
    return float((w.ops.column("message_bytes") * w.runs)[rows].sum())


def test_one_device_communicates_nothing() -> None:
    w, _ = _exchanged(Parallelism(tensor=4))
    assert not w.overlapped.any()


def test_every_gradient_is_reduced_once_in_buckets_beside_backward() -> None:
    w, weights = _exchanged(Parallelism(data=4))
    rows = w.ops.kind == OP_CODE["all_reduce"]
    assert _messages(w, "all_reduce", BACKWARD) == pytest.approx(weights)
    assert w.overlapped[rows].all() and not w.overlapped[~rows].any()
    assert set(w.ops.column("message_bytes")[rows]) == {BUCKET_BYTES}
    assert set(w.ops.column("devices")[rows]) == {4.0}
    assert (np.diff(w.block) >= 0).all()
    # A bucket waits for what fills it: the first of a layer, of 79 MB, stands behind its second linear.
    layer = np.flatnonzero(w.block == 4)
    first = layer[rows[layer]][0]
    assert 0 < first - layer[0] < len(layer) - 1


def test_a_small_network_is_one_bucket() -> None:
    b = Builder("fp32")
    row = b.add("linear", outputs=64, parameters=64 * 64, m=1, n=64, k=64)
    b.add("linear", [row], outputs=64, parameters=64 * 64, m=1, n=64, k=64)
    w, weights = _exchanged(Parallelism(data=2), b.build())
    rows = np.flatnonzero(w.overlapped)
    assert w.ops.column("message_bytes")[rows].tolist() == [weights]
    assert w.ops.column("count")[rows].tolist() == [1.0]
    assert w.block[rows].tolist() == [1]


@pytest.mark.parametrize("zero", [1, 2])
def test_zero_scatters_gradients_and_gathers_updated_weights(zero: int) -> None:
    w, weights = _exchanged(Parallelism(data=8, zero=zero))
    assert _messages(w, "reduce_scatter", BACKWARD) == pytest.approx(weights)
    assert _messages(w, "all_gather", UPDATE) == pytest.approx(weights)
    assert _messages(w, "all_reduce", BACKWARD) == 0.0
    assert not w.overlapped[w.phase == UPDATE].any()


def test_zero_3_gathers_weights_in_both_directions() -> None:
    w, weights = _exchanged(Parallelism(data=8, zero=3))
    assert _messages(w, "all_gather", FORWARD) == pytest.approx(weights)
    assert _messages(w, "all_gather", BACKWARD) == pytest.approx(weights)
    assert _messages(w, "reduce_scatter", BACKWARD) == pytest.approx(weights)


def test_groups_span_the_nodes_that_they_need() -> None:
    for parallelism, nodes in (
        (Parallelism(data=4, tensor=8, nodes=4), 4),
        (Parallelism(data=4, tensor=2, nodes=1), 1),
        (Parallelism(data=16, nodes=2), 2),
        (Parallelism(data=2, tensor=2, pipeline=4, nodes=4), 1),
    ):
        w, _ = _exchanged(parallelism)
        assert set(w.ops.column("nodes")[w.overlapped]) == {nodes}
        assert set(w.ops.column("spread")[w.overlapped]) == {parallelism.data * parallelism.tensor}


def test_experts_spread_over_all_devices_share_no_gradients() -> None:
    b = Builder("bf16")
    row = b.add("linear", outputs=64, parameters=64 * 64, m=1, n=64, k=64)
    dims = {"tokens": 8, "hidden": 64, "intermediate": 64, "experts": 8, "top_k": 2}
    b.add("moe", [row], outputs=64, parameters=3 * 64 * 64, **dims, expert_parallel=8)
    shared, _ = _exchanged(Parallelism(data=8, expert=8), b.build())
    assert _messages(shared, "all_reduce", BACKWARD) == 64 * 64 * 2
