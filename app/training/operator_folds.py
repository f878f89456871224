"""What an evaluation of operators holds out, as folds over a data set: pure, and the same wherever it runs.

neusight           NeuSight's: its training GPUs and dimensions against its test dimensions, on the same GPUs (`seen`)
                   and on two others (`unseen`). Of families without test dimensions a fifth of each GPU's rows is held
                   out instead, and of AMD's GPUs, where no family has both, configurations (`seen_amd`).
configurations     a fifth of all configurations held out on GPUs that are learned from (`seen`); of experts and
                   collectives, which have few, every fifth in turn
leave_one_gpu_out  every GPU in turn, known by its datasheet only (`unseen`)
few_shot           the same GPUs with some of their rows measured, `<n>_rows` per operator and dtype; of collectives
                   `2_points`, the smallest and largest message per number of devices

Rows are told apart by hashes of their dimensions or keys, so a fold stays the same when other rows come in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from app.ops import OP_CODE, OPS
from app.ops.base import Op
from app.tables.arrays import Bools, Floats, Ints
from app.tables.operator_runs import OperatorRuns
from app.tables.ops import OpTable

Hashes = NDArray[np.uint64]
# Position in the data set -> rows of it.
Rows = Mapping[int, Ints]

PROTOCOLS = ("neusight", "configurations", "leave_one_gpu_out", "few_shot")
NEUSIGHT_TRAINING = ("tesla-p4", "tesla-p100-pcie-16gb", "tesla-v100-pcie-32gb", "tesla-t4", "a100-pcie-40gb")
NEUSIGHT_UNSEEN = ("nvidia-l4", "a100-pcie-80gb")
NO_SPLIT, TRAIN, TEST = range(3)
HELD_OUT = 0.2
SHOTS = (8, 32, 128)
# Rows per cell and GPU that teach where another GPU is asked: errors there hardly change with more.
MOST_ELSEWHERE = 800


@dataclass(frozen=True, slots=True)
class Cell:
    """Measured rows of one operator in one dtype, and the part of NeuSight's data that each is of.

    split    int [n]: NO_SPLIT, TRAIN or TEST
    drift_s  float64 [n], what the process that measured took longer, which the rows are without
    """

    runs: OperatorRuns
    split: Ints
    drift_s: Floats

    @property
    def op(self) -> Op:
        """Its operator."""
        return OPS[OP_CODE[self.runs.op]]

    @property
    def group(self) -> str:
        """Its operator's line of the breakdown."""
        return self.op.group


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of a predictor after it was fitted: rows `test`, once it was told the measured rows `given`."""

    protocol: str
    part: str
    given: Rows
    test: Rows


@dataclass(frozen=True, slots=True)
class OperatorFold:
    """Rows to fit on, and what is then asked; `name` says what was held out."""

    name: str
    train: Rows
    asks: tuple[Ask, ...]


def operator_folds(
    cells: Sequence[Cell], gpus: Sequence[str], protocols: Sequence[str], *, most_test: int, most_train: int | None
) -> Iterator[OperatorFold]:
    """Every fold of the protocols; `gpus` are the ids behind `rows.gpu`.

    At most `most_test` rows per cell and GPU are asked and `most_train` (where None, all, and MOST_ELSEWHERE if a GPU
    is left out) are trained on, drawn by the hash of their keys.
    """
    whole: list[OperatorFold] = []
    if "neusight" in protocols:
        whole += [_neusight(cells, gpus), _neusight_held_out(cells, gpus)]
    if "configurations" in protocols:
        whole += _configurations(cells)
    limited = [(fold, most_train) for fold in whole]
    limited += [(fold, most_train or MOST_ELSEWHERE) for fold in _by_gpu(cells, gpus, protocols)]
    for fold, most in limited:
        asks = [Ask(ask.protocol, ask.part, ask.given, _fewer(cells, ask.test, most_test)) for ask in fold.asks]
        asked = tuple(ask for ask in asks if ask.test)
        train = fold.train if most is None else _fewer(cells, fold.train, most)
        if asked and train:
            yield OperatorFold(fold.name, train, asked)


def _neusight(cells: Sequence[Cell], gpus: Sequence[str]) -> OperatorFold:
    training, unseen = _are(gpus, NEUSIGHT_TRAINING), _are(gpus, NEUSIGHT_UNSEEN)
    both = [k for k, cell in enumerate(cells) if (cell.split == TRAIN).any() and (cell.split == TEST).any()]

    def rows(split: int, on: Bools) -> Rows:
        return _nonempty({k: (cells[k].split == split) & on[cells[k].runs.rows.gpu] for k in both})

    return OperatorFold(
        "NeuSight's test dimensions",
        rows(TRAIN, training),
        (Ask("neusight", "seen", {}, rows(TEST, training)), Ask("neusight", "unseen", {}, rows(TEST, unseen))),
    )


def _neusight_held_out(cells: Sequence[Cell], gpus: Sequence[str]) -> OperatorFold:
    """A fifth of the rows of families without test dimensions, and of AMD's configurations."""
    amd = np.array([gpu.startswith("amd-") for gpu in gpus], dtype=bool)
    own = np.array([crc32(gpu.encode()) for gpu in gpus])  # the same whichever GPUs the catalogue has beside it
    train, test, test_amd = {}, {}, {}
    for k, cell in enumerate(cells):
        gpu, has_test = cell.runs.rows.gpu, bool((cell.split == TEST).any())
        ours = amd[gpu] | (not has_test)
        if not ours.any() or not (cell.split != NO_SPLIT).any():
            continue
        salt = np.where(amd[gpu], 0, own[gpu]).astype(np.uint64)  # at random per GPU, but AMD's by configuration
        held = ours & chosen(mixed(hashed(cell.runs.rows.ops), salt), HELD_OUT)
        learned = amd[gpu] | ((cell.split == TRAIN) & (_are(gpus, NEUSIGHT_TRAINING)[gpu] | (not has_test)))
        train[k], test[k], test_amd[k] = learned & ~held, held & ~amd[gpu], held & amd[gpu]
    asks = (
        Ask("neusight", "seen", {}, _nonempty(test)),
        Ask("neusight", "seen_amd", {}, _nonempty(test_amd)),
    )
    return OperatorFold("NeuSight's rows held out", _nonempty(train), asks)


