"""The suite `operators`: coverage of its design, and agreement of what it runs with app.ops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from app.errors import BadInput
from app.ops import OPS, kinds_of, work_of
from app.ops.attention import absorbed
from app.ops.experts import loads
from app.ops.memory import GLUE_OPS
from app.ops.moe import layer
from app.services.operators.predict_operators import read_operators
from app.tables.gpus import GpuSpec
from app.wire.operator_forms import ROW_FORMS
from measure.device import Device
from measure.operators_suite import SPACES, Tensors, backward, point_of, rows

DESCRIPTION = {
    "name": "a GPU",
    "compute_capability": "9.0",
    "sm_count": 132,
    "boost_clock_hz": 1.98e9,
    "memory_bytes": 141e9,
    "memory_bandwidth_bytes_per_s": 4.8e12,
}
GPU_DTYPES = ("bf16", "fp32", "fp16", "fp8", "tf32", "fp64")
GPU = Device("cuda", "a GPU", GPU_DTYPES, 140e9, 132, "pytorch-2", "cudagraph-pytorch-2", DESCRIPTION)
CPU = Device("cpu", "a CPU", ("fp32", "bf16"), 16e9, 1, "pytorch-2", "pytorch-2")
# One small row of each operator.
IMAGE = {"b": 2, "kernel_size": 3, "input_size": 9, "stride": 2}
SMALL: dict[str, dict[str, Any]] = {
    "linear": {"m": 5, "n": 16, "k": 24},
    "bmm": {"b": 3, "m": 5, "n": 16, "k": 24},
    "conv2d": {**IMAGE, "in_channels": 4, "out_channels": 8, "padding": 1, "groups": 2},
    "max_pool2d": {**IMAGE, "channels": 4},
    "avg_pool2d": {**IMAGE, "channels": 4},
    "embedding": {"b": 7, "h": 16, "vocabulary": 50},
    "recurrent": {"batch": 2, "input": 8, "hidden": 16, "steps": 3, "cell": "gru"},
    "attention_prefill": {
        **{"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16},
        **{"context_length": 12, "query_length": 6},
    },
    "attention_decode": {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "context_length": 12},
    "attention_mla": {"batch": 2, "heads": 4, "head_dim": 16, "context_length": 12, "query_length": 1},
    "moe": {"tokens": 16, "hidden": 32, "intermediate": 64, "experts": 4, "top_k": 2, "distribution": "balanced"},
    "memory": {"bytes": 1024},
    "add_strided": {"b": 8, "h": 16, "stride": 4},
}
BACKWARD = [name for name, space in SPACES.items() if space.back]


def small(op: str, **more: Any) -> dict[str, Any]:
    return {"op": op, **SMALL.get(op, {"b": 36, "h": 16}), "dtype": "fp32", **more}


def flops(row: dict[str, Any]) -> float:
    """What app.ops says of a row."""
    table = read_operators([msgspec.convert(row, ROW_FORMS[row["op"]])]).table
    return float(work_of(table, kinds_of(table)).flops[0])


def test_every_operator_of_pytorch_on_one_device_is_measured() -> None:
    # Collectives need several devices, a network is no operator of its own, and PyTorch has no linear attention, no
    # modules, mixed batches, quantising kernels and wide expert parallelism of serving stacks, and no residual streams.
    # What they fuse it runs as several kernels.
    others = {op.name for op in OPS[1:] if op.group in ("collective", "expert_exchange", "network", "linear_attention")}
    others |= {"attention_module", "attention_mixed", "hyper_connections", "quantize", "moe_wide"} | {
        op.name for op in GLUE_OPS
    }
    assert set(SPACES) == {op.name for op in OPS[1:]} - others


@pytest.fixture(scope="module")
def design() -> list[dict[str, Any]]:
    return rows(GPU)


def test_every_prefix_of_the_design_covers_operators_and_dtypes(design: list[Any]) -> None:
    rounds = 3  # in which all operators come at least once
    deal = sum(space.share * rounds // space.every for space in SPACES.values()) + 2 * rounds
    came = Counter(row["op"] for row in design[:deal])
    assert set(came) == set(SPACES)
    assert came["linear"] == 5 * came["softmax"] == 15 * came["tanh"]  # four and a step of a sweep
    assert {row["dtype"] for row in design[: deal // rounds]} == set(GPU_DTYPES)
    turns = {(row["op"], row["dtype"], row["phase"]) for row in design[: 20 * deal]}
    for name, space in SPACES.items():
        phases = ("forward", "backward") if space.back else ("forward",)
        for dtype in set(space.dtypes) & set(GPU_DTYPES):
            wanted = ("forward",) if dtype == "fp8" else phases
            assert {(name, dtype, phase) for phase in wanted} <= turns, name


def test_sizes_are_aligned_and_ragged_and_spread_over_their_range(design: list[Any]) -> None:
    depths = np.array([row["k"] for row in design if row["op"] == "linear" and row["dtype"] == "bf16"])
    aligned = (depths % 64 == 0).mean()
    assert 0.3 < aligned < 0.8
    quarters = np.histogram(np.log2(depths), bins=4, range=(3, 15))[0] / len(depths)
    assert quarters.min() > 0.1
    eighths = [row for row in design if row["dtype"] == "fp8"]
    assert all(row["k"] % 16 == 0 and row["n"] % 16 == 0 for row in eighths)


def test_k_doubles_along_sweeps_of_fixed_sides(design: list[Any]) -> None:
    sides = [row for row in design if row["op"] == "linear" and row["m"] == row["n"] == 4096 and row["dtype"] == "bf16"]
    depths = sorted({row["k"] for row in sides})
    assert len(depths) >= 8
    assert set(np.diff(np.log2(depths))) == {1.0}


def test_the_design_is_deterministic_and_fits_memory(design: list[Any]) -> None:
    small_card = Device("cuda", "a GPU", ("bf16",), 1e9, 132, "pytorch-2", "cudagraph-pytorch-2", DESCRIPTION)
    fitting = rows(small_card)
    assert rows(small_card) == fitting
    bytes_ = [row["bytes"] for row in fitting if row["op"] == "memory"]
    assert bytes_ == [] or max(bytes_) <= 0.2e9
    assert max(row["bytes"] for row in design if row["op"] == "memory") > 1e9


def test_narrow_dtypes_run_in_cuda_graphs_and_others_eagerly() -> None:
    assert point_of(GPU, small("linear", dtype="bf16")).software == "cudagraph-pytorch-2"
    assert point_of(GPU, small("linear", dtype="bf16", phase="backward")).software == "pytorch-2"
    assert point_of(GPU, small("linear")).software == "pytorch-2"
    in_graphs = replace(GPU, in_graphs=True)
    for row in (small("linear"), small("linear", dtype="bf16", phase="backward")):
        assert point_of(in_graphs, row).software == "cudagraph-pytorch-2"
    # Neither what several devices do, nor what PyTorch lacks: a product of FP8 in place of attention is no measurement.
    for op, dtype in (("all_reduce", "bf16"), ("attention_prefill", "fp8"), ("bmm", "fp8"), ("linear", "int8")):
        with pytest.raises(BadInput, match=f"{op} in {dtype} is not measured"):
            point_of(GPU, small(op, dtype=dtype))


@pytest.mark.parametrize("op", SPACES)
def test_every_operator_runs(op: str) -> None:
    for phase in ("forward", "backward") if op in BACKWARD else ("forward",):
        prepared = point_of(CPU, small(op, phase=phase)).prepare()
        result = prepared.phases[""]()
        tensors = result if isinstance(result, tuple) else [result]
        assert all(torch.isfinite(one.float()).all() for one in tensors)


@pytest.mark.parametrize("op", ["linear", "bmm", "conv2d"])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_products_have_the_flops_that_the_operator_counts(op: str, phase: str) -> None:
    row = small(op, phase=phase)
    if (op, phase) == ("conv2d", "backward"):
        row["groups"] = 1  # the counter forgets them there
    run = point_of(CPU, row).prepare().phases[""]
    with FlopCounterMode(display=False) as counter:
        run()
    assert counter.get_total_flops() == flops(row)


def test_latent_decode_has_the_work_of_its_operator_and_equals_expanded_keys() -> None:
    row = {**small("attention_mla"), "latent_dim": 32, "rope_dim": 8}
    run = point_of(CPU, row).prepare().phases[""]
    with FlopCounterMode(display=False) as counter:
        run()
    assert counter.get_total_flops() == flops(row)
    # Scores and values by the definition: W_k and W_v expand what is kept, the position's part is shared by the heads.
    heads, width, kept, rope, keys = 3, 16, 32, 8, 5
    draw = torch.Generator().manual_seed(0)
    cache = torch.randn(1, keys, kept + rope, generator=draw)
    query = torch.randn(1, heads, width + rope, generator=draw)
    to_key, to_value = (torch.randn(heads, width, kept, generator=draw) for _ in range(2))
    latent, position = cache[0, :, :kept], cache[0, :, kept:]
    expected = []
    for head in range(heads):
        key = torch.cat([latent @ to_key[head].T, position], 1)
        weight = torch.softmax(query[0, head] @ key.T / (width + rope) ** 0.5, -1)
        expected.append(weight @ (latent @ to_value[head].T))
    into = torch.einsum("hw,hwk->hk", query[0, :, :width], to_key)
    got = absorbed(torch, torch.cat([into, query[0, :, width:]], 1)[None], cache, kept, width + rope)
    assert torch.allclose(torch.einsum("hk,hwk->hw", got[0], to_value), torch.stack(expected), atol=1e-4)


def test_a_mixture_of_experts_equals_its_experts_one_by_one() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 16, generator=draw)
    gate_up, down = torch.randn(3, 64, 16, generator=draw), torch.randn(3, 16, 32, generator=draw)
    token, ends = torch.tensor([0, 5, 2, 2, 1]), torch.tensor([2, 2, 5], dtype=torch.int32)  # the second has no work
    expected = torch.zeros_like(x)
    for pair, expert in enumerate([0, 0, 2, 2, 2]):
        gate, up = (gate_up[expert] @ x[token[pair]]).chunk(2)
        expected[token[pair]] += down[expert] @ (torch.nn.functional.silu(gate) * up)
    assert torch.allclose(layer(torch, x, gate_up, down, token, ends), expected, atol=1e-3)


def test_loads_assign_every_token_to_its_experts() -> None:
    assert loads(10, 4, 2, 0.0).tolist() == [5, 5, 5, 5]
    for tokens, exponent in ((4096, 1.01), (4096, 1.0), (3, 1.2)):
        found = loads(tokens, 64, 8, exponent)
        assert found.sum() == 8 * tokens
        assert found.min() >= 0
        assert found.max() > found.mean()


def test_backward_computes_all_gradients() -> None:
    made = SPACES["linear"].build(Tensors.of(CPU, "fp32"), small("linear"))
    assert [tuple(one.shape) for one in backward(made)()] == [(5, 24), (16, 24)]


def test_the_catalogue_accepts_the_description() -> None:
    from app.tables.complete import complete
    from measure.device import description

    spec = complete(description("cpu", "some processor, 1 thread", 1, {}))
    assert isinstance(spec, GpuSpec)
    assert spec.kind == "cpu"
    assert spec.provenance["boost_clock_hz"] == "inferred"
    assert spec.memory_bandwidth_bytes_per_s > 1e8


def test_backward_of_sums_is_not_measured_as_it_runs_nothing() -> None:
    for name in ("add", "add_scalar", "add_strided"):
        assert not SPACES[name].back, name
    assert SPACES["mul"].back
