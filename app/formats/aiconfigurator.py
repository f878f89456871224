"""Read aiconfigurator's measurements of operators, by operator or by serving stack, or its own folder.

Latencies are milliseconds of device time in CUDA graphs. Of several stacks' products those that the host bounds are
left out (doubtful_times); of one stack alone they cannot be told. The software is the framework with its version, with
suffix -eager for a stack's collectives that the host launched. Tables by serving stack name the operation in `op_name`
and count collectives' elements instead of bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import NotFound
from app.formats.aiconfigurator_folder import FACTS, RequiredColumns, joined_tables, left_out, upstream_files
from app.formats.base import Part, PartsImporter
from app.formats.formulas import FileColumns
from app.formats.operator_tables import Format, join_text, parts_of, read_file, read_format
from app.ops.attention import HYBRIDS
from app.ops.expert_gates import GATES, ROUTERS
from app.tables.arrays import Bools, Floats, Ints
from app.wire.measurement_form import Objects

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
