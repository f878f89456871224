"""Read Parquet tables of measured operators by the meanings of their columns, which are data (`seed_data/formats`).

neusight       NeuSight's operators, one per row, PyTorch eager in FP32. A trailing u means tensor with scalar. Rows of
               both splits (train and test dimensions, as in the paper) are stored alike. Convolutions are stored
               without host drift (doubtful_times).
aiter          Products and experts of AMD's AITER: of each shape the quickest kernel that its tuner found, with
               caches that are warm and without the quantisation of activations.
llmservingsim  LLMServingSim's measurements of vLLM 0.19, of one of `tp` devices in BF16: what runs between products,
               the head, and attention of mixed batches. Attention without a chunk of a prompt is decoding, without
               decodes a chunk on keys that are cached already.
timm           timm's step times of ConvNets. `amp` is autocast to FP16; training is not split into phases.
               Multiply-adds (`gmacs`, billions) and activations (`macts`, millions) are per image, parameters in
               millions. Attention models are skipped, since their counts omit fused attention.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.config import SEED_DATA
from app.errors import BadInput, FieldError, Malformed, NotFound
from app.formats import FORMS
from app.formats.base import Part, PartsImporter
from app.formats.doubtful_times import host_bound, host_drift, unsteady
from app.formats.formulas import FileColumns, Sizes, names_in
from app.tables.arrays import Bools, Floats, Ints
from app.wire.batch_files import is_numbers, is_words
from app.wire.measurement_form import OperatorColumns
from app.wire.operator_columns import Column, Numbers, Words

FOLDER = SEED_DATA / "formats"
_LEFT_OUT = "number formats that the operator lacks"
_HOST_BOUND = "bound by the host, not by the device"
_UNSTEADY = "times that fall as often as they grow with the sizes"
_SLOWER = "slower kernels of sizes that a tuner timed others of"
_MS_PER_S = 1e3


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column of text: cells of `column`, those of `columns` joined as `a-b`, or `text` in every row.

    spelled  name of the spelling of its (first) column's words: pattern of a whole word -> its replacement
    absent   text of missing cells; empty: they stay missing
    """

    column: str = ""
    columns: tuple[str, ...] = ()
    text: str = ""
    spelled: str = ""
    absent: str = ""


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Meaning of rows of a table as one operator.

    op          the operator; empty if a column has it
    fields      field of the operator -> formula
    columns     other field -> its text
    rows        condition of the rows it is of; empty: all
    known       reason why others are not read -> condition
    latency_ms  formula of the time, milliseconds; empty: the format's
    formats     number formats that are read; empty: all
    floors      columns that tell kernels of all sizes apart, whose floors, and `grow`, show which rows the host bounds;
                empty: not compared
    grow        columns of sizes that times grow with, by which unsteady kernels are found; empty: not compared
    quickest    columns: of rows that are equal in all of them the quickest is read; empty: all are
    drifting    whether times are stored without host drift
    """

    op: str = ""
    fields: dict[str, str] = {}
    columns: dict[str, Text] = {}
    rows: str = ""
    known: dict[str, str] = {}
    latency_ms: str = ""
    formats: tuple[str, ...] = ()
    floors: tuple[str, ...] = ()
    grow: tuple[str, ...] = ()
    quickest: tuple[str, ...] = ()
    drifting: bool = False


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file: meanings of its rows.

    unused    columns that say nothing more
    optional  columns that may be missing
    prepared  columns that the format's own code adds
    choices   column of text -> its known words; others are refused
    stacked   field -> columns of numbers side by side
    test      condition of the rows that the authors reserved for testing; empty: not stated
    """

    parts: tuple[Meaning, ...]
    unused: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    choices: dict[str, tuple[str, ...]] = {}
    stacked: dict[str, tuple[str, ...]] = {}
    test: str = ""


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data set: file name -> its table, and what they share.

    columns    field of the measurement -> its text
    required   columns of text that every file has
    spellings  name -> pattern of a whole word -> its replacement
    sizes      column of text -> its word -> name of a shape; `shapes`: name -> size -> value
    latency_ms formula of the time, milliseconds
    """

    source: str
    columns: dict[str, Text]
    tables: dict[str, TableFile]
    required: tuple[str, ...] = ()
    spellings: dict[str, dict[str, str]] = {}
    sizes: dict[str, dict[str, str]] = {}
    shapes: dict[str, dict[str, float]] = {}
    latency_ms: str = "latency_ms"

    def columns_of(self, file: str) -> tuple[list[str], list[str]]:
        """Return the columns of text, and of numbers, that a file must have."""
        table, formulas, text, numbers = self.tables[file], list[str](), list(self.required), list[str]()
        for part in table.parts:
            for cells in {**self.columns, **part.columns}.values():
                text += (cells.column, *cells.columns)
            formulas += [*part.fields.values(), part.latency_ms or self.latency_ms, part.rows, *part.known.values()]
            text += [name for name in part.floors if name not in part.grow]
            numbers += part.grow
        read_text, read_numbers = names_in([formula for formula in (*formulas, table.test) if formula])
        text += [*table.choices, *read_text]
        numbers += [*read_numbers, *(name for names in table.stacked.values() for name in names)]
        added = {"", *table.prepared}
        return [n for n in dict.fromkeys(text) if n not in added], [n for n in dict.fromkeys(numbers) if n not in added]

    def column(self, columns: FileColumns, text: Text) -> Words:
        """Return a column of text."""
        if text.text:
            return Words((text.text,), np.zeros(1, dtype=np.intp), True)
        first, *others = text.columns or (text.column,)
        column = columns.text(first)
        if text.spelled:
            column = column._replace(words=tuple(spell(word, self.spellings[text.spelled]) for word in column.words))
        for name in others:
            column = join_text(column, columns.text(name))
        if text.absent:
            codes = np.where(column.codes < 0, len(column.words), column.codes)
            column = column._replace(words=(*column.words, text.absent), codes=codes)
        return column


def spell(word: str, spelling: Mapping[str, str]) -> str:
    """Return the word as the first pattern that is of all of it replaces it; unchanged without one."""
    matches = ((re.fullmatch(pattern, word), replacement) for pattern, replacement in spelling.items())
    return next((match.expand(replacement) for match, replacement in matches if match), word)


def join_text(first: Words, second: Words) -> Words:
    """Return two text columns joined as `a-b`, or `a` alone where b is missing."""
    width = len(second.words) + 1
    pairs, codes = np.unique(first.codes * width + second.codes + 1, return_inverse=True)
    parts = [divmod(int(pair), width) for pair in pairs]
    names = [first.words[a] + (f"-{second.words[b - 1]}" if b else "") for a, b in parts]
    return Words(tuple(names), codes.ravel(), False)


@cache
def read_format(name: str) -> Format:
    """Return the meanings of a format; a part that is `like` a template has what that has, unless it has its own."""
    document = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    templates = document.pop("templates", {})
    for table in document["tables"].values():
        table["parts"] = [_merged(templates.get(part.pop("like", ""), {}), part) for part in table["parts"]]
    return msgspec.convert(document, Format)


def _merged(template: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    return {**template, **part} | {
        name: {**value, **part.get(name, {})} for name, value in template.items() if isinstance(value, dict)
    }


def read_table(
    path: Path, text: Sequence[str], numbers: Sequence[str], *, optional: Sequence[str] = (), unused: Sequence[str] = ()
) -> pa.Table:
    """Return the file's rows. Raises BadInput that names unknown, missing and wrongly typed columns.

    `optional` columns may be missing; they are returned empty.
    """
    try:
        schema = pq.read_schema(path)
        table = pq.read_table(path, columns=[name for name in schema.names if name not in unused])
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} is not a Parquet file: {str(error)[:200]}") from error
    known = {*text, *numbers, *unused}
    wrong = {name: "unknown column" for name in schema.names if name not in known}
    wrong |= {name: "this column is missing" for name in (*text, *numbers) if name not in (*schema.names, *optional)}
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if name in text and not is_words(kind):
            wrong[name] = f"a column of {kind} where text is expected"
        elif name in numbers and not is_numbers(kind, pair=False):
            wrong[name] = f"a column of {kind} where numbers are expected"
    if wrong:
        errors = [FieldError((path.name, name), message) for name, message in wrong.items()]
        raise BadInput(f"{path.name}: columns {', '.join(wrong)} cannot be read.", errors=errors)
    for name in optional:
        if name not in schema.names:
            table = table.append_column(name, pa.nulls(table.num_rows))
    return table


def read(name: str, folder: Path) -> Iterator[Part]:
    """Yield one part per operator and file. Raises NotFound without a file, BadInput that names unknown values."""
    form = read_format(name)
    present = [file for file in form.tables if (folder / file).is_file()]
    if not present:
        files = ", ".join(form.tables)
        raise NotFound(f"No {files} in {folder}." if len(form.tables) == 1 else f"{folder} has none of {files}.")
    for file in present:
        yield from parts_of(form, file, read_file(form, folder / file))


def read_file(form: Format, path: Path) -> pa.Table:
    """Return the rows of a file of the format. Raises BadInput."""
    about = form.tables[path.name]
    text, numbers = form.columns_of(path.name)
    table = read_table(path, text, numbers, optional=about.optional, unused=about.unused)
    for name, choices in about.choices.items():
        unknown = [word for word in table[name].unique().to_pylist() if word not in (*choices, None)]
        if unknown:
            message = f"unknown {name} {', '.join(map(repr, unknown[:20]))}; known are {', '.join(choices)}"
            raise BadInput(f"{path.name}: {message}", errors=[FieldError((path.name, name), message)])
    return table


def parts_of(form: Format, file: str, table: pa.Table) -> Iterator[Part]:
    """Yield the rows of a table as operators, a part per meaning that has any."""
    about = form.tables[file]
    sizes: Sizes = {
        column: {word: form.shapes[shape] for word, shape in words.items()} for column, words in form.sizes.items()
    }
    whole = FileColumns(file, table, sizes)
    for meaning in about.parts:
        columns, position, skipped = _chosen(whole, meaning, form)
        if not len(columns) and not skipped:
            continue
        fields, drift_ms = _fields(columns, meaning, form, about)
        yield Part(
            file,
            OperatorColumns(fields, position),
            _reserved(columns, about),
            skipped,
            host_drift_s=None if drift_ms is None else drift_ms / _MS_PER_S,
        )


def _reserved(columns: FileColumns, about: TableFile) -> Bools | None:
    """Return the rows that the authors reserved for testing, bool [n]; None where no cell says so."""
    stated = any((columns.text(name).codes >= 0).any() for name in names_in([about.test])[0]) if about.test else False
    return columns.mask(about.test) if stated else None


def _chosen(columns: FileColumns, meaning: Meaning, form: Format) -> tuple[FileColumns, Ints, Counter[str]]:
    """Return the rows that a meaning is of, their places in the table, and the number of those left out by reason."""
    position, skipped = np.arange(len(columns)), Counter[str]()
    if meaning.rows:
        mask = columns.mask(meaning.rows)
        columns, position = columns.take(mask), position[mask]
    # Later conditions see the rows that earlier ones leave.
    for why, condition in _conditions(meaning, form):
        mask = condition(columns)
        if not mask.all():
            skipped[why] += int((~mask).sum())
            columns, position = columns.take(mask), position[mask]
    return columns, position, skipped


def _conditions(meaning: Meaning, form: Format) -> Iterator[tuple[str, partial[Bools]]]:
    for why, formula in meaning.known.items():
        yield why, partial(FileColumns.mask, formula=formula)
    if meaning.formats:
        yield _LEFT_OUT, partial(_in_known_format, meaning=meaning, form=form)
    if meaning.floors:
        yield _HOST_BOUND, partial(_set_by_device, meaning=meaning)
    if meaning.grow:
        yield _UNSTEADY, partial(_steady, meaning=meaning)
    if meaning.quickest:
        yield _SLOWER, partial(_quickest, meaning=meaning, form=form)


def _in_known_format(columns: FileColumns, meaning: Meaning, form: Format) -> Bools:
    dtype = form.column(columns, {**form.columns, **meaning.columns}["dtype"])
    return np.array([word in meaning.formats for word in dtype.words], dtype=np.bool_)[dtype.codes]


def _set_by_device(columns: FileColumns, meaning: Meaning) -> Bools:
    kernel = columns.text(meaning.floors[0])
    for name in meaning.floors[1:]:
        kernel = join_text(kernel, columns.text(name))
    latency = columns.numbers("latency_ms").values
    return ~host_bound(columns.text("gpu").codes, kernel.codes, latency, *_sizes(columns, meaning))


def _steady(columns: FileColumns, meaning: Meaning) -> Bools:
    identity = {"gpu", "framework", "op_name", "kernel_source"}
    kernel = _codes(columns, [name for name in columns.table.column_names if name in identity])
    return ~unsteady(kernel, *_sizes(columns, meaning), columns.numbers("latency_ms").values)


def _quickest(columns: FileColumns, meaning: Meaning, form: Format) -> Bools:
    code, latency = _codes(columns, meaning.quickest), columns.field(meaning.latency_ms or form.latency_ms).values
    order = np.lexsort((latency, code))
    first = np.unique(code[order], return_index=True)[1]
    mask = np.zeros(len(columns), dtype=np.bool_)
    mask[order[first]] = True
    return mask


def _sizes(columns: FileColumns, meaning: Meaning) -> tuple[Ints, Floats]:
    """Return a code of what else tells rows of equal sizes apart, int [n], and the sizes, float64 [sizes, n]."""
    others = [name for name in columns.table.column_names if name not in (*meaning.grow, "latency_ms")]
    return _codes(columns, others), np.array([columns.numbers(name).values for name in meaning.grow])


def _codes(columns: FileColumns, names: Sequence[str]) -> Ints:
    """Return a code of each row by the values of columns, int [n]."""
    code = np.zeros(len(columns), dtype=np.intp)
    for name in names:
        kind = columns.table.schema.field(name).type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        own = columns.numbers(name).values if numeric else columns.text(name).codes
        distinct, own = np.unique(own, return_inverse=True)
        code = np.unique(code * len(distinct) + own, return_inverse=True)[1]
    return code


def _fields(
    columns: FileColumns, meaning: Meaning, form: Format, about: TableFile
) -> tuple[dict[str, Column], Floats | None]:
    """Return the columns of an upload, and the host drift subtracted from the time, milliseconds [n] or None."""
    latency = columns.field(meaning.latency_ms or form.latency_ms)
    fields: dict[str, Column] = {name: columns.field(formula) for name, formula in meaning.fields.items()}
    fields |= {name: form.column(columns, text) for name, text in {**form.columns, **meaning.columns}.items()}
    for name, parts in about.stacked.items():
        values = np.column_stack([columns.numbers(part).values for part in parts])
        fields[name] = Numbers(values, np.isnan(values.sum(axis=1)), False)
    if meaning.op:
        fields["op"] = form.column(columns, Text(text=meaning.op))
    drift_ms = host_drift(latency.values, columns.text("gpu").codes) if meaning.drifting else None
    if drift_ms is not None:
        latency = latency._replace(values=latency.values - drift_ms)
    return fields | {"source": form.column(columns, Text(text=form.source)), "latency_ms": latency}, drift_ms


IMPORTERS = {
    name: PartsImporter(name, partial(read, name)) for name, (module, _) in FORMS.items() if module == "operator_tables"
}
