"""Convert checked operators to blocks for the store, and stored measurements to training tables for predictors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from app.ops import OP_CODE, OPS
from app.stacks.release import software_columns
from app.store import operator_rows
from app.store.measurements import MeasurementRow
from app.store.operator_blocks import Context, OperatorBlock, figures_of
from app.tables.arrays import Bytes, Floats, Ints
from app.tables.gpus import GpuSpec, GpuTable
from app.tables.measurements import Measurements, OperatorRuns
from app.tables.ops import DTYPE_CODE, DTYPES, OpTable
from app.wire.kernel_tables import kernel_table
from app.wire.kernel_workload import KernelWorkload
from app.wire.operator_columns import Words
from app.wire.operator_forms import FORMS, Form

# Columns that are not stored: a row is the time of one run, and `eager` and `stack` follow from the software.
_NOT_STORED = ("count", "eager", "stack")


class MeasurementColumns(NamedTuple):
    """Columns of n measurements besides their operator. Missing figures are NaN, as in `OperatorBlock`.

    `gpu` is int [n] into `specs`.
    """

    specs: Sequence[GpuSpec]
    gpu: Ints
    software: Words
    source: Words
    kernel: Words
    latency_s: Floats
    latency_std_s: Floats
    runs: Floats
    clock_hz: Floats
    power_w: Floats
    measured_at: NDArray[np.int64]
    grid: Floats
    block: Floats

    def take(self, rows: Ints) -> MeasurementColumns:
        """Return the given rows."""
        texts = {name: getattr(self, name) for name in ("software", "source", "kernel")}
        coded = {name: text._replace(codes=text.codes[rows]) for name, text in texts.items()}
        return self._replace(gpu=self.gpu[rows], **coded, **figures_of(self, rows))


def to_blocks(form: Form, table: OpTable, measured: MeasurementColumns) -> Iterator[tuple[OperatorBlock, Ints]]:
    """Yield blocks of one operator, split by dtype and by the fields that are stored, with the rows of each block."""
    stored = _stored_fields(form, table)
    bits = 1 << np.arange(len(stored))
    pattern = bits @ stored + (table.dtype << len(stored))
    for number in np.unique(pattern).tolist():
        rows = np.flatnonzero(pattern == number)
        held = np.flatnonzero(stored[:, rows[0]])
        fields = tuple(name for name, column in form.op.fields.items() if column in held)
        dims = np.ascontiguousarray(table.dims[np.ix_(held, rows)])
        mine = measured.take(rows)
        contexts, context = _contexts(form.op.name, DTYPES[table.dtype[rows[0]]], fields, mine)
        yield OperatorBlock(contexts, context, dims, *mine[5:]).compact(), rows


def _stored_fields(form: Form, table: OpTable) -> NDArray[np.bool_]:
    """Return which figures are stored, bool [fields, n]: those without a default or different from it."""
    stored = np.zeros(table.dims.shape, dtype=np.bool_)
    for dim in form.op.dims:
        for name in dim.columns:
            column = form.op.fields[name]
            if dim.default is None:
                stored[column] = True
            elif name not in _NOT_STORED:
                stored[column] = ~np.isnan(table.dims[column]) & (table.dims[column] != dim.default)
    return stored


def _contexts(
    op: str, dtype: str, fields: tuple[str, ...], measured: MeasurementColumns
) -> tuple[tuple[Context, ...], Ints]:
    """Return the distinct contexts (operator, GPU, software, source, kernel), and each row's index, int [n]."""
    columns = (measured.gpu, measured.software.codes, measured.source.codes, measured.kernel.codes + 1)
    sizes = (
        len(measured.specs),
        len(measured.software.words),
        len(measured.source.words),
        len(measured.kernel.words) + 1,
    )
    joined, context = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
    contexts = [
        Context(
            op,
            dtype,
            fields,
            measured.specs[gpu].id,
            measured.software.words[software],
            measured.source.words[source],
            measured.kernel.words[kernel - 1] if kernel else None,
        )
        for gpu, software, source, kernel in zip(*np.unravel_index(joined, sizes), strict=True)
    ]
    return tuple(contexts), context.ravel()


def operator_table(block: OperatorBlock) -> OpTable:
    """Return the rows of a block with all columns of their operator, defaults filled in."""
    first = block.contexts[0]
    op, n = OPS[OP_CODE[first.op]], len(block)
    held = dict(zip(first.fields, block.dims, strict=True))
    dims = np.empty((len(op.fields), n))
    for dim in op.dims:
        for name in dim.columns:
            dims[op.fields[name]] = held.get(name, np.nan if dim.default is None else dim.default)
    software = np.array([software_columns(item.software) for item in block.contexts])
    dims[[op.fields["eager"], op.fields["stack"]]] = software[block.context].T
    code = np.full(n, OP_CODE[first.op])
    return OpTable(code, np.full(n, DTYPE_CODE[first.dtype]), np.zeros(n, dtype=np.intp), op.fields, dims)


def to_measurements(block: OperatorBlock, gpus: GpuTable) -> Measurements:
    """Return the rows as measurements. `gpus` must have all of their GPUs."""
    gpu = np.array([gpus.ids.index(item.gpu_id) for item in block.contexts], dtype=np.intp)
    return Measurements(operator_table(block), gpu[block.context], block.latency_s)


