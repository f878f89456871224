"""Columns of a sweep of models: a row is a configuration, what POST /predict takes as the workload of one model.

Columns have the workload's names, those of what is inside with a dot: `name`, `batch`, `parallelism.tensor`,
`config.num_hidden_layers`. A model is one by `name`, with the sizes of `config.` columns in place of its own, or all of
it is in such columns. An empty cell is a field left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from app.errors import BadInput, FieldError
from app.services.models.builtin import find_config
from app.tables.arrays import Ints
from app.wire.decoding import convert
from app.wire.network_form import MODEL_EXAMPLE, ModelWorkload, ParallelismIn

CONFIG, _SPLIT = "config.", "parallelism."
_OF_WORKLOAD = set(ModelWorkload.__struct_fields__) - {"kind", "config", "parallelism", "dataset_size", "output_tokens"}
COLUMN_NAMES = (*sorted(_OF_WORKLOAD), *(_SPLIT + name for name in ParallelismIn.__struct_fields__))


def of_models(columns: Collection[str]) -> bool:
    """Whether a table is one of models; one of operators has `op`."""
    return "op" not in columns and ("name" in columns or CONFIG + "model_type" in columns)


def require_known(columns: Iterable[str]) -> None:
    """BadInput that names the columns which a table of models does not have."""
    wrong = [name for name in columns if name not in COLUMN_NAMES and not name.startswith(CONFIG)]
    if wrong:
        message = f"unknown column; known are {', '.join(COLUMN_NAMES)}, {CONFIG} and a field of the configuration"
        raise BadInput(f"{wrong[0]!r}: {message}", errors=[FieldError((name,), message) for name in wrong])


class Values(NamedTuple):
    """Distinct combinations of some columns: each as field -> value, and which of them every row has, int [n]."""

    each: Sequence[Mapping[str, Any]]
    of: Ints


class Columns:
    """A table of configurations by its columns; BadInput names one that is not known."""

    def __init__(self, table: pa.Table) -> None:
        require_known(table.column_names)
        self._rows = len(table)
        self._columns = {name: _coded(name, table[name]) for name in table.column_names}

    def combined(self, names: Sequence[str]) -> Values:
        """The distinct combinations of these columns; those that the table lacks are left out."""
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
        """Columns whose names begin so."""
        return [name for name in self._columns if name.startswith(prefix)]

    @property
    def names(self) -> list[str]:
        """All of them."""
        return list(self._columns)


def _coded(name: str, column: pa.ChunkedArray) -> tuple[list[Any], Ints]:
    """The distinct values of a column, None among them, and which of them each row has."""
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


def workload_of(fields: Mapping[str, Any]) -> ModelWorkload:
    """The workload that cells of a row say; BadInput names the one that is wrong."""
    given: dict[str, Any] = {"kind": "model", "parallelism": {}}
    own = {}
    for name, value in fields.items():
        if name.startswith(CONFIG):
            own[name.removeprefix(CONFIG)] = value
        elif name.startswith(_SPLIT):
            given["parallelism"][name.removeprefix(_SPLIT)] = value
        else:
            given[name] = value
    if own:
        name = given.pop("name", None)
        known = {} if name is None else find_config(str(name))
        if known is None:
            words = f"{str(name)[:100]!r} is not known as a transformer, whose configuration columns could change"
            raise BadInput(f"name: {words}", errors=[FieldError(("workload", "name"), words)])
        given["config"] = {**known, **own}
    return convert(given, ModelWorkload, example=MODEL_EXAMPLE["workload"], loc=("workload",))
