"""What each mechanism of `auto` for operators is worth: the error without it, on rows held out of the training rows.

    python -m benchmarks.ablation --data DIR [--family "linear bf16"] [--mechanism NAME] [--split NAME] [--gpu ID]

No test row of `gpucast evaluate operators` is read: the rows are those that its protocols `neusight` and
`configurations` train on (of experts and collectives without the first fifth). Of these, per family:

seen      a fifth of the configurations held out on every GPU; of NeuSight's products and rows also the eighth that
          does most work, as its test dimensions are larger than its training ones
extended  collectives: messages over 16 MiB and the largest number of devices held out
left out  each GPU in turn held out, known by its datasheet
32 rows   the same GPU, 32 of its rows given
2 points  the same, of collectives the smallest and largest message per number of devices given
stand-in  each GPU held out while another one is declared its sibling (STAND_INS): training rows have no siblings

Cells are thinned by a hash of the row. A mechanism is switched off by patching (benchmarks.ablation_mechanisms) and
judged on the same rows. A line says by how many percent the MAPE changes without it: what is below 0 is better off.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.engine.catalogue import load_seed_specs
from app.ops import OP_CODE, kinds_of, work_of
from app.predictors.auto.predictor import Auto
from app.predictors.roofline import hardware_limit
from app.tables.arrays import Bools, Ints
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns
from app.training.row_hashes import configurations, dimensions, hashed, mixed
from benchmarks.ablation_mechanisms import MECHANISMS, Mechanism
from evaluation.data import NO_SPLIT, Cell, read_cells
from evaluation.operators.evaluate import NO_EVIDENCE, family_of, operators_of
from evaluation.operators.folds import first_rows, operator_folds, sampled

HELD_OUT, LARGEST = 0.2, 0.125
FEW = 32
LARGE_MESSAGE_BYTES = 16 * 2**20
# GPUs that are close enough to be taken for siblings in a trial: of one kind of memory and of nearly one age.
STAND_INS = {
    "tesla-p4": "tesla-t4",
    "tesla-t4": "tesla-p4",
    "tesla-v100-pcie-32gb": "a100-pcie-40gb",
    "a100-pcie-40gb": "tesla-v100-pcie-32gb",
    "amd-instinct-mi210": "amd-instinct-mi100",
    "amd-instinct-mi100": "amd-instinct-mi210",
    "h100-sxm5-80gb": "a100-sxm4-80gb",
    "a100-sxm4-80gb": "h100-sxm5-80gb",
    "b200": "h100-sxm5-80gb",
}
SPLITS = ("seen", "extended", "left out", "32 rows", "2 points", "stand-in")
# Operators that stand for a family of many.
_SOME = {"elementwise": ("add", "gelu", "mul_scalar")}


class Fold(NamedTuple):
    """Rows to learn from, the catalogue they are learned with, and what is then asked; one entry per cell."""

    split: str
    train: Sequence[Ints]
    given: Sequence[Ints]
    asked: Sequence[Ints]
    gpus: GpuTable


class Limits(NamedTuple):
    """Rows per cell and GPU: learned from, learned from where a GPU is left out, and asked; and GPUs left out.

    `salt`: of the hash that draws what is held out where GPUs are seen.
    """

    learned: int
    elsewhere: int
    asked: int
    targets: int
    salt: int


def main() -> None:
    """Print the table; families one after another, since each takes minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("GPUCAST_SHARED_DATA"), help="folder of data sets")
    parser.add_argument("--family", action="append", help="only this family, as `linear fp32`; repeat for several")
    parser.add_argument("--mechanism", action="append", help="only this mechanism; repeat for several")
    parser.add_argument("--split", action="append", choices=SPLITS, help="only this split; repeat for several")
    parser.add_argument("--gpu", action="append", help="only this GPU's rows are asked; repeat for several")
    parser.add_argument("--rows", type=int, default=2000, help="learned from per operator, dtype and GPU")
    parser.add_argument("--elsewhere", type=int, default=500, help="the same where a GPU is left out")
    parser.add_argument("--asked", type=int, default=400, help="asked per operator, dtype and GPU")
    parser.add_argument("--targets", type=int, default=99, help="GPUs that are left out, of every family")
    parser.add_argument("--salt", type=int, default=20, help="another one holds out other configurations")
    parser.add_argument("--json", type=Path, help="append every error to this file, a line each")
    options = parser.parse_args()
    gpus = GpuTable.from_specs(load_seed_specs())
    limits = Limits(options.rows, options.elsewhere, options.asked, options.targets, options.salt)
    ops = operators_of({name.split(" ")[0] for name in options.family}) if options.family else OP_CODE
    for family, cells, pools in families(read_cells(options.data, ops), gpus):
        if options.family and family not in options.family:
            continue
        asked = [gpus.ids.index(name) for name in options.gpu] if options.gpu else None
        folds = [one for one in _folds(cells, pools, gpus, limits, asked) if one.split in (options.split or SPLITS)]
        base = _told(family, None, cells, folds, {}, options.json)
        for one in MECHANISMS:
            if family in one.families and (not options.mechanism or one.name in options.mechanism):
                _told(family, one, cells, folds, base, options.json)


