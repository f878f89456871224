"""The requests whose answers are frozen: kinds x GPUs x releases x formats x modes x coverages, and refusals.

Each axis is drawn by its own name, so that a value added to one leaves the draws of the others as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from app.ops import OPS
from app.tables.ops import DTYPES

Json = dict[str, Any]


class Case(NamedTuple):
    """A request: its name, the route that it is posted to, and its body."""

    name: str
    route: str
    body: Any


NVIDIA = (
    "h100-sxm5-80gb",
    "h200-sxm-141gb",
    "a100-sxm4-80gb",
    "b200",
    "nvidia-l4",
    "rtx-4090",
    "tesla-v100-sxm2-32gb",
    "tesla-t4",
)
OTHERS = ("amd-instinct-mi300x", "amd-instinct-mi355x", "gb200", "l40s", "rtx-5090", "epyc-7402")
INLINE: Json = {
    "name": "Tomorrow 1",
    "compute_capability": "10.0",
    "sm_count": 160,
    "boost_clock_hz": 2.0e9,
    "memory_bytes": 309237645312,
    "memory_bandwidth_bytes_per_s": 1.0e13,
}
COVERAGES = (0.8, 0.8, 0.8, 0.5, 0.95, 0.1)
RELEASES = (
    None,
    *("vllm", "vllm-0.4.0", "vllm-0.5.4", "vllm-0.12.0", "vllm-0.19.0", "vllm-0.24", "vllm-0.99"),
    *("sglang", "sglang-0.5.5", "trtllm", "trtllm-0.10.0", "trtllm-1.0.0", "trtllm-1.2.0", "tensorrt-llm-1.1"),
    *("pytorch", "pytorch-1.0", "pytorch-2.1", "pytorch-2.11", "megatron", "nemo-2.0", "vllm-eager", "cudagraph"),
    *("lmdeploy-0.7", "VLLM-0.20.1", "sglang-0.4.6"),
)
SERVING_RELEASES = (*RELEASES[1:15], *RELEASES[20:])
PREDICTORS = ("auto", "auto", "auto", "auto", "roofline", "tilewave", "habitat", "kernel_table", "li")
# GPUs that compute in a format; those of the others are NVIDIA and OTHERS.
HOPPER = ("h100-sxm5-80gb", "h200-sxm-141gb", "b200", "gb200", "rtx-4090", "l40s", "nvidia-l4", "amd-instinct-mi300x")
BLACKWELL = ("b200", "gb200", "rtx-5090", INLINE)
CAPABLE = {
    "fp8": HOPPER,
    "fp8_block": HOPPER,
    "mxfp8": BLACKWELL,
    "nvfp4": BLACKWELL,
    "fp16": NVIDIA[:6],
    "int8": NVIDIA[:6],
    "bf16": (*NVIDIA[:6], *OTHERS[:5], INLINE),
    "fp32": (*NVIDIA, *OTHERS, INLINE),
    "tf32": NVIDIA[:6],
    "int4_wo": NVIDIA[:4],
    "w4a16_mxfp4": NVIDIA[:4],
    None: NVIDIA[:4],
}
DENSE = ("gpt2", "llama-3-8b", "opt-1.3b", "gemma-2-2b", "flan-t5-xl", "bert-base", "vit-b-16", "qwen3-4b")
ROUTED = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "switch-base-8")
CONVNETS = ("resnet50", "vgg16", "mobilenet_v2", "densenet121", "regnet_y_16gf", "efficientnet_b0", "inception_v3")
DIFFUSION = ("flux.1-dev", "wan2.1-t2v-1.3b", "stable-diffusion-3.5-medium", "sana1.5-1.6b")
FORMATS = (
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "bf16",
    "fp8",
    "fp8_block",
    "nvfp4",
    "int8",
    "mxfp8",
    "int4_wo",
    "w4a16_mxfp4",
)
# Those that operators' formats are drawn from, however many there are by now.
FIRST_DTYPES = DTYPES[: DTYPES.index("int8_wo")]
# Formats of linear layers, each in cases of its own.
LATER_FORMATS = ("int4_wo", "int8_wo", "fp8_wo", "mxfp4", "mxfp6", "q4_k_m", "q8_0", None)
SERVED_FORMATS = ("bf16", "bf16", "fp8", "fp8_block", "nvfp4", None)


class Draw:
    """Choices for one case, by the case's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def one(self, axis: str, values: Sequence[Any]) -> Any:
        """Return one of the values of an axis."""
        return random.Random(f"{self._name}.{axis}").choice(values)

    def some(self, axis: str, values: Sequence[Any], count: int) -> list[Any]:
        """Return distinct values of an axis."""
        return random.Random(f"{self._name}.{axis}").sample(values, count)


