"""What a retraining starts from: a version that ships with the code, or nothing.

Versions are never learned on top of one another, only on top of the shipped one: a version follows from shipped
artefact and database alone, and forgets rows that were removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from app.predictors import BY_NAME
from app.predictors.intervals.conformal import Intervals
from app.tables.key_set import KeySet


@dataclass(frozen=True, slots=True)
class Start:
    """A predictor, and what its shipped version knows.

    learner  its class
    payload  of the shipped artefact; None: nothing ships
    gpus     ids of GPUs whose operators it was trained on
    rows     the rows it was trained on
    """

    learner: type[Any]
    payload: Mapping[str, Any] | None = None
    gpus: frozenset[str] = frozenset()
    rows: tuple[KeySet, ...] = field(default_factory=tuple)

    @classmethod
    def on(cls, name: str, payload: Mapping[str, Any] | None = None) -> Self:
        """A predictor by name, on top of an artefact or of nothing."""
        gpus, rows = learned_from(payload)
        return cls(BY_NAME[name], payload, gpus, rows)

    @property
    def name(self) -> str:
        """The predictor's."""
        return str(self.learner.name)

    def fresh(self) -> Any:
        """The predictor without any training."""
        return self.learner()

    def base(self) -> Any:
        """The shipped version, ready to learn more; without one, `fresh`."""
        return self.fresh() if self.payload is None else self.learner.from_state(self.payload["state"])

    def intervals(self) -> Intervals:
        """Those of the shipped version."""
        return Intervals.prior() if self.payload is None else Intervals.from_state(self.payload["intervals"])

    def rows_known(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rows the shipped version was trained on, bool [n]."""
        return any_holds(self.rows, keys)


def learned_from(payload: Mapping[str, Any] | None) -> tuple[frozenset[str], tuple[KeySet, ...]]:
    """GPUs whose operators a version was trained on, and the rows."""
    known = (payload or {}).get("operators") or {"gpus": [], "rows": []}
    return frozenset(known["gpus"]), tuple(KeySet(bits) for bits in known["rows"])


def any_holds(sets: tuple[KeySet, ...], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which keys are in one of the sets, bool [n]."""
    found = np.zeros(len(keys), dtype=np.bool_)
    for one in sets:
        found |= one.holds(keys)
    return found
