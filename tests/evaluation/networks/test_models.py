"""Report of whole models: the tables on the results page match the record."""

import json
from typing import Any

from app.config import CHECKOUT
from evaluation.networks.models import MARKER, means, page_lines
from evaluation.render import RESULTS, record_of, with_table

RECORD = record_of("neusight-models")


def test_the_results_page_shows_the_recorded_run() -> None:
    lines = page_lines(json.loads(RECORD.read_text("utf-8")))
    text = RESULTS.read_text("utf-8")
    assert with_table(text, MARKER, lines) == text, "run gpucast evaluate neusight-models --results"
    assert lines[0].endswith("| held, % (in-sample) |")


def test_readme_and_summary_state_the_recorded_error() -> None:
    cells = json.loads(RECORD.read_text("utf-8"))["cells"]
    errors = [abs(c["error"]) for c in cells if c["part"] == "unseen" and c["predictor"] == "auto"]
    figure = f"{sum(errors) / len(errors):.1f}"
    assert f"the mean error is {figure} %" in (CHECKOUT / "README.md").read_text("utf-8")
    assert f"| {figure} (6; published NeuSight: 10.0) |" in RESULTS.read_text("utf-8")


def cell(part: str, error: float, *, held: bool = True, **published: float) -> dict[str, Any]:
    fields = {"predictor": "auto", "part": part, "gpu": "gpu", "model": "m", "mode": "inf", "odd": False}
    return fields | {"error": error, "held": held, "published": published}


def test_means_of_absolute_errors_are_bold_if_they_reach_the_goal() -> None:
    text = "\n".join(means([cell("seen", -4.0, neusight=9.0), cell("seen", 8.0, held=False), cell("amd", 11.0)]))
    assert "| GPUs learned from | 2 | 6.5 | **6.0** | - | - | - | 9.0 | 50 |" in text
    assert "| MI100 and MI210 | 1 | 10 | 11.0 | - | - | - | - | 100 |" in text


def test_coverage_on_left_out_gpus_is_bold_if_it_is_near_the_nominal() -> None:
    four = [cell("left_out", 1.0) for _ in range(4)]
    assert means([*four, cell("left_out", 1.0, held=False)])[-1].endswith("| **80** |")
    assert means(four)[-1].endswith("| 100 |")
