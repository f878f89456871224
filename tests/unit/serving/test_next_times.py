"""Times of the next request of an engine in a given state."""

from __future__ import annotations

import numpy as np
import pytest

from app.serving.engine import held_bytes
from app.serving.steady_state import QueueState, Shape, closed_loop, next_times
from tests.unit.serving.engines import limits, step_times

IDLE = QueueState(running=0, waiting=0, kv_share=0.0, prompt=1024, cached=0, generated=0, output=256)


@pytest.mark.parametrize("concurrency", [1, 4, 16, 64])
def test_a_state_of_a_steady_load_has_its_times(concurrency: int) -> None:
    """As many requests as the load keeps decoding and waiting, with its mean context: the closed form's times."""
    steady = closed_loop(step_times(), limits(), Shape(1024.0, 0.0, 256.0, 1024.0, 1152.0), float(concurrency))
    others = (concurrency - 1) / concurrency
    decoding, waiting = others * steady.decoding, others * (concurrency - steady.decoding)
    share = decoding * held_bytes(limits(), 1024.0 + 128.0) / limits().kv_bytes
    found = next_times(step_times(), limits(), IDLE._replace(running=decoding, waiting=waiting, kv_share=share))
    assert found.tpot_s == pytest.approx(steady.tpot_s, rel=0.05)
    assert found.ttft_s == pytest.approx(steady.ttft_s, rel=0.35)


def test_every_figure_of_a_state_matters() -> None:
    busy = IDLE._replace(running=32, kv_share=0.2)
    room = limits(kv_bytes=32 * held_bytes(limits(), 1024.0) / 0.2)
    before = next_times(step_times(), room, busy)
    for change in ({"waiting": 4}, {"prompt": 4096}, {"running": 64, "kv_share": 0.4}):
        found = next_times(step_times(), room, busy._replace(**change))
        assert found.ttft_s > before.ttft_s and found.tpot_s >= before.tpot_s
    assert next_times(step_times(), room, busy._replace(cached=900)).ttft_s < before.ttft_s
    assert next_times(step_times(), room, busy._replace(kv_share=0.6)).tpot_s > before.tpot_s
    assert next_times(step_times(), room, busy._replace(generated=200)).tpot_s >= before.tpot_s


def test_no_more_answers_end_before_a_request_than_there_are_requests() -> None:
    """A share of the cache that rounds to nothing says nothing of how much the running requests hold."""
    full = IDLE._replace(running=1, waiting=10_000, kv_share=1e-12)
    found, sized = (next_times(step_times(), limits(), full._replace(kv_share=share)) for share in (1e-12, 0.01))
    assert found.ttft_s < 20 * sized.ttft_s


def test_a_full_engine_lets_the_next_request_wait_for_an_answer_to_end() -> None:
    running = 16
    free, full = (
        next_times(step_times(), limits(sequences=most), IDLE._replace(running=running)) for most in (64.0, 16.0)
    )
    # One of 16 answers of 256 tokens ends every 16 tokens.
    assert full.ttft_s - free.ttft_s == pytest.approx(255 * full.tpot_s / running, rel=0.05)
    crowded = IDLE._replace(running=running, kv_share=1.0)
    assert next_times(step_times(), limits(), crowded).ttft_s > free.ttft_s


@pytest.mark.parametrize("state", [IDLE, IDLE._replace(prompt=0), IDLE._replace(cached=1024), IDLE._replace(output=1)])
def test_an_idle_engine_answers_at_once(state: QueueState) -> None:
    found = next_times(step_times(), limits(), state)
    assert np.isfinite(found).all() and min(found) > 0.0