class TaggedBlock(NamedTuple):
    """A block, the identities of its rows, uint8 [n, 16], and one integer tag per row, int [n]."""

    block: OperatorBlock
    ids: Bytes
    tag: Ints


def to_runs(blocks: Iterable[tuple[OperatorBlock, Bytes]], gpus: GpuTable) -> list[OperatorRuns]:
    """Return one table per operator and dtype, in the order of OPS and DTYPES, from blocks and their row identities.

    Rows are ordered by identity, each once. Rows of GPUs that are not in `gpus` are left out.
    """
    tagged = (TaggedBlock(block, ids, np.zeros(len(block), dtype=np.intp)) for block, ids in blocks)
    return [runs for runs, _ in to_tagged_runs(tagged, gpus)]


def to_tagged_runs(blocks: Iterable[TaggedBlock], gpus: GpuTable) -> list[tuple[OperatorRuns, Ints]]:
    """Return the tables of `to_runs` and the tag of each row. Of identical rows the least tag is kept."""
    cells: dict[tuple[int, int], list[TaggedBlock]] = {}
    for tagged in blocks:
        first = tagged.block.contexts[0]
        if first.op in FORMS:
            cells.setdefault((OP_CODE[first.op], DTYPE_CODE[first.dtype]), []).append(tagged)
    tables = [_merge_blocks(cells[key], gpus) for key in sorted(cells)]
    return [(runs, tags) for runs, tags in tables if len(runs)]


def _merge_blocks(tagged: Sequence[TaggedBlock], gpus: GpuTable) -> tuple[OperatorRuns, Ints]:
    """Return the rows of one operator in one dtype as one table, and their tags."""
    parts = [item.block for item in tagged]
    contexts = tuple(dict.fromkeys(item for block in parts for item in block.contexts))
    code = {item: k for k, item in enumerate(contexts)}
    context = np.concatenate([np.array([code[c] for c in block.contexts])[block.context] for block in parts])
    row_of = {gpu_id: j for j, gpu_id in enumerate(gpus.ids)}
    stacks = tuple(sorted({item.software for item in contexts}))
    kernels = tuple(sorted({item.kernel for item in contexts if item.kernel is not None}))
    kernel_code: dict[str | None, int] = {name: k for k, name in enumerate(kernels)}
    gpu = np.array([row_of.get(item.gpu_id, -1) for item in contexts])[context]
    ids, tags = (np.concatenate(column) for column in list(zip(*tagged, strict=True))[1:])
    order = _unique_rows(ids, tags, gpu >= 0)
    tables = [operator_table(block) for block in parts]
    first = tables[0]
    ops = OpTable(
        np.full(len(order), first.kind[0]),
        np.full(len(order), first.dtype[0]),
        np.zeros(len(order), dtype=np.intp),
        first.fields,
        np.take(np.concatenate([table.dims for table in tables], axis=1), order, axis=1),
    )
    runs = OperatorRuns(
        contexts[0].op,
        contexts[0].dtype,
        Measurements(ops, gpu[order], np.concatenate([block.latency_s for block in parts])[order]),
        np.array([stacks.index(item.software) for item in contexts])[context][order],
        np.array([kernel_code.get(item.kernel, -1) for item in contexts])[context][order],
        np.concatenate([block.grid for block in parts], axis=1)[:, order],
        np.concatenate([block.block for block in parts], axis=1)[:, order],
        identity_words(ids[order])[0],
        stacks,
        kernels,
    )
    return runs, tags[order]


def identity_words(ids: Bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return identities, uint8 [n, 16], as two words (high, low), uint64 [n], ordered like their bytes."""
    numbers = np.ascontiguousarray(ids).view(">u8").astype(np.uint64)
    return numbers[:, 0], numbers[:, 1]


def _unique_rows(ids: Bytes, tags: Ints, mask: NDArray[np.bool_]) -> Ints:
    """Return the rows of `mask` in the order of their identities, each identity once with its least tag, int [m]."""
    high, low = identity_words(ids)
    order = np.lexsort((tags, low, high))
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (np.diff(high[order]) != 0) | (np.diff(low[order]) != 0)
    return order[new & mask[order]]


def stored_kernels(rows: Sequence[MeasurementRow], gpus: GpuTable) -> tuple[Measurements, list[str]]:
    """Return the rows whose GPU is in `gpus` as a table, and their ids. `Measurements.gpu` are rows of `gpus`."""
    position = {gpu_id: j for j, gpu_id in enumerate(gpus.ids)}
    known = [row for row in rows if row.kind == "kernel" and row.gpu_id in position]
    table = Measurements(
        kernel_table(msgspec.convert([row.workload for row in known], list[KernelWorkload])),
        np.array([position[row.gpu_id] for row in known], dtype=np.intp),
        np.array([row.latency_s for row in known], dtype=np.float64),
    )
    return table, [row.id for row in known]


def stored_operators(
    connection: Connection,
    gpus: GpuTable,
    *,
    gpu_ids: Collection[str] | None = None,
    ops: Collection[str] | None = None,
) -> list[OperatorRuns]:
    """Return stored rows on GPUs of `gpus`, optionally only of `gpu_ids` and `ops`: one table per operator and dtype.

    Tables are in the order of OPS and DTYPES, their rows in the order of their keys. `rows.gpu` are rows of `gpus`.
    """
    return to_runs(operator_rows.load(connection, gpu_ids=gpu_ids, ops=ops), gpus)
