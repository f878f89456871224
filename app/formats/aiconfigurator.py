"""Read aiconfigurator's measurements of operators, by operator or by serving stack, or its own folder.

Latencies are milliseconds of device time in CUDA graphs. Of several stacks' products those that the host bounds are
left out (doubtful_times); of one stack alone they cannot be told. The software is the framework with its version, with
suffix -eager for a stack's collectives that the host launched. Tables by serving stack name the operation in `op_name`
and count collectives' elements instead of bytes.

Its own folder is systems/data/<gpu>/[<family>/]<framework>/<version>/<table>_perf.parquet, or .txt. Tables become those
by serving stack (aiconfigurator.json): their columns are renamed, GPU, framework and version are those of the folder,
and all files of a table are joined, as its kernels are compared with one another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed, NotFound
from app.formats.base import Part, PartsImporter
from app.formats.formulas import FileColumns
from app.formats.operator_tables import FOLDER, Format, join_text, parts_of, read_file, read_format
from app.ops.attention import HYBRIDS
from app.ops.experts import GATES, ROUTERS
from app.tables.arrays import Bools, Floats, Ints
from app.wire.measurement_form import Objects

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


SOURCE = "aiconfigurator"
_BY_STACK, _BY_OPERATOR = SOURCE, "aiconfigurator_operators"
_EAGER = "_eager"
_WIDE = 192.0
# Share of a stack's sizes that need a difference between dynamic and static quantisation; negative ones are left out.
_MEASURED = 0.5


def read(folder: Path) -> Iterator[Part]:
    """Yield a part per operator of each table, and name the tables that are left out."""
    by_stack, by_operator = read_format(_BY_STACK), read_format(_BY_OPERATOR)
    if files := upstream_files(folder):
        notes = left_out(files)
        columns = {file: by_stack.columns_of(file) for file in by_stack.tables}
        yield from _with_notes(_upstream(files, by_stack, columns), notes)
        return
    present = [file for file in by_stack.tables if (folder / file).is_file()]
    if not present:
        files_known = ", ".join(by_stack.tables)
        raise NotFound(f"{folder} has none of {files_known}, and no <gpu>/<framework>/<version>/<table>_perf files.")
    others = sorted(path.name for path in folder.glob("*.parquet") if path.name not in present)
    parts = (part for file in present for part in _tables(folder / file, by_stack, by_operator))
    yield from _with_notes(parts, others)


def _tables(path: Path, by_stack: Format, by_operator: Format) -> Iterator[Part]:
    stacks = "op_name" in pq.read_schema(path).names or path.name not in by_operator.tables
    form = by_stack if stacks else by_operator
    yield from parts_of(form, path.name, _prepared(path.name, read_file(form, path)))


def _upstream(files: Sequence[Path], form: Format, columns: Mapping[str, RequiredColumns]) -> Iterator[Part]:
    """Yield the parts of aiconfigurator's own folder; what a table leaves out counts in its first part."""
    for joined in joined_tables(files, columns):
        skipped, ignored = joined.skipped, joined.ignored
        for part in parts_of(form, joined.name, _prepared(joined.name, joined.table)):
            yield replace(part, skipped=part.skipped + skipped, ignored=part.ignored + ignored)
            skipped, ignored = Counter(), Counter()
        if skipped or ignored:
            yield Part(joined.name, Objects.of(()), None, skipped, ignored)


def _with_notes(parts: Iterator[Part], left: Sequence[str]) -> Iterator[Part]:
    """Yield the parts, the first with a note of the tables that are left out."""
    notes = (f"not read, as no operator stands for their rows: {', '.join(left)}",) if left else ()
    for part in parts:
        yield replace(part, notes=notes)
        notes = ()


def _prepared(file: str, table: pa.Table) -> pa.Table:
    """Return the table with columns that no formula gives."""
    prepare = _PREPARED.get(file)
    return table if prepare is None else prepare(FileColumns(file, table, {}))


def _words(table: pa.Table, name: str, words: Sequence[str], codes: Ints) -> pa.Table:
    """Return the table with a column of text; code -1 is a missing cell."""
    cells = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words, pa.string()))
    at = table.column_names.index(name) if name in table.column_names else -1
    return table.append_column(name, cells) if at < 0 else table.set_column(at, name, cells)


