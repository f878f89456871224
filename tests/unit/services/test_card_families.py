"""Accuracy cards by family of operators."""

from __future__ import annotations

from app.services.learning.manage_versions import FamilyErrors, by_family


def test_dtypes_and_operators_of_a_family_count_by_their_rows() -> None:
    of_all = [("relu/fp32", 300, 4.0, 90.0), ("add/bf16", 100, 8.0, 70.0), ("network/fp16", 5, 9.0, 80.0)]
    card = [
        {"split": "gpu_held_out", "family": family, "gpu": "all", "n": n, "mape": mape, "coverage_80": covered}
        for family, n, mape, covered in of_all
    ]
    of_one = card[0] | {"gpu": "l40s", "mape": 99.0}
    elsewhere = card[1] | {"split": "few_measured"}
    assert by_family([*card, of_one, elsewhere]) == [
        FamilyErrors("few_measured", "elementwise", 8.0, 70.0, 100),
        FamilyErrors("gpu_held_out", "elementwise", 5.0, 85.0, 400),
        FamilyErrors("gpu_held_out", "network", 9.0, 80.0, 5),
    ]