def cases() -> Iterator[Case]:
    """Yield all requests in a fixed order."""
    for number in range(260):
        yield _kernel(number)
    yield from _operators()
    for number in range(560):
        yield _model(number)
    yield from _formats()
    for number in range(24):
        yield _graph(number)
    for number in range(220):
        yield _serving(number)
    for number in range(60):
        yield _compared(number)
    yield from _planned()
    for number in range(16):
        yield _partitioned(number)
    yield from _refused()


def sweep_columns(coverage_set: int) -> list[Json]:
    """Return the rows of a sweep of models, by the two GPUs that it is answered for: 0 before Hopper, 1 from it on."""
    formats = (("fp16", "bf16", "int8"), ("bf16", "fp8", "fp8_block"))[coverage_set]
    rows: list[Json] = []
    for name, mode, dtype, release in product(("llama-3-8b", "mixtral-8x7b"), ("prefill", "decode"), formats, RELEASES):
        rows.append({"name": name, "mode": mode, "dtype": dtype, "software": release, "parallelism.tensor": 2})
    for name, dtype, release in product(("gpt2", "bert-base"), ("fp32", "bf16"), RELEASES):
        rows.append({"name": name, "mode": "inference", "dtype": dtype, "software": release})
    for name, dtype, release in product(("gpt2", "llama-3-8b"), ("fp32", "bf16"), (None, *RELEASES[15:20])):
        rows.append({"name": name, "mode": "training", "dtype": dtype, "software": release, "parallelism.data": 4})
    for name, mode, dtype, release in product(
        ("resnet50", "regnet_y_16gf"), ("inference", "training"), ("fp32", "fp16"), (None, *RELEASES[15:20])
    ):
        copied = "pinned" if mode == "inference" and release else None
        rows.append({"name": name, "mode": mode, "dtype": dtype, "software": release, "input_copy": copied})
    for number, row in enumerate(rows):
        images = row["name"] in CONVNETS
        row["batch"] = (4, 16, 64)[number % 3]
        row["sequence"] = None if images else (128, 512)[number % 2]
        row["image_size"] = (96, 224)[number % 2] if images else None
    return rows


def sweep_gpus(coverage_set: int) -> tuple[str, str]:
    """Return the GPUs that both can run the rows of `sweep_columns`."""
    return (("a100-sxm4-80gb", "rtx-4090"), ("h100-sxm5-80gb", "b200"))[coverage_set]


def _request(draw: Draw, workload: Json, gpus: Sequence[Any], **fields: Any) -> Json:
    coverage = draw.one("coverage", COVERAGES)
    return {"gpus": list(gpus), "workload": workload, "coverage": coverage, **fields}


