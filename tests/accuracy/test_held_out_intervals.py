"""The 80 % intervals of the shipped `auto`, on rows whose GPU or configuration it did not learn (its accuracy card)."""

from __future__ import annotations

import pytest

from app.config import SHIPPED_MODELS
from app.engine.shipped import shipped_versions
from app.services.learning.manage_versions import by_family

# Goals of the share of rows within, percent, and by how much of them a family may be off.
GOALS = {"gpu_held_out": (72.0, 88.0), "configuration_held_out": (74.0, 86.0)}
ALLOWED = 1.05
# Fewer rows do not show a share to a twentieth.
LEAST_ROWS = 200


@pytest.mark.parametrize("split", GOALS)
def test_intervals_of_every_family_hold_eight_in_ten(split: str) -> None:
    """Each GPU's rows are judged by the residuals of the other GPUs."""
    card = shipped_versions(SHIPPED_MODELS)["auto"].card["validation"]
    held = {one.family: one.coverage_80 for one in by_family(card) if one.split == split and one.rows >= LEAST_ROWS}
    low, high = GOALS[split]
    outside = {family: share for family, share in held.items() if not low / ALLOWED <= share <= high * ALLOWED}
    assert len(held) > 12 and not outside
