"""Properties of every operator family."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.ops import MIXED_FIELDS, OP_CODE, OPS, kinds_of, work_of
from app.ops.base import Op
from app.ops.collective import COLLECTIVE_OPS
from app.ops.elementwise import ELEMENTWISE_OPS
from app.ops.memory import GLUE_OPS
from app.ops.norm import NORM_OPS
from app.ops.pool import POOL_OPS
from app.predictors.auto.operators.models.features import PARTS, STACK
from app.predictors.auto.predictor import Auto
from app.predictors.roofline import hardware_limit
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import OpTable
from tests.unit.kernels import TURING, VOLTA, kernels
from tests.unit.operators import mixed, operators

LINKED = replace(TURING, id="linked", link_bandwidth_bytes_per_s=3e11, memory_type="HBM2", board_power_w=250.0)
GPUS = GpuTable.from_specs([TURING, VOLTA, LINKED])

ROWS = {"b": 4096, "h": 1024}
WINDOW = {"b": 8, "kernel_size": 3, "input_size": 56, "stride": 2, "padding": 1}
PREFILL = {"batch": 2, "heads": 16, "kv_heads": 4, "head_dim": 128, "query_length": 512, "context_length": 2048}
STATE = {"batch": 2, "key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128}
# Per family: a row in its middle, and the dims of which more can only be more work.
FAMILIES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "linear": ({"m": 512, "n": 1024, "k": 768}, ("m", "n", "k", "backward")),
    "bmm": ({"b": 16, "m": 512, "n": 128, "k": 768}, ("b", "m", "n", "k", "backward")),
    "conv2d": (
        WINDOW | {"in_channels": 64, "out_channels": 128},
        ("b", "in_channels", "out_channels", "input_size", "padding", "backward"),
    ),
    "embedding": (ROWS, ("b", "h", "vocabulary", "backward")),
    "recurrent": (
        {"batch": 32, "input": 256, "hidden": 512, "steps": 64},
        ("batch", "input", "hidden", "steps", "backward"),
    ),
    "attention_prefill": (
        PREFILL,
        ("batch", "heads", "head_dim", "query_length", "context_length", "backward"),
    ),
    "attention_decode": (PREFILL | {"query_length": 1}, ("batch", "heads", "head_dim", "context_length")),
    "attention_mla": (
        {name: size for name, size in PREFILL.items() if name != "kv_heads"},
        ("batch", "heads", "head_dim", "query_length", "context_length", "rope_dim", "backward"),
    ),
    "attention_mixed": (
        {name: size for name, size in PREFILL.items() if name != "batch"} | {"decodes": 16, "decode_context": 1024},
        ("heads", "head_dim", "query_length", "context_length", "decodes", "decode_context"),
    ),
    "moe": (
        {"tokens": 512, "hidden": 2048, "intermediate": 1024, "experts": 64, "top_k": 8, "expert_parallel": 4},
        ("tokens", "hidden", "intermediate", "top_k", "backward"),
    ),
    "attention_module": (
        {"batch": 2, "heads": 16, "head_dim": 128, "value_dim": 128, "query_length": 512, "context_length": 4096}
        | {"hidden": 7168, "latent_dim": 512, "rope_dim": 64, "query_rank": 1536},
        ("batch", "heads", "head_dim", "value_dim", "query_length", "context_length", "hidden", "backward"),
    ),
    "quantize": (ROWS, ("b", "h")),
    "moe_wide": (
        {"tokens": 512, "hidden": 2048, "intermediate": 1024, "experts": 64, "top_k": 8, "expert_parallel": 4},
        ("tokens", "hidden", "intermediate", "top_k"),
    ),
    **{
        name: ({"tokens": 512, "hidden": 2048, "top_k": 8, "experts": 64, "devices": 8}, ("tokens", "hidden", "top_k"))
        for name in ("expert_dispatch", "expert_combine")
    },
    "hyper_connections": (ROWS, ("b", "h", "streams", "backward")),
    "linear_attention": (STATE | {"query_length": 512}, ("batch", "key_dim", "value_dim", "query_length", "backward")),
    "linear_attention_step": (STATE | {"query_length": 2}, ("batch", "key_dim", "value_dim", "query_length")),
    "short_convolution": (
        {"batch": 2, "query_length": 512, "channels": 4096},
        ("batch", "query_length", "channels", "backward"),
    ),
    "copy": (ROWS, ("b", "h")),
    "memory": ({"bytes": 1e6}, ("bytes",)),
    "network": (
        {"batch": 32, "flops": 4e9, "outputs": 1e7, "weights": 2.5e7, "layers": 50},
        ("batch", "flops", "outputs", "weights"),
    ),
    **{op.name: (ROWS, ("b", "h", "backward")) for op in (*NORM_OPS, *ELEMENTWISE_OPS)},
    **{op.name: (ROWS, ("b", "h")) for op in GLUE_OPS},
    "add_strided": (ROWS | {"stride": 16}, ("b", "h", "stride", "backward")),
    "softmax": (ROWS, ("b", "h")),  # its gradient takes fewer operations than its exponentials
    **{op.name: (WINDOW | {"channels": 64}, ("b", "channels", "input_size", "backward")) for op in POOL_OPS},
    **{op.name: ({"message_bytes": 1e6, "devices": 4}, ("message_bytes", "devices")) for op in COLLECTIVE_OPS},
}
SCALES = (0.25, 1.0, 16.0)
NOTHING = Evidence(
    Measurements(kernels([{}]).take(np.empty(0, dtype=np.intp)), np.empty(0, dtype=np.intp), np.empty(0)),
    np.empty(0, dtype=np.intp),
)


def rows_of(name: str) -> list[dict[str, float]]:
    """Rows to try: small, middling, large."""
    row, growing = FAMILIES[name]
    free = [dim for dim in growing if dim in row and row[dim] > 1 and dim not in ("devices", "padding", "top_k")]
    return [row | {dim: max(1.0, np.floor(row[dim] * scale)) for dim in free} for scale in SCALES]


def table_of(op: Op, rows: Sequence[dict[str, Any]] | None = None) -> OpTable:
    return operators(op.name, *(rows or rows_of(op.name)))


@pytest.fixture(params=OPS[1:], ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Op:
    return request.param


def times(table: OpTable, gpu: int) -> tuple[Any, Any]:
    """Hardware limit and untrained `auto`, of every row on one GPU."""
    every = np.arange(len(table))
    answer = Auto().predict(table, GPUS, every, np.full(len(table), gpu), evidence=NOTHING)
    return hardware_limit(table, GPUS, every, np.full(len(table), gpu)).latency_s, answer.latency_s


def test_one_row_equals_a_thousand(op: Op) -> None:
    table = table_of(op)
    many = table.take(np.tile(np.arange(len(table)), 1000))
    for column, alone in zip(op.work(many), op.work(table), strict=True):
        np.testing.assert_array_equal(np.tile(alone, 1000), column)
    np.testing.assert_allclose(np.tile(times(table, 0)[1], 1000), times(many, 0)[1], rtol=1e-12)


def test_work_is_finite_and_distinct_bytes_are_at_most_all_bytes(op: Op) -> None:
    work = op.work(table_of(op))
    for column in work:
        assert column.shape == (len(SCALES),)
        assert (np.isfinite(column) & (column >= 0)).all()
    assert (work.bytes > 0).all()
    assert (work.working_set_bytes <= work.bytes * (1 + 1e-12)).all()


def test_larger_dimensions_are_no_less_work(op: Op) -> None:
    rows = rows_of(op.name)
    before = table_of(op)
    for name in FAMILIES[op.name][1]:
        given = dict.fromkeys(op.fields, 0.0) | {dim.name: dim.default or 0.0 for dim in op.dims}
        more = table_of(op, [row | {name: 2 * row.get(name, given[name]) + (name == "backward")} for row in rows])
        for least, column in zip(op.work(before), op.work(more), strict=True):
            assert (column >= least * (1 - 1e-12)).all(), name
        for gpu in range(len(GPUS)):
            assert (times(more, gpu)[0] >= times(before, gpu)[0] * (1 - 1e-12)).all(), name


def test_parts_are_named_finite_and_more_in_backward(op: Op) -> None:
    assert len(op.part_names) <= STACK - PARTS
    if op.parts is None:
        return
    rows = rows_of(op.name)
    forward, backward = (
        np.array(op.parts(table_of(op, [row | {"backward": back} for row in rows]))) for back in (0, 1)
    )
    assert forward.shape == (len(op.part_names), len(rows))
    assert (np.isfinite(forward) & (forward >= 0)).all()
    assert forward[0].tolist() == [1.0] * len(rows)
    np.testing.assert_allclose(backward, 2.5 * forward)


def test_the_hardware_limit_covers_auto(op: Op) -> None:
    for gpu in range(len(GPUS)):
        limit, latency = times(table_of(op), gpu)
        assert (limit > 0).all()
        assert (np.isfinite(latency) & (latency >= limit)).all()


def test_the_example_row_breaks_no_rule(op: Op) -> None:
    for broken in op.broken(table_of(op)):
        assert not broken.rows.any(), broken.message


def test_fields_have_descriptions_and_ranges(op: Op) -> None:
    for dim in op.dims:
        assert dim.help
        if dim.default is not None and not np.isnan(dim.default):
            assert 0 <= dim.default < len(dim.choices) if dim.choices else dim.least <= dim.default <= dim.most


def test_a_mixed_table_equals_its_families_one_by_one() -> None:
    tables = [table_of(op) for op in OPS[1:]]
    together = mixed(tables)
    work = work_of(together, kinds_of(together))
    for column, parts in zip(work, zip(*(OPS[t.kind[0]].work(t) for t in tables), strict=True), strict=True):
        np.testing.assert_array_equal(column, np.concatenate(parts))
    shuffled = np.random.default_rng(0).permutation(len(together))
    out_of_order = together.take(shuffled)
    for column, part in zip(work, work_of(out_of_order, kinds_of(out_of_order)), strict=True):
        np.testing.assert_array_equal(column[shuffled], part)
    for gpu in range(len(GPUS)):
        for all_times, parts in zip(
            times(together, gpu), zip(*(times(t, gpu) for t in tables), strict=True), strict=True
        ):
            np.testing.assert_allclose(all_times, np.concatenate(parts), rtol=1e-12)


def test_kernels_are_not_below_their_limit() -> None:
    """Launches stand alone in their table: one row equals a thousand, and more is no less time."""
    rows = [{"flops": f, "bytes": b, "threads_per_block": 256, "blocks": 64} for f in (0, 1e9) for b in (1e3, 1e10)]
    table = kernels(rows)
    assert OP_CODE["kernel"] == 0
    every, on = np.arange(4), np.zeros(4, dtype=np.intp)
    limit = hardware_limit(table, GPUS, every, on).latency_s
    np.testing.assert_array_equal(
        np.tile(limit, 9), hardware_limit(table, GPUS, np.tile(every, 9), np.tile(on, 9)).latency_s
    )
    for name in ("flops", "bytes"):
        more = kernels([row | {name: 2 * row[name] + 1} for row in rows])
        assert (hardware_limit(more, GPUS, every, on).latency_s >= limit).all()


def test_no_field_has_the_name_of_a_requests_own() -> None:
    assert not {"kind", "op", "gpu", "gpus", "dtype", "source", "latency_ms"} & set(MIXED_FIELDS)
