"""Which products cannot be loaded by 16 bytes, what it costs, and that it teaches nothing of others."""

from __future__ import annotations

import numpy as np
import pytest

from app.bands.groups import S_UNTRAINED, situations_of
from app.engine.catalogue import load_seed_specs
from app.ops import OP_CODE, OPS, kinds_of, work_of
from app.ops.gemm import alignment_of, misaligned_clocks
from app.predictors.auto.operators.model import Learned
from app.predictors.auto.operators.models.training_samples import usual_rows
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Estimate
from tests.unit.operator_runs import runs_of
from tests.unit.operators import mixed, operators

GPUS = GpuTable.from_specs([spec for spec in load_seed_specs() if spec.id == "h200-sxm-141gb"])
IMAGE = {"b": 8, "kernel_size": 3, "input_size": 32, "padding": 1}


def clocks(table: OpTable) -> np.ndarray:
    op, kinds = OPS[int(table.kind[0])], kinds_of(table)
    alignment = alignment_of(op, table)
    if alignment is None:
        return np.zeros(len(table))
    return misaligned_clocks(op, table, alignment, op.products and op.products(table), work_of(table, kinds).bytes)


def ask(table: OpTable) -> Estimate:
    n = np.arange(len(table))
    return Learned().estimate(table, GPUS, n, 0 * n)


@pytest.mark.parametrize(
    ("op", "dtype", "sizes", "aligned"),
    [
        ("linear", "bf16", {"m": 7, "n": 4096, "k": 4096}, True),
        ("linear", "bf16", {"m": 8, "n": 50257, "k": 768}, False),
        ("linear", "fp16", {"m": 8, "n": 768, "k": 100}, False),
        ("linear", "tf32", {"m": 8, "n": 768, "k": 100}, True),
        ("linear", "tf32", {"m": 8, "n": 768, "k": 102}, False),
        ("linear", "fp32", {"m": 8, "n": 767, "k": 101}, True),
        ("bmm", "bf16", {"b": 12, "m": 197, "n": 197, "k": 64}, False),
        ("conv2d", "bf16", IMAGE | {"in_channels": 3, "out_channels": 64}, False),
        ("conv2d", "bf16", IMAGE | {"in_channels": 21, "out_channels": 21, "groups": 21}, True),
        ("gelu", "bf16", {"b": 3, "h": 5}, True),
    ],
)
def test_rows_of_whole_16_bytes_are_aligned(op: str, dtype: str, sizes: dict[str, int], aligned: bool) -> None:
    table = operators(op, sizes, dtype=dtype)
    alignment = alignment_of(OPS[OP_CODE[op]], table)
    assert (alignment is None or alignment.aligned.all()) == aligned
    assert (clocks(table)[0] == 0.0) == aligned


def test_loads_bound_products_by_elements_at_once() -> None:
    sizes = {"m": 64, "n": 128, "k": 320}
    one, two = clocks(operators("linear", sizes | {"k": 319}, sizes | {"k": 318}, dtype="bf16"))
    flops, elements = 2 * 64 * 128 * 320, [64 * k + 128 * k + 64 * 128 for k in (319, 318)]
    assert one == pytest.approx(flops / 550 + elements[0] / 3.5)
    assert two == pytest.approx(flops / 850 + elements[1] / 7.0)


def test_logits_of_a_vocabulary_that_is_not_padded_take_longer() -> None:
    """Measured on our H200: 616 products of 1670 x 2489 x 1784 in BF16 take 76.5 ms; padded they would take 13."""
    sizes = {"m": 16384, "k": 768}
    odd, padded = ask(operators("linear", sizes | {"n": 50257}, sizes | {"n": 50304}, dtype="bf16")).latency_s
    assert 4.0 < odd / padded < 8.0
    measured = ask(operators("bmm", {"b": 616, "m": 1670, "n": 2489, "k": 1784}, dtype="bf16")).latency_s[0]
    assert measured == pytest.approx(76.5e-3, rel=0.25)


def test_their_intervals_are_those_of_what_nothing_was_learned_of() -> None:
    odd = operators("linear", {"m": 512, "n": 1001, "k": 768}, dtype="bf16")
    assert situations_of(ask(odd).group).tolist() == [S_UNTRAINED]


def test_rows_that_are_padded_first_teach() -> None:
    image = {"b": 8, "input_size": 32, "in_channels": 9, "out_channels": 64}
    windows = operators("conv2d", image | {"kernel_size": 3}, image | {"kernel_size": 1}, dtype="bf16")
    alignment = alignment_of(OPS[OP_CODE["conv2d"]], windows)
    assert alignment is not None
    assert (alignment.aligned.tolist(), alignment.usual.tolist()) == ([False, False], [True, False])
    teaching = usual_rows(runs_of("conv2d", "bf16", windows, gpu=[0, 0], latency_s=[1e-4, 1e-4]))
    assert teaching.rows.ops.column("kernel_size_height").tolist() == [3.0]


def test_they_change_nothing_beside_them_and_teach_nothing() -> None:
    aligned, odd = ({"m": 512, "n": n, "k": 768} for n in (1024, 1001))
    rows = mixed([operators("linear", aligned, odd, dtype="bf16"), operators("gelu", {"b": 64, "h": 64}, dtype="bf16")])
    alone = ask(operators("linear", aligned, dtype="bf16")).latency_s[0]
    assert ask(rows).latency_s[0] == alone
    run = runs_of("linear", "bf16", operators("linear", aligned, odd, dtype="bf16"), gpu=[0, 0], latency_s=[1e-4, 1e-3])
    assert usual_rows(run).rows.ops.column("n").tolist() == [1024.0]
