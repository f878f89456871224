"""Folds of the evaluation of operators over a data set, which depend on the rows only.

neusight           NeuSight's protocol: training on its training GPUs and dimensions, testing on its test dimensions, on
                   the same GPUs (`seen`) and on two others (`unseen`). In families without test dimensions a fifth of
                   each GPU's rows is held out instead; on AMD's GPUs, where no family has both, a fifth of the
                   configurations (`seen_amd`).
configurations     a fifth of all configurations is held out on GPUs that are trained on (`seen`); of experts and
                   collectives, which have few configurations, each fifth in turn
leave_one_gpu_out  each GPU is left out in turn, known by its datasheet only (`unseen`)
few_shot           the same, with some rows of the left-out GPU measured: `<n>_rows` per operator and dtype; of
                   collectives `2_points`, the smallest and largest message per number of devices

Rows are drawn by hashes of their dimensions or keys, so a fold does not change when other rows are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np

from app.tables.arrays import Bools, Ints
from app.tables.ops import OpTable
from app.training.row_hashes import Hashes, configurations, dimensions, fifths, hashed, mixed
from evaluation.data import NO_SPLIT, TEST, TRAIN, Cell

# Position of a cell in the data set -> positions of rows in that cell.
Rows = Mapping[int, Ints]

PROTOCOLS = ("neusight", "configurations", "leave_one_gpu_out", "few_shot")
NEUSIGHT_TRAINING = ("tesla-p4", "tesla-p100-pcie-16gb", "tesla-v100-pcie-32gb", "tesla-t4", "a100-pcie-40gb")
NEUSIGHT_UNSEEN = ("nvidia-l4", "a100-pcie-80gb")
HELD_OUT = 0.2
SHOTS = (8, 32, 128)
# Training rows per cell and GPU when a GPU is left out: its errors hardly change with more.
MOST_ELSEWHERE = 800


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Test rows of a fold.

    given  measured rows of the left-out GPU that a predictor may use after training; empty but in few_shot
    test   rows to predict
    """

    protocol: str
    part: str
    given: Rows
    test: Rows


@dataclass(frozen=True, slots=True)
class OperatorFold:
    """Training rows and evaluation sets; `name` says what is held out."""

    name: str
    train: Rows
    evaluation_sets: tuple[EvaluationSet, ...]


def operator_folds(
    cells: Sequence[Cell], gpus: Sequence[str], protocols: Sequence[str], *, most_test: int, most_train: int | None
) -> Iterator[OperatorFold]:
    """Return every fold of the protocols; `gpus` are the ids behind `rows.gpu`.

    most_test   largest number of test rows per cell and GPU
    most_train  largest number of training rows per cell and GPU; None: all, or MOST_ELSEWHERE if a GPU is left out
    Rows are drawn by the hash of their keys.
    """
    whole: list[OperatorFold] = []
    if "neusight" in protocols:
        whole += [_neusight(cells, gpus), _neusight_held_out(cells, gpus)]
    if "configurations" in protocols:
        whole += _configurations(cells)
    limited = [(fold, most_train) for fold in whole]
    limited += [(fold, most_train or MOST_ELSEWHERE) for fold in _by_gpu(cells, gpus, protocols)]
    for fold, most in limited:
        every = [replace(held_out, test=fewer(cells, held_out.test, most_test)) for held_out in fold.evaluation_sets]
        tested = tuple(held_out for held_out in every if held_out.test)
        train = fold.train if most is None else fewer(cells, fold.train, most)
        if tested and train:
            yield OperatorFold(fold.name, train, tested)


def _neusight(cells: Sequence[Cell], gpus: Sequence[str]) -> OperatorFold:
    """Return the fold of NeuSight's training and test dimensions."""
    training, unseen = _are(gpus, NEUSIGHT_TRAINING), _are(gpus, NEUSIGHT_UNSEEN)
    both = [k for k, cell in enumerate(cells) if (cell.split == TRAIN).any() and (cell.split == TEST).any()]

    def rows(split: int, on: Bools) -> Rows:
        return nonempty({k: (cells[k].split == split) & on[cells[k].runs.rows.gpu] for k in both})

    return OperatorFold(
        "NeuSight's test dimensions",
        rows(TRAIN, training),
        (
            EvaluationSet("neusight", "seen", {}, rows(TEST, training)),
            EvaluationSet("neusight", "unseen", {}, rows(TEST, unseen)),
        ),
    )


def _neusight_held_out(cells: Sequence[Cell], gpus: Sequence[str]) -> OperatorFold:
    """Return the fold that holds out a fifth of the rows of families without test dimensions, and of AMD's."""
    amd = np.array([gpu.startswith("amd-") for gpu in gpus], dtype=bool)
    own = np.array([crc32(gpu.encode()) for gpu in gpus])  # independent of the other GPUs of the catalogue
    train, test, test_amd = {}, {}, {}
    for k, cell in enumerate(cells):
        gpu, has_test = cell.runs.rows.gpu, bool((cell.split == TEST).any())
        eligible = amd[gpu] | (not has_test)
        if not eligible.any() or not (cell.split != NO_SPLIT).any():
            continue
        salt = np.where(amd[gpu], 0, own[gpu]).astype(np.uint64)  # rows of each GPU at random; AMD's by configuration
        held = eligible & sampled(mixed(dimensions(cell.runs), salt), HELD_OUT)
        trained = amd[gpu] | ((cell.split == TRAIN) & (_are(gpus, NEUSIGHT_TRAINING)[gpu] | (not has_test)))
        train[k], test[k], test_amd[k] = trained & ~held, held & ~amd[gpu], held & amd[gpu]
    evaluation_sets = (
        EvaluationSet("neusight", "seen", {}, nonempty(test)),
        EvaluationSet("neusight", "seen_amd", {}, nonempty(test_amd)),
    )
    return OperatorFold("NeuSight's rows held out", nonempty(train), evaluation_sets)


