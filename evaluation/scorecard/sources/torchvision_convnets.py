"""Benchmarks of torchvision's ConvNets in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.scorecard.case import Case, Goal, Part, Row, Source

_GPUS = {"GeForce RTX 2080 Ti": "rtx-2080-ti", "TITAN V": "titan-v"}


def cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield a case per row."""
    for row in rows:
        workload = {
            "kind": "model",
            "name": str(row["model"]),
            "mode": str(row["mode"]),
            "batch": int(row["batch"]),
            "image_size": int(row["image_size"]),
            "dtype": str(row["dtype"]),
            "optimizer": "none",
            "software": "pytorch-1.0",
            "input_copy": "pageable",
        }
        split = int(row["devices"]) > 1
        yield Case(
            gpu=_GPUS[row["gpu"]],
            model=str(row["model"]),
            mode=f"{row['dtype']} {row['mode']}",
            row=f"{row['devices']} GPUs batch {row['batch']} {row['file']}",
            measured=float(row["latency_ms"]) / 1e3,
            parts=() if split else (Part(1.0, workload),),
            reason="several GPUs fed by one process (DataParallel) are not modelled" if split else "",
        )


SOURCE = Source(
    name="torchvision_convnets",
    title="ConvNets on RTX 2080 Ti and TITAN V, ryujaehun/pytorch-gpu-benchmark@3f47a9e, MIT",
    assumptions=(
        "images are copied to the device from pageable memory, as PyTorch's loader does by default",
        "PyTorch 1.0, eager, channels first; training without an optimiser step",
    ),
    goals=(Goal("fp32", 12.0), Goal("fp16", 20.0)),
    cases=cases,
)
