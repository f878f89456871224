"""Experiments of the cross-GPU kernels paper from a folder of its data: the authors' protocol, and a clean one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.engine.catalogue import load_seed_specs
from app.errors import BadInput, NotFound
from app.formats import own
from app.formats.cuda_kernels import CLEAN_FILE, read
from app.predictors import PREDICTORS
from app.services.measurements.check_upload import check
from app.tables.catalog import Catalog
from app.tables.gpus import GpuSpec
from app.wire.measurement_form import Objects
from evaluation.kernels import authors, clean
from evaluation.render import Report, Table
from evaluation.study import Result, grouped

METRICS = ("mape", "median_ape", "median_ratio", "within_10", "within_25", "within_50", "coverage_80")
TITLES = {
    "3": "Table 3, experiment 1: TITAN V from the other GPUs",
    "4": "Table 4, experiment 2: largest sizes, from other GPUs",
    "5": "Table 5, experiment 3: four kernels not trained on",
    "6": "Table 6: MAPE of every regressor in the three experiments",
}
# Figures of a launch that each GPU's compiler gives.
_OF_COMPILER = ("registers_per_thread", "shared_memory_per_block")
# The authors' buffers are zero: their random reads are all of one address, and their histogram has one bin.
_OTHER_DATA = ("random_access", "histogram")


def evaluate_cross_gpu_kernels(folder: Path, own: Sequence[Path] = ()) -> Report:
    """Return the report on the authors' CSV files in `folder`; the clean protocol needs CLEAN_FILE.

    `own` are files of `gpucast measure` whose GPUs take part in the clean protocol. Raises NotFound if there is no such
    folder, and BadInput for a file without kernels.
    """
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a folder. Pass --data the folder of the authors' CSV files.")
    published = authors.evaluate(folder)
    cleaned: tuple[Result, ...] = ()
    if (folder / CLEAN_FILE).exists():
        cleaned, notes = clean_experiments(folder, own=own)
    else:
        notes = (f"{folder} has no {CLEAN_FILE}: no clean protocol, which needs the rows with true sizes.",)
    body = {"study": authors.STUDY, "cells": [*published, *cleaned]}
    tables = [*_published(published), *([_clean(cleaned)] if cleaned else [])]
    return Report(blocks=[*tables, *(("", *notes) if notes else ())], body=body)


def _published(cells: Sequence[Result]) -> Iterator[Table]:
    """Yield the paper's tables, ours beside them."""
    columns = {**dict.fromkeys(("predictor", "experiment", "metric"), ""), "paper": ".2f", "ours": ".2f", "n": "d"}
    for table, of_table in grouped(cells, lambda cell: str(cell["table"])).items():
        rows = [[{**cell, "ours": cell["measured"]}[name] for name in columns] for cell in of_table]
        yield Table(TITLES[table], columns, rows)


def _clean(cells: Sequence[Result]) -> Table:
    """Return a row per predictor, experiment and GPU."""
    rows = []
    columns = {"experiment": "", "predictor": "", "gpu": "", **dict.fromkeys(METRICS, ".2f"), "n": "d"}
    by_experiment = sorted(cells, key=lambda cell: str(cell["experiment"]))
    for where, alike in grouped(by_experiment, lambda cell: tuple(cell[name] for name in list(columns)[:3])).items():
        figures = {cell["metric"]: cell["measured"] for cell in alike}
        rows.append((*where, *map(figures.get, METRICS), alike[0]["n"]))
    return Table("Clean rows, experiments as the paper describes them; each GPU held out in turn", columns, rows)


def clean_experiments(
    folder: Path, predictors: Sequence[Any] = PREDICTORS, *, own: Sequence[Path] = ()
) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """Return the results of the clean protocol, and notes on the rows left out of it.

    `own` are files of `gpucast measure` with kernels of further GPUs. Raises NotFound if no row is valid, and BadInput
    for a file without kernels.
    """
    imported = read(folder)
    own_rows = [row for path in own for row in _own_kernels(path, imported.rows)]
    checked = check(_catalog(imported.figures), Objects.of([*imported.rows, *own_rows]))
    if checked.measured is None:
        raise NotFound(f"{folder / CLEAN_FILE} has no valid row.")
    kernels = [row.name for row in checked.rows]
    where = [*imported.where, *(f"{row['gpu']}, {row['workload']['name']}" for row in own_rows)]
    notes = [f"{where[int(error.loc[0])]}: left out, {error.msg}" for error in checked.errors]
    return tuple(clean.evaluate(checked.measured, checked.gpus, kernels, predictors)), tuple(notes)


def _own_kernels(path: Path, paper: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the launches in a file of `gpucast measure` that the paper has too, with the paper's counts."""
    counts = {_launch(row["workload"]): row["workload"] for row in paper}
    objects = [row for part in own.read(path) if isinstance(part.sent, Objects) for row in part.sent.rows]
    rows = [
        {**row, "workload": counts[launch] | {name: of for name, of in row["workload"].items() if name in _OF_COMPILER}}
        for row in objects
        if (launch := _launch(row["workload"])) in counts and row["workload"]["name"] not in _OTHER_DATA
    ]
    if not rows:
        raise BadInput(f"{path} has no launch of the paper's kernels: measure them with --suite kernels.")
    return rows


def _launch(workload: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells the paper's launches apart: kernel, sizes and threads per block."""
    sizes = {name: size for name, size in workload.get("size", {}).items() if size}
    return (workload.get("name"), tuple(sorted(sizes.items())), workload.get("threads_per_block"))


def _catalog(figures: Mapping[str, Mapping[str, float]]) -> Catalog:
    """Return the shipped GPUs with the sustained rates that the paper's formula takes.

    Measured triad bandwidths are left out: in a clean experiment the target GPU is known by its datasheet only.
    """
    shipped = Catalog(load_seed_specs())
    specs: dict[str, GpuSpec] = {spec.id: spec for spec in shipped.specs}
    for name, measured in figures.items():
        if known := shipped.find(name):
            sustained = {name: value for name, value in measured.items() if name.startswith("sustained_")}
            specs[known.id] = replace(known, **sustained)  # type: ignore[arg-type]
    return Catalog(tuple(specs.values()))
