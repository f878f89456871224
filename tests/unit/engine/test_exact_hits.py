"""Exact hits among measured operators."""

import time

import numpy as np
import pytest

from app.engine.exact_hits import NO_OPERATORS, OperatorIndex
from app.ops import OP_CODE, OPS
from app.predictors.operator_digests import digests
from app.tables.measurements import Measurements, OperatorRuns
from app.tables.ops import DTYPE_CODE, OpTable
from tests.unit.operator_runs import runs_of
from tests.unit.operators import mixed, operators


def test_a_measured_row_is_a_hit_on_its_gpu_only() -> None:
    linear = operators("linear", {"m": 8, "n": 16, "k": 32}, {"m": 8, "n": 16, "k": 64})
    index = OperatorIndex.build([runs_of("linear", "fp32", linear, gpu=[0, 1], latency_s=[1e-3, 2e-3])], known=2)
    i, j = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 2])
    found = index.times(linear, i, j)
    assert found is not None
    np.testing.assert_array_equal(found, [1e-3, np.nan, np.nan, 2e-3, np.nan])
    evidence = index.evidence(linear, i, j)
    assert (evidence.query.tolist(), evidence.rows.gpu.tolist()) == ([0, 3], [0, 1])
    np.testing.assert_array_equal(evidence.rows.ops.column("k"), [32, 64])


def test_equal_rows_give_their_median() -> None:
    linear = operators("linear", *[{"m": 8, "n": 16, "k": 32}] * 4)
    for times, middle in (([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)):
        rows = linear.take(np.arange(len(times)))
        index = OperatorIndex.build([runs_of("linear", "fp32", rows, gpu=[0] * len(times), latency_s=times)], known=1)
        found = index.times(linear, np.array([0]), np.array([0]))
        assert found is not None
        assert (len(index), found.tolist()) == (1, [middle])


def test_an_index_updated_in_parts_is_that_of_all_rows() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 6, (60, 2))
    ops = operators("linear", *({"m": int(m), "n": int(n), "k": 32} for m, n in sizes))
    gpu, times = draw.integers(0, 2, 60), draw.random(60)

    def run(rows: np.ndarray) -> OperatorRuns:
        return runs_of("linear", "fp32", ops.take(rows), gpu=gpu[rows].tolist(), latency_s=times[rows].tolist())

    whole = OperatorIndex.build([run(np.arange(60))], known=2)
    index = OperatorIndex.build((), known=2)
    for rows in np.array_split(np.arange(60), 7):
        index = index.updated([run(rows)])
    assert index.updated(()) is index
    for column in ("keys", "latency_s", "start", "shift"):
        np.testing.assert_array_equal(getattr(index, column), getattr(whole, column))


def test_equality_of_measured_operators() -> None:
    plain = {"m": 8, "n": 16, "k": 32}
    same = operators("linear", plain, {**plain, "count": 7}, {**plain, "eager": 1})
    assert len(set(digests(same).tolist())) == 1  # FP32 is PyTorch's, eager, unless said
    other = operators("linear", plain, {**plain, "eager": 0}, {**plain, "backward": 1}, {**plain, "burst": 1})
    assert len({*digests(other).tolist(), *digests(operators("linear", plain, dtype="bf16")).tolist()}) == 5
    swapped = operators("linear", {"m": 16, "n": 8, "k": 32})
    assert digests(swapped)[0] != digests(other)[0]


def test_serving_stacks_differ_and_an_absent_one_is_the_first() -> None:
    plain = {"m": 8, "n": 16, "k": 32, "eager": 0}
    rows = operators("linear", plain, *({**plain, "stack": stack} for stack in range(3)), dtype="fp8")
    absent, vllm, sglang, trtllm = digests(rows).tolist()
    assert absent == vllm
    assert len({vllm, sglang, trtllm}) == 3


def test_a_mixed_table_has_the_digests_of_its_families() -> None:
    tables = [operators("linear", {"m": 8, "n": 16, "k": 32}), operators("softmax", {"b": 8, "h": 16})]
    np.testing.assert_array_equal(digests(mixed(tables)), np.concatenate([digests(table) for table in tables]))


def test_a_hybrid_model_tells_rows_apart() -> None:
    layer = {"batch": 8, "heads": 32, "head_dim": 128, "context_length": 64}
    usual, gdn, mamba = digests(operators("attention_decode", layer, layer | {"hybrid": 0.0}, layer | {"hybrid": 1.0}))
    assert len({usual, gdn, mamba}) == 3
    beside = mixed([operators("attention_decode", layer), operators("linear", {"m": 8, "n": 16, "k": 32})])
    assert digests(beside)[0] == usual


def test_no_measurements_give_no_evidence() -> None:
    linear = operators("linear", {"m": 8, "n": 16, "k": 32})
    assert NO_OPERATORS.times(linear, np.array([0]), np.array([0])) is None
    assert len(NO_OPERATORS.evidence(linear, np.array([0]), np.array([0]))) == 0


@pytest.mark.parametrize("rows", [1_200_000])
def test_a_million_rows_use_little_memory_and_time(rows: int) -> None:
    draw = np.random.default_rng(0)
    op = OPS[OP_CODE["linear"]]
    dims = np.zeros((len(op.fields), rows))
    dims[:3] = draw.integers(1, 2**20, (3, rows))
    dims[op.fields["eager"]] = np.nan
    zeros = np.zeros(rows, dtype=np.intp)
    table = OpTable(zeros + OP_CODE["linear"], zeros + DTYPE_CODE["bf16"], zeros, op.fields, dims)
    measured = Measurements(table, zeros, draw.random(rows))
    nan = np.full((3, rows), np.nan)
    run = OperatorRuns("linear", "bf16", measured, zeros, zeros, nan, nan, zeros.astype(np.uint64), ("x",), ())
    index = OperatorIndex.build([run], known=1)
    assert sum(array.nbytes for array in (index.keys, index.latency_s, index.start)) < 60e6
    asked = np.arange(rows)
    index.times(table, asked[:1], zeros[:1])
    began = time.process_time()
    found = index.times(table, asked, zeros)
    seconds = time.process_time() - began
    np.testing.assert_array_equal(found, measured.latency_s)
    assert seconds / rows < 1e-6
    print(f"{seconds / rows * 1e9:.0f} ns a row")