def _configurations(cells: Sequence[Cell]) -> Iterator[OperatorFold]:
    """A fifth of the configurations held out; of families that have few, every fifth in turn."""
    fifth = {k: fifths(configurations(cell.runs)) for k, cell in enumerate(cells) if (cell.split == NO_SPLIT).all()}
    for part in range(5):
        held = {k: of == part for k, of in fifth.items() if part == 0 or cells[k].op.few_configurations}
        # A GPU is seen where other configurations of the cell were learned from it.
        test = {}
        for k, rows in held.items():
            gpu = cells[k].runs.rows.gpu
            test[k] = rows & np.isin(gpu, gpu[~rows])
        train = _nonempty({k: ~rows for k, rows in held.items()})
        yield OperatorFold(f"configurations {part + 1}", train, (Ask("configurations", "seen", {}, _nonempty(test)),))


def _by_gpu(cells: Sequence[Cell], gpus: Sequence[str], protocols: Sequence[str]) -> Iterator[OperatorFold]:
    if not {"leave_one_gpu_out", "few_shot"} & set(protocols):
        return
    for target in sorted({int(gpu) for cell in cells for gpu in np.unique(cell.runs.rows.gpu)}):
        here = {k: cell.runs.rows.gpu == target for k, cell in enumerate(cells)}
        here = {k: rows for k, rows in here.items() if rows.any() and not rows.all()}
        asks = []
        if "leave_one_gpu_out" in protocols:
            asks.append(Ask("leave_one_gpu_out", "unseen", {}, _nonempty(here)))
        if "few_shot" in protocols:
            asks += [_few_shot(cells, here, shots) for shots in SHOTS]
            asks.append(_two_points(cells, here))
        train = _nonempty({k: ~rows for k, rows in here.items()})
        yield OperatorFold(f"{gpus[target]} left out", train, tuple(asks))


