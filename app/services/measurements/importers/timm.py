"""timm's benchmarks of vision models as operators `network`: one step time a row, of which ConvNets are taken.

Step times are milliseconds of a whole step; `amp` is autocast to FP16; of training no split into phases is told.
Multiply-adds (`gmacs`, billions) and activations (`macts`, millions) are of one image, parameters in millions; inputs
of convolutions and layers are not told. Counts of attention models leave out fused attention, and rows without a batch,
time or counts say nothing: they are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError, NotFound
from app.ops.network import NETWORK, PASSES, STEP
from app.services.measurements.importers.base import Part, PartsImporter
from app.services.measurements.importers.columns import figures, one, read_table, words
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column, Numbers

FILE = "vision_models.parquet"
SOURCE = "timm"
_WORDS = ("device", "framework", "precision", "layout", "compile_mode", "phase")
# Columns of figures that a network needs, all above zero: its field, and how many of its unit one is.
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
_NOT_CONVNET, _UNTOLD = "not a ConvNet", "no batch, step time or counts are told"


def read(folder: Path) -> Iterator[Part]:
    """The one file as operators in columns; unknown words are refused by name."""
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
    convnet = figures(table, _CONVNET).values == 1
    told = np.all([figures(table, name).values > 0 for name in _FIGURES], axis=0)  # NaN is not
    rows = np.flatnonzero(convnet & told)
    skipped = Counter({_NOT_CONVNET: int((~convnet).sum()), _UNTOLD: int((convnet & ~told).sum())})
    yield Part(FILE, OperatorColumns(_columns(table.take(rows)), rows), None, +skipped)


def _columns(table: pa.Table) -> dict[str, Column]:
    columns: dict[str, Column] = {
        "op": one(NETWORK.name),
        "source": one(SOURCE),
        "gpu": words(table, "device"),
        "software": words(table, "framework", lambda name: name.replace("torch-", "pytorch-")),
        "dtype": words(table, "precision", _SPELLED["precision"]),
        "pass": words(table, "phase", _SPELLED["phase"]),
    }
    for name, (ours, scale) in _FIGURES.items():
        found = figures(table, name)
        columns[ours] = found._replace(values=np.rint(found.values * scale)) if scale > 1 else found
    for name, (ours, _, on) in _FLAGS.items():
        said = words(table, name)
        flag = np.array([float(word == on) for word in said.words])[said.codes]
        columns[ours] = Numbers(flag, np.zeros(len(flag), dtype=np.bool_), False)
    return columns


IMPORTER = PartsImporter(SOURCE, read)
