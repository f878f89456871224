"""Backward, recomputation, accumulation and update as rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.networks.build import Builder
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.ops import OP_CODE, OPS, kinds_of, work_of
from app.stacks.release import release_of
from app.tables.workload import BACKWARD, FORWARD, UPDATE, Workload
from tests.unit.network_samples import gpt2

MEGATRON = release_of("megatron", "training")
TRAINING = Run(mode="training", optimizer="none")


def _flops(w: Workload, phase: int) -> float:
    products = [code for code, op in enumerate(OPS) if op.name in ("linear", "bmm", "conv2d")]
    rows = (w.phase == phase) & np.isin(w.ops.kind, products)
    return float((work_of(w.ops, kinds_of(w.ops)).flops * w.runs)[rows].sum())


def _ops(w: Workload, phase: int, block: int) -> list[str]:
    rows = np.flatnonzero((w.phase == phase) & (w.block == block))
    return [OPS[code].name for code in w.ops.kind[rows].tolist()]


def test_backward_products_do_twice_the_forward_work() -> None:
    w = training(gpt2(), TRAINING)
    assert _flops(w, BACKWARD) == pytest.approx(2 * _flops(w, FORWARD))


def test_results_have_their_own_memory_in_training() -> None:
    assert (gpt2().ops.column("eager") == -1).all()  # nothing is kept: a row may find its input in the L2
    assert (training(gpt2(), TRAINING).ops.column("eager") == 0).all()


def test_blocks_run_backward_in_reverse_order() -> None:
    w = training(gpt2(layers=12), TRAINING)
    assert w.repeats.tolist() == [1, 12, 1, 1, 12, 1]
    assert w.origin.tolist() == [0, 1, 2, 2, 1, 0]
    assert (np.diff(w.block) >= 0).all()
    assert set(w.phase[w.block >= 3]) == {BACKWARD}


def test_a_layer_runs_the_kernels_of_autograd() -> None:
    w = training(gpt2(), TRAINING)
    counted = Counter(_ops(w, BACKWARD, 4))
    assert counted["linear"] == 8  # by data and by weight of four
    assert counted["bmm"] == 4
    assert counted["mul"] == 5  # gelu, softmax in two kernels, two layer norms
    # Biases, the norms' inputs again and for their parameters, gradients added to those of steps before
    assert counted["memory"] == 4 + 2 * 2 + 1
    assert counted["add"] == 3  # qkv is read twice; the input by norm and residual; the first sum by both again
    head = _ops(w, BACKWARD, 3)
    assert head == ["linear", "linear", "mul", "memory", "memory", "memory"]  # tied head: no bias


def test_fused_kernels_read_less_backward() -> None:
    alone, compiled, of_megatron = (
        Counter(_ops(training(gpt2(), run), BACKWARD, 4))
        for run in (
            TRAINING,
            replace(TRAINING, fused=True),
            replace(TRAINING, release=MEGATRON),
        )
    )
    assert compiled == of_megatron == alone - Counter(mul=1, memory=2)  # softmax's product, and norms' second reads


def test_edges_and_sources_follow_their_rows() -> None:
    forward = gpt2()
    w = training(forward, Run(mode="training"))
    assert [w.names[k] for k in w.edges.ravel()] == [forward.names[k] for k in forward.edges.ravel()]
    assert (w.phase[w.source] == FORWARD).all()
    assert all(w.names[row] == w.names[source] for row, source in enumerate(w.source.tolist()))


def test_no_tensor_is_saved_twice() -> None:
    forward, w = gpt2(), training(gpt2(), Run(mode="training"))
    for name in ("parameters", "weight_bytes", "output_bytes", "saved_bytes"):
        assert getattr(w, name).sum() == getattr(forward, name).sum()


def test_update_moves_28_bytes_per_parameter_with_adam() -> None:
    w = training(gpt2(layers=12, hidden=768, heads=12), Run(mode="training", optimizer="adam"))
    rows = w.phase == UPDATE
    moved = float((w.ops.column("bytes") * w.runs)[rows].sum())
    parameters = float((w.parameters * w.repeats[w.block]).sum())
    assert parameters == 124_439_808  # GPT-2's published count
    assert moved == pytest.approx(28 * parameters)
    zero = training(
        gpt2(layers=12, hidden=768, heads=12), Run(mode="training", parallelism=Parallelism(data=4, zero=1))
    )
    assert float(np.nansum((zero.ops.column("bytes") * zero.runs)[zero.phase == UPDATE])) == pytest.approx(moved / 4)


def test_recomputation_runs_each_layer_forward_again() -> None:
    run = Run(mode="training", optimizer="none", recompute=("full",))
    plain, again = training(gpt2(), TRAINING), training(gpt2(), run)
    layer = plain.block == 1
    layers = float((work_of(plain.ops, kinds_of(plain.ops)).flops * plain.runs)[layer].sum())
    extra = _flops(again, BACKWARD) - _flops(plain, BACKWARD)
    assert 0.9 * layers < extra < layers  # all but the element-wise FLOPs
    assert _ops(again, BACKWARD, 4)[:3] == ["layer_norm", "linear", "bmm"]
    assert _ops(again, BACKWARD, 3) == _ops(plain, BACKWARD, 3)  # the head's activations are still there


def test_microbatches_accumulate_gradients() -> None:
    def moved(optimizer: Any, accumulation: int) -> float:
        w = training(gpt2(), Run(mode="training", optimizer=optimizer, accumulation=accumulation))
        return float(np.nansum((w.ops.column("bytes") * w.runs)[w.phase == BACKWARD]))

    weights = float(gpt2().weight_bytes @ gpt2().repeats[gpt2().block])
    assert moved("sgd", 4) - moved("sgd", 1) == pytest.approx(3 * weights * 3 / 4)
    assert moved("none", 4) == moved("none", 1)  # nobody clears them: the first adds too
    assert moved("none", 1) - moved("sgd", 1) == pytest.approx(3 * weights)


def test_operators_without_inputs_have_no_gradient() -> None:
    b = Builder("fp32")
    first = b.add("linear", outputs=64, parameters=64, m=8, n=8, k=8)
    b.add("memory", outputs=0, bytes=64)
    b.add("memory", [first], outputs=64, bytes=128)
    w = training(b.build(), TRAINING)
    assert _ops(w, BACKWARD, 1) == ["memory", "linear", "memory"]  # the last adds the gradient up


def test_batch_norm_finds_the_batchs_statistics_in_training() -> None:
    b = Builder("fp32")
    x = b.add("linear", outputs=64, parameters=64, m=8, n=8, k=8)
    b.add("batch_norm", [x], outputs=64, parameters=16, b=8, h=8)
    w = training(b.build(), TRAINING)
    assert _ops(w, FORWARD, 0) == ["linear", "batch_norm_training"]
    assert _ops(w, BACKWARD, 1) == ["batch_norm", "linear", "memory"]  # the last: gradients added up


def test_depthwise_convolutions_run_backward_as_one() -> None:
    """Their kernels backward are others than forward, so one row answers for both gradients."""

    def steps(groups: int) -> list[float]:
        b = Builder("fp32")
        x = b.add("linear", outputs=64, parameters=64, m=8, n=8, k=8)
        sides = {f"{name}_{side}": 3 for name in ("kernel_size", "input_size") for side in ("height", "width")}
        image = {"b": 8, "in_channels": 16, "out_channels": 16, "groups": groups} | sides
        b.add("conv2d", [x], outputs=8 * 16, parameters=144, **image)
        w = training(b.build(), TRAINING)
        back = (w.phase == BACKWARD) & (w.ops.kind == OP_CODE["conv2d"])
        return w.ops.column("backward")[back].tolist()

    assert steps(groups=1) == [0.0, 0.0]  # by data and by weight
    assert steps(groups=8) == [0.0, 0.0]
    assert steps(groups=16) == [1.0]


def test_the_networks_input_needs_no_gradient() -> None:
    b = Builder("fp32")
    image = {"b": 8, "in_channels": 3, "out_channels": 16, "stride_height": 1, "stride_width": 1}
    window = {"kernel_size_height": 3, "kernel_size_width": 3, "input_size_height": 32, "input_size_width": 32}
    first = b.add("conv2d", outputs=8 * 16 * 900, parameters=432, **image, **window)
    b.add("relu", [first], outputs=8 * 16 * 900, b=8, h=16 * 900)
    w = training(b.build(), TRAINING)
    assert _ops(w, BACKWARD, 1) == ["mul", "conv2d", "memory"]  # the last: gradients added up


@pytest.mark.parametrize("name", [op.name for op in OPS[1:] if op.name != "network"])  # no part of another
def test_every_operator_has_a_backward(name: str) -> None:
    op = next(op for op in OPS if op.name == name)
    b = Builder("bf16")
    dims = {
        column: {"devices": 4.0, "context_length": 16.0}.get(column, 8.0)
        for dim in op.dims
        for column in dim.columns
        if dim.default is None
    }
    b.add("relu", outputs=8, b=1, h=8)
    b.add(name, [0], outputs=8, **dims)
    w = training(b.build(), TRAINING)
    work = work_of(w.ops, kinds_of(w.ops))
    assert np.isfinite(work.flops).all() and np.isfinite(work.bytes).all()
