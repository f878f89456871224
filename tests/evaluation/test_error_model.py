"""Fits of the error model to drawn cells, scores of intervals, and levels of first contacts."""

from __future__ import annotations

import numpy as np
import pytest

from app.bands.band import Band
from app.bands.error_model import COMPONENTS, ErrorModel, Levels
from evaluation.first_contact.error_model import (
    Cells,
    Held,
    Priors,
    bands_of,
    estimate,
    first_contacts,
    loads_of,
    skew_of,
)

PRIOR = Priors(dict.fromkeys(COMPONENTS, 0.01) | {"gpu": 0.2, "model": 0.2}, 0.05)


def drawn(gpus: int, models: int, seed: int) -> list[dict[str, object]]:
    """Eight loads of every model on every GPU, whose errors deviate by 0.3 a GPU, 0.05 a model and 0.05 a load."""
    rng = np.random.default_rng(seed)
    of_gpu, of_model = rng.normal(0.0, 0.3, gpus), rng.normal(0.0, 0.05, models)
    return [
        {
            "levels": Levels(gpu=f"{seed}-{gpu}", model=f"{seed}-{model}"),
            "source": "drawn",
            "error": of_gpu[gpu] + of_model[model] + rng.normal(0.0, 0.05),
            "below": 0.0,
            "above": 0.0,
        }
        for gpu in range(gpus)
        for model in range(models)
        for _ in range(8)
    ]


def test_components_are_estimated_from_cells() -> None:
    v, e = estimate(Cells.of(drawn(20, 8, 1)), PRIOR)
    assert v["gpu"] > 0.15 > v["model"]
    assert e[""] == pytest.approx(0.05, rel=0.4)
    assert estimate(Cells.of(drawn(2, 1, 1)), PRIOR)[0] == PRIOR.v, "two cells tell nothing"


def test_loads_scatter_by_stack_and_kind() -> None:
    rows = [{**row, "levels": row["levels"]._replace(stack="vllm", load="open")} for row in drawn(9, 3, 1)]  # type: ignore[attr-defined]
    of = loads_of(Cells.of(rows), 0.5)
    assert of["vllm open"] < of[""] < 0.5


def test_skew_is_by_how_much_more_deployments_are_slower_than_faster() -> None:
    slower = [{**row, "error": abs(row["error"])} for row in drawn(20, 8, 1)]  # type: ignore[call-overload]
    faster = [{**row, "error": -row["error"]} for row in slower]
    assert skew_of([]) == 1.0
    assert skew_of([Cells.of(slower)]) > 4.0
    assert skew_of([Cells.of(faster)]) == pytest.approx(1.0 / skew_of([Cells.of(slower)]))
    assert skew_of([Cells.of(slower), Cells.of(faster)]) == pytest.approx(1.0)


def test_intervals_of_estimated_components_hold_what_they_say() -> None:
    known, fresh = drawn(20, 8, 2), drawn(20, 8, 3)
    v, e = estimate(Cells.of(known), PRIOR)
    band = bands_of(ErrorModel(v, e, {}, Cells.of(known).as_cells()), fresh)
    assert 65.0 < Held.of(np.array([row["error"] for row in fresh], dtype=np.float64), band, 160).held < 95.0


def test_the_score_is_the_width_and_ten_times_what_lies_outside() -> None:
    scored = Held.of(np.array([0.0, 1.5]), Band(np.ones(2), np.ones(2)), 2)
    assert (scored.held, scored.half_width) == (50.0, 1.0)
    assert scored.score == pytest.approx((2.0 + 2.0 + 10.0 * 0.5) / 2.0)


def test_contacts_take_the_levels_of_this_versions_answers() -> None:
    """Of the ledger's figures; those that nobody can ask again keep the names of their source."""
    contacts = [row for row in first_contacts([]) if row["source"] == "torchtitan_training"]
    assert {row["levels"].stack for row in contacts} == {"pytorch"}
    assert all(row["levels"].gpu.startswith(("h100", "h200")) for row in contacts)
