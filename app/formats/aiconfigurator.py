"""Read aiconfigurator's measurements of operators, by operator or by serving stack (aiconfigurator_tables).

Latencies are milliseconds of device time in CUDA graphs. Of several stacks' products those that the host bounds are
left out (host_bound); of one stack alone they cannot be told. The software is the framework with its version, with
suffix -eager for a stack's collectives that the host launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import NotFound
from app.formats.aiconfigurator_exchange import EXCHANGE
from app.formats.aiconfigurator_modules import MODULES
from app.formats.aiconfigurator_tables import BY_OPERATOR, BY_STACK, DTYPES, EAGER, Table
from app.formats.aiconfigurator_upstream import joined_tables, left_out, upstream_files
from app.formats.base import Part, PartsImporter
from app.formats.host_bound import host_bound
from app.formats.table_columns import (
    constant_column,
    join_text,
    number_column,
    read_table,
    text_column,
)
from app.formats.unsteady import unsteady
from app.ops.attention_libraries import HYBRIDS
from app.ops.expert_gates import GATES, ROUTERS
from app.tables.arrays import Bools, Floats, Ints
from app.wire.measurements.upload import OperatorColumns
from app.wire.operators.operator_columns import Column, Numbers, Words

SOURCE = "aiconfigurator"
_STACK = ("gpu", "framework", "framework_version")
_SEVERAL = {**MODULES, **EXCHANGE}
# Layers of the data that its columns do not tell from others: hidden, intermediate, experts -> gate and router.
# Nemotron 3 (squared ReLU), Gemma 4 26B-A4B, MiniMax-M3 (clamped and shifted), Kimi K3 (SiTU), DeepSeek-V3.
_LAYERS = {
    (2688, 1856, 128): ("none", "plain"),
    (1024, 2688, 512): ("none", "plain"),
    (2048, 5120, 512): ("none", "plain"),
    (2816, 704, 128): ("gelu", "plain"),
    (6144, 3072, 128): ("other", "plain"),
    (3584, 3072, 896): ("other", "plain"),
    (7168, 2048, 256): ("silu", "grouped"),
}
# Starts of framework, kernel and GPU of the rows that SGLang measured for hybrid models, by their kind.
_OF_HYBRIDS = tuple(
    (HYBRIDS.index(kind), f"sglang-{library}-{gpu}")
    for kind, library in (("gdn", "triton"), ("mamba2", "flashinfer"))
    for gpu in ("b200", "b300", "gb200", "gb300")
)
_WIDE = 192.0
FILES = tuple(dict.fromkeys((*BY_OPERATOR, *BY_STACK, *_SEVERAL)))
_LEFT_OUT = "number formats that the operator lacks"
_HOST_BOUND = "bound by the host, not by the device"
_UNSTEADY = "times that fall as often as they grow with the sizes"


def read(folder: Path) -> Iterator[Part]:
    """Yield a part per operator of each table found, and name the tables that are left out."""
    if files := upstream_files(folder):
        yield from _upstream(files)
        return
    present = sorted(path.name for path in folder.glob("*.parquet"))
    names = [name for name in FILES if name in present]
    if not names:
        raise NotFound(
            f"{folder} has none of {', '.join(FILES)}, and no <gpu>/<framework>/<version>/<table>_perf files."
        )
    notes = _notes([name for name in present if name not in names])
    for name in names:
        by_stack = "op_name" in pq.read_schema(folder / name).names
        meanings = _meanings(name, by_stack=by_stack)
        for meaning in meanings:
            last = name == names[-1] and meaning is meanings[-1]
            words, numbers = _named(meaning)
            table = read_table(folder / name, words, numbers, unused=meaning.unused)
            yield _part(name, table, meaning, notes if last else (), by_stack=by_stack)


def _upstream(files: Sequence[Path]) -> Iterator[Part]:
    """Yield the parts of aiconfigurator's own folder."""
    notes = _notes(left_out(files))
    wanted = {name: _named(*_meanings(name, by_stack=True)) for name in dict.fromkeys((*BY_STACK, *_SEVERAL))}
    for found in joined_tables(files, wanted):
        for k, meaning in enumerate(_meanings(found.name, by_stack=True)):
            part = _part(found.name, found.table, meaning, notes, by_stack=True)
            if k == 0:
                part.skipped.update(found.skipped)
                part.ignored.update(found.ignored)
            yield part
            notes = ()


