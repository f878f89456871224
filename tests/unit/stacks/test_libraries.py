"""Libraries that serving stacks choose, against what the published tables say that they ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT
from app.engine.catalogue import load_seed_specs
from app.ops.experts import OTHER, UNGATED
from app.predictors.auto.operators.models.features import LIBRARY_OF_STACK
from app.predictors.auto.operators.models.training_samples import samples
from app.stacks.libraries import LIBRARIES
from app.stacks.release import software_columns
from app.tables.gpus import GpuTable
from app.tables.measurements import Measurements
from app.tables.ops import DTYPE_CODE
from tests.unit.operators import operators

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data")) / "serving_operators"
GPUS = GpuTable.from_specs(load_seed_specs())
PUBLISHED = {
    "b200_sxm": "b200",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
}
# What a `kernel_source` holds, of which library; the first counts.
SAID = {
    "triton": "triton",
    "marlin": "marlin",
    "cutlass": "cutlass",
    "trtllm": "trtllm-gen",
    "fa3": "flash-attention-3",
    "fa2": "flash-attention-2",
    "flashinfer": "flashinfer",
}
FP8_CACHE = {"kv_dtype": float(DTYPE_CODE["fp8"])}
SIZES = {
    "attention_decode": {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "context_length": 4096},
    "attention_prefill": {"batch": 8, "heads": 32, "kv_heads": 8, "head_dim": 128, "context_length": 4096},
    "moe": {"tokens": 64, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8},
    "linear": {"m": 64, "n": 64, "k": 64},
}


def library(gpu: str, op: str, software: str, dtype: str, **fields: float) -> str:
    """The library that the features of an operator name for a GPU."""
    table = operators(op, {**SIZES[op], **fields, "stack": software_columns(software)[1]}, dtype=dtype)
    rows = Measurements(table, np.array([GPUS.ids.index(gpu)]), np.array([1e-3]))
    return LIBRARIES[int(samples(rows, GPUS).features[LIBRARY_OF_STACK, 0])]


@pytest.mark.parametrize(
    ("gpu", "op", "software", "dtype", "fields", "expected"),
    [
        ("h100-sxm5-80gb", "attention_decode", "vllm", "bf16", {}, "flash-attention-3"),
        ("h100-sxm5-80gb", "attention_decode", "trtllm", "bf16", {}, "trtllm"),
        ("gb300", "attention_decode", "vllm", "bf16", {}, "trtllm-gen"),
        ("l40s", "attention_decode", "vllm", "bf16", {}, "flash-attention-2"),
        ("l40s", "attention_decode", "vllm", "bf16", FP8_CACHE, "flashinfer"),
        ("l40s", "attention_decode", "trtllm", "bf16", FP8_CACHE, "trtllm-fp8"),
        ("l40s", "attention_decode", "sglang", "bf16", {"head_dim": 64}, "triton"),
        ("b200", "attention_decode", "sglang", "bf16", {"hybrid": 0.0}, "triton"),
        ("b200", "attention_prefill", "sglang", "bf16", {"hybrid": 1.0}, "flashinfer"),
        ("b200", "attention_prefill", "sglang", "bf16", {}, "trtllm-gen"),
        ("h100-sxm5-80gb", "attention_decode", "sglang", "bf16", {"hybrid": 0.0}, "flash-attention-3"),
        ("rtx-5090", "moe", "sglang", "nvfp4", {}, "cutlass"),
        ("b200", "moe", "sglang", "nvfp4", {}, "trtllm-gen"),
        ("b200", "moe", "vllm", "bf16", {"gate": OTHER}, "cutlass"),
        ("h100-sxm5-80gb", "moe", "sglang", "bf16", {"gate": UNGATED}, "cutlass"),
        ("a100-sxm4-80gb", "moe", "vllm", "int4_wo", {}, "marlin"),
        ("tesla-v100-sxm2-32gb", "moe", "vllm", "bf16", {}, ""),
        ("arc-pro-b60", "attention_decode", "vllm", "bf16", {}, ""),
        ("h100-sxm5-80gb", "linear", "vllm", "bf16", {}, ""),
    ],
)
def test_a_stack_runs_the_library_of_its_rule(
    gpu: str, op: str, software: str, dtype: str, fields: Mapping[str, float], expected: str
) -> None:
    assert library(gpu, op, software, dtype, **fields) == expected


def said(kernel: str) -> str | None:
    return next((name for part, name in SAID.items() if part in kernel), None)


@pytest.mark.parametrize(("op", "dtype"), [("attention_decode", "kv_cache_dtype"), ("moe", "dtype")])
def test_nine_in_ten_measured_rows_ran_the_library_of_the_rule(op: str, dtype: str) -> None:
    file = DATA / f"{op}.parquet"
    if not file.exists():
        pytest.skip(f"{file} is not there")
    keys = ["gpu", "framework", dtype, "kernel_source", *(["head_dim"] if op == "attention_decode" else [])]
    table = pq.read_table(file, columns=keys)
    counted = table.group_by(keys).aggregate([([], "count_all")]).to_pylist()
    right = total = 0
    for row in counted:
        ran = said(row["kernel_source"])
        if row["gpu"] not in PUBLISHED or ran is None:
            continue  # TensorRT-LLM's rows of its own kernels name none
        kind = {"bfloat16": "bf16"}.get(row[dtype], row[dtype])
        fields = {"kv_dtype": float(DTYPE_CODE[kind]), "head_dim": row["head_dim"]} if "head_dim" in row else {}
        ruled = library(PUBLISHED[row["gpu"]], op, row["framework"], "bf16" if fields else kind, **fields)
        total += row["count_all"]
        right += row["count_all"] * (ruled == ran)
    assert total > 400_000
    assert right / total > 0.9