def _kernel(number: int) -> Case:
    name = f"kernel {number}"
    draw = Draw(name)
    size = draw.one("size", (128, 512, 1024, 2048))
    launch: Json = {
        "kind": "kernel",
        "name": draw.one("name", ("matmul_tiled", "vector_add", "histogram", "transpose")),
        "flops": draw.one("flops", (0, 1, 16, 2048)) * size**2,
        "bytes": draw.one("bytes", (4, 12, 64)) * size**2,
        "threads_per_block": draw.one("threads", (64, 128, 256, 1024)),
        "blocks": draw.one("blocks", (1, 80, 4096, 100_000)),
        "registers_per_thread": draw.one("registers", (16, 32, 64)),
        "shared_memory_per_block": draw.one("shared", (0, 2048, 32768)),
        "working_set_bytes": 8 * size**2,
        "access_pattern": draw.one("pattern", ("coalesced", "strided", "random", "broadcast")),
        "dtype": draw.one("dtype", ("fp32", "fp32", "fp64", "fp16")),
        "size": {"rows": size, "cols": size},
    }
    launch |= draw.one(
        "extra",
        ({}, {"stride_bytes": 128}, {"branch_divergence": 0.3}, {"lane_operations": 4e8}, {"bank_conflict_ways": 8},
         {"atomic_operations": 1e6, "atomic_addresses": 256}),
    )  # fmt: skip
    gpus = draw.some("gpus", (*NVIDIA, *OTHERS[:5], INLINE), 3)
    measured = draw.one("measured", (0, 0, 1, 1, 2, 4))
    if measured:
        donors = draw.some("donors", ("titan-v", "a100-sxm4-80gb", "rtx-4070", "nvidia-l4"), measured)
        times = draw.some("times", (0.05, 0.2, 0.91, 1.4, 3.0), measured)
        launch["measured"] = [{"gpu": gpu, "latency_ms": time} for gpu, time in zip(donors, times, strict=True)]
        if draw.one("other size", (False, False, True)):
            launch["measured"].append({"gpu": gpus[0], "latency_ms": 2.0, "blocks": 2 * launch["blocks"]})
    predictor = draw.one("predictor", ("auto", "auto", "auto", "roofline", "efficiency"))
    detail = draw.one("detail", (False, False, False, True))
    return Case(name, "/predict", _request(draw, launch, gpus, predictor=predictor, detail=detail))


def _operators() -> Iterator[Case]:
    for op in OPS:
        if op.name in ("kernel", "network"):
            continue
        for number in range(5):
            name = f"operator {op.name} {number}"
            draw = Draw(name)
            rows = []
            for scale in (1, draw.one("scale", (2, 4))):
                row = {
                    "op": op.name,
                    **op.example,
                    "dtype": draw.one("dtype", [dtype for dtype in op.dtypes if dtype in FIRST_DTYPES]),
                }
                first = next(iter(op.example))
                row[first] = row[first] * scale
                software = draw.one(f"software {scale}", RELEASES)
                rows.append(row | ({"software": software} if software and number else {}))
            workload = {"kind": "operators", "operators": rows}
            gpus = draw.some("gpus", (*NVIDIA[:5], *OTHERS[:4]), 2)
            predictor = draw.one("predictor", PREDICTORS) if number > 2 else "auto"
            yield Case(name, "/predict", _request(draw, workload, gpus, predictor=predictor, detail=number == 1))


def _formats() -> Iterator[Case]:
    for dtype, (name, mode) in product(LATER_FORMATS, (("qwen3-4b", "decode"), ("qwen3-30b-a3b", "prefill"))):
        gpus = ["b200", "amd-instinct-mi355x"] if dtype in ("mxfp4", "mxfp6") else ["nvidia-l4", "tesla-t4"]
        workload = {"kind": "model", "name": name, "mode": mode, "batch": 8, "sequence": 500, "dtype": dtype}
        yield Case(f"format {dtype} {mode}", "/predict", {"gpus": gpus, "workload": workload})
    for name in ("deepseek-v3", "qwen3-32b-nvfp4", "qwen3-8b-gguf:q4_k_m", "gpt-oss-20b"):
        workload = {"kind": "model", "name": name, "mode": "decode", "batch": 8, "sequence": 500}
        yield Case(
            f"published {name}", "/predict", {"gpus": ["a100-sxm4-80gb", "tesla-t4", "h100"], "workload": workload}
        )
    adapted = {"kind": "model", "name": "qwen3-8b-bnb-4bit", "mode": "training", "sequence": 512}
    body = {"gpu": "rtx-4090", "workload": adapted | {"trainable": {"lora": {"rank": 16}}}}
    yield Case("adapters beside 4 bits", "/predict", body)
    for name, load in product(("bge-m3", "qwen3-embedding-8b"), ({"concurrency": 16}, {"rate_per_s": 4.0})):
        served = {"kind": "serving", "name": name, "input_tokens": 500, "output_tokens": 0, "load": load}
        yield Case(
            f"embedded {name} {next(iter(load))}", "/predict", {"gpus": ["nvidia-l4", "b200"], "workload": served}
        )


