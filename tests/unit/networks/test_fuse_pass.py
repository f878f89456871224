"""Fusion of operators, and the bytes of fused kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.networks.build import Builder
from app.networks.fuse_pass import fused
from app.networks.run import Run
from app.networks.training_pass import training
from app.ops import OPS, kinds_of, work_of
from app.tables.workload import Workload
from tests.unit.network_samples import gpt2


def _ops(w: Workload) -> list[str]:
    return [OPS[code].name for code in w.ops.kind.tolist()]


def _chain() -> Builder:
    """A product, tanh-GELU written out, a product; 100 x 10 elements each."""
    b = Builder("fp32")
    x = b.add("linear", outputs=1000, m=100, n=10, k=10)
    each = {"outputs": 1000, "b": 100, "h": 10}
    cube = b.add("pow_scalar", [x], **each)
    sum_ = b.add("add", [x, cube], **each)
    tanh = b.add("tanh", [sum_], **each)
    y = b.add("mul", [x, tanh], **each)
    b.add("linear", [y], outputs=1000, m=100, n=10, k=10)
    return b


def test_a_chain_reads_its_input_once_and_writes_its_end() -> None:
    w = fused(_chain().build())
    assert _ops(w) == ["linear", "memory", "linear"]
    assert w.ops.column("bytes")[1] == 4 * (1000 + 1000)
    assert w.names[1] == "pow_scalar~add~tanh~mul"
    assert w.edges.T.tolist() == [[0, 1], [1, 2]]
    assert w.output_bytes.tolist() == [4000.0] * 3


def test_tensors_read_outside_a_fused_kernel_are_written() -> None:
    b = _chain()
    b.add("relu", [3], outputs=1000, b=100, h=10)  # reads tanh, behind the second product
    w = fused(b.build())
    assert _ops(w) == ["linear", "memory", "linear", "relu"]
    assert w.ops.column("bytes")[1] == 4 * (1000 + 2 * 1000)


def test_layers_fuse_with_their_products() -> None:
    whole, w = gpt2(), fused(gpt2())
    layer = [op for op, block in zip(_ops(w), w.block, strict=True) if block == 1]
    assert layer.count("memory") == 1  # residual and norm; softmax, gelu and the first norm stand alone
    for figures in ("parameters", "weight_bytes", "kv_bytes"):
        assert getattr(w, figures).sum() == getattr(whole, figures).sum()
    moved = [work_of(x.ops, kinds_of(x.ops)).bytes @ x.runs for x in (whole, w)]
    assert moved[1] < moved[0]
    assert w.repeats.tolist() == whole.repeats.tolist()


@pytest.mark.parametrize(("mask", "moved"), [("add_scalar", 1.0), ("add", 1.0), ("copy", 4.0 * 2 * 6400)])
def test_recognised_attention_keeps_its_scores_on_chip(mask: str, moved: float) -> None:
    b = Builder("fp32")
    each = {"outputs": 6400, "b": 640, "h": 10}
    scores = b.add("bmm", outputs=6400, b=64, m=10, n=10, k=16)
    masked = b.add(mask, [b.add("div_scalar", [scores], **each)], **each)
    b.add("bmm", [b.add("softmax", [masked], **each)], outputs=10240, b=64, m=10, n=16, k=10)
    w = fused(b.build())
    assert _ops(w) == ["bmm", "memory", "bmm"]
    assert w.ops.column("bytes")[1] == moved


def test_random_numbers_stay_in_registers() -> None:
    b = Builder("fp32")
    x = b.add("linear", outputs=1000, m=100, n=10, k=10)
    b.add("memory", outputs=0, bytes=12_000)
    b.add("mul", [x], outputs=1000, b=100, h=10)
    w = fused(b.build())
    assert _ops(w) == ["linear", "memory"]
    assert w.ops.column("bytes")[1] == 4 * (1000 + 1000)


def test_unknown_operators_do_not_fuse() -> None:
    b = Builder("fp32")
    x = b.add("relu", outputs=1000, b=100, h=10)
    x = b.add_unknown("FancySort", [x], moved_bytes=8000, outputs=1000, name="sort")
    b.add("relu", [x], outputs=1000, b=100, h=10)
    w = fused(b.build())
    assert _ops(w) == ["relu", "memory", "relu"]
    assert w.unknown == {"FancySort": 1}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_fusion_never_adds_work_and_keeps_the_workload_valid(dtype: str) -> None:
    whole = gpt2(dtype=dtype)
    w = fused(whole)
    moved, before = (work_of(x.ops, kinds_of(x.ops)).bytes @ x.runs for x in (w, whole))
    assert 0 < moved < before
    assert (w.edges[0] < w.edges[1]).all()
    trained = training(w, Run(mode="training"))
    assert np.isfinite(work_of(trained.ops, kinds_of(trained.ops)).bytes).all()
    assert fused(w).names == replace(w).names  # nothing is left to fuse
