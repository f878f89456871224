"""Formulas over columns, and the meanings of columns that are data."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from app.errors import BadInput
from app.formats.formulas import FileColumns, names_in
from app.formats.operator_tables import Meaning, read_format, spell
from app.ops import OP_CODE, OPS

TABLE = pa.table(
    {"m": [1.0, 2.0, None], "n": [4.0, 5.0, 6.0], "model": ["a", "b", None], "op_name": ["gemm", "gemm_pre", "moe"]}
)
SIZES = {"model": {"a": {"heads": 8.0}, "b": {"heads": 16.0}}}
FORMATS = ("aiconfigurator", "aiconfigurator_operators", "neusight", "llmservingsim", "timm")


@pytest.mark.parametrize(
    ("formula", "values"),
    [
        ("m + n * 2", [9.0, 12.0, np.nan]),
        ("coalesce(m, n) / 2", [0.5, 1.0, 3.0]),
        ("max(floor(n / 4), 1)", [1.0, 1.0, 1.0]),
        ("1 if ends(op_name, 'pre') or op_name == 'moe' else 2", [2.0, 1.0, 1.0]),
        ("n if not starts(op_name, 'gemm') and n > 5 else 0", [0.0, 0.0, 6.0]),
        ("128", [128.0, 128.0, 128.0]),
    ],
)
def test_formulas_of_columns(formula: str, values: list[float]) -> None:
    assert FileColumns("file", TABLE, SIZES).field(formula).values.tolist() == pytest.approx(values, nan_ok=True)


def test_sizes_of_what_a_column_names() -> None:
    columns = FileColumns("file", TABLE, SIZES)
    assert columns.mask("known(model)").tolist() == [True, True, False]
    assert columns.take(columns.mask("known(model)")).field("model.heads").values.tolist() == [8.0, 16.0]
    with pytest.raises(BadInput, match=r"file: unknown model 'b'; known are a"):
        FileColumns("file", TABLE, {"model": {"a": {"heads": 8.0}}}).field("model.heads")
    assert names_in(["n / model.heads", "has(op_name, 'x') and known(model)"]) == (["model", "op_name"], ["n"])


def test_words_are_spelled_by_the_first_whole_match() -> None:
    spelling = {"uniform(_eplb)?": "balanced", "(.*)_eplb": r"\1"}
    assert [spell(word, spelling) for word in ("uniform", "power_eplb", "power")] == ["balanced", "power", "power"]


@pytest.mark.parametrize("name", FORMATS)
def test_meanings_name_fields_of_their_operators(name: str) -> None:
    form = read_format(name)
    for file, table in form.tables.items():
        text, numbers = form.columns_of(file)
        assert not set(text) & set(numbers)
        for part in table.parts:
            fields = {dim.name for dim in OPS[OP_CODE[part.op]].dims} if part.op else None
            assert fields is None or part.fields.keys() <= fields
            spellings = {cells.spelled for cells in part.columns.values()} - {""}
            assert spellings <= form.spellings.keys()


def test_unknown_names_of_a_meaning_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="field"):
        msgspec.convert({"op": "linear", "feilds": {}}, Meaning)