def _configurations(cells: Sequence[Cell]) -> Iterator[OperatorFold]:
    """Return the fold that holds out a fifth of the configurations; of families with few, a fold per fifth."""
    fifth = {k: fifths(configurations(cell.runs)) for k, cell in enumerate(cells) if (cell.split == NO_SPLIT).all()}
    for part in range(5):
        held = {k: of == part for k, of in fifth.items() if part == 0 or cells[k].op.few_configurations}
        # A GPU is seen if other configurations of the cell on it are in the training rows.
        test = {}
        for k, rows in held.items():
            gpu = cells[k].runs.rows.gpu
            test[k] = rows & np.isin(gpu, gpu[~rows])
        train = nonempty({k: ~rows for k, rows in held.items()})
        held_out = EvaluationSet("configurations", "seen", {}, nonempty(test))
        yield OperatorFold(f"configurations {part + 1}", train, (held_out,))


def _by_gpu(cells: Sequence[Cell], gpus: Sequence[str], protocols: Sequence[str]) -> Iterator[OperatorFold]:
    if not {"leave_one_gpu_out", "few_shot"} & set(protocols):
        return
    for target in sorted({int(gpu) for cell in cells for gpu in np.unique(cell.runs.rows.gpu)}):
        here = {k: cell.runs.rows.gpu == target for k, cell in enumerate(cells)}
        here = {k: rows for k, rows in here.items() if rows.any() and not rows.all()}
        evaluation_sets = []
        if "leave_one_gpu_out" in protocols:
            evaluation_sets.append(EvaluationSet("leave_one_gpu_out", "unseen", {}, nonempty(here)))
        if "few_shot" in protocols:
            evaluation_sets += [_few_shot(cells, here, shots) for shots in SHOTS]
            evaluation_sets.append(_two_points(cells, here))
        train = nonempty({k: ~rows for k, rows in here.items()})
        yield OperatorFold(f"{gpus[target]} left out", train, tuple(evaluation_sets))


def _few_shot(cells: Sequence[Cell], here: Mapping[int, Bools], shots: int) -> EvaluationSet:
    """Return the evaluation set with `shots` random rows of the target given, of cells with at least twice as many."""
    given = {}
    for k, rows in here.items():
        if rows.sum() >= 2 * shots:
            given[k] = first_rows(np.flatnonzero(rows), cells[k].runs.key, shots, salt=1)
    return EvaluationSet("few_shot", f"{shots}_rows", given, _rest(cells, here, given))


def _two_points(cells: Sequence[Cell], here: Mapping[int, Bools]) -> EvaluationSet:
    """Return the evaluation set with the smallest and largest message of each device count and implementation given."""
    given = {}
    for k, rows in here.items():
        table = cells[k].runs.rows.ops
        if cells[k].op.pattern is not None:
            message, setting = table.column("message_bytes"), hashed(table, _but_message(table))
            among = [np.flatnonzero(rows & (setting == value)) for value in np.unique(setting[rows])]
            ends = [part[[np.argmin(message[part]), np.argmax(message[part])]] for part in among]
            given[k] = np.unique(np.concatenate(ends))
    return EvaluationSet("few_shot", "2_points", given, _rest(cells, here, given))


def _but_message(table: OpTable) -> list[str]:
    return [name for name in table.fields if name != "message_bytes"]


def _rest(cells: Sequence[Cell], here: Mapping[int, Bools], given: Rows) -> Rows:
    """Return the target's rows with other dimensions than the given rows, as repeats are known."""
    rest = {}
    for k, rows in given.items():
        shape = dimensions(cells[k].runs)
        rest[k] = here[k] & ~np.isin(shape, shape[rows])
    return nonempty(rest)


def _are(gpus: Sequence[str], names: Sequence[str]) -> Bools:
    return np.array([gpu in names for gpu in gpus], dtype=bool)


def nonempty(rows: Mapping[int, Bools]) -> Rows:
    """Return the positions of the rows of every cell that has any."""
    return {k: np.flatnonzero(mask) for k, mask in rows.items() if mask.any()}


def fewer(cells: Sequence[Cell], rows: Rows, most: int) -> Rows:
    """Return at most `most` rows of each cell and GPU."""
    fewer = {}
    for k, every in rows.items():
        gpu, key = cells[k].runs.rows.gpu[every], cells[k].runs.key
        drawn = [first_rows(every[gpu == target], key, most, salt=2) for target in np.unique(gpu)]
        fewer[k] = np.sort(np.concatenate(drawn))
    return fewer


def first_rows(rows: Ints, key: Hashes, most: int, *, salt: int) -> Ints:
    """Return `most` of the rows, those with the least hashes of their keys: a pseudo-random draw."""
    order = np.argsort(mixed(key[rows], np.uint64(salt)), kind="stable")
    return rows[order[:most]]


def sampled(hashes: Hashes, share: float) -> Bools:
    """Return where a hash is among a `share` of all, bool [n]."""
    within: Bools = hashes < np.uint64(int(share * 2.0**64))
    return within
