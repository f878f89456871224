"""The error model: components, cells, uploads, and where a width may be made."""

from __future__ import annotations

import re

import numpy as np
import pytest

from app.bands.band import Band, normal_quantile
from app.bands.coverage import COVERAGE
from app.bands.error_model import COMPONENTS, ErrorModel, Levels, error_models, widened
from app.config import CHECKOUT

OWN, OWNS = Band.symmetric(0.1), Band.symmetric(np.array([0.1]))
HERE = Levels("vllm", "dense", "hopper", "h100", "32 layers of 4096", "bf16", "vllm 0.11", "one", "closed")
ELSEWHERE = HERE._replace(generation="cdna3", gpu="mi300x")
V = dict.fromkeys(COMPONENTS, 0.1)


def model(*cells: tuple[Levels, float, int], seen: float = np.inf, skew: float = 1.0) -> ErrorModel:
    return ErrorModel(V, {"": 0.05}, dict.fromkeys(COMPONENTS, seen), cells, skew=skew)


def test_without_cells_all_components_and_the_operators_add_up_in_squares() -> None:
    z = normal_quantile(0.5 + COVERAGE / 2.0)
    band = model().uncertainty(HERE).band(OWN)
    assert band.above == pytest.approx(np.sqrt(z**2 * (len(COMPONENTS) * 0.1**2 + 0.05**2) + 0.1**2))
    assert band.below == band.above


def test_a_cell_narrows_its_deployment_most_and_those_that_share_levels_less() -> None:
    known = model((HERE, 0.0, 8))
    widths = [known.uncertainty(levels).band(OWN).above for levels in (HERE, HERE._replace(model="other"), ELSEWHERE)]
    assert widths == sorted(widths)
    assert widths[-1] < model().uncertainty(ELSEWHERE).band(OWN).above


@pytest.mark.parametrize("mean", [0.8, -0.8])
def test_a_known_mean_error_widens_its_side(mean: float) -> None:
    band, even = (model((HERE, error, 8)).uncertainty(HERE).band(OWN) for error in (mean, 0.0))
    sides = (band.above, band.below) if mean > 0.0 else (band.below, band.above)
    assert sides[0] > 2.0 * even.above
    assert sides[1] == pytest.approx(even.below)


def test_the_side_that_first_contacts_lean_to_is_wider_where_less_is_known() -> None:
    unknown, known = (model(*cells, skew=4.0).uncertainty(HERE).band(OWN) for cells in ((), ((HERE, 0.0, 8),)))
    assert unknown.above == pytest.approx(4.0 * unknown.below)
    assert unknown.below + unknown.above == pytest.approx(2.0 * model().uncertainty(HERE).band(OWN).above)
    assert 1.0 < known.above / known.below < 2.0


def test_few_levels_have_fat_tails() -> None:
    assert model(seen=2.0).uncertainty(HERE).band(OWN).above > 1.02 * model().uncertainty(HERE).band(OWN).above


def test_parts_add_up_to_the_wider_side_and_say_what_was_measured() -> None:
    of, own = model((HERE, 0.1, 4), skew=2.0).uncertainty(ELSEWHERE), Band(0.05, 0.2)
    parts = of.parts(own, interpolated=True)
    assert np.sqrt(sum(part.half_width**2 for part in parts)) == pytest.approx(of.band(own).above)
    known = {part.component: part.known for part in parts}
    assert known["model"]
    assert not known["gpu"]
    assert {part.component: part.level for part in parts}["gpu"] == "mi300x"


def test_an_upload_shifts_its_deployment_nearly_whole_and_others_by_what_they_share() -> None:
    others = (HERE, HERE._replace(model="other"), ELSEWHERE)
    shifts, left = np.array([model().learned(levels, OWNS, [(HERE, 0.5)]) for levels in others]).T[0]
    assert 0.45 < shifts[0] < 0.5
    assert list(shifts) == sorted(shifts, reverse=True)
    assert shifts[-1] > 0.0
    assert left[0] < 0.1 < left[1] < left[2] < 1.0
    assert [part.tolist() for part in model().learned(HERE, OWNS, [])] == [[0.0], [1.0]]


def test_answers_whose_operators_are_known_worse_keep_more_of_their_width() -> None:
    left = model().learned(HERE, Band.symmetric(np.array([0.0, 0.1, 1.0])), [(ELSEWHERE, 0.5)]).left
    assert list(left) == sorted(left)


def test_what_would_narrow_an_answer_is_what_its_upload_leaves() -> None:
    of = model().uncertainty(HERE)
    same, *others = model().narrowed_by(of, OWN)
    left = float(model().learned(HERE, OWNS, [(HERE, 0.0)]).left[0])
    assert same.half_width == of.narrowed(left).band(OWN.times(left**0.5)).above
    assert all(same.half_width < other.half_width < of.band(OWN).above for other in others)


def test_uploads_that_disagree_shift_by_their_mean() -> None:
    shift = model().learned(HERE, OWNS, [(HERE, 0.5), (HERE, -0.5)]).shift
    assert shift == pytest.approx([0.0], abs=1e-9)


def test_gpus_have_all_errors_in_common_but_their_own() -> None:
    assert model().in_common(HERE) == pytest.approx((len(COMPONENTS) - 3) * 0.1**2)
    assert model().in_common(HERE) == model().in_common(ELSEWHERE)


def test_many_answers_have_the_bands_of_each() -> None:
    both = [model(skew=2.0).uncertainty(HERE), model((HERE, -0.3, 8), skew=2.0).uncertainty(HERE)]
    bands = widened(Band(np.array([0.1, 0.2, 0.3, 0.4]), np.full(4, 0.1)), both)
    for k in range(4):
        own = Band(float(0.1 * (k + 1)), 0.1)
        assert (bands.below[k], bands.above[k]) == pytest.approx(tuple(vars_of(both[k // 2].band(own))))


def vars_of(band: Band[float]) -> tuple[float, float]:
    return band.below, band.above


def test_the_shipped_model_has_every_figure_and_no_width_of_nothing() -> None:
    assert set(error_models()) >= {"tpot", "ttft", "step", "training", "network", "diffusion", "memory"}
    for figure, errors in error_models().items():
        new = errors.uncertainty(Levels("new", "new", "new", "new", "new", "new", "new", "new"))
        assert 0.05 < new.total < 4.0, figure


def test_no_width_is_added_outside_of_bands() -> None:
    """Only `app/bands` calls what widens an interval, and nobody else multiplies its ends."""
    widens = re.compile(r"\.(?:widened|wider)\(|Band\.symmetric\(0\.[1-9]")
    allowed = {
        "app/services/compare/request.py": 1,  # an energy's: time and power
        "app/steps/timing.py": 1,  # the host's speed, which a request does not say
    }
    found = {}
    for path in sorted((CHECKOUT / "app").rglob("*.py")):
        name = path.relative_to(CHECKOUT).as_posix()
        if not name.startswith("app/bands/") and (hits := len(widens.findall(path.read_text("utf-8")))):
            found[name] = hits
    assert found == allowed
