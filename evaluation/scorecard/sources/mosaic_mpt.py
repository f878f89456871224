"""MosaicML's table of training throughput of MPT models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.scorecard.case import Case, Goal, Part, Row, Source
from evaluation.scorecard.networks import config_of

_GPUS = {"a100_40gb": "a100-sxm4-40gb", "a100_80gb": "a100-sxm4-80gb"}


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    for row in rows:
        devices, model = int(row["# GPUs"]), str(row["Model"])
        workload = {
            "kind": "model",
            "config": config_of(f"mosaicml/mpt-{model}"),
            "mode": "training",
            "batch": int(row["GlobalBatchSize"]),
            "sequence": int(row["SeqLen (T)"]),
            "dtype": "bf16",
            "attention": "flash",
            "optimizer": "adam",
            "recompute": bool(row["Activation Checkpointing"]),
            "gradient_accumulation": int(row["GradAccum"]),
            "software": "pytorch-2.0",
            "parallelism": {"data": devices, "nodes": max(devices // 8, 1), "zero": 3, "network_bytes_per_s": 25e9},
        }
        which = f"{devices} GPUs sequence {row['SeqLen (T)']} batch {row['GlobalBatchSize']} x{row['MicroBatchSize']}"
        which += " recompute" * bool(row["Activation Checkpointing"])
        yield Case(
            _GPUS[row["GPU"]], model, "training", which, float(row["step_s_from_tokens"]), (Part(1.0, workload),)
        )


SOURCE = Source(
    name="mosaic_mpt_training",
    title="Training steps of MPT on A100, mosaicml/llm-foundry@8c8dd48, Apache-2.0",
    assumptions=(
        "PyTorch 2.0, eager, fused attention; 8 GPUs per machine, 1,600 Gb/s between machines",
        "full sharding is zero 3; the mixed precision `amp_bf16` is bf16 with an FP32 master copy",
        "MPT runs as GPT-2 with its sizes; its ALiBi positions are free",
    ),
    goals=(Goal("", 10.0),),
    cases=cases,
)
