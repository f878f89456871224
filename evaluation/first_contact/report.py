"""The ledger as a table: how wrong each version was of each source, and what its intervals held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import expm1
from typing import Any

from evaluation.first_contact.ledger import ledger
from evaluation.render import Report, Table, markdown
from evaluation.study import Errors, grouped

MARKER = "first contacts: first-contact --results"
_COLUMNS = {"cases": "d", "answered": "d", "median error, %": ".1f", "bias, %": "+.1f", "held, %": ".0f"}


def report() -> Report:
    """Return the errors of each source, figure and way of asking, in percent of the measured value."""
    rows = list(_rows())
    table = Table("", {"source": "", "version": "", "figure": "", "asked as": "", **_COLUMNS}, rows)
    cells = [dict(zip(table.columns, row, strict=True)) for row in rows]
    return Report(
        blocks=["First contacts: what each version said of a source before anybody looked at its errors.", table],
        body={"study": "first-contact", "cells": cells},
        pages={MARKER: markdown(table)},
    )


def _rows() -> Iterator[tuple[Any, ...]]:
    for about, rows in ledger():
        for (figure, asked), alike in grouped(rows, lambda row: (row["figure"], row["asked"])).items():
            errors = Errors.of([_result(row) for row in alike])
            figures = (errors.cases, errors.answered, errors.median, errors.bias, errors.held)
            yield about["source"], about["commit"], figure, asked, *figures


def _result(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["error"] is None:
        return {}
    return {"error": 100.0 * expm1(-row["error"]), "held": -row["below"] <= row["error"] <= row["above"]}
