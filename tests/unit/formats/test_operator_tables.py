"""Import of small published operator data sets, in the format of their files, into a real database."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.config import CHECKOUT, Settings
from app.errors import BadInput, Malformed, NotFound
from app.formats.base import PartsImporter
from app.services.measurements.importing import PartsReport, find_importer, import_parts
from app.services.measurements.stored import page
from app.store.measurements import MeasurementRow
from app.store.session import Database
from app.store.uploads import Page
from evaluation.data import NO_SPLIT, TEST, TRAIN, read_cells
from tests.forked import run_command

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
HOST_BOUND = "bound by the host, not by the device"
ONE_TOKEN = "prefills of one token, which stacks decode"
UNTUNED = "CUTLASS of FlashInfer on Hopper, untuned: 3 to 4.5 times TensorRT-LLM's"
ALL_RANKS = "loads of all ranks on one"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not on this machine")

NEUSIGHT_DIMS = (
    "b",
    "h",
    "m",
    "n",
    "k",
    "in_channels",
    "out_channels",
    "kernel_size",
    "input_size",
    "stride",
    "padding",
)


def neusight_row(op: str, latency_ms: float, **changes: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"op": op, "gpu": "Tesla T4", "latency_ms": latency_ms, "torch": "2.1.0", "cuda": "cu121"}
    about |= {"kernel": f"{op}_kernel<float>", "split": "train"}
    launch = {"grid_x": 40, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    return about | launch | dict.fromkeys(NEUSIGHT_DIMS) | changes


NEUSIGHT = [
    neusight_row("linear", 1.0, m=512, n=512, k=512, b=1),
    neusight_row("linear", 1.1, m=512, n=512, k=512, b=1, split="test"),
    neusight_row("linear", 1.0, m=512, n=512, k=512, b=1, split="test"),
    neusight_row("addu", 0.05, b=64, h=1024, gpu="AMD Instinct MI100", torch=None),
    neusight_row("conv", 2.0, b=8, in_channels=64, out_channels=64, input_size=64, kernel_size=3, stride=1, padding=1),
    neusight_row("relu", 1e-4, b=8192, h=1024),
]


def neusight(folder: Path, rows: list[dict[str, Any]] = NEUSIGHT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "operators_fp32.parquet")
    return folder


MODERN: dict[str, dict[str, Any]] = {
    "gemm": {"dtype": "fp8_block", "m": 128, "n": 4096, "k": 4096, "latency_ms": 0.05},
    "attention_decode": {
        "dtype": "bfloat16",
        "kv_dtype": "fp8",
        "batch_size": 4,
        "new_tokens": 1,
        "past_tokens": 1023,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "window_size": 128,
        "latency_ms": 0.03,
    },
    "moe": {
        "dtype": "w4a16_mxfp4",
        "num_tokens": 16,
        "hidden_size": 2048,
        "inter_size": 768,
        "topk": 8,
        "num_experts": 128,
        "moe_tp_size": 1,
        "moe_ep_size": 2,
        "distribution": "power_law_1.01",
        "latency_ms": 1.0,
    },
    "collective": {
        "dtype": "float16",
        "operation": "alltoall",
        "impl": "vLLM_custom_graph",
        "num_gpus": 4,
        "message_bytes": 65536,
        "latency_ms": 0.2,
    },
}


def modern(folder: Path, **changes: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, row in MODERN.items():
        about = {"gpu": "h100_sxm", "framework": "vllm", "framework_version": "0.24.0"}
        kernel = {} if name == "collective" else {"kernel_source": f"{name}_source"}
        pq.write_table(pa.Table.from_pylist([about | kernel | row | changes.get(name, {})]), folder / f"{name}.parquet")
    return folder


def bring_in(database: Database, name: str, path: Path, **options: Any) -> PartsReport:
    importer = find_importer(name)
    assert isinstance(importer, PartsImporter)
    return import_parts(database, importer, path, **options)


def stored(database: Database, **filters: str) -> list[MeasurementRow]:
    with database.begin() as connection:
        return page(connection, Page(limit=1000, **filters))


def test_neusight_is_imported_once_and_omitted_rows_are_reported(database: Database, tmp_path: Path) -> None:
    folder = neusight(tmp_path)
    tried = bring_in(database, "neusight", folder, dry_run=True)
    assert (tried.received, tried.inserted, tried.skipped.total()) == (6, 4, 1)
    assert stored(database, source="neusight") == []
    lines: list[str] = []
    report = bring_in(database, "neusight", folder, progress=lines.append)
    assert (report.received, report.inserted, report.unchanged) == (6, 4, 1)
    assert report.accepted == {
        ("linear", "fp32", "tesla-t4"): 3,
        ("add_scalar", "fp32", "amd-instinct-mi100"): 1,
        ("conv2d", "fp32", "tesla-t4"): 1,
    }
    assert report.skipped == {"relu on tesla-t4: latency more than 5 % under the hardware limit": 1}
    assert report.examples[0].startswith("operators_fp32.parquet row 5: 0.0001 ms")
    assert lines[-1].startswith("operators_fp32.parquet: 6 rows done")
    rows = {(row.name, row.latency_s): row for row in stored(database, source="neusight")}
    linear = rows["linear", 1.0e-3]
    assert linear.workload == {"kind": "operator", "op": "linear", "m": 512, "n": 512, "k": 512, "dtype": "fp32"}
    assert linear.kernel == {"name": "linear_kernel<float>", "grid": [40, 2, 1], "block": [128, 1, 1]}
    assert linear.software == "pytorch-2.1.0"
    assert rows["add_scalar", 0.05e-3].software == "pytorch"
    conv = {"b": 8, "in_channels": 64, "out_channels": 64, "input_size": 64, "kernel_size": 3, "padding": 1}
    assert rows["conv2d", 2.0e-3].workload == {"kind": "operator", "op": "conv2d", "dtype": "fp32"} | conv
    again = bring_in(database, "neusight", folder)
    assert (again.inserted, again.unchanged) == (0, 5)


def test_aiconfigurator_rows_have_the_fields_of_the_api(database: Database, tmp_path: Path) -> None:
    report = bring_in(database, "aiconfigurator", modern(tmp_path))
    assert (report.received, report.inserted) == (4, 4)
    by_name = {row.name: row for row in stored(database, source="aiconfigurator")}
    assert {row.gpu_id for row in by_name.values()} == {"h100-sxm5-80gb"}
    assert {row.software for row in by_name.values()} == {"vllm-0.24.0"}
    assert by_name["linear"].kernel == {"name": "gemm_source"}
    assert by_name["linear"].workload["dtype"] == "fp8_block"
    decode = by_name["attention_decode"].workload
    assert (decode["context_length"], decode["kv_dtype"], decode["window"]) == (1024, "fp8", 128)
    assert (by_name["moe"].workload["distribution"], by_name["moe"].workload["expert_parallel"]) == (
        "power_law_1.01",
        2,
    )
    # A gate and a router as usual are not stored: such rows keep the identity that they had before these were fields.
    assert by_name["moe"].workload.keys().isdisjoint(("gate", "router"))
    collective = by_name["all_to_all"]
    assert (collective.workload["implementation"], collective.workload["dtype"]) == ("custom", "fp16")
    assert collective.kernel == {"name": "vLLM_custom_graph"}
    eager = bring_in(database, "aiconfigurator", modern(tmp_path, collective={"impl": "vLLM_custom_eager"}))
    assert eager.inserted == 1
    assert stored(database, software="vllm-eager-0.24.0")[0].kernel == {"name": "vLLM_custom_eager"}


STACK = {"gpu": "h200_sxm", "framework": "sglang", "framework_version": "0.5.14", "kernel_source": "a"}
BY_STACK: dict[str, list[dict[str, Any]]] = {
    "gemm": [
        {"op_name": "gemm", "dtype": "bfloat16", "m": 8, "n": 4096, "k": 4096, "latency_ms": 0.01},
        {"op_name": "gemm", "dtype": "fp8_block", "m": 8, "n": 4096, "k": 4096, "latency_ms": 0.15},
        {"op_name": "gemm", "dtype": "sq", "m": 8, "n": 4096, "k": 4096, "latency_ms": 0.01},
    ],
    "attention_encoder": [
        {
            "op_name": "encoder_attention",
            "dtype": "bfloat16",
            "batch_size": 2,
            "new_tokens": 64,
            "num_heads": 16,
            "head_dim": 80,
            "latency_ms": 0.02,
        }
    ],
    "mla_bmm": [
        {
            "op_name": f"mla_gen_{side}",
            "dtype": "bfloat16",
            "num_tokens": 8,
            "num_heads": 16,
            "latency_ms": 0.01,
            "table": "mla_bmm",
        }
        for side in ("pre", "post")
    ],
    "all_reduce_custom": [
        {
            "op_name": "all_reduce",
            "dtype": "bfloat16",
            "num_gpus": 4,
            "message_size": 1024,
            "latency_ms": 0.01,
            "table": "custom_allreduce",
            "implementation": "none",
            "kernel_source": "SGLang_CustomAllReduce_eager",
        }
    ],
    "another_table": [{"m": 8}],
}


def test_tables_by_serving_stack_are_read_and_the_others_are_named(database: Database, tmp_path: Path) -> None:
    for name, rows in BY_STACK.items():
        kernels = [STACK | {"kernel_source": f"{name}_{row.get('dtype')}"} | row for row in rows]
        pq.write_table(pa.Table.from_pylist(kernels), tmp_path / f"{name}.parquet")
    report = bring_in(database, "aiconfigurator", tmp_path)
    assert report.skipped == {"number formats that the operator lacks": 1, HOST_BOUND: 1}
    assert any("another_table.parquet" in note for note in report.notes)
    rows = [row for row in stored(database, source="aiconfigurator") if row.gpu_id == "h200-sxm-141gb"]
    assert {row.software for row in rows} == {"sglang-0.5.14", "sglang-eager-0.5.14"}
    by_name = {(row.name, row.workload.get("n")): row.workload for row in rows}
    assert by_name["linear", 4096]["dtype"] == "bf16"
    # Without a mask every query sees all keys, as through a window of that many.
    unmasked = by_name["attention_prefill", None]
    assert [unmasked[name] for name in ("query_length", "context_length", "window")] == [64, 127, 64]
    assert (by_name["bmm", 512]["k"], by_name["bmm", 128]["k"], by_name["bmm", 128]["b"]) == (128, 512, 16)
    reduced = by_name["all_reduce", None]
    assert (reduced["message_bytes"], reduced["implementation"]) == (2048, "custom")


DECODE = {"op_name": "generation_attention", "batch_size": 8, "num_heads": 16, "num_kv_heads": 2, "new_tokens": 1}
DECODE |= {"past_tokens": 1023, "window_size": 0, "dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}


def test_rows_of_hybrid_models_on_blackwell_are_told_apart(database: Database, tmp_path: Path) -> None:
    ran = [("triton", 256), ("flashinfer", 128), ("trtllm_mha", 256), ("triton", 192)]
    rows = [("b200_sxm", *one) for one in ran] + [("h200_sxm", "triton", 64)]
    table = [
        STACK | DECODE | {"gpu": gpu, "kernel_source": kernel, "head_dim": width, "latency_ms": 0.01 * (k + 1)}
        for k, (gpu, kernel, width) in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "attention_decode.parquet")
    bring_in(database, "aiconfigurator", tmp_path)
    by_name = {
        (row.gpu_id, row.kernel["name"], row.workload["head_dim"]): row.workload.get("hybrid")
        for row in stored(database, software="sglang-0.5.14")
        if row.name == "attention_decode" and row.kernel is not None
    }
    hybrids = {key[1:]: hybrid for key, hybrid in by_name.items() if hybrid}
    assert (len(by_name), hybrids) == (len(rows), {("triton", 256): "gdn", ("flashinfer", 128): "mamba2"})


QUANTIZE = {"m": 8, "k": 128, "quant_dtype": "fp8", "table": "x"}
DEEPEP = {"framework_version": "0.5.12", "kernel_source": "deepep", "table": "x", "node_num": 1.0, "hidden_size": 7168}
DEEPEP |= {"num_token": 64.0, "num_topk": 8.0, "num_experts": 256, "dispatch_us": 20.0, "combine_us": 30.0}
WIDE = {"moe_dtype": "fp8_block", "num_tokens": 64, "hidden_size": 7168, "inter_size": 2048, "top_k": 8, "table": "x"}
WIDE |= {"num_experts": 256, "moe_tp_size": 1, "moe_ep_size": 32, "rank0_num_tokens": None, "dp_num_tokens": None}
EXCHANGE: dict[str, list[dict[str, Any]]] = {
    "quantize": [
        QUANTIZE | {"framework": "vllm", "op_name": "scale_matrix", "latency_ms": 0.004},
        QUANTIZE | {"framework": "vllm", "op_name": "compute_scale", "latency_ms": 0.001},
        # Of two sizes no difference is known: PyTorch's chain of operators is slower than the stack's kernel.
        QUANTIZE | {"framework": "sglang", "op_name": "scale_matrix", "latency_ms": 0.02},
        QUANTIZE | {"framework": "sglang", "op_name": "scale_matrix", "latency_ms": 0.02, "m": 16},
        QUANTIZE | {"framework": "sglang", "op_name": "scale_matrix", "latency_ms": 0.02, "m": 32},
        QUANTIZE | {"framework": "sglang", "op_name": "compute_scale", "latency_ms": 0.001, "m": 32},
    ],
    "expert_all_to_all": [
        DEEPEP | {"op_name": "ll", "dispatch_sms": None, "combine_sms": None},
        DEEPEP | {"op_name": "normal", "dispatch_sms": 8.0, "combine_sms": 8.0},
        DEEPEP | {"op_name": "normal", "dispatch_sms": 8.0, "combine_sms": 8.0, "node_num": 2.0},
    ],
    "moe_wide_expert_parallel": [
        WIDE | {"op_name": "moe_generation", "distribution": "uniform", "num_slots": None, "latency_ms": 0.2},
        WIDE | {"op_name": "wideep_moe_eplb", "num_slots": 288.0, "latency_ms": 0.3}
        | {"framework": "trtllm", "distribution": "power_law_1.2_eplb"},
        WIDE | {"op_name": "moe_context", "distribution": "uniform", "num_slots": None, "latency_ms": 0.2}
        | {"moe_tp_size": 2},
    ],
}  # fmt: skip


def test_exchanges_of_experts_and_quantisations_are_read(database: Database, tmp_path: Path) -> None:
    empty = {"simulation_mode": "none", "moe_kernel": "none"}
    for name, rows in EXCHANGE.items():
        more = empty if name == "moe_wide_expert_parallel" else {}
        table = pa.Table.from_pylist([STACK | more | row for row in rows])
        for column in ("rank0_num_tokens", "dp_num_tokens"):
            if column in table.column_names:
                at = table.column_names.index(column)
                table = table.set_column(at, column, table[column].cast(pa.float64()))
        pq.write_table(table, tmp_path / f"{name}.parquet")
    report = bring_in(database, "aiconfigurator", tmp_path)
    assert report.skipped == {
        "quantisations that no kernel of the stack does": 4,
        "exchanges over several machines": 2,  # to the experts and back
        "experts that devices share": 1,
    }
    rows = [row for row in stored(database, source="aiconfigurator") if row.gpu_id == "h200-sxm-141gb"]
    quantised = {row.workload.get("scale", "dynamic"): row for row in rows if row.name == "quantize"}
    assert quantised["static"].latency_s == pytest.approx(4e-6)
    assert quantised["dynamic"].latency_s == pytest.approx(5e-6)  # its own 4 us, and 1 us more to find the scale
    assert quantised["dynamic"].workload["dtype"] == "fp8"
    sent = {row.workload.get("mode", "normal"): row for row in rows if row.name == "expert_dispatch"}
    assert (sent["normal"].workload["sms"], sent["normal"].workload["devices"]) == (8, 8)
    assert sent["low_latency"].latency_s == pytest.approx(20e-6)
    assert {row.workload["dtype"] for row in rows if row.name == "expert_combine"} == {"bf16"}
    wide = {row.software: row.workload for row in rows if row.name == "moe_wide"}
    assert wide["sglang-0.5.14"]["mode"] == "low_latency"
    assert "slots" not in wide["sglang-0.5.14"]
    slots = wide["trtllm-0.5.14"]
    assert (slots["slots"], slots["balancer"], slots["distribution"]) == (288, "eplb", "power_law_1.2")


MODULE = {"mla_dtype": "bfloat16", "kv_cache_dtype": "fp8_e4m3", "gemm_type": "fp8_block", "tp_size": 4, "table": "x"}
MODULES: dict[str, list[dict[str, Any]]] = {
    "sparse_attention_module": [
        MODULE
        | {"op_name": op, "model": model, "num_heads": 32, "batch_size": 4, "new_tokens": 1, "past_tokens": 4095}
        | {"compress_ratio": ratio, "latency_ms": 0.2}
        for op, model, ratio in (
            ("dsa_generation_module", "deepseek-ai/DeepSeek-V3.2", None),
            ("dsa_generation_module_skip_indexer", "zai-org/GLM-5.2", None),
            ("dsv4_csa_generation_module", "deepseek-ai/DeepSeek-V4-Pro", 4.0),
            ("msa_generation_module", "MiniMaxAI/MiniMax-M3", None),
            ("msa_generation_module", "another/model", None),
            ("msa_context_module", "MiniMaxAI/MiniMax-M3", None),
        )
    ],
    "linear_attention": [
        {"op_name": rule, "phase": phase, "kernel_source": kernel, "batch_size": 2, "seq_len": tokens}
        | {"num_tokens": 2 * tokens, "d_model": 4096, "d_conv": 4, "model_name": "x", "table": "gdn", "latency_ms": 0.1}
        | {"num_k_heads": 8.0, "num_v_heads": 24.0, "head_k_dim": 128.0, "head_v_dim": 128.0, "chunk_size": None}
        | dict.fromkeys(("d_state", "nheads", "head_dim", "n_groups"))
        for rule, phase, kernel, tokens in (
            ("gdn", "context", "chunk_gated_delta_rule", 512),
            ("gdn", "generation", "fused_recurrent_gated_delta_rule", 1),
            ("kda", "context", "causal_conv1d_fn", 512),
        )
    ],
    "hyper_connections": [
        {"op_name": "pre", "num_tokens": 64, "num_sites": 2, "hc_mult": 4, "hidden_size": 7168, "sinkhorn_iters": 20}
        | {"latency_ms": 0.05, "table": "mhc_module"}
    ],
}


def test_whole_layers_of_serving_stacks_are_read(database: Database, tmp_path: Path) -> None:
    for name, rows in MODULES.items():
        table = pa.Table.from_pylist([STACK | row for row in rows])
        for column in ("compress_ratio", "chunk_size", "d_state", "nheads", "head_dim", "n_groups"):
            if column in table.column_names:
                at = table.column_names.index(column)
                table = table.set_column(at, column, table[column].cast(pa.float64()))
        pq.write_table(table, tmp_path / f"{name}.parquet")
    report = bring_in(database, "aiconfigurator", tmp_path)
    assert (report.inserted, report.skipped) == (8, {"models whose sizes are not known": 1, ONE_TOKEN: 1})
    rows = [row.workload for row in stored(database, source="aiconfigurator") if row.gpu_id == "h200-sxm-141gb"]
    modules = {row.get("variant", "mla"): row for row in rows if row["op"] == "attention_module"}
    assert {row["dtype"] for row in modules.values()} == {"fp8_block"}
    assert (modules["csa"]["compression"], modules["csa"]["index_keys"], modules["csa"]["window"]) == (4, 1024, 128)
    assert (modules["csa"]["output_groups"], modules["msa"]["kv_heads"]) == (4, 2)
    layers = [row for row in rows if row.get("variant") == "dsa"]
    assert sorted(row.get("index_heads", 0) for row in layers) == [0, 64]  # GLM-5.2 takes an earlier layer's selection
    by_name = {row["op"]: row for row in rows}
    assert (by_name["linear_attention"]["query_length"], by_name["linear_attention"]["value_heads"]) == (512, 24)
    assert "variant" not in by_name["linear_attention_step"]
    convolution = by_name["short_convolution"]
    assert (convolution["channels"], convolution["variant"]) == ((2 * 8 + 24) * 128, "kda")
    times = [row for row in stored(database, source="aiconfigurator") if row.name == "hyper_connections"]
    assert times[0].latency_s == pytest.approx(0.025e-3)  # of one of its two sites


HEADS, TOKENS = (size.ravel() for size in np.meshgrid(2.0 ** np.arange(8), 2.0 ** np.arange(8)))
AT_RANDOM = np.exp(np.random.default_rng(0).normal(size=64))


def test_unsteady_kernels_are_left_out_and_counted(database: Database, tmp_path: Path) -> None:
    rows = [
        {"gpu": "h200_sxm", "framework": "trtllm", "framework_version": "1.3", "kernel_source": kernel, **MODULE}
        | {"op_name": "msa_context_module", "model": "MiniMaxAI/MiniMax-M3", "compress_ratio": None}
        | {
            "num_heads": int(heads),
            "batch_size": 4,
            "new_tokens": int(2 * tokens),
            "past_tokens": 0,
            "latency_ms": time,
        }
        for kernel, times in (("steady", HEADS * TOKENS), ("unsteady", AT_RANDOM))
        for heads, tokens, time in zip(HEADS, TOKENS, times.tolist(), strict=True)
    ]
    table = pa.Table.from_pylist(rows)
    table = table.set_column(
        table.column_names.index("compress_ratio"), "compress_ratio", table["compress_ratio"].cast(pa.float64())
    )
    pq.write_table(table, tmp_path / "sparse_attention_module.parquet")
    report = bring_in(database, "aiconfigurator", tmp_path)
    assert (report.inserted, report.skipped) == (64, {"times that fall as often as they grow with the sizes": 64})


def test_experts_measured_with_the_loads_of_all_ranks_are_left_out(database: Database, tmp_path: Path) -> None:
    layer = {"op_name": "moe", "dtype": "bfloat16", "num_tokens": 64, "hidden_size": 4096, "inter_size": 1536}
    layer |= {"top_k": 8, "num_experts": 128, "moe_tp_size": 1, "distribution": "balanced", "latency_ms": 1.0}
    rows = [
        STACK | layer | {"framework_version": version, "moe_ep_size": ranks}
        for version in ("0.5.10", "0.5.14")
        for ranks in (1, 8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "moe.parquet")
    report = bring_in(database, "aiconfigurator", tmp_path)
    assert (report.inserted, report.skipped) == (3, {ALL_RANKS: 1})


@pytest.mark.parametrize(
    ("hidden", "intermediate", "experts", "fields"),
    [
        (2688, 1856, 128, {"gate": "none"}),  # Nemotron 3
        (2816, 704, 128, {"gate": "gelu"}),  # Gemma 4
        (7168, 2048, 256, {"router": "grouped"}),  # DeepSeek-V3
        (7168, 2048, 384, {}),
    ],
)
def test_aiconfigurator_layers_get_their_gate_and_router(
    database: Database, tmp_path: Path, hidden: int, intermediate: int, experts: int, fields: dict[str, str]
) -> None:
    sizes = {"hidden_size": hidden, "inter_size": intermediate, "num_experts": experts, "latency_ms": 2.0}
    bring_in(database, "aiconfigurator", modern(tmp_path, moe=sizes))
    layers = [row.workload for row in stored(database, source="aiconfigurator") if row.name == "moe"]
    (layer,) = (one for one in layers if (one["hidden"], one["experts"]) == (hidden, experts))
    assert {name: layer[name] for name in ("gate", "router") if name in layer} == fields


def layers_of_vllm(folder: Path) -> Path:
    about = {"tp": 2, "dtype": "bf16", "model": "meta-llama/Llama-3.1-8B", "gpu": "RTX4090"}
    layers = ("embedding", "layernorm", "act_fn", "gate_up_proj", "qkv_proj", "rotary_emb")
    dense = [{**about, "layer": layer, "tokens": 64, "time_us": 50.0} for layer in layers]
    sequences = [{**about, "layer": layer, "sequences": 8, "time_us": 900.0} for layer in ("lm_head", "sampler")]
    batches = ((0, 0, 4, 1023), (512, 1024, 0, 0), (512, 1024, 4, 1023), (0, 0, 0, 0))
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    attention = [{**about, **dict(zip(names, batch, strict=True)), "time_us": 200.0} for batch in batches]
    for name, rows in (("dense", dense), ("per_sequence", sequences), ("attention", attention)):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"llmservingsim_ops_{name}.parquet")
    return folder


def test_layers_of_vllm_become_operators(database: Database, tmp_path: Path) -> None:
    report = bring_in(database, "llmservingsim", layers_of_vllm(tmp_path))
    assert (report.received, report.inserted) == (10, 10)
    rows = stored(database, source="llmservingsim")
    assert {(row.gpu_id, row.software) for row in rows} == {("rtx-4090", "vllm-0.19")}
    products = {row.workload["n"]: row.workload["k"] for row in rows if row.name == "linear"}
    assert products == {14336: 4096, 3072: 4096, 64128: 4096}  # gate and up; queries, keys and values; the head
    by_name = {row.name: row.workload for row in rows if row.name != "linear"}
    assert (by_name["gated_activation"]["h"], by_name["add_norm"]["h"], by_name["sample"]["h"]) == (7168, 4096, 128256)
    assert (by_name["attention_decode"]["batch"], by_name["attention_decode"]["context_length"]) == (4, 1024)
    chunk = by_name["attention_prefill"]
    assert (chunk["query_length"], chunk["context_length"], chunk["heads"], chunk["kv_heads"]) == (512, 1536, 16, 4)
    assert (by_name["attention_mixed"]["decodes"], by_name["attention_mixed"]["decode_context"]) == (4, 1024)


PRODUCT = {
    **dict.fromkeys(
        ("gfx", "dtype", "scaleAB", "bpreshuffle", "library", "kernel", "source_file", "q_dtype_w", "bias"), ""
    ),
    **dict.fromkeys(("cu_num", "split_k", "tflops", "bw", "error_ratio"), 0.0),
    **{"gpu": "mi300x", "out_dtype": "torch.bfloat16", "kind": "a8w8_blockscale", "batch": 1},
    **{"m": 64, "n": 1536, "k": 7168, "latency_us": 9.0},
}


def test_of_tuned_products_the_quickest_kernel_is_read(database: Database, tmp_path: Path) -> None:
    rows = [
        PRODUCT,
        PRODUCT | {"kind": "a8w8_blockscale_bpreshuffle", "latency_us": 7.0},
        PRODUCT | {"kind": "bf16", "latency_us": 20.0},
        PRODUCT | {"kind": "a8w8", "q_dtype_w": "torch.int8", "latency_us": 8.0},
        PRODUCT | {"batch": 16},
        PRODUCT | {"gpu": "gfx1250_256"},
        PRODUCT | {"kind": "bf16", "bias": "True"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "gemm.parquet")
    report = bring_in(database, "aiter", tmp_path)
    assert report.inserted == 3
    assert {
        "batches of products": 1,
        "GPUs that are no product": 1,
        "products with a bias": 1,
    }.items() <= report.skipped.items()
    rows_read = stored(database, source="aiter")
    assert {row.gpu_id for row in rows_read} == {"amd-instinct-mi300x"}
    times = {row.workload["dtype"]: round(1e6 * row.latency_s, 3) for row in rows_read}
    assert times == {"fp8_block": 7.0, "bf16": 20.0, "int8": 8.0}


TIMM = {
    "device": "rtx3090",
    "framework": "torch-1.13",
    "cuda": "cu117",
    "precision": "amp",
    "layout": "nhwc",
    "compile_mode": "dynamo",
    "phase": "train",
    "model": "resnet50",
    "batch": 256.0,
    "img_size": 224,
    "step_time_ms": 250.0,
    "gmacs": 4.11,
    "macts": 11.11,
    "params_m": 25.56,
    "is_convnet": 1,
}


def test_timm_imports_convnets(database: Database, tmp_path: Path) -> None:
    rows = [TIMM, TIMM | {"is_convnet": 0, "model": "vit"}, TIMM | {"batch": None}, TIMM | {"gmacs": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "vision_models.parquet")
    report = bring_in(database, "timm", tmp_path)
    assert (report.received, report.inserted) == (4, 1)
    assert report.skipped == {"not a ConvNet": 1, "no batch, step time or counts": 2}
    (row,) = stored(database, source="timm")
    assert (row.gpu_id, row.software, row.latency_s) == ("rtx-3090", "pytorch-1.13", 0.25)
    assert row.workload == {
        "kind": "operator",
        "op": "network",
        "batch": 256,
        "flops": 8.22e9,
        "outputs": 11.11e6,
        "weights": 25.56e6,
        "pass": "step",
        "channels_last": 1,
        "compiled": 1,
        "dtype": "fp16",
    }
    assert bring_in(database, "timm", tmp_path).unchanged == 1
    with pytest.raises(BadInput, match="phase 'test'"):
        pq.write_table(pa.Table.from_pylist([TIMM | {"phase": "test"}]), tmp_path / "vision_models.parquet")
        bring_in(database, "timm", tmp_path)


def test_files_in_gpucasts_own_format(database: Database, tmp_path: Path) -> None:
    row = {"gpu": "l40s", "software": "vllm-0.24", "source": "own", "latency_ms": 3.0}
    gemm = {"op": "linear", "dtype": "bf16", "m": 64, "n": 64, "k": 64}
    pq.write_table(pa.Table.from_pylist([row | gemm]), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text(
        ",".join(row | gemm) + "\n" + ",".join(map(str, (row | {"latency_ms": 4.0} | gemm).values())) + "\n"
    )
    (tmp_path / "c.json").write_text(json.dumps([row | {"latency_ms": 5.0, "workload": {"kind": "operator"} | gemm}]))
    assert bring_in(database, "measurements", tmp_path).inserted == 3
    assert bring_in(database, "measurements", tmp_path / "a.parquet").unchanged == 1
    with pytest.raises(NotFound, match="holds no measurements"):
        (tmp_path / "empty").mkdir()
        bring_in(database, "measurements", tmp_path / "empty")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"op": "lstm"}, "unknown op 'lstm'"),
        ({"split": "dev"}, "unknown split 'dev'"),
        ({"latency_ms": "1.0"}, "columns latency_ms"),
    ],
)
def test_unknown_columns_and_choices_are_named(
    database: Database, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        bring_in(database, "neusight", neusight(tmp_path, [NEUSIGHT[0] | changes]))


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"gpu": "Tesla T5"}, ("operators_fp32.parquet", 0, "gpu")),
        ({"latency_ms": -1.0}, ("operators_fp32.parquet", 0, "latency_ms")),
        ({"latency_ms": float("nan")}, ("operators_fp32.parquet", 0, "latency_ms")),
        ({"m": 0}, ("operators_fp32.parquet", 0, "workload", "m")),
    ],
)
def test_unreadable_cells_are_named_and_nothing_is_stored(
    database: Database, tmp_path: Path, changes: dict[str, Any], loc: tuple[Any, ...]
) -> None:
    with pytest.raises(BadInput) as caught:
        bring_in(database, "neusight", neusight(tmp_path, [NEUSIGHT[0] | {"k": 64} | changes]))
    assert loc in [error.loc for error in caught.value.errors]
    assert not [row for row in stored(database, source="neusight") if row.workload.get("k") == 64]


def test_invalid_files_are_rejected(database: Database, tmp_path: Path) -> None:
    for name in ("neusight", "aiconfigurator", "llmservingsim", "timm"):
        with pytest.raises(NotFound, match=r"\.parquet"):
            bring_in(database, name, tmp_path)
    (tmp_path / "operators_fp32.parquet").write_bytes(b"PAR1")
    with pytest.raises(Malformed, match="not a Parquet file"):
        bring_in(database, "neusight", tmp_path)
    with pytest.raises(BadInput, match="None of the 1 rows"):
        bring_in(database, "neusight", neusight(tmp_path, NEUSIGHT[5:]))


def test_files_are_read_for_evaluation_with_their_split(tmp_path: Path) -> None:
    neusight(tmp_path / "neusight")
    modern(tmp_path / "serving_operators")
    by_name = {part.runs.op: part for part in read_cells(tmp_path) if part.runs.dtype == "fp32"}
    linear = by_name["linear"]
    # The row that is in both parts was learned from.
    by_time = dict(zip(linear.runs.rows.latency_s.tolist(), linear.split.tolist(), strict=True))
    assert by_time == {1.0e-3: TRAIN, 1.1e-3: TEST}
    assert linear.runs.kernels == ("linear_kernel<float>",)
    assert (np.diff(linear.runs.key.astype(object)) > 0).all()
    moe = next(part for part in read_cells(tmp_path) if part.runs.op == "moe")
    assert (moe.split.tolist(), moe.runs.stacks) == ([NO_SPLIT], ("vllm-0.24.0",))


def test_the_command_prints_and_writes_its_results(settings: Settings, tmp_path: Path) -> None:
    done = run_command("import", "neusight", neusight(tmp_path), "--dry-run", env=os.environ | settings.environment())
    assert "add_scalar          fp32" in done.stdout
    assert "skipped 1 rows: relu on tesla-t4" in done.stdout
    assert "6 rows: " in done.stdout


@needs_data
@pytest.mark.parametrize(
    ("name", "folder", "gpus"),
    [
        ("neusight", "neusight", 9),
        ("aiconfigurator", "modern_operators", 5),
        ("aiconfigurator", "serving_operators", 7),
    ],
)
def test_a_part_of_the_published_files(database: Database, tmp_path: Path, name: str, folder: str, gpus: int) -> None:
    every = 100 if folder != "serving_operators" else 1000
    for path in (DATA / folder).glob("*.parquet"):
        if path.name not in ("operator_graphs.parquet",):
            table = pq.read_table(path)
            pq.write_table(table.take(np.arange(0, table.num_rows, every)), tmp_path / path.name)
    report = bring_in(database, name, tmp_path, dry_run=True)
    assert report.received > 3000
    apart = sum(report.skipped[why] for why in (HOST_BOUND, ONE_TOKEN, ALL_RANKS, UNTUNED))
    assert report.skipped.total() - apart < 0.01 * report.received
    assert len({gpu for _, _, gpu in report.accepted}) == gpus