def _split(draw: Draw, devices: int) -> Json:
    if devices == 1:
        return {}
    kind = draw.one("split", ("tensor", "tensor", "data", "pipeline", "mixed"))
    if kind == "mixed" and devices > 2:
        return {"tensor": devices // 2, "data": 2}
    return {"tensor" if kind == "mixed" else kind: devices}


def _training(draw: Draw, split: Json) -> Json:
    options: Json = {
        "mode": "training",
        "optimizer": draw.one("optimizer", ("adam", "adamw", "sgd", "none")),
        "recompute": draw.one("recompute", (False, False, True, "selective")),
        "gradient_accumulation": draw.one("accumulation", (1, 1, 2)),
        "dataset_size": draw.one("dataset", (None, 100_000)),
    }
    if split.get("data", 1) > 1:
        split |= {"zero": draw.one("zero", (0, 1, 2, 3)), "nodes": draw.one("nodes", (1, 2))}
    if split.get("pipeline", 1) > 1:
        split |= {"microbatches": draw.one("microbatches", (2, 4)), "schedule": draw.one("order", ("gpipe", "1f1b"))}
    return options


def _model(number: int) -> Case:
    name = f"model {number}"
    draw = Draw(name)
    family = draw.one("family", ("dense", "dense", "dense", "routed", "convnet", "convnet", "diffusion"))
    names = {"dense": DENSE, "routed": ROUTED, "convnet": CONVNETS, "diffusion": DIFFUSION}[family]
    split = _split(draw, draw.one("devices", (1, 1, 2, 4, 8)))
    workload: Json = {"kind": "model", "name": draw.one("name", names), "batch": draw.one("batch", (8, 16, 64))}
    if family in ("dense", "routed"):
        mode = draw.one("mode", ("inference", "training", "prefill", "decode", "decode"))
        images = workload["name"] == "vit-b-16"
        if images or workload["name"] == "bert-base":
            mode = draw.one("encoder mode", ("inference", "training"))
        workload |= {} if images else {"sequence": draw.one("sequence", (64, 500))}
        workload |= {"mode": mode, "dtype": draw.one("dtype", FORMATS if family == "routed" else FORMATS[:-2])}
        if mode == "decode":
            workload["kv_dtype"] = draw.one("kv", (None, "fp8", "bf16"))
        if mode in ("prefill", "decode"):
            workload["output_tokens"] = draw.one("output", (None, None, 100))
        workload["attention"] = draw.one("attention", (None, None, None, "eager", "fused", "flash"))
        if family == "routed" and "tensor" in split:
            split["expert"] = split["tensor"]
    elif family == "convnet":
        workload |= {
            "mode": draw.one("mode", ("inference", "training")),
            "image_size": draw.one("image", (224, 299)),
            "memory_format": draw.one("layout", ("channels_first", "channels_last")),
            "input_copy": draw.one("copy", ("none", "none", "pageable", "pinned")),
            "dtype": draw.one("dtype", ("fp32", "fp16", "bf16", "tf32")),
        }
        split = {"data": max(split.values(), default=1)}
    else:
        workload |= {"dtype": draw.one("dtype", ("bf16", "fp16", "fp8")), "image_size": 512, "batch": 2}
        workload["part"] = draw.one("part", (None, "denoiser", "text_encoders", "autoencoder"))
        split = {}
    if workload.get("mode") == "training":
        workload |= _training(draw, split)
        if family in ("dense", "routed") and draw.one("lora", (False, False, False, True)):
            workload["trainable"] = {"lora": {"rank": 16}}
    workload |= {
        "parallelism": split,
        "fused": draw.one("fused", (False, False, True)),
        "software": draw.one("software", RELEASES),
    }
    workload = {key: value for key, value in workload.items() if value is not None}
    gpus = draw.some("gpus", CAPABLE[workload["dtype"]], draw.one("count", (1, 2, 3)))
    predictor = draw.one("predictor", PREDICTORS)
    detail = draw.one("detail", (*(39 * (False,)), True))
    return Case(name, "/predict", _request(draw, workload, gpus, predictor=predictor, detail=detail))


def _graph(number: int) -> Case:
    name = f"graph {number}"
    draw = Draw(name)
    width = draw.one("width", (512, 4096))
    graph = {
        "name": "two layers",
        "dtype": draw.one("dtype", ("fp32", "bf16")),
        "inputs": [{"name": "x", "shape": ["batch", 784]}],
        "nodes": [
            {"name": "hidden", "op": "linear", "inputs": ["x"], "outputs": [{"shape": ["batch", width]}]},
            {"name": "act", "op": "gelu", "inputs": ["hidden"], "outputs": [{"shape": ["batch", width]}]},
            {"name": "norm", "op": "layer_norm", "inputs": ["act"], "outputs": [{"shape": ["batch", width]}]},
            {"name": "out", "op": "linear", "inputs": ["norm"], "outputs": [{"shape": ["batch", 10]}]},
        ],
    }
    workload = {
        "kind": "graph",
        "graph": graph,
        "batch": draw.one("batch", (1, 32, 1024)),
        "mode": draw.one("mode", ("inference", "training")),
        "software": draw.one("software", (None, "pytorch-2.1", "pytorch-1.0", "cudagraph")),
        "fused": draw.one("fused", (False, True)),
    }
    return Case(name, "/predict", _request(draw, workload, draw.some("gpus", NVIDIA, 2), detail=number < 3))


def _served(draw: Draw) -> Json:
    tensor = draw.one("tensor", (1, 2, 4, 8))
    name = draw.one("name", ("llama-3-8b", "llama-3.1-70b", "qwen3-4b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"))
    split: Json = {"tensor": tensor, "replicas": draw.one("replicas", (1, 1, 2))}
    if name in ("qwen3-30b-a3b", "deepseek-v3", "mixtral-8x7b") and tensor > 1:
        split |= draw.one("experts", ({}, {"expert": tensor}, {"expert": tensor, "attention_data": tensor}))
    workload: Json = {
        "kind": "serving",
        "name": name,
        "dtype": draw.one("dtype", SERVED_FORMATS),
        "kv_dtype": draw.one("kv", (None, None, "fp8")),
        "software": draw.one("software", SERVING_RELEASES),
        "parallelism": split,
        "input_tokens": draw.one("input", (200, 1024, 4000)),
        "output_tokens": draw.one("output", (20, 128)),
        "load": draw.one("load", ({"concurrency": 1}, {"concurrency": 16}, {"rate_per_s": 2.0}, {"burst": 32})),
        "method": draw.one("method", ("simulation", "closed_form")),
        "prefix_hit": draw.one("prefix", (0.0, 0.0, 0.5)),
    }
    if "burst" in workload["load"]:
        workload["method"] = "simulation"
    workload |= draw.one(
        "extra",
        (*(6 * ({},)), {"speculative": {"tokens": 3, "acceptance": 0.7}}, {"max_batched_tokens": 4096},
         {"max_sequences": 8}, {"prefill_pool": {"parallelism": {"tensor": tensor}, "replicas": 1}}),
    )  # fmt: skip
    return {key: value for key, value in workload.items() if value is not None}


def _serving(number: int) -> Case:
    name = f"serving {number}"
    draw = Draw(name)
    workload = _served(draw)
    served_on = ("h100-sxm5-80gb", "h200-sxm-141gb", "b200", "amd-instinct-mi300x")
    formats = {"nvfp4": ("b200", "gb200", "gb300"), "bf16": (*served_on, "a100-sxm4-80gb")}
    gpus = draw.some("gpus", formats.get(workload.get("dtype", "bf16"), served_on), 2)
    return Case(name, "/predict", _request(draw, workload, gpus))


def _compared(number: int) -> Case:
    name = f"compare {number}"
    draw = Draw(name)
    kind = draw.one("kind", ("model", "model", "serving", "kernel"))
    made = {"model": _model, "serving": _serving, "kernel": _kernel}[kind](1000 + number)
    body = {
        "workload": made.body["workload"],
        "gpus": draw.some("gpus", (*NVIDIA, *OTHERS[:4]), 4),
        "rank_by": draw.one("rank", ("latency", "throughput", "cost", "energy")),
        "prices": {"nvidia-l4": 0.8, "h100-sxm5-80gb": 3.0, "a100-sxm4-80gb": 1.5, "amd-instinct-mi300x": 2.5},
        "powers_w": draw.one("powers", ({}, {"nvidia-l4": 70.0})),
        "search_parallelism": kind == "model" and draw.one("search", (False, True)),
        "coverage": draw.one("coverage", COVERAGES),
    }
    return Case(name, "/compare", body)


def _planned() -> Iterator[Case]:
    for number in range(30):
        name = f"plan {number}"
        draw = Draw(name)
        prices = {"nvidia-l4": 0.8, "h100-sxm5-80gb": 3.0, "l40s": 1.5, "b200": 5.5}
        if number % 3 == 0:
            workload = _served(draw) | {"load": {"rate_per_s": draw.one("rate", (1.0, 8.0))}, "method": "simulation"}
            workload["parallelism"] = {}
            workload.pop("prefill_pool", None)
            goals: Json = {"ttft_ms": draw.one("ttft", (500, 3000)), "tpot_ms": draw.one("tpot", (20, 60))}
        else:
            workload = _model(2000 + number).body["workload"] | {"parallelism": {}}
            goals = {"steps": 1000, "deadline_s": draw.one("deadline", (100.0, 3600.0)), "budget_usd": 20.0}
        body = {"workload": workload, "gpus": list(prices), "prices": prices, **goals}
        yield Case(name, "/plan", body | {"coverage": draw.one("coverage", COVERAGES)})


def _partitioned(number: int) -> Case:
    name = f"partition {number}"
    draw = Draw(name)
    workload = {"kind": "model", "name": draw.one("name", ("gpt2", "llama-3-8b", "resnet50", "mixtral-8x7b")),
                "batch": 4, "dtype": draw.one("dtype", ("fp16", "fp32")),
                "software": draw.one("software", (None, "pytorch-2.1", "vllm-0.19.0"))}  # fmt: skip
    if workload["name"] != "resnet50":
        workload |= {"sequence": 256, "mode": draw.one("mode", ("inference", "prefill", "decode"))}
    gpus = draw.some("gpus", ("rtx-3060-mobile", "rtx-5070", "nvidia-l4", "a100-sxm4-80gb"), draw.one("n", (2, 3)))
    body = {"gpus": gpus, "workload": {key: value for key, value in workload.items() if value is not None}}
    return Case(name, "/partition", body | {"coverage": draw.one("coverage", COVERAGES)})


def _refused() -> Iterator[Case]:
    model: Json = {"kind": "model", "name": "llama-3-8b", "sequence": 128}
    served = {"kind": "serving", "name": "llama-3-8b", "input_tokens": 100, "output_tokens": 10}
    changes: Sequence[tuple[Json, Mapping[str, Any]]] = (
        *((model, {field: value}) for field, value in (
            ("dtype", "fp9"), ("mode", "fly"), ("batch", 0), ("batch", 2.5), ("sequence", -1), ("image_size", 224),
            ("parallelism", {"tensor": 7}), ("parallelism", {"tensors": 2}), ("name", "llama-99"), ("frames", 3),
            ("config", {"model_type": "gpt2"}), ("software", ""), ("kv_dtype", "fp1"), ("part", "denoiser"),
            ("optimizer", "lion"), ("parallelism", {"data": 3}), ("memory_format", "nhwc"), ("output_tokens", 5),
            ("parallelism", {"nodes": 3}), ("parallelism", {"pipeline": 4096}), ("input_copy", "magic"),
            ("attention", "sparse"), ("trainable", {"lora": {}}), ("speed", 1),
        )),
        *((served, change) for change in (
            {"load": {}}, {"load": {"concurrency": 1, "burst": 2}}, {"load": {"rate_per_s": -1}}, {},
            {"load": {"concurrency": 4}, "software": "x" * 300}, {"load": {"concurrency": 4}, "prefix_hit": 1.5},
            {"load": {"concurrency": 4}, "parallelism": {"tensor": 3}},
            {"load": {"concurrency": 4}, "max_batched_tokens": 1},
            {"load": {"concurrency": 4}, "speculative": {"tokens": 3}},
            {"load": {"concurrency": 4}, "name": "resnet50"},
            {"load": {"concurrency": 4}, "length_spread": 1}, {"load": {"trace": {"arrival_s": [1]}}},
        )),
        *(({"kind": "operators"}, {"operators": operators}) for operators in (
            [], [{"op": "lineal", "m": 1}], [{"op": "linear", "m": 1, "n": 2}],
            [{"op": "linear", "m": 0, "n": 2, "k": 3}],
            [{"op": "moe", "tokens": 8, "hidden": 64, "intermediate": 64, "experts": 4, "top_k": 8}],
            [{"op": "softmax", "b": 1, "h": 2, "dtype": "nvfp4"}], [{"op": "all_reduce", "message_bytes": 8}],
        )),
        *(({"kind": "graph"}, change)
          for change in ({}, {"graph": {}}, {"graph": {"nodes": []}}, {"graph_id": "none"})),
        *(({}, {"kind": kind}) for kind in ("", "modal", 7)),
    )  # fmt: skip
    for number, (workload, change) in enumerate(changes):
        yield Case(f"refused {number}", "/predict", {"gpu": "nvidia-l4", "workload": {**workload, **change}})
    for number, field in enumerate(
        ({"gpu": "no-such-gpu"}, {"gpu": {"name": "x"}}, {"gpus": []}, {"coverage": 1.0}, {"predictor": "none"},
         {"predictor": "convmeter"}, {"detail": "yes"}, {"gpu": "nvidia-l4", "gpus": ["tesla-t4"]}, {"gpu": "A100"})
    ):  # fmt: skip
        base = {"gpu": "nvidia-l4"} if not field.keys() & {"gpu", "gpus"} else {}
        yield Case(f"refused request {number}", "/predict", {**base, "workload": model, **field})
    for number, (route, body) in enumerate((
        ("/compare", {"workload": model, "rank_by": "beauty"}), ("/compare", {"gpus": ["tesla-t4"]}),
        ("/plan", {"workload": model, "gpus": ["tesla-t4"]}), ("/plan", {"workload": model, "deadline_s": -1}),
        ("/partition", {"workload": model, "gpus": ["tesla-t4"]}),
        ("/partition", {"workload": served, "gpus": ["tesla-t4", "tesla-t4"]}),
    )):  # fmt: skip
        yield Case(f"refused route {number}", route, body)