def _mark_eager(columns: FileColumns) -> pa.Table:
    """Return the table with the framework marked where the host launched a stack's own collective."""
    kernel = "impl" if "impl" in columns.table.column_names else "kernel_source"
    framework, eager = columns.text("framework"), columns.where(kernel, lambda word: word.endswith(_EAGER))
    words = (*framework.words, *(f"{word}-eager" for word in framework.words))
    codes = np.where(eager, framework.codes + len(framework.words), framework.codes)
    return _words(columns.table, "framework", words, codes)


def _add_gates_and_routers(columns: FileColumns) -> pa.Table:
    """Return the table with `gate` and `router` of every row, by the sizes of its layer."""
    sizes = np.stack([columns.numbers(name).values for name in ("hidden_size", "inter_size", "num_experts")])
    gates, routers = np.zeros(len(columns), dtype=np.intp), np.zeros(len(columns), dtype=np.intp)
    for layer in FACTS.layers:
        rows = (sizes == np.array(layer.sizes)[:, None]).all(axis=0)
        gates[rows], routers[rows] = GATES.index(layer.gate), ROUTERS.index(layer.router)
    return _words(_words(columns.table, "gate", GATES, gates), "router", ROUTERS, routers)


def _add_hybrids(columns: FileColumns) -> pa.Table:
    """Return the table with `hybrid`: SGLang's libraries for such models on Blackwell, beside its usual one.

    Heads of 192 elements run by Triton in every model.
    """
    ran = join_text(join_text(columns.text("framework"), columns.text("kernel_source")), columns.text("gpu"))
    starts = [
        (HYBRIDS.index(kind), f"{FACTS.hybrids.framework}-{library}-{gpu}")
        for kind, library in FACTS.hybrids.libraries.items()
        for gpu in FACTS.hybrids.gpus
    ]
    kinds = [next((kind for kind, start in starts if word.startswith(start)), -1) for word in ran.words]
    wide = columns.numbers("head_dim").values == _WIDE
    return _words(columns.table, "hybrid", HYBRIDS, np.where(wide, -1, np.array(kinds, dtype=np.intp)[ran.codes]))


def _add_static_times(columns: FileColumns) -> pa.Table:
    """Return the table with the time of the same quantisation with a known scale, and whether a stack runs its kernels.

    `compute_scale` is the time beyond that of a known scale. SGLang's static quantisation was measured as a chain of
    PyTorch's operators, which its dynamic kernel beats, so that the difference was cut off at zero, and left out:
    neither is known.
    """
    codes = [columns.text(name).codes.astype(np.float64) for name in ("gpu", "framework", "framework_version")]
    cases = np.stack([*codes, columns.numbers("m").values, columns.numbers("k").values])
    static, dynamic = (columns.where("op_name", name.__eq__) for name in ("scale_matrix", "compute_scale"))
    static_ms = _static_ms(cases, static, columns.numbers("latency_ms").values)
    _, stack = np.unique(cases[:3], axis=1, return_inverse=True)
    share = np.bincount(stack.ravel(), dynamic) / np.maximum(np.bincount(stack.ravel(), ~dynamic), 1.0)
    known = (share[stack.ravel()] >= _MEASURED) & (~dynamic | np.isfinite(static_ms))
    table = columns.table.append_column("static_ms", pa.array(static_ms))
    return table.append_column("own_kernels", pa.array(known.astype(np.float64)))


def _static_ms(cases: Floats, static: Bools, latency_ms: Floats) -> Floats:
    """Return the time of each row's case with a known scale, float64 [n]; NaN where it was not measured."""
    _, case = np.unique(cases, axis=1, return_inverse=True)
    times = np.full(case.max(initial=-1) + 1, np.nan)
    times[case.ravel()[static]] = latency_ms[static]
    static_ms: Floats = times[case.ravel()]
    return static_ms


# File -> what adds its `prepared` columns, or marks its frameworks.
_PREPARED: dict[str, Callable[[FileColumns], pa.Table]] = {
    **dict.fromkeys(
        ("attention_prefill.parquet", "attention_decode.parquet", "attention_encoder.parquet"), _add_hybrids
    ),
    **dict.fromkeys(("all_reduce_custom.parquet", "collective.parquet"), _mark_eager),
    "moe.parquet": _add_gates_and_routers,
    "quantize.parquet": _add_static_times,
}
IMPORTERS = {SOURCE: PartsImporter(SOURCE, read)}
