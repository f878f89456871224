"""NeuSight's measured whole models, and the errors that it published for itself and its baselines on them.

Notes on the files (their README has all): training is forward and backward without an optimiser's step; batches are
global; on one GPU each pass starts with PyTorch's allocator emptied, as in NeuSight's script; `pp4_1` is one
microbatch on four stages; one row has no configuration and is dropped; three rows of the A100 are far below the sum of
their own operators measured one by one, and are reported as `odd`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from app.engine.catalogue import load_seed_specs
from app.errors import NotFound
from app.networks.run import Parallelism, Run
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from evaluation.data import NEUSIGHT, NO_SPLIT, Cell, read_cells
from evaluation.operators.folds import NEUSIGHT_UNSEEN
from evaluation.study import paper

RUNS, CONFIGS = "end_to_end_fp32.csv", "model_configs"
AMD = ("amd-instinct-mi100", "amd-instinct-mi210")
MODES = {"inf": "inference", "train": "training"}
# The model without a configuration.
_LEFT_OUT = "switch4"
_ODD = {("bert_large", 8), ("bert_large", 16), ("gpt2_large", 4)}
_ODD_GPU = "a100-pcie-40gb"
_SPLITS = {"dp4": Parallelism(data=4), "tp4": Parallelism(tensor=4), "pp4_1": Parallelism(pipeline=4)}
FUSION = "fusion"

METHODS = ("roofline", "habitat", "li", "neusight")
# Sequence length of the published figures of Switch, tokens.
_SWITCH_LENGTH = 512


class Key(NamedTuple):
    """Run that a published error is for; `option` is empty on one GPU."""

    gpu: str
    model: str
    mode: str
    batch: int
    option: str = ""


class Measured(NamedTuple):
    """A measured run on a GPU of the catalogue; seconds of a step and of its two passes (0: unknown)."""

    gpu: str
    model: str
    mode: str
    sequence: int
    batch: int
    option: str
    step_s: float
    forward_s: float
    backward_s: float

    @property
    def part(self) -> str:
        """Return the part of the report it belongs to."""
        if self.option:
            return "fused" if self.option == FUSION else "distributed"
        if self.gpu in AMD:
            return "amd"
        return "unseen" if self.gpu in NEUSIGHT_UNSEEN else "seen"

    @property
    def odd(self) -> bool:
        """Return whether the run is far below the sum of its own measured operators."""
        return (self.model, self.batch) in _ODD and (self.gpu, self.mode, self.option) == (_ODD_GPU, "inf", "")

    @property
    def run(self) -> Run:
        """Return the configuration of the run."""
        return Run(
            mode=MODES[self.mode],  # type: ignore[arg-type]
            batch=self.batch,
            sequence=self.sequence,
            fused=self.option == FUSION,
            optimizer="none",
            emptied=self.option not in _SPLITS,
            parallelism=_SPLITS.get(self.option, Parallelism()),
        )

    @property
    def key(self) -> Key | None:
        """Return the key of its published errors; None if there are none."""
        if self.model == "switchxl4" and self.sequence != _SWITCH_LENGTH:
            return None
        return None if self.option == FUSION else Key(self.gpu, self.model, self.mode, self.batch, self.option)


@dataclass(frozen=True, slots=True)
class NeuSightData:
    """NeuSight's folder, its measured operators and runs, its published errors by method and run, and the GPUs."""

    folder: Path
    catalog: Catalog
    gpus: GpuTable
    operators: tuple[Cell, ...]
    runs: tuple[Measured, ...]
    published: Mapping[tuple[str, Any], float]


def read_data(folder: Path) -> NeuSightData:
    """Return NeuSight's operators and models from a folder of data sets."""
    specs = load_seed_specs()
    catalog, home = Catalog(specs), folder / NEUSIGHT
    runs, published = tuple(read_measured(home, catalog)), read_published()
    operators = tuple(cell for cell in read_cells(folder, names=(NEUSIGHT,)) if (cell.split != NO_SPLIT).any())
    return NeuSightData(home, catalog, GpuTable.from_specs(specs), operators, runs, published)


def read_measured(folder: Path, catalog: Catalog) -> list[Measured]:
    """Return every measured run that has a configuration. Raises NotFound without the file."""
    path = folder / RUNS
    if not path.is_file():
        raise NotFound(f"No {RUNS} in {folder}.")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] != _LEFT_OUT]
    return [
        Measured(
            catalog.resolve(row["gpu"]).id,
            row["model"],
            row["mode"],
            int(row["seqlen"]),
            int(row["batch"]),
            row["option"],
            *(float(row[name]) / 1e3 for name in ("e2e_ms", "forward_ms", "backward_ms")),
        )
        for row in rows
    ]


def read_config(folder: Path, model: str) -> dict[str, Any]:
    """Return a model's Hugging Face configuration."""
    config: dict[str, Any] = json.loads((folder / CONFIGS / f"{model}.json").read_text("utf-8"))
    return config


def read_published() -> dict[tuple[str, Key], float]:
    """Return the published errors in percent by method and run."""
    cells = paper("neusight_models")["cells"]
    keys = {Key(*(cell.get(name, "") for name in Key._fields)): cell for cell in cells}
    return {(method, key): cell[method] for key, cell in keys.items() for method in METHODS if method in cell}