def families(cells: Sequence[Cell], gpus: GpuTable) -> Iterator[tuple[str, list[Cell], list[Bools]]]:
    """Each family in a dtype (experts and collectives in all): its cells, and their rows that may be looked at."""
    pools = [np.zeros(len(cell.runs.rows), dtype=np.bool_) for cell in cells]
    seen: set[str] = set()
    for fold in operator_folds(cells, gpus.ids, ("neusight", "configurations"), most_test=1, most_train=None):
        if fold.name.startswith("configurations") and "configurations" in seen:
            continue  # of experts and collectives every fifth is a test row of one fold; the first is none here
        seen.add(fold.name.split(" ")[0])
        for k, rows in fold.train.items():
            pools[k][rows] = True
    named = [_family_name(cell) for cell in cells]
    for name in dict.fromkeys(named):
        some = _SOME.get(name.split(" ")[0])
        mine = [k for k, of in enumerate(named) if of == name and (some is None or cells[k].runs.op in some)]
        yield name, [cells[k] for k in mine], [pools[k] for k in mine]


def _family_name(cell: Cell) -> str:
    family = family_of(cell)
    return family if cell.group in {"moe", "collective"} else f"{family} {cell.runs.dtype}"


def _folds(
    cells: Sequence[Cell], pools: Sequence[Bools], gpus: GpuTable, limits: Limits, only: Sequence[int] | None
) -> Iterator[Fold]:
    """Every fold of a family; `only` these GPUs, which then learn alone where they are seen."""
    nothing = [np.empty(0, dtype=np.intp)] * len(cells)
    both = list(zip(cells, pools, strict=True))
    splits = {"seen": [_held(*one, limits.salt) for one in both]}
    if cells[0].group == "collective":
        splits["extended"] = [_extended(cell) for cell in cells]
    for name, held in splits.items():
        kept = [pool & ~out & _among(cell, only) for (cell, pool), out in zip(both, held, strict=True)]
        train = [_few(cell, rows, limits.learned) for cell, rows in zip(cells, kept, strict=True)]
        asked = [
            _few(cell, pool & out & _among(cell, np.unique(cell.runs.rows.gpu[rows]).tolist()), limits.asked)
            for (cell, pool), out, rows in zip(both, held, kept, strict=True)
        ]
        yield Fold(name, train, nothing, asked, gpus)
    every = np.unique(np.concatenate([cell.runs.rows.gpu[pool] for cell, pool in both]))
    every = every if only is None else every[np.isin(every, only)]
    for at in np.linspace(0, len(every) - 1, min(len(every), limits.targets)).round().astype(np.intp).tolist():
        yield from _without(int(every[at]), both, gpus, limits)


def _without(gpu: int, both: Sequence[tuple[Cell, Bools]], gpus: GpuTable, limits: Limits) -> Iterator[Fold]:
    """The folds that leave one GPU out."""
    nothing = np.empty(0, dtype=np.intp)
    here = [pool & (cell.runs.rows.gpu == gpu) for cell, pool in both]
    train = [
        _few(cell, pool & ~mine, limits.elsewhere) if mine.any() else nothing
        for (cell, pool), mine in zip(both, here, strict=True)
    ]
    if not any(len(rows) for rows in train):
        return
    asked = [_few(cell, mine, limits.asked + FEW) for (cell, _), mine in zip(both, here, strict=True)]
    few, rest = [rows[:FEW] for rows in asked], [rows[FEW:] for rows in asked]
    yield Fold("left out", train, [nothing] * len(train), rest, gpus)
    yield Fold("32 rows", train, few, rest, gpus)
    if both[0][0].group == "collective":
        ends = [_ends(cell, mine) for (cell, _), mine in zip(both, here, strict=True)]
        others = [np.setdiff1d(rows, given) for rows, given in zip(asked, ends, strict=True)]
        yield Fold("2 points", train, ends, others, gpus)
    if (twin := STAND_INS.get(gpus.ids[gpu])) is not None:
        declared = _declared_siblings(gpus, gpu, gpus.ids.index(twin))
        yield Fold("stand-in", train, [nothing] * len(train), rest, declared)


def _ends(cell: Cell, among: Bools) -> Ints:
    """The smallest and largest message of each number of devices and library."""
    table = cell.runs.rows.ops
    message, setting = table.column("message_bytes"), hashed(table, ("devices", "implementation"))
    parts = [np.flatnonzero(among & (setting == one)) for one in np.unique(setting[among])]
    ends = [part[[np.argmin(message[part]), np.argmax(message[part])]] for part in parts]
    return np.unique(np.concatenate([np.empty(0, dtype=np.intp), *ends]))


def _among(cell: Cell, only: Sequence[int] | None) -> Bools:
    return np.ones(len(cell.runs.rows), np.bool_) if only is None else np.isin(cell.runs.rows.gpu, only)


