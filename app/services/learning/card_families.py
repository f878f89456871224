"""Errors of an accuracy card by family of operators, over all dtypes and GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from app.ops import OP_CODE, OPS


class FamilyErrors(NamedTuple):
    """Held-out rows of a family: their mean error and the share of them in the 80 % interval, percent; their number."""

    split: str
    family: str
    mape: float
    coverage_80: float
    rows: int


def by_family(card: Iterable[Mapping[str, Any]]) -> list[FamilyErrors]:
    """Return the errors of a card's splits by family, each row of the card by its number of held-out rows."""
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in card:
        if row.get("gpu", "all") == "all":
            cells.setdefault((row["split"], _family(row["family"])), []).append(row)
    return [_pooled(*key, rows) for key, rows in sorted(cells.items())]


def _family(cell: str) -> str:
    name = cell.split("/", maxsplit=1)[0]
    return OPS[OP_CODE[name]].family if name in OP_CODE else name


def _pooled(split: str, family: str, rows: list[Mapping[str, Any]]) -> FamilyErrors:
    weights = [row["n"] for row in rows]
    mape, held = (float(np.average([row[name] for row in rows], weights=weights)) for name in ("mape", "coverage_80"))
    return FamilyErrors(split, family, round(mape, 1), round(held, 1), sum(weights))
