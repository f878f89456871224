"""Measured loads on served models: the bounds stated in docs/reference/results.md."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from app.config import CHECKOUT
from evaluation.first_contact.ledger import ask_shipped
from evaluation.first_contact.question import ASKED
from evaluation.first_contact.record import SOURCES
from evaluation.render import text_lines
from evaluation.serving.loads import ARRIVALS, INFERENCEX, ML_ENERGY, OTHERS
from evaluation.serving.outcomes import Evaluated, Outcome, evaluate_serving
from evaluation.serving.points import POINTS
from evaluation.serving.report import energy, errors, macro, order, overloads, report
from evaluation.study import shipped_engine, shipped_snapshot

pytestmark = pytest.mark.slow

DATA = Path(os.environ.get("GPUCAST_SHARED_DATA", CHECKOUT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / POINTS).is_file(), reason=f"no data in {DATA}")

# Intervals are those of what users ask, without the settings of launch scripts that these loads are asked with.
_MOST_HELD = 95
_GPT_OSS = ("openai/gpt-oss-120b", "trtllm", "b200_sxm")


@pytest.fixture(scope="module")
def found() -> list[Outcome]:
    return evaluate_serving(DATA, shipped_engine(), fit=False).outcomes


@needs_data
def test_closed_loops_of_vllm(found: list[Outcome]) -> None:
    alike = [one for one in found if one.load.source == INFERENCEX and one.load.stack == "vllm"]
    tpot, ttft = errors(alike, "tpot_ms"), errors(alike, "ttft_ms")
    assert tpot.mape < 9 and tpot.median < 7
    assert ttft.mape < 19 and ttft.median < 17
    assert 72 <= ttft.held <= _MOST_HELD


@needs_data
def test_closed_loops_of_all_stacks(found: list[Outcome]) -> None:
    """The goals of time per token and time to first token, with the settings of the launch scripts."""
    alike = [one for one in found if one.load.source == INFERENCEX]
    tpot, ttft = errors(alike, "tpot_ms"), errors(alike, "ttft_ms")
    assert tpot.mape < 9 and tpot.median < 7.2
    assert ttft.mape < 19 and ttft.median < 13
    assert macro(alike, "tpot_ms") < 9
    assert 72 <= tpot.held <= _MOST_HELD and 72 <= ttft.held <= _MOST_HELD


@needs_data
def test_deployments_are_in_the_measured_order(found: list[Outcome]) -> None:
    pairs = order(found)
    assert pairs.right > 92
    assert pairs.apart < pairs.pairs and pairs.right_apart > 95


@needs_data
def test_sglangs_other_models_have_the_host_of_vllm(found: list[Outcome]) -> None:
    """Qwen3-32B, to which nothing is fitted."""
    alike = [one for one in found if one.load.source == OTHERS and one.load.stack == "sglang"]
    assert errors(alike, "tpot_ms").mape < 6 and errors(alike, "e2e_ms").mape < 8


@needs_data
def test_energy_per_token(found: list[Outcome]) -> None:
    off = energy([one for one in found if one.load.source == ML_ENERGY])
    assert len(off) > 150
    assert np.median(np.abs(off)) < 20


@needs_data
def test_open_arrivals(found: list[Outcome]) -> None:
    alike = [one for one in found if one.load.source == ARRIVALS]
    assert errors(alike, "e2e_ms").median < 10
    assert errors(alike, "tpot_ms").median < 10
    assert errors(alike, "ttft_ms").median < 25
    measured, predicted = overloads(alike)
    assert measured == predicted == 4


@needs_data
def test_servers_at_the_edge_of_their_capacity() -> None:
    """MLPerf's, each asked as a user does; their rates are the highest that vendors found to keep their limits."""
    ask = ask_shipped(shipped_snapshot())
    off, saturated = list[float](), 0
    for question in SOURCES["mlperf_inference_v6_0"].questions(DATA):
        if question.reading == "tpot":
            ((_, body),) = question.parts
            (row,) = ask("/predict", body)["predictions"]
            saturated += row["serving"]["saturated"]
            if not row["serving"]["saturated"]:
                off.append(row["serving"]["tpot_ms"]["mean"] / question.measured - 1.0)
    assert len(off) + saturated == 53
    assert saturated <= 5
    assert np.median(np.abs(off)) < 0.25


@needs_data
@pytest.mark.parametrize(("figure", "most"), [("tpot", 0.07), ("ttft", 0.16)])
def test_experts_in_mxfp4_run_as_their_stack_multiplies_them(figure: str, most: float) -> None:
    """gpt-oss-120b under TensorRT-LLM on Blackwell, asked without a format of activations, which are MXFP8 there."""
    ask, off = ask_shipped(shipped_snapshot()), list[float]()
    for question in SOURCES["serving_points"].questions(DATA):
        about = question.levels
        if (about.model, about.stack, about.gpu) == _GPT_OSS and question.reading == figure and question.asked == ASKED:
            ((_, body),) = question.parts
            (row,) = ask("/predict", body)["predictions"]
            off.append(row["serving"][f"{figure}_ms"]["mean"] / question.measured - 1.0)
    assert len(off) > 10
    assert np.median(np.abs(off)) < most


@needs_data
def test_loads_of_tensorrt_llm_1_0_leave_their_step() -> None:
    """Exact lengths on H100, of which every second is asked; host and drift were set on those of Llama 3.1 8B."""
    ask, off = ask_shipped(shipped_snapshot()), dict[str, list[float]]()
    for name in ("serving_points", "more_serving_points"):
        for number, question in enumerate(SOURCES[name].questions(DATA)):
            if question.levels.version == "1.0.0rc3" and question.asked == ASKED and number % 4 < 2:
                ((_, body),) = question.parts
                (row,) = ask("/predict", body)["predictions"]
                error = row["serving"][f"{question.reading}_ms"]["mean"] / question.measured - 1.0
                off.setdefault(question.reading, []).append(error)
    assert len(off["tpot"]) > 90
    assert np.median(np.abs(off["tpot"])) < 0.07 and abs(np.median(off["tpot"])) < 0.04
    assert np.median(np.abs(off["ttft"])) < 0.42


@needs_data
def test_every_deployment_has_a_line(found: list[Outcome]) -> None:
    printed = list(text_lines(report(Evaluated(found, {})).blocks))
    assert all(any(line.startswith(one.load.deployment) for line in printed) for one in found)
