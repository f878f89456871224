"""The closed form of a serving engine."""

from __future__ import annotations

import numpy as np
import pytest

from app.serving.engine import Lengths, arrivals, burst
from app.serving.simulation import simulate
from app.serving.steady_state import Shape, closed_loop, highest_rate, open_load
from tests.unit.serving.engines import limits, step_times

SHAPE = Shape(1024.0, 0.0, 256.0, 1024.0, 1152.0)


def test_more_requests_in_flight_give_more_throughput_and_slower_tokens() -> None:
    states = [closed_loop(step_times(), limits(), SHAPE, float(c)) for c in (1, 4, 16, 64)]
    assert np.all(np.diff([one.requests_per_s for one in states]) > 0)
    assert np.all(np.diff([one.tpot_s for one in states]) > 0)
    for c, one in zip((1, 4, 16, 64), states, strict=True):
        assert one.requests_per_s * one.e2e_s == pytest.approx(c, rel=0.01)  # Little's law


def test_requests_over_the_cap_wait_for_their_first_token() -> None:
    at_cap, over = (closed_loop(step_times(), limits(sequences=16.0), SHAPE, c) for c in (16.0, 64.0))
    assert over.tpot_s == pytest.approx(at_cap.tpot_s)
    assert over.ttft_s > 10.0 * at_cap.ttft_s


def test_an_open_load_has_a_state_up_to_the_highest_rate() -> None:
    most = highest_rate(step_times(), limits(), SHAPE)
    assert np.isfinite(open_load(step_times(), limits(), SHAPE, 0.99 * most).e2e_s)
    assert np.isinf(open_load(step_times(), limits(), SHAPE, 1.01 * most).e2e_s)
    # A prompt of 1,024 tokens takes 20 us a token, besides what its own answer takes.
    assert 0.5 / (1024 * 20e-6) < most < 1.0 / (1024 * 20e-6)


def test_prompts_share_steps_up_to_the_budget() -> None:
    """Short prompts of one token each: many of them arrive within a step, and none is turned away."""
    short = Shape(16.0, 0.0, 1.0, 16.0, 16.5)
    assert highest_rate(step_times(), limits(), short) > 5 * 1.0 / (5e-3 + 16 * 20e-6)
    assert np.isfinite(open_load(step_times(), limits(), short, 1000.0).ttft_s)


def test_the_front_end_bounds_the_rate() -> None:
    slow = limits(serial_s=0.1)
    assert highest_rate(step_times(), slow, SHAPE) == pytest.approx(10.0, rel=0.01)


def test_what_no_request_fits_into_bears_no_rate() -> None:
    assert highest_rate(step_times(), limits(kv_bytes=1e3), SHAPE) == 0.0


def test_cached_prompts_raise_the_highest_rate() -> None:
    cached = SHAPE._replace(cached=768.0, kept=256.0)
    assert highest_rate(step_times(), limits(), cached) > 1.5 * highest_rate(step_times(), limits(), SHAPE)


def test_prompts_in_chunks_and_whole_ones_cost_alike_where_the_budget_holds_them() -> None:
    split, whole = (closed_loop(step_times(), limits(splits=splits), SHAPE, 8.0) for splits in (True, False))
    assert split == pytest.approx(whole)
    long = Shape(20_000.0, 0.0, 256.0, 20_000.0, 20_128.0)
    assert (
        closed_loop(step_times(), limits(2048.0), long, 4.0).ttft_s
        > closed_loop(step_times(), limits(2048.0, splits=False), long, 4.0).ttft_s
    )


@pytest.mark.parametrize("output", [1.0, 256.0])
def test_replicas_compute_a_prompt_each_in_steps_of_prompts_alone(output: float) -> None:
    """Eight prompts of half a budget take as long as one, and two fill the budget of a replica.

    The engine bears as many as the simulation, of whose arrivals at that rate few wait.
    """
    times, limit = step_times(replicas=8.0), limits(8 * 8192.0, mixes=False, sequences=2048.0)
    shape = Shape(4096.0, 0.0, output, 4096.0, 4096.0 + 0.5 * output)
    most = highest_rate(times, limit, shape)
    assert most > 0.8 * 16.0 / (5e-3 + 8192 * 20e-6)
    requests = arrivals(Lengths(4096.0, output, 0.0, 0.0, 0.0), 0.9 * most, 256.0, 0)
    borne = simulate(times, limit, requests)
    assert np.nanmean((borne.first_s - borne.arrived_s)[requests.warm_up :]) < 1.5


def test_prompts_over_a_replicas_budget_go_beside_one_another() -> None:
    """Two prompts of four budgets each on two replicas take the four steps of one, not eight."""
    times, limit = step_times(replicas=2.0), limits(2 * 1024.0)
    alone = simulate(times, limit, burst(Lengths(4096.0, 1.0, 0.0, 0.0, 0.0), 1, 0)).first_s
    both = simulate(times, limit, burst(Lengths(4096.0, 1.0, 0.0, 0.0, 0.0), 2, 0)).first_s
    assert alone[0] == pytest.approx(4 * (5e-3 + 1024 * 20e-6), rel=0.01)
    assert both == pytest.approx([alone[0], alone[0]], rel=0.01)
    shape = Shape(4096.0, 0.0, 1.0, 4096.0, 4096.5)
    assert highest_rate(times, limit, shape) == pytest.approx(2.0 / alone[0], rel=0.05)
