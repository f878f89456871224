"""timm's benchmarks of vision models: one step time a row, of which ConvNets are taken.

Step times are milliseconds of a whole step; `amp` is autocast to FP16; of training no split into phases is told. Counts
of attention models leave out fused attention, and rows without a batch or time say nothing: they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from app.errors import BadInput, FieldError, NotFound
from app.services.importers.base import Part, PartsImporter
from app.services.importers.columns import read_table

FILE = "vision_models.parquet"
SOURCE = "timm"
_WORDS = ("device", "framework", "precision", "layout", "compile_mode", "phase", "model")
_NUMBERS = ("batch", "img_size", "step_time_ms", "is_convnet")
_UNUSED = (
    "cuda",
    "samples_per_sec",
    "params_m",
    "gmacs",
    "macts",
    "source_file",
    "model_base",
    "family",
    "counts_filled",
    "supergroup",
)
_SPELLED: dict[str, dict[str, str | bool]] = {
    "precision": {"amp": "fp16", "fp32": "fp32"},
    "layout": {"nchw": "channels_first", "nhwc": "channels_last"},
    "compile_mode": {"eager": False, "dynamo": True},
    "phase": {"infer": "inference", "train": "training"},
}
_NOT_CONVNET, _UNTOLD = "not a ConvNet", "no batch or no step time is told"


def read(folder: Path) -> Iterator[Part]:
    """The one file as measurements in the API's form; unknown words are refused by name."""
    path = folder / FILE
    if not path.is_file():
        raise NotFound(f"No {FILE} in {folder}.")
    table = read_table(path, _WORDS, _NUMBERS, unused=_UNUSED)
    for name, known in _SPELLED.items():
        unknown = [word for word in table[name].unique().to_pylist() if word not in known]
        if unknown:
            msg = f"unknown {name} {', '.join(map(repr, unknown[:20]))}; known are {', '.join(known)}"
            raise BadInput(f"{FILE}: {msg}", errors=[FieldError((FILE, name), msg)])
    rows, position, skipped = [], [], Counter[str]()
    for k, row in enumerate(table.to_pylist()):
        if not row["is_convnet"]:
            skipped[_NOT_CONVNET] += 1
        elif row["batch"] is None or row["step_time_ms"] is None:
            skipped[_UNTOLD] += 1
        else:
            rows.append(_measurement(row))
            position.append(k)
    yield Part(FILE, rows, None, skipped, np.array(position, dtype=np.intp))


def _measurement(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "gpu": row["device"],
        "software": row["framework"].replace("torch-", "pytorch-"),
        "source": SOURCE,
        "latency_ms": row["step_time_ms"],
        "workload": {
            "kind": "model",
            "name": row["model"],
            "mode": _SPELLED["phase"][row["phase"]],
            "batch": int(row["batch"]),
            "image_size": row["img_size"],
            "dtype": _SPELLED["precision"][row["precision"]],
            "memory_format": _SPELLED["layout"][row["layout"]],
            "compiled": _SPELLED["compile_mode"][row["compile_mode"]],
        },
    }


IMPORTER = PartsImporter(SOURCE, f"timm's step times of ConvNets, {FILE}", read)
