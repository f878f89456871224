"""How many configurations of models a second `gpucast sweep` answers, Parquet in and out.

    python -m benchmarks.sweep

On the predictors that ship and an embedded database, one GPU, in one process of one thread. Processor time, the least
of some repeats: what the code costs when nothing else runs. `random` tables share few operators: every configuration
draws its own batch and sequence, and one of 500 architectures; `grid` is every combination, as searches tabulate them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.bootstrap.assemble import installed_snapshot
from app.config import Settings
from app.services.sweep.chunks import answer_chunk, chunk_path, plan_sweep
from app.services.sweep.sweep_rows import open_rows

GOAL_PER_S = 10_000.0
ROWS, ARCHITECTURES, REPEATS = 10_000, 500, 8
GPU = "h100-sxm5-80gb"
_GPT2 = {"name": "gpt2-large"}
_GPT2_SPACE = {"config.n_layer": [12, 24, 36], "config.n_head": [8, 16], "config.n_embd": [512, 768, 1024, 1280]}
_TRAINED = {**_GPT2, "mode": "training", "optimizer": "adamw", "dtype": "bf16"}
_CONVNETS = {"name": ["resnet18", "resnet50", "mobilenet_v2", "vgg16", "efficientnet_b0"]}
_IMAGES = {"image_size": list(range(128, 385, 32)), "batch": list(range(4, 257, 4))}
_VIT = {"name": "vit-b-16", "dtype": "bf16"}
_VIT_SPACE = {
    "config.num_hidden_layers": [6, 12, 24],
    "config.hidden_size": [384, 768, 1152],
    "config.intermediate_size": [1536, 3072],
    "batch": list(range(1, 129)),
}
_LLAMA = {"name": "llama-3-8b", "mode": "prefill", "dtype": "bf16"}
_LLAMA_SPACE = {
    "config.num_hidden_layers": [8, 16, 24, 32],
    "config.intermediate_size": [4096, 8192, 14336],
    "config.hidden_size": [2048, 4096],
}


def main() -> None:
    """Print configurations per second of each table beside the goal; exit 1 if one misses it."""
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        snapshot, refused = installed_snapshot(Settings(data_dir=folder / "data"))
        for problem in refused:
            print(problem)
        for what, table in _tables():
            pq.write_table(table, folder / "in.parquet")
            rows = open_rows(folder / "in.parquet")
            plan = plan_sweep(snapshot, rows, [GPU], "auto", 0.8)
            fastest = float("inf")
            for _ in range(REPEATS):
                began = time.process_time()
                answer_chunk(snapshot, rows, plan, folder, 0)
                fastest = min(fastest, time.process_time() - began)
            assert pq.read_table(chunk_path(folder, 0)).num_rows == len(table)
            rate = len(table) / fastest
            line = f"{what:<58}{len(table):>7,} configurations{rate:>9,.0f} a second   goal {GOAL_PER_S:,.0f}"
            print(line, flush=True)
            missed |= rate < GOAL_PER_S
    print(f"load average {os.getloadavg()[0]:.2f}")
    sys.exit(missed)


def _tables() -> Iterator[tuple[str, pa.Table]]:
    batches, sequences = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32], list(range(64, 1025, 64))
    for what, base, space in (
        ("GPT-2, FP32, eager", _GPT2, _GPT2_SPACE),
        ("Llama 3, BF16, prefill", _LLAMA, _LLAMA_SPACE),
    ):
        yield f"{what}, grid", _grid(base, {**space, "batch": batches, "sequence": sequences})
        yield f"{what}, random", _random(base)
    for what, run in (
        ("Adam", {}),
        ("recomputation, 4 steps added up", {"recompute": True, "gradient_accumulation": 4}),
        ("8 GPUs", {"parallelism.data": 8}),
        ("4 stages", {"parallelism.pipeline": 4, "parallelism.microbatches": 8}),
        ("fused", {"fused": True}),
    ):
        space = {**_GPT2_SPACE, "batch": [32 * batch for batch in batches], "sequence": sequences}
        yield f"GPT-2, training, {what}, grid", _grid({**_TRAINED, **run}, space)
    yield "GPT-2, training, Adam, random", _random(_TRAINED)
    yield (
        "GPT-2, FP32, fused, grid",
        _grid(_GPT2 | {"fused": True}, {**_GPT2_SPACE, "batch": batches, "sequence": sequences}),
    )
    split = {"parallelism.tensor": 4, "parallelism.sequence": True}
    space = {**_LLAMA_SPACE, "batch": [4 * batch for batch in batches], "sequence": sequences}
    yield "Llama 3, BF16, prefill, tokens dealt to 4 GPUs, grid", _grid(_LLAMA | split, space)
    yield "ViT, BF16, grid", _grid(_VIT, _VIT_SPACE)
    for mode in ("inference", "training"):
        yield f"ConvNets, {mode}, images and batches", _grid({"mode": mode, "dtype": "bf16"}, {**_CONVNETS, **_IMAGES})


def _grid(base: dict[str, Any], space: dict[str, list[Any]]) -> pa.Table:
    columns = zip(*product(*space.values()), strict=True)
    return _table(base, dict(zip(space, columns, strict=True)))


def _random(base: dict[str, Any]) -> pa.Table:
    """Architectures of any width (64 a head), inner size and depth; batch and sequence of any size."""
    rng = np.random.default_rng(0)
    heads, layers = rng.integers(4, 33, ARCHITECTURES), rng.integers(4, 49, ARCHITECTURES)
    inner = 64 * rng.integers(8, 257, ARCHITECTURES)
    names: tuple[str, ...] = ("n_embd", "n_head", "n_layer", "n_inner")
    if base is _LLAMA:
        names = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "num_key_value_heads")
    sizes = [64 * heads, heads, layers, inner, heads][: len(names)]
    which = rng.integers(0, ARCHITECTURES, ROWS)
    columns: dict[str, Any] = {f"config.{name}": size[which] for name, size in zip(names, sizes, strict=True)}
    columns |= {"batch": rng.integers(1, 65, ROWS), "sequence": rng.integers(16, 1025, ROWS)}
    return _table(base, columns)


def _table(base: dict[str, Any], columns: dict[str, Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({**{name: [value] * rows for name, value in base.items()}, **columns})


if __name__ == "__main__":
    main()
