"""Goals of the evaluation of operators, and NeuSight's published errors beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from evaluation.operators.scores import ALL
from evaluation.study import Goal, paper

FILE = Path(__file__).with_suffix(".csv")
# GPUs that the pooled scores are also computed without.
APART = ("tesla-p4",)
# Predictors whose constants were set by hand on the rows that they are judged on.
IN_SAMPLE = frozenset({"auto-untrained"})
# Protocol and part -> title, and the data sets of its rows.
PARTS = {(part["protocol"], part["part"]): part for part in json.loads(FILE.with_name("parts.json").read_text("utf-8"))}


class Where(NamedTuple):
    """Key of a result, for any predictor: a family's operators together."""

    protocol: str
    part: str
    family: str
    dtype: str
    gpu: str = ALL


def _goals() -> Iterator[Goal[Where]]:
    """Return the lines of the short table, with the largest MAPE of `auto`, registered before the first run of each.

    Convolutions have no test dimensions; their goals are for times as measured, with host drift, which an import
    subtracts.
    """
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            where = Where(*(row[name] for name in Where._fields))
            yield Goal(row["label"], where, float(row["most"]) if row["most"] else None)


GOALS = tuple(_goals())
# MAPE of NeuSight's method, faithfully retrained, seen and unseen. `tilewave` may exceed it by _FAIR at most, or it
# would be no fair baseline.
_RETRAINED = {"linear": (18.0, 34.0), "bmm": (12.5, 34.0), "elementwise": (2.8, 13.0)}
_FAIR = 2.0
# Largest MAPE in percent, by predictor and result.
MUST_REACH = {("auto", goal.where): goal.most for goal in GOALS if goal.most is not None} | {
    ("tilewave", Where("neusight", part, family, "fp32")): mape + _FAIR
    for family, retrained in _RETRAINED.items()
    for part, mape in zip(("seen", "unseen"), retrained, strict=True)
}


def published() -> dict[tuple[str, str, str], float]:
    """Return NeuSight's published errors in percent, by method (our name of it), part and family."""
    return {
        (cell["method"], part, cell["family"]): float(cell[part])
        for cell in paper("neusight")["cells"]
        for part in ("seen", "unseen")
    }
