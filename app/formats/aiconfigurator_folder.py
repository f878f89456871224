"""Read aiconfigurator's own folder: systems/data/<gpu>/[<family>/]<framework>/<version>/<table>_perf.parquet, or .txt.

Tables become those by serving stack (aiconfigurator.json): their columns are renamed, GPU, framework and version are
those of the folder, and all files of a table are joined, as its kernels are compared with one another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed
from app.formats.operator_tables import FOLDER

_PATTERNS = tuple(f"{'*/' * depth}*_perf.{kind}" for depth in (3, 4) for kind in ("parquet", "txt"))
_POINTER = b"version https://git-lfs"
# Columns whose words differ between versions of the collector, so that the table's own name decides.
_ALWAYS = ("op_name", "kernel_source")
_LINEAR = "linear_attention"


# Columns of text, and of numbers.
RequiredColumns = tuple[Sequence[str], Sequence[str]]


class FolderTable(msgspec.Struct, frozen=True):
    """A table of the folder: the table by serving stack that it is a part of, and columns that all its rows share."""

    table: str
    constants: dict[str, str] = {}


class ExpertLayer(msgspec.Struct, frozen=True):
    """A layer of experts that columns do not tell from others: hidden, intermediate and experts, and what it is."""

    sizes: tuple[float, float, float]
    gate: str
    router: str
    model: str


class Hybrids(msgspec.Struct, frozen=True):
    """Kind of hybrid model -> a framework's library for it, and starts of the GPUs where it is another than usual."""

    framework: str
    libraries: dict[str, str]
    gpus: tuple[str, ...]


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of aiconfigurator's data beside the meaning of its columns.

    roots     places of the data below a folder; `families`: folders between a GPU's and a framework's, if there are any
    renamed   column of all tables -> that of tables by serving stack
    defaults  what a table may leave out, and what that means; None: empty
    states    sizes of a state that tables of one variant have and those of another lack
    """

    roots: tuple[str, ...]
    families: tuple[str, ...]
    renamed: dict[str, str]
    defaults: dict[str, str | float | None]
    states: tuple[str, ...]
    kinds: dict[str, FolderTable]
    layers: tuple[ExpertLayer, ...]
    hybrids: Hybrids


FACTS = msgspec.json.decode((FOLDER / "aiconfigurator_facts.json").read_bytes(), type=Facts)


class Joined(NamedTuple):
    """All rows of a table by serving stack.

    name     its file's name
    table    the columns of the request
    skipped  reason -> number of rows left out
    ignored  column -> number of rows, of columns that say nothing more
    """

    name: str
    table: pa.Table
    skipped: Counter[str]
    ignored: Counter[str]


def upstream_files(folder: Path) -> list[Path]:
    """Return the files of aiconfigurator's own folder, in or below `folder`; none if it is not one."""
    for root in FACTS.roots:
        if files := [path for pattern in _PATTERNS for path in (folder / root).glob(pattern)]:
            return sorted(files)
    return []


def left_out(files: Sequence[Path]) -> list[str]:
    """Return the tables of `files` for whose rows no operator stands, and files that Git LFS has not fetched."""
    unknown = {path.name for path in files if _stem(path) not in FACTS.kinds}
    pointers = {f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in files if _is_pointer(path)}
    return [*sorted(unknown), *(f"{name} (not fetched: git lfs pull)" for name in sorted(pointers))]


def joined_tables(
    files: Sequence[Path], columns: Mapping[str, tuple[Sequence[str], Sequence[str]]]
) -> Iterator[Joined]:
    """Yield the rows of `files` by table; `columns`: file name of a table -> its columns of text and of numbers."""
    by_table: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if _stem(path) in FACTS.kinds and not _is_pointer(path):
            by_table[f"{FACTS.kinds[_stem(path)].table}.parquet"].append(path)
    for name, paths in sorted(by_table.items()):
        skipped, ignored = Counter[str](), Counter[str]()
        parts = [_read(path, columns[name], skipped, ignored) for path in paths]
        yield Joined(name, pa.concat_tables(parts), skipped, ignored)


def _stem(path: Path) -> str:
    return path.stem.removesuffix("_perf")


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _read(path: Path, required: RequiredColumns, skipped: Counter[str], ignored: Counter[str]) -> pa.Table:
    """Return a file's rows under the columns `required`, of text and of numbers; BadInput names those that it lacks."""
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} cannot be read: {str(error)[:200]}") from error
    columns = _columns(table, path)
    words, numbers = required
    kept: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name in (*words, *numbers):
        kind = pa.string() if name in words else pa.float64()
        if name in columns:
            kept[name] = _cast(columns[name], kind, path, name)
        elif name in FACTS.defaults or (name in FACTS.states and FACTS.kinds[_stem(path)].table == _LINEAR):
            kept[name] = pa.array([FACTS.defaults.get(name)] * table.num_rows, kind)
    if lacking := [name for name in (*words, *numbers) if name not in kept]:
        errors = [FieldError((path.name, name), "this column is missing") for name in lacking]
        raise BadInput(f"{path}: columns {', '.join(lacking)} are missing.", errors=errors)
    ignored.update({name: table.num_rows for name in columns if name not in kept})
    return _with_times(pa.table(kept), skipped)


def _columns(table: pa.Table, path: Path) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Return a file's columns under the names of tables by serving stack, with those of its folder."""
    kind, rows = FACTS.kinds[_stem(path)], table.num_rows
    columns = {FACTS.renamed.get(name, name): table[name] for name in table.column_names}
    if "moe_dtype" in columns:
        columns["dtype"] = columns["moe_dtype"]
    for part in ("dispatch", "combine"):
        times = [f"{part}_{step}_us" for step in ("transmit", "notify")]
        if set(times) <= set(columns):
            columns[f"{part}_us"] = pc.add(*(columns.pop(name) for name in times))
    gpu = path.parents[3 if path.parents[2].name in FACTS.families else 2].name
    run = {"gpu": gpu, "framework": path.parents[1].name.lower(), "framework_version": path.parent.name}
    columns.setdefault("op_name", pa.array([_stem(path)] * rows))
    columns |= {name: pa.array([value] * rows) for name, value in {**run, **_absent(kind, columns)}.items()}
    return columns


def _absent(kind: FolderTable, columns: Mapping[str, object]) -> dict[str, str]:
    """Return the constants of a table that its columns do not say better; its operation and library they never do."""
    return {name: value for name, value in kind.constants.items() if name in _ALWAYS or name not in columns}


def _cast(column: pa.ChunkedArray | pa.Array, kind: pa.DataType, path: Path, name: str) -> pa.ChunkedArray | pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise BadInput(f"{path}: column {name} has other values than {kind}: {str(error)[:200]}") from error


def _with_times(table: pa.Table, skipped: Counter[str]) -> pa.Table:
    """Return the rows with a time above zero, which the collector writes where a measurement or a difference failed."""
    times = [name for name in ("latency_ms", "dispatch_us", "combine_us") if name in table.column_names]
    positive = np.all([table[name].to_numpy() > 0.0 for name in times], axis=0)
    if not positive.all():
        skipped["times of zero"] += int((~positive).sum())
    return table.filter(pa.array(positive))
