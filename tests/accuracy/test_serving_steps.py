"""Time per output token of measured LLM deployments: the bounds stated in docs/reference/results.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.config import CHECKOUT
from evaluation.render import text_lines
from evaluation.serving.points import POINTS
from evaluation.serving.steps import Line, evaluate_serving_steps, report, summary
from evaluation.study import shipped_engine

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / POINTS).is_file(), reason=f"no data in {DATA}")


@pytest.fixture(scope="module")
def by_model() -> dict[str, Line]:
    results = evaluate_serving_steps(DATA, shipped_engine())
    assert sum(line.startswith("dsr1|") for line in text_lines(report(results).blocks)) == 10
    return {line.name: line for line in summary(results, lambda result: f"{result['model']} {result['precision']}")}


@needs_data
@pytest.mark.parametrize(
    ("deployed", "most"),
    [
        ("llama70b fp8", 10.0),
        ("llama70b fp4", 16.0),
        ("qwen32b bf16", 11.0),
        ("qwen32b fp8", 8.0),
        ("gptoss fp4", 9.0),
        ("dsr1 fp4", 13.0),
        ("dsr1 fp8", 17.0),
    ],
)
def test_time_per_output_token(by_model: dict[str, Line], deployed: str, most: float) -> None:
    assert by_model[deployed].errors.mape < most


@needs_data
def test_stacks_rules_halve_the_error_of_modules(by_model: dict[str, Line]) -> None:
    for deployed in ("llama70b fp8", "llama70b fp4", "gptoss fp4", "dsr1 fp4"):
        assert by_model[deployed].errors.mape < 0.5 * by_model[deployed].modules_mape
