"""NeuSight's measured whole models, and the errors that it published for itself and its baselines on them.

Notes on the files (their README has all): training is forward and backward without an optimiser's step; batches are
global; on one GPU each pass starts with PyTorch's allocator emptied, as in NeuSight's script; `pp4_1` is one
microbatch on four stages; one row has no configuration and is dropped; three rows of the A100 are far below the sum of
their own operators measured one by one, and are reported as `odd`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from app.engine.curated import load_seed_specs
from app.errors import NotFound
from app.graphs.run import Parallelism, Run
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from evaluation.data import NEUSIGHT, NO_SPLIT, Cell, read_cells
from evaluation.operators.folds import NEUSIGHT_UNSEEN

RUNS, CONFIGS = "end_to_end_fp32.csv", "model_configs"
AMD = ("amd-instinct-mi100", "amd-instinct-mi210")
MODES = {"inf": "inference", "train": "training"}
# The model without a configuration.
_LEFT_OUT = "switch4"
_ODD = {("bert_large", 8), ("bert_large", 16), ("gpt2_large", 4)}
_ODD_GPU = "a100-pcie-40gb"
_SPLITS = {"dp4": Parallelism(data=4), "tp4": Parallelism(tensor=4), "pp4_1": Parallelism(pipeline=4)}
FUSION = "fusion"

# Names of models and methods in the published tables -> ours.
_PUBLISHED_MODELS = {
    "BERT-Large": "bert_large",
    "GPT2-Large": "gpt2_large",
    "GPT3-XL": "gpt3_xl",
    "OPT-1.3B": "opt_13",
    "GPT3-2.7B": "gpt3_27",
    "SwitchTrans": "switchxl4",
}
_PUBLISHED_METHODS = {"Roofline": "roofline", "Habitat": "habitat", "Li et al.": "li", "NeuSight": "neusight"}
METHODS = tuple(_PUBLISHED_METHODS.values())
# Sequence length of the published figures of Switch, tokens.
_SWITCH_LENGTH = 512
_AMD_METHOD = "neusight"


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
    runs, published = tuple(read_measured(home, catalog)), read_published(home, catalog)
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


def read_published(folder: Path, catalog: Catalog) -> dict[tuple[str, Key], float]:
    """Return the published errors in percent by method and run."""
    errors: dict[tuple[str, Key], float] = {}
    for name, mode in (("inference", "inf"), ("training", "train")):
        errors |= _nvidia(_cells(folder / f"published_errors_{name}.csv"), mode, catalog)
        errors |= _amd(_cells(folder / f"published_errors_{name}_amd.csv"), mode)
    for row in _cells(folder / "published_errors_distributed.csv")[1:]:
        model, batch, system, split, measured, error = row
        option = {"DP": "dp4", "TP": "tp4", "PP": "pp4_1"}[split]
        if measured:
            gpu = catalog.resolve(system.removesuffix(" x4")).id
            errors["neusight", Key(gpu, model, "train", int(batch), option)] = float(error)
    return errors


def _cells(path: Path) -> list[list[str]]:
    """Return the rows of a CSV file."""
    if not path.is_file():
        raise NotFound(f"No {path.name} in {path.parent}.")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _nvidia(cells: list[list[str]], mode: str, catalog: Catalog) -> dict[tuple[str, Key], float]:
    """Return the errors of a file with a table per GPU: its name, models, batches, and a line per method."""
    errors: dict[tuple[str, Key], float] = {}
    gpu, models, batches = "", [""], [""]
    for row in cells:
        first = row[0] if row else ""
        if first == "Model":
            models = _filled(row[1:])
        elif first == "Batch":
            batches = row[1:]
        elif first in _PUBLISHED_METHODS:
            method = _PUBLISHED_METHODS[first]
            errors |= {(method, key): float(value) for key, value in _keys(gpu, mode, models, batches, row[1:])}
        elif first:
            gpu = catalog.resolve(first).id
    return errors


def _amd(cells: list[list[str]], mode: str) -> dict[tuple[str, Key], float]:
    """Return NeuSight's errors from a file with models, batches, and a line per GPU."""
    models, batches = _filled(cells[0][1:]), cells[1][1:]
    return {
        (_AMD_METHOD, key): float(value.rstrip("%"))
        for row in cells[2:]
        for key, value in _keys(f"amd-instinct-{row[0].lower()}", mode, models, batches, row[1:])
    }


def _keys(gpu: str, mode: str, models: list[str], batches: list[str], values: list[str]) -> Iterator[tuple[Key, str]]:
    """Return the key and text of every error in a line."""
    for model, batch, value in zip(models, batches, values, strict=True):
        if value:
            yield Key(gpu, _PUBLISHED_MODELS[model], mode, int(batch)), value


def _filled(names: list[str]) -> list[str]:
    """Return the names of all columns; a header names the first of every two columns."""
    return [names[k - 1] if k and not name else name for k, name in enumerate(names)]
