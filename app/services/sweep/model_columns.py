"""Columns of a sweep of models: each row is a configuration, the workload of one model in POST /predict.

Columns have the workload's field names, nested ones with a dot: `name`, `batch`, `parallelism.tensor`,
`config.num_hidden_layers`. A model has a `name`, with `config.` columns overriding its sizes, or is described by such
columns alone. An empty cell is an omitted field.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError
from app.networks.builtin import find_config
from app.tables.arrays import Ints
from app.wire.decoding import convert
from app.wire.network_form import MODEL_EXAMPLE, ModelWorkload, ParallelismIn

CONFIG, _SPLIT = "config.", "parallelism."
_OF_WORKLOAD = set(ModelWorkload.__struct_fields__) - {"kind", "config", "parallelism", "dataset_size", "output_tokens"}
COLUMN_NAMES = (*sorted(_OF_WORKLOAD), *(_SPLIT + name for name in ParallelismIn.__struct_fields__))


def is_model_table(columns: Collection[str]) -> bool:
    """Return whether a table has models; tables of operators have `op`."""
    return "op" not in columns and ("name" in columns or CONFIG + "model_type" in columns)


def check_columns(columns: Iterable[str]) -> None:
    """Raise BadInput that names columns unknown in tables of models."""
    wrong = [name for name in columns if name not in COLUMN_NAMES and not name.startswith(CONFIG)]
    if wrong:
        message = f"unknown column; known are {', '.join(COLUMN_NAMES)}, {CONFIG} and a field of the configuration"
        raise BadInput(f"{wrong[0]!r}: {message}", errors=[FieldError((name,), message) for name in wrong])


class Values(NamedTuple):
    """Distinct combinations of some columns, as field -> value, and the index of every row's, int [n]."""

    each: Sequence[Mapping[str, Any]]
    of: Ints


class Columns:
    """A table of configurations by column. Raises BadInput that names unknown columns."""

    def __init__(self, table: pa.Table) -> None:
        check_columns(table.column_names)
        self._rows = len(table)
        self._columns = {name: _encode(name, table[name]) for name in table.column_names}

    def combined(self, names: Sequence[str]) -> Values:
        """Return the distinct combinations of these columns; columns that the table lacks are ignored."""
        names = [name for name in names if name in self._columns]
        of, sizes = np.zeros(self._rows, dtype=np.intp), 1
        for name in names:
            values, code = self._columns[name]
            if sizes * len(values) > 2**62:
                _, of = np.unique(of, return_inverse=True)
                sizes = int(of.max()) + 1
            of, sizes = of * len(values) + code, sizes * len(values)
        _, first, of = np.unique(of, return_index=True, return_inverse=True)
        each = []
        for row in first.tolist():
            cells = ((name, self._columns[name][0][self._columns[name][1][row]]) for name in names)
            each.append({name: cell for name, cell in cells if cell is not None})
        return Values(each, of)

    def named(self, prefix: str) -> list[str]:
        """Return the columns whose names start with `prefix`."""
        return [name for name in self._columns if name.startswith(prefix)]

    @property
    def names(self) -> list[str]:
        """All column names."""
        return list(self._columns)


def _encode(name: str, column: pa.ChunkedArray) -> tuple[list[Any], Ints]:
    """Return the distinct values of a column, with None, and the index of every row's."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        coded = column.combine_chunks().dictionary_encode()
    except pa.ArrowNotImplementedError as error:
        message = f"must hold one value in a cell, not {column.type}"
        raise BadInput(f"{name}: {message}", errors=[FieldError((name,), message)]) from error
    values = [*coded.dictionary.to_pylist(), None]
    code = coded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return values, code.astype(np.intp)


def to_workload(fields: Mapping[str, Any]) -> ModelWorkload:
    """Return the workload of a row's cells. Raises BadInput that names a wrong cell."""
    form: dict[str, Any] = {"kind": "model", "parallelism": {}}
    own = {}
    for name, value in fields.items():
        if name.startswith(CONFIG):
            own[name.removeprefix(CONFIG)] = value
        elif name.startswith(_SPLIT):
            form["parallelism"][name.removeprefix(_SPLIT)] = value
        else:
            form[name] = value
    if own:
        name = form.pop("name", None)
        known = {} if name is None else find_config(str(name))
        if known is None:
            message = f"{str(name)[:100]!r} is not a built-in transformer, so config. columns cannot apply"
            raise BadInput(f"name: {message}", errors=[FieldError(("workload", "name"), message)])
        form["config"] = {**known, **own}
    return convert(form, ModelWorkload, example=MODEL_EXAMPLE["workload"], loc=("workload",))