def _declared_siblings(gpus: GpuTable, one: int, other: int) -> GpuTable:
    """The table with GPU row `other` declared of the architecture of `one`."""
    makes = list(gpus.architectures)
    makes[other] = makes[one] = makes[other] or makes[one]
    return replace(gpus, architectures=tuple(makes), memo={})


def _held(cell: Cell, pool: Bools, salt: int) -> Bools:
    """Rows held out on GPUs that others teach, bool [n]."""
    modern = bool((cell.split == NO_SPLIT).all())
    table = cell.runs.rows.ops
    of = configurations(cell.runs) if modern else dimensions(cell.runs)
    held = sampled(mixed(of, np.uint64(salt)), HELD_OUT)
    if not modern and cell.group != "conv2d":
        work = work_of(table, kinds_of(table))
        size = work.flops if cell.group in {"linear", "bmm"} else work.bytes
        held |= size > np.quantile(size[pool], 1.0 - LARGEST)
    return held


def _extended(cell: Cell) -> Bools:
    """Large messages and most devices, bool [n]."""
    message, devices = (cell.runs.rows.ops.column(name) for name in ("message_bytes", "devices"))
    largest = np.array([devices[cell.runs.rows.gpu == gpu].max() for gpu in cell.runs.rows.gpu])
    fewer = largest > devices.min()
    out: Bools = (message > LARGE_MESSAGE_BYTES) | ((devices == largest) & fewer)
    return out


def _few(cell: Cell, among: Bools, most: int) -> Ints:
    """At most `most` rows of each GPU, by the hash of their keys, the first of each GPU first."""
    gpu = cell.runs.rows.gpu
    parts = [
        first_rows(np.flatnonzero(among & (gpu == one)), cell.runs.key, most, salt=20) for one in np.unique(gpu[among])
    ]
    return np.concatenate([np.empty(0, dtype=np.intp), *parts])


def _told(
    family: str,
    one: Mechanism | None,
    cells: Sequence[Cell],
    folds: Sequence[Fold],
    base: Mapping[str, float],
    file: Path | None,
) -> dict[str, float]:
    """MAPE by split with a mechanism switched off (None: with all), printed as a line."""
    began = time.perf_counter()
    folds = [fold._replace(gpus=replace(fold.gpus, memo={})) for fold in folds]  # what is put together once a table
    with one.off() if one else nullcontext():
        found = errors(cells, folds, one.splits if one else None)
    mape = {split: 100.0 * float(np.mean(list(parts.values()))) for split, parts in found.items()}
    gains = [
        f"{split} {mape[split]:.2f} ({100.0 * (mape[split] / base[split] - 1.0):+.1f} %)" for split in mape if base
    ]
    plain = [f"{split} {error:.2f}" for split, error in mape.items()]
    name = f"{one.name} [{one.lines}]" if one else "all"
    print(f"{family:22} {name:34} {'  '.join(gains or plain)}  {time.perf_counter() - began:.0f} s", flush=True)
    if file is not None:
        line = {"family": family, "mechanism": one.name if one else None, "mape": mape, "gpus": found}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
    return mape


def errors(cells: Sequence[Cell], folds: Sequence[Fold], splits: Sequence[str] | None) -> dict[str, dict[str, float]]:
    """Mean of |predicted / measured - 1| by split, and by operator, dtype and GPU."""
    found: dict[str, dict[str, float]] = {}
    fitted: tuple[Any, Any] = (None, None)
    for fold in folds:
        if splits is not None and fold.split not in splits:
            continue
        which = (fold.gpus.architectures, *(id(rows) for rows in fold.train))
        if fitted[0] != which:
            fitted = (which, Auto().fit_operators(_taken(cells, fold.train), fold.gpus))
        ready = fitted[1]
        if any(len(rows) for rows in fold.given):
            ready = ready.with_measured(_taken(cells, fold.given), fold.gpus)
        for cell, rows in zip(cells, fold.asked, strict=True):
            for gpu in np.unique(cell.runs.rows.gpu[rows]).tolist():
                some = rows[cell.runs.rows.gpu[rows] == gpu]
                at = f"{cell.runs.op} {cell.runs.dtype} {fold.gpus.ids[gpu]}"
                found.setdefault(fold.split, {})[at] = _error(ready, cell.runs.take(some), fold.gpus)
    return found


def _taken(cells: Sequence[Cell], rows: Sequence[Ints]) -> list[OperatorRuns]:
    return [cell.runs.take(some) for cell, some in zip(cells, rows, strict=True) if len(some)]


def _error(auto: Any, runs: OperatorRuns, gpus: GpuTable) -> float:
    i = np.arange(len(runs))
    estimate = auto.predict(runs.rows.ops, gpus, i, runs.rows.gpu, evidence=NO_EVIDENCE)
    answer = np.maximum(estimate.latency_s, hardware_limit(runs.rows.ops, gpus, i, runs.rows.gpu).latency_s)
    return float(np.abs(answer / runs.rows.latency_s - 1.0).mean())


if __name__ == "__main__":
    main()