def _notes(left: Sequence[str]) -> tuple[str, ...]:
    return (f"not read, as no operator stands for their rows: {', '.join(left)}",) if left else ()


def _meanings(name: str, *, by_stack: bool) -> tuple[Table, ...]:
    """Return what a file's rows are: one operator, or several."""
    return _SEVERAL.get(name) or ((BY_STACK if by_stack else BY_OPERATOR)[name],)


def _named(*meanings: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of text, and of numbers, that a table must have."""
    words, numbers = list(_STACK), list[str]()
    for one in meanings:
        words += (one.dtype, one.kernel, *one.labels, *(column for column, _ in one.words.values()))
        numbers += (*one.numbers.values(), *one.inputs, one.shares, one.time)
    return tuple(dict.fromkeys(filter(None, words))), tuple(dict.fromkeys(filter(None, numbers)))


def _part(file: str, table: pa.Table, meaning: Table, notes: tuple[str, ...], *, by_stack: bool) -> Part:
    skipped: Counter[str] = Counter()
    if meaning.rows is not None:
        table = table.filter(pa.array(meaning.rows(table)))
    for why, known in meaning.known.items():
        table = _without(table, ~known(table), why, skipped)
    table = _without(table, ~_known_format(table, meaning), _LEFT_OUT, skipped)
    if by_stack and meaning.floors:
        table = _without(table, _host_bound(table, meaning), _HOST_BOUND, skipped)
    if by_stack and meaning.sizes:
        table = _without(table, _unsteady(table, meaning), _UNSTEADY, skipped)
    sent = OperatorColumns(_columns(table, meaning), np.arange(table.num_rows))
    return Part(file, sent, None, skipped, notes=notes)


def _columns(table: pa.Table, meaning: Table) -> dict[str, Column]:
    latency = _latency_ms(table, meaning)
    columns: dict[str, Column] = {
        "gpu": text_column(table, "gpu"),
        "software": join_text(_framework(table, meaning), text_column(table, "framework_version")),
        "source": constant_column(SOURCE),
        "dtype": text_column(table, meaning.dtype, DTYPES)
        if meaning.dtype
        else constant_column(meaning.constant_dtype),
        "latency_ms": latency,
        "kernel.name": text_column(table, meaning.kernel),
    }
    if meaning.op is not None:
        columns["op"] = constant_column(meaning.op)
    columns |= {ours: number_column(table, column) for ours, column in meaning.numbers.items()}
    columns |= {ours: text_column(table, *spelled) for ours, spelled in meaning.words.items()}
    columns |= {ours: Numbers(values, np.isnan(values), False) for ours, values in meaning.derived(table).items()}
    if meaning.op == "moe":
        columns |= _gates_and_routers(table)
    if meaning.op in ("attention_prefill", "attention_decode") and "head_dim" in table.column_names:
        columns["hybrid"] = _hybrids(table, meaning)
    if meaning.custom:
        columns["implementation"] = constant_column("custom")
    return columns


def _known_format(table: pa.Table, meaning: Table) -> Bools:
    if not meaning.formats:
        return np.ones(table.num_rows, dtype=np.bool_)
    words = text_column(table, meaning.dtype, DTYPES)
    known = [word in meaning.formats for word in words.words]
    return np.array(known)[words.codes]


def _latency_ms(table: pa.Table, meaning: Table) -> Numbers:
    """Return the time of each row's operator, milliseconds."""
    latency = number_column(table, meaning.time)
    values = latency.values * (meaning.unit_s / 1e-3)
    if meaning.added_ms is not None:
        values = values + meaning.added_ms(table)
    if meaning.shares:
        values = values / number_column(table, meaning.shares).values
    return latency._replace(values=values)


def _host_bound(table: pa.Table, meaning: Table) -> Bools:
    gpu, kernel = text_column(table, "gpu"), text_column(table, meaning.floors[0])
    for name in meaning.floors[1:]:
        kernel = join_text(kernel, text_column(table, name))
    return host_bound(gpu.codes, kernel.codes, number_column(table, meaning.time).values, *_sizes(table, meaning))


def _unsteady(table: pa.Table, meaning: Table) -> Bools:
    """Return the rows of kernels whose times do not grow with their sizes, bool [n]."""
    told = {"gpu", "framework", "op_name", meaning.kernel}
    kernel = _codes(table, [name for name in table.column_names if name in told])
    return unsteady(kernel, *_sizes(table, meaning), number_column(table, meaning.time).values)


def _sizes(table: pa.Table, meaning: Table) -> tuple[Ints, Floats]:
    """Return a code of what else tells rows of equal sizes apart, int [n], and the sizes, float64 [sizes, n]."""
    alike = _codes(table, [name for name in table.column_names if name not in (*meaning.sizes, meaning.time)])
    return alike, np.array([number_column(table, name).values for name in meaning.sizes])


def _codes(table: pa.Table, names: Sequence[str]) -> Ints:
    """Return a code of each row by the values of columns, int [n]."""
    code = np.zeros(table.num_rows, dtype=np.intp)
    for name in names:
        kind = table.schema.field(name).type
        numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        own = number_column(table, name).values if numbers else text_column(table, name).codes
        known, own = np.unique(own, return_inverse=True)
        code = np.unique(code * len(known) + own, return_inverse=True)[1]
    return code


def _without(table: pa.Table, rows: Bools, why: str, skipped: Counter[str]) -> pa.Table:
    """Return the table without `rows`, which `skipped` counts."""
    if not rows.any():
        return table
    skipped[why] += int(rows.sum())
    return table.filter(pa.array(~rows))


def _framework(table: pa.Table, meaning: Table) -> Words:
    """Return the software without its version: a collective library's own name, -eager where the host launched it."""
    framework, kernel = text_column(table, "framework"), text_column(table, meaning.kernel)
    if meaning.op is None and meaning.kernel == "kernel_source":
        return kernel._replace(words=tuple(word.lower() for word in kernel.words))
    if meaning.op is not None and not meaning.custom:
        return framework
    eager = np.array([word.endswith(EAGER) for word in (*kernel.words, "")])[kernel.codes]
    codes = np.where(eager, framework.codes + len(framework.words), framework.codes)
    return framework._replace(words=(*framework.words, *(f"{word}-eager" for word in framework.words)), codes=codes)


def _gates_and_routers(table: pa.Table) -> dict[str, Column]:
    """`gate` and `router` of every row, by the sizes of its layer."""
    sizes = np.stack([number_column(table, name).values for name in ("hidden_size", "inter_size", "num_experts")])
    gates, routers = np.zeros(table.num_rows, dtype=np.intp), np.zeros(table.num_rows, dtype=np.intp)
    for layer, (gate, router) in _LAYERS.items():
        rows = (sizes == np.array(layer)[:, None]).all(axis=0)
        gates[rows], routers[rows] = GATES.index(gate), ROUTERS.index(router)
    return {"gate": Words(GATES, gates, False), "router": Words(ROUTERS, routers, False)}


def _hybrids(table: pa.Table, meaning: Table) -> Words:
    """`hybrid` of every row: SGLang's libraries for such models on Blackwell, where its rows have its usual one too.

    Heads of 192 elements run by Triton in every model.
    """
    told = join_text(
        join_text(text_column(table, "framework"), text_column(table, meaning.kernel)), text_column(table, "gpu")
    )
    kinds = [next((kind for kind, start in _OF_HYBRIDS if word.startswith(start)), -1) for word in told.words]
    wide = number_column(table, "head_dim").values == _WIDE
    return Words(HYBRIDS, np.where(wide, -1, np.array(kinds, dtype=np.intp)[told.codes]), False)


IMPORTER = PartsImporter(SOURCE, read)
