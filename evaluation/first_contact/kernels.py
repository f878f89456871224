"""Kernels, operators and collectives: milliseconds of one launch, as a user asks POST /predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from evaluation.first_contact.question import Body, Levels, Question, Row, Source, evenly, read_rows

_PAIRS_ROWS = 150  # configurations of a kernel for each pair of GPUs
_AITER_GPUS = {"mi300x": "amd-instinct-mi300x", "mi355x": "amd-instinct-mi355x", "mi308x": "mi308x"}
_AITER_PRODUCTS = {
    "a8w8_blockscale": "fp8_block",
    "a8w8_blockscale_bpreshuffle": "fp8_block",
    "a8w8": "fp8",
    "a4w4_blockscale": "nvfp4",
    "bf16": "bf16",
}
_COLLECTIVES = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "alltoall_perf": "all_to_all",
    "sendrecv_perf": "send_recv",
}
# Sizes of served models' layers: hidden, intermediate, heads, heads of keys, vocabulary.
_SIZES = {
    "meta-llama/Llama-3.1-8B": (4096, 14336, 32, 8, 128256),
    "meta-llama/Llama-3.1-70B": (8192, 28672, 64, 8, 128256),
    "mistralai/Mixtral-8x7B-v0.1": (4096, 14336, 32, 8, 32000),
    "microsoft/Phi-mini-MoE-instruct": (4096, 960, 16, 4, 32064),
}
TUNED_GPUS = {
    "a100": "a100-pcie-40gb",
    "a4000": "rtx-a4000",
    "a6000": "rtx-a6000",
    "mi50": "mi50",
    "w6600": "radeon-pro-w6600",
    "rtx_2080_ti": "rtx-2080-ti",
    "rtx_3090": "rtx-3090",
    "rtx_titan": "titan-rtx",
}


def _operator(case: str, gpu: str, operator: Body, milliseconds: float, **levels: Any) -> Question:
    body = {"gpu": gpu, "coverage": 0.8, "workload": {"kind": "operators", "operators": [operator]}}
    place = Levels(figure="operator", gpu=gpu, model=operator["op"], dtype=str(operator.get("dtype", "")), **levels)
    return Question(case, place, milliseconds, [(1.0, body)])


def _aiter_products(folder: Path) -> Iterator[Question]:
    """Yield the quickest library of each shape: tuned products, one of a batch."""
    quickest: dict[tuple[Any, ...], Row] = {}
    for row in read_rows(folder / "aiter_operators/gemm.parquet"):
        if row["batch"] == 1 and row["kind"] in _AITER_PRODUCTS and row["gpu"] in _AITER_GPUS:
            key = tuple(row[name] for name in ("gpu", "kind", "m", "n", "k"))
            if key not in quickest or row["latency_us"] < quickest[key]["latency_us"]:
                quickest[key] = row
    for row in evenly(list(quickest.values())):
        sizes = {name: int(row[name]) for name in ("m", "n", "k")}
        operator = {"op": "linear", **sizes, "dtype": _AITER_PRODUCTS[row["kind"]]}
        case = f"{row['kind']} {row['m']}x{row['n']}x{row['k']}"
        yield _operator(case, _AITER_GPUS[row["gpu"]], operator, 1e-3 * row["latency_us"], stack="aiter")


def _aiter_dtype(row: Row) -> str:
    weights, scale = str(row["q_dtype_w"]), str(row["q_type"])
    if "float4" in weights or "fp4" in weights:
        return "nvfp4"
    if "float8" in weights:
        return "fp8_block" if "1x128" in scale or "128x128" in scale else "fp8"
    return "int8" if "int8" in weights else "bf16"


def _aiter_experts(folder: Path) -> Iterator[Question]:
    """Yield fused mixtures of experts, both products, the quickest of each shape."""
    quickest: dict[str, Question] = {}
    for row in read_rows(folder / "aiter_operators/moe.parquet"):
        operator = {
            "op": "moe",
            "tokens": int(row["num_tokens"]),
            "hidden": int(row["hidden_size"]),
            "intermediate": int(row["inter_size"]),
            "experts": int(row["num_experts"]),
            "top_k": int(row["topk"]),
            "dtype": _aiter_dtype(row),
        }
        case = " ".join(f"{name}{value}" for name, value in operator.items() if name != "op")
        gpu = _AITER_GPUS[row["gpu"]]
        question = _operator(case, gpu, operator, 1e-3 * row["latency_us"], stack="aiter")
        key = f"{gpu} {case}"
        if key not in quickest or question.measured < quickest[key].measured:
            quickest[key] = question
    yield from quickest.values()


def _aiter_linear_attention(folder: Path) -> Iterator[Question]:
    """Yield decode steps of the gated delta rule, the quickest launch of each shape."""
    quickest: dict[tuple[Any, ...], float] = {}
    names = ("gpu", "b", "sq", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "state_dtype")
    for row in read_rows(folder / "aiter_operators/linear_attention_decode.parquet"):
        key = tuple(row[name] for name in names)
        quickest[key] = min(quickest.get(key, row["latency_us"]), row["latency_us"])
    for (gpu, batch, queries, key_heads, value_heads, key_dim, value_dim, state), latency_us in quickest.items():
        operator = {
            "op": "linear_attention_step",
            "batch": int(batch),
            "query_length": int(queries),
            "key_heads": int(key_heads),
            "value_heads": int(value_heads),
            "key_dim": int(key_dim),
            "value_dim": int(value_dim),
            "dtype": "bf16",
        }
        case = f"b{batch} q{queries} {key_heads}/{value_heads} {key_dim}/{value_dim} {state}"
        yield _operator(case, _AITER_GPUS[gpu], operator, 1e-3 * latency_us, stack="aiter")


def _collectives(folder: Path) -> Iterator[Question]:
    """Yield nccl-tests on H100, out of place; the network between machines is no field of operators."""
    for row in evenly(read_rows(folder / "nccl_multinode/nccl.parquet")):
        operator = {
            "op": _COLLECTIVES[row["test"]],
            "message_bytes": int(row["bytes"]),
            "devices": int(row["ranks"]),
            "nodes": int(row["nodes"]),
        }
        case = f"{row['file']} {row['test']} {row['bytes']}"
        levels = {"stack": "nccl", "version": str(row["nccl"]), "devices": int(row["ranks"])}
        yield _operator(case, "h100-sxm5-80gb", operator, 1e-3 * row["time_us"], nodes=int(row["nodes"]), **levels)


def _layer(row: Row) -> Mapping[str, Any] | None:
    """Return the operator of a layer of LLMServingSim's profile; None if it is none of ours."""
    hidden, intermediate, heads, key_heads, vocabulary = _SIZES[row["model"]]
    tokens, split, width = int(row["input"]), int(row["tp"]), 128
    products = {
        "q_proj": (heads * width // split, hidden),
        "k_proj": (key_heads * width // split, hidden),
        "v_proj": (key_heads * width // split, hidden),
        "o_proj": (hidden, heads * width // split),
        "gate_proj": (intermediate // split, hidden),
        "up_proj": (intermediate // split, hidden),
        "down_proj": (hidden, intermediate // split),
        "expert.w1": (intermediate // split, hidden),
        "expert.w3": (intermediate // split, hidden),
        "expert.w2": (hidden, intermediate // split),
        "lm_head": (vocabulary // split, hidden),
    }
    name = row["layer_name"]
    if name in products:
        n, k = products[name]
        return {"op": "linear", "m": tokens, "n": n, "k": k, "dtype": "bf16"}
    if name in {"input_layernorm", "post_layernorm", "final_layernorm"}:
        return {"op": "rms_norm", "b": tokens, "h": hidden, "dtype": "bf16"}
    return None


def _layers(folder: Path) -> Iterator[Question]:
    """Yield layers of vLLM, each launched by the host and timed once."""
    gpus = {"h100": "h100-sxm5-80gb", "rtx_3090": "rtx-3090"}
    names = ["gpu", "model", "tp", "layer_name", "input", "latency(ns)"]
    for row in evenly(read_rows(folder / "llmservingsim_v0/layers.parquet", names), 6000):
        operator = _layer(row)
        if operator is not None:
            case = f"{row['model']} tp{row['tp']} {row['layer_name']} {row['input']}"
            yield _operator(case, gpus[row["gpu"]], operator, 1e-6 * row["latency(ns)"], stack="vllm")


def _prompts(folder: Path) -> Iterator[Question]:
    """Yield attention of prompts by FlashAttention 2; decoding rows undercut the memory's bandwidth."""
    gpus = {"h100": "h100-sxm5-80gb", "rtx_3090": "rtx-3090"}
    rows = read_rows(folder / "llmservingsim_v0/attention.parquet")
    for row in evenly([row for row in rows if row["is_prefill"]]):
        split, chunk = int(row["tp"]), int(row["prefill_chunk_size"])
        operator = {
            "op": "attention_prefill",
            "batch": int(row["batch_size"]),
            "heads": int(row["n_q_head"]) // split,
            "kv_heads": max(int(row["n_kv_head"]) // split, 1),
            "head_dim": 128,
            "query_length": chunk,
            "context_length": int(row["kv_cache_size"]) + chunk,
            "dtype": "bf16",
        }
        case = f"{row['model']} tp{split} {chunk}+{row['kv_cache_size']}"
        yield _operator(case, gpus[row["gpu"]], operator, float(row["attn_prefill.median"]), stack="vllm")


def _convolution(row: Row) -> Body:
    """Return the launch of Kernel Tuner's convolution of 4096 x 4096 FP32 values."""
    across, down = (int(row[f"block_size_{axis}"] * row[f"tile_size_{axis}"]) for axis in "xy")
    high, wide = int(row["filter_height"] or 15), int(row["filter_width"] or 15)
    moved = 4.0 * ((4096 + high - 1) * (4096 + wide - 1) + 4096**2)
    shared = 4 * (across + wide - 1) * (down + high - 1) if row["use_shmem"] in {None, 1} else 0
    return {
        "name": "convolution",
        "flops": 2.0 * 4096**2 * high * wide,
        "bytes": moved,
        "working_set_bytes": moved,
        "threads_per_block": int(row["block_size_x"] * row["block_size_y"]),
        "blocks": ceil(4096 / across) * ceil(4096 / down),
        "registers_per_thread": min(24 + 2 * int(row["tile_size_x"] * row["tile_size_y"]), 255),
        "shared_memory_per_block": shared,
    }


def _gemm(row: Row) -> Body:
    """Return the launch of CLBlast's product of 4096 x 4096 FP32 matrices."""
    rows, columns, inner = (int(row[name]) for name in ("MWG", "NWG", "KWG"))
    threads = int(row["MDIMC"] * row["NDIMC"])
    moved = 4.0 * 3 * 4096**2
    return {
        "name": "clblast_gemm",
        "flops": 2.0 * 4096**3,
        "bytes": moved,
        "working_set_bytes": moved,
        "threads_per_block": threads,
        "blocks": (4096 // rows) * (4096 // columns),
        "registers_per_thread": min(32 + rows * columns // threads, 255),
        "shared_memory_per_block": 4 * inner * (rows * int(row["SA"]) + columns * int(row["SB"])),
    }


TUNED = {
    "convolution": (
        _convolution,
        (
            "block_size_x",
            "block_size_y",
            "tile_size_x",
            "tile_size_y",
            "read_only",
            "use_padding",
            "use_shmem",
            "use_cmem",
            "filter_height",
            "filter_width",
        ),
    ),
    "gemm": (
        _gemm,
        ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI", "VWM", "VWN", "STRM", "STRN", "SA", "SB"),
    ),
}


def _tuned(folder: Path) -> Iterator[Question]:
    """Yield launches on each GPU with the same launch measured on one other, and without; registers are guessed."""
    for kernel, (launch_of, parameters) in TUNED.items():
        spaces: dict[str, dict[str, dict[tuple[Any, ...], Row]]] = {}
        for row in read_rows(folder / f"kernel_tuning/{kernel}.parquet"):
            if row["failed"] is None and row["time_ms"]:
                key = tuple(row[name] for name in parameters)
                spaces.setdefault(row["variant"], {}).setdefault(row["gpu"], {})[key] = row
        for gpus in spaces.values():
            for target, rows in gpus.items():
                for source, others in gpus.items():
                    shared = [key for key in rows if key in others] if source != target else list(rows)
                    yield from _pair(kernel, launch_of, (target, rows), (source, others), shared)


def _pair(kernel: str, launch_of: Any, target: Any, source: Any, keys: Sequence[Any]) -> Iterator[Question]:
    (gpu, rows), (other, others) = target, source
    for key in evenly(keys, _PAIRS_ROWS):
        workload = {"kind": "kernel", **launch_of(rows[key]), "access_pattern": "coalesced", "dtype": "fp32"}
        known = "without"
        if other != gpu:
            known = f"from {other}"
            workload["measured"] = [{"gpu": TUNED_GPUS[other], "latency_ms": others[key]["time_ms"]}]
        body = {"gpu": TUNED_GPUS[gpu], "coverage": 0.8, "workload": workload}
        levels = Levels("kernel", TUNED_GPUS[gpu], kernel, dtype="fp32", stack="evidence", version=known)
        yield Question(f"{known} {key}", levels, float(rows[key]["time_ms"]), [(1.0, body)])


_AITER = "ROCm/aiter@e404860, MIT: the best kernel that a tuner found"
_FOUR_BITS = "MXFP4 is asked as nvfp4: no version so far had another format of four bits on both sides"
_SIM = "casys-kaist/LLMServingSim@5daddb2, MIT"
SOURCES = (
    Source("aiter_products", _AITER, _aiter_products, (_FOUR_BITS,)),
    Source(
        "aiter_experts", _AITER, _aiter_experts, (_FOUR_BITS, "gates are SiLU", "experts' load is spread as by default")
    ),
    Source("aiter_linear_attention", _AITER, _aiter_linear_attention),
    Source("nccl_multinode", "xxrjun/nccl-tests-cluster@455de4f, Apache-2.0", _collectives),
    Source("llmservingsim_layers", _SIM, _layers, ("a launch by the host is inside, as it is timed there",)),
    Source("llmservingsim_prompts", _SIM, _prompts),
    Source(
        "kernel_tuning",
        "AutoTuningAssociation/benchmark_hub@8eeb99e, MIT",
        _tuned,
        ("registers are guessed from the tile of a thread", "bytes are the distinct ones"),
    ),
)