def _few_shot(cells: Sequence[Cell], here: Mapping[int, Bools], shots: int) -> Ask:
    """`shots` random rows of the target per cell; a cell needs as many again to be asked."""
    given = {}
    for k, rows in here.items():
        if rows.sum() >= 2 * shots:
            given[k] = first_rows(np.flatnonzero(rows), cells[k].runs.key, shots, salt=1)
    return Ask("few_shot", f"{shots}_rows", given, _rest(cells, here, given))


def _two_points(cells: Sequence[Cell], here: Mapping[int, Bools]) -> Ask:
    """The smallest and the largest message of each number of devices and implementation."""
    given = {}
    for k, rows in here.items():
        table = cells[k].runs.rows.ops
        if cells[k].op.link_bytes is not None:
            message, setting = table.column("message_bytes"), hashed(table, _but_message(table))
            among = [np.flatnonzero(rows & (setting == one)) for one in np.unique(setting[rows])]
            ends = [part[[np.argmin(message[part]), np.argmax(message[part])]] for part in among]
            given[k] = np.unique(np.concatenate(ends))
    return Ask("few_shot", "2_points", given, _rest(cells, here, given))


def _but_message(table: OpTable) -> list[str]:
    return [name for name in table.fields if name != "message_bytes"]


def _rest(cells: Sequence[Cell], here: Mapping[int, Bools], given: Rows) -> Rows:
    """Rows of the target whose dimensions were not measured: a repeat would give itself away."""
    rest = {}
    for k, rows in given.items():
        shape = hashed(cells[k].runs.rows.ops)
        rest[k] = here[k] & ~np.isin(shape, shape[rows])
    return _nonempty(rest)


def _are(gpus: Sequence[str], names: Sequence[str]) -> Bools:
    return np.array([gpu in names for gpu in gpus], dtype=bool)


def _nonempty(rows: Mapping[int, Bools]) -> Rows:
    return {k: np.flatnonzero(some) for k, some in rows.items() if some.any()}


def _fewer(cells: Sequence[Cell], rows: Rows, most: int) -> Rows:
    """At most `most` rows of each cell and GPU."""
    fewer = {}
    for k, some in rows.items():
        gpu, key = cells[k].runs.rows.gpu[some], cells[k].runs.key
        fewer[k] = np.sort(np.concatenate([first_rows(some[gpu == one], key, most, salt=2) for one in np.unique(gpu)]))
    return fewer


def first_rows(rows: Ints, key: Hashes, most: int, *, salt: int) -> Ints:
    """The `most` rows that come first by the hash of their keys: as good as drawn at random."""
    order = np.argsort(mixed(key[rows], np.uint64(salt)), kind="stable")
    return rows[order[:most]]


def configurations(runs: OperatorRuns) -> Hashes:
    """A hash of every row's configuration, the same for all GPUs and dtypes, uint64 [n].

    That is a layer of a model, whatever the number of tokens it runs with; a network, whatever its images; of a
    collective its devices and bytes.
    """
    op, found = OPS[OP_CODE[runs.op]], hashed(runs.rows.ops, OPS[OP_CODE[runs.op]].configuration)
    if op.link_bytes is None:
        return found
    # By its name: its place among the operators moves when another comes in.
    return mixed(found, np.uint64(crc32(runs.op.encode())))


def hashed(table: OpTable, names: Sequence[str] = ()) -> Hashes:
    """A hash of every row's dimensions, of those named or all, uint64 [n]."""
    found = np.zeros(len(table), dtype=np.uint64)
    for name in names or table.fields:
        column = table.column(name)
        found = mixed(np.where(np.isnan(column), -1.0, column + 0.0).view(np.uint64), found)
    return found


def mixed(values: Hashes, salt: Hashes | np.uint64) -> Hashes:
    """A hash of values and salt, uint64 [n]: SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        z = (values ^ salt) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out: Hashes = z ^ (z >> np.uint64(31))
    return out


def fifths(hashes: Hashes) -> Ints:
    """Which fifth of all hashes each is in, 0 to 4, int [n]."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(5)) >> np.uint64(32)).astype(np.intp)


def chosen(hashes: Hashes, share: float) -> Bools:
    """A `share` of all hashes, bool [n]."""
    within: Bools = hashes < np.uint64(int(share * 2.0**64))
    return within
