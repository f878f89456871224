"""Serving figures against sums over tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.networks.serving import DEFINITIONS, Serving, decode_contexts, serving


@given(st.integers(1, 5000), st.integers(1, 3000), st.floats(1e-3, 1e-1), st.floats(0, 1e-4))
def test_tpot_is_the_mean_step_if_time_is_affine(prompt: int, output: int, base: float, slope: float) -> None:
    contexts = decode_contexts(prompt, output)
    decode = np.array([[base + slope * context] for context in contexts]).reshape(-1, 1)
    done = serving(np.array([0.5]), decode, contexts, batch=4, output=output)
    steps = [base + slope * context for context in range(prompt + 1, prompt + output)]
    assert float(done.tpot_s[0]) == pytest.approx(np.mean(steps) if steps else 0.0)
    assert float(done.request_s[0]) == pytest.approx(0.5 + sum(steps))
    assert float(done.tokens_per_s[0]) == pytest.approx(4 * output / (0.5 + sum(steps)))


def test_sampled_contexts_are_few_and_span_the_output() -> None:
    assert decode_contexts(100, 1) == []
    assert decode_contexts(100, 2) == [101]
    assert decode_contexts(100, 201) == [101, 200, 300]


def test_every_figure_is_defined() -> None:
    in_ms = {"ttft_s", "tpot_s", "request_s"}
    assert list(DEFINITIONS) == [f"{name[:-2]}_ms" if name in in_ms else name for name in Serving._fields]
