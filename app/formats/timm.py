"""Read timm's benchmarks of vision models as operators `network`: the step times of ConvNets, one per row.

Step times are milliseconds of a whole step; `amp` is autocast to FP16; training is not split into phases. Multiply-adds
(`gmacs`, billions) and activations (`macts`, millions) are per image, parameters in millions; inputs of convolutions
and layers are not given. Attention models are skipped, since their counts omit fused attention, and so are rows without
a batch, time or counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError, NotFound
from app.formats.base import Part, PartsImporter
from app.formats.table_columns import constant_column, number_column, read_table, text_column
from app.ops.network import NETWORK, PASSES, STEP
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column, Numbers

FILE = "vision_models.parquet"
SOURCE = "timm"
_WORDS = ("device", "framework", "precision", "layout", "compile_mode", "phase")
# Required figures of a network, all positive: our field, and the factor to its unit.
_FIGURES = {
    "batch": ("batch", 1.0),
    "step_time_ms": ("latency_ms", 1.0),
    "gmacs": ("flops", 2e9),
    "macts": ("outputs", 1e6),
    "params_m": ("weights", 1e6),
}
_CONVNET = "is_convnet"
_UNUSED = (
    "cuda",
    "samples_per_sec",
    "source_file",
    "model",
    "model_base",
    "family",
    "counts_filled",
    "supergroup",
    "img_size",
)
_SPELLED: Mapping[str, Mapping[str, str]] = {
    "precision": {"amp": "fp16", "fp32": "fp32"},
    "phase": {"infer": PASSES[0], "train": PASSES[STEP]},
}
_FLAGS = {"layout": ("channels_last", "nchw", "nhwc"), "compile_mode": ("compiled", "eager", "dynamo")}
_NOT_CONVNET, _INCOMPLETE = "not a ConvNet", "no batch, step time or counts"


def read(folder: Path) -> Iterator[Part]:
    """Yield the file as operators in columns. Raises BadInput that names unknown values."""
    path = folder / FILE
    if not path.is_file():
        raise NotFound(f"No {FILE} in {folder}.")
    table = read_table(path, _WORDS, (*_FIGURES, _CONVNET), unused=_UNUSED)
    known = {name: tuple(spelled) for name, spelled in _SPELLED.items()}
    known |= {name: flag[1:] for name, flag in _FLAGS.items()}
    for name, some in known.items():
        unknown = [word for word in table[name].unique().to_pylist() if word not in some]
        if unknown:
            msg = f"unknown {name} {', '.join(map(repr, unknown[:20]))}; known are {', '.join(some)}"
            raise BadInput(f"{FILE}: {msg}", errors=[FieldError((FILE, name), msg)])
    convnet = number_column(table, _CONVNET).values == 1
    complete = np.all([number_column(table, name).values > 0 for name in _FIGURES], axis=0)  # NaN fails too
    rows = np.flatnonzero(convnet & complete)
    skipped = Counter({_NOT_CONVNET: int((~convnet).sum()), _INCOMPLETE: int((convnet & ~complete).sum())})
    yield Part(FILE, OperatorColumns(_columns(table.take(rows)), rows), None, +skipped)


def _columns(table: pa.Table) -> dict[str, Column]:
    columns: dict[str, Column] = {
        "op": constant_column(NETWORK.name),
        "source": constant_column(SOURCE),
        "gpu": text_column(table, "device"),
        "software": text_column(table, "framework", lambda name: name.replace("torch-", "pytorch-")),
        "dtype": text_column(table, "precision", _SPELLED["precision"]),
        "pass": text_column(table, "phase", _SPELLED["phase"]),
    }
    for name, (ours, scale) in _FIGURES.items():
        column = number_column(table, name)
        columns[ours] = column._replace(values=np.rint(column.values * scale)) if scale > 1 else column
    for name, (ours, _, on) in _FLAGS.items():
        flags = text_column(table, name)
        flag = np.array([float(word == on) for word in flags.words])[flags.codes]
        columns[ours] = Numbers(flag, np.zeros(len(flag), dtype=np.bool_), False)
    return columns


IMPORTER = PartsImporter(SOURCE, read)
