"""Closed forms against launches simulated one by one, and pipelines against their formulas."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.bands.band import band_of_rows
from app.networks.build import Builder, with_column
from app.networks.exchanges import sends_gradients, with_gradient_exchange, with_key_exchange
from app.networks.importers.hf import lower
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.ops import OP_CODE
from app.steps.schedule import Launches, pace_of, runs_in_step, schedule, start
from app.tables.predictions import Predictions
from app.tables.workload import BACKWARD
from tests.unit.network_samples import gpt2, roofline
from tests.unit.transformers import config

TRAINING = Run(mode="training", optimizer="adam")
GPU = (19.5e12, 1.5e12)

row = st.tuples(
    st.integers(0, 9).map(float),  # seconds
    st.integers(1, 3),  # launches
    st.sampled_from(("compute", "reduce", "gather")),
)
block = st.tuples(st.lists(row, min_size=1, max_size=5), st.integers(0, 5))


def _launched(blocks: list[tuple[list[tuple[float, int, str]], int]], host: float) -> tuple[float, float, float]:
    """When host, device and link end, launch by launch."""
    h = d = c = 0.0
    for rows, repeats in blocks:
        for _ in range(repeats):
            for seconds, count, kind in rows:
                for _ in range(count):
                    h += host
                    if kind == "compute":
                        d = max(d, h) + seconds
                    else:
                        c = max(c, h, d if kind == "reduce" else 0.0) + seconds
    return h, d, c


@settings(max_examples=300, deadline=None)
@given(st.lists(block, min_size=1, max_size=4), st.integers(0, 6).map(float))
def test_the_closed_form_equals_the_simulation(
    blocks: list[tuple[list[tuple[float, int, str]], int]], host: float
) -> None:
    state = start(1)
    for rows, repeats in blocks:
        seconds, count, kinds = zip(*rows, strict=True)
        launches = Launches(
            np.array(seconds)[:, None],
            np.array([host]),
            np.array(count, dtype=np.float64)[:, None],
            np.array([kind != "compute" for kind in kinds]),
            np.array([kind == "reduce" for kind in kinds]),
        )
        state = pace_of(launches).times(repeats).move(state)
    assert [float(part[0]) for part in state] == list(_launched(blocks, host))


@settings(max_examples=100, deadline=None)
@given(st.lists(block, min_size=2, max_size=3), st.integers(0, 6).map(float))
def test_paces_of_blocks_compose(blocks: list[tuple[list[tuple[float, int, str]], int]], host: float) -> None:
    paces = []
    for rows, _ in blocks:
        seconds, count, kinds = zip(*rows, strict=True)
        beside, waits = ([kind in which for kind in kinds] for which in (("reduce", "gather"), ("reduce",)))
        launches = (np.array(seconds)[:, None], np.array([host]), np.array(count)[:, None] * 1.0, np.array(beside))
        paces.append(pace_of(Launches(*launches, np.array(waits))))
    whole = paces[0]
    for pace in paces[1:]:
        whole = whole.then(pace)
    for times in (1, 2, 3, 7):
        one_by_one = start(1)
        for _ in range(times):
            for pace in paces:
                one_by_one = pace.move(one_by_one)
        assert whole.times(times).move(start(1)) == one_by_one


def test_phases_sum_to_the_step_and_to_the_rows_on_a_busy_device() -> None:
    w = training(gpt2(), TRAINING)
    done = schedule(w, roofline(w, GPU, (60e12, 3e12)), 0.0, TRAINING)
    assert done.phases_s.sum(axis=0) == pytest.approx(done.step_s)
    assert done.rows_s.sum(axis=0) == pytest.approx(done.step_s)
    forward, backward, update, communication = done.phases_s[:, 0]
    assert 1.8 * forward < backward < 2.3 * forward
    assert update == pytest.approx(28 * 774_030_080 / GPU[1], rel=1e-6)
    assert communication == 0.0


def test_small_kernels_are_host_bound() -> None:
    w = gpt2(layers=100, hidden=64, heads=1, sequence=16)
    run = Run()
    latency = roofline(w, GPU)
    eager, captured = (float(schedule(w, latency, host, run).step_s[0]) for host in (10e-6, 0.0))
    launches = float(w.runs.sum())
    assert float(schedule(w, latency, 0.0, run).launches[0]) == launches
    halves = schedule(w, latency, 0.0, replace(run, parallelism=Parallelism(pipeline=2)))
    assert float(halves.launches[0]) == launches / 2
    assert eager == pytest.approx(launches * 10e-6, rel=0.01)
    assert captured < 0.5 * eager
    gaps = float(schedule(w, latency, 0.0, run, gap_s=3e-6).step_s[0])
    assert gaps == pytest.approx(captured + launches * 3e-6)


def test_accumulated_steps_add_up() -> None:
    w = training(gpt2(), TRAINING)
    latency = roofline(w, GPU)
    one, eight = (schedule(w, latency, 0.0, replace(TRAINING, accumulation=n)) for n in (1, 8))
    assert eight.phases_s[:2] == pytest.approx(8 * one.phases_s[:2])
    assert eight.phases_s[2:] == pytest.approx(one.phases_s[2:])


def test_gradient_communication_overlaps_backward() -> None:
    run = replace(TRAINING, parallelism=Parallelism(data=4))
    alone, w = training(gpt2(batch=4), run), with_gradient_exchange(training(gpt2(batch=4), run), run)
    latency = roofline(w, GPU)
    for slower, hidden in ((1.0, True), (1e3, False)):
        # Exchanges that take no longer than backward show only their last bucket; slow ones all they have too much.
        latency[w.overlapped] = slower * 1e-3
        done = schedule(w, latency, 0.0, run)
        plain = schedule(alone, roofline(alone, GPU), 0.0, run)
        exchange = float((w.runs * w.overlapped) @ latency[:, 0])
        exposed = float(done.step_s[0] - plain.step_s[0])
        assert exposed == pytest.approx(float(done.phases_s[3, 0]))
        if hidden:
            assert 0 < exposed < 0.1 * exchange
        else:
            assert exposed > exchange - float(plain.phases_s[1, 0])
            assert exposed < exchange


@pytest.mark.parametrize(("zero", "passes"), [(0, 1), (1, 1), (2, 8)])
def test_gradients_are_exchanged_once_a_step_unless_no_device_holds_them(zero: int, passes: int) -> None:
    run = replace(TRAINING, accumulation=8, parallelism=Parallelism(data=4, zero=zero))
    w = with_gradient_exchange(training(gpt2(batch=4), run), run)
    runs, sends = runs_in_step(w, run), sends_gradients(w)
    assert sends.any()
    assert runs[sends] == pytest.approx(passes * w.runs[sends])
    assert runs[w.phase == BACKWARD].max() == 8 * w.runs[w.phase == BACKWARD].max()
    seconds = np.where(sends, 1.0, 0.0)[:, None]
    done = schedule(w, seconds, 0.0, run)
    assert float(done.rows_s.sum()) == pytest.approx(passes * float(w.runs[sends].sum()))
    assert float(done.step_s[0]) == pytest.approx(float(done.rows_s.sum()), rel=0.01)


def test_a_ring_passes_keys_and_values_in_every_pass() -> None:
    split = Parallelism(context=4)
    run = Run("training", 8, 1024, dtype="bf16", attention="flash", accumulation=8, parallelism=split)
    w = with_key_exchange(training(lower(config("llama-3-8b"), run), run), run)
    rings = w.overlapped
    assert rings.any() and not sends_gradients(w).any()
    assert runs_in_step(w, run)[rings] == pytest.approx(8 * w.runs[rings])
    done = schedule(w, np.where(rings, 1.0, 0.0)[:, None], 0.0, run)
    assert float(done.step_s[0]) == pytest.approx(8 * float(w.runs[rings].sum()), rel=0.01)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (4, 8), (8, 32)])
def test_balanced_pipelines_have_the_bubble_of_the_formula(kind: str, stages: int, micro: int) -> None:
    b = Builder("fp32")
    b.begin(32)
    b.add("linear", outputs=2**20, parameters=2**20, m=1024, n=1024, k=1024)
    run = Run(
        mode="training",
        optimizer="none",
        parallelism=Parallelism(pipeline=stages, microbatches=micro, schedule=kind),  # type: ignore[arg-type]
    )
    w = training(b.build(), replace(run, parallelism=Parallelism()))
    latency = roofline(w, GPU)
    done = schedule(w, latency, 0.0, run)
    whole = float(w.runs @ latency[:, 0])
    assert float(done.step_s[0]) == pytest.approx(whole / stages * (micro + stages - 1))
    assert float(done.bubble_s[0] / done.step_s[0]) == pytest.approx((stages - 1) / (micro + stages - 1))
    sent = schedule(w, latency, 0.0, run, transfer_s=1e-3)
    waits = stages - 1 + (micro - 1 if kind == "1f1b" else 0)
    assert float(sent.step_s[0] - done.step_s[0]) == pytest.approx(2e-3 * waits)
    assert float(sent.phases_s[3, 0]) == pytest.approx(2e-3 * waits)


@pytest.mark.parametrize(("stages", "chunks", "micro"), [(2, 2, 4), (4, 5, 8), (8, 4, 32)])
def test_interleaved_stages_idle_for_a_chunk_at_a_time(stages: int, chunks: int, micro: int) -> None:
    b = Builder("fp32")
    b.begin(stages * chunks)
    b.add("linear", outputs=2**20, parameters=2**20, m=1024, n=1024, k=1024)
    split = Parallelism(pipeline=stages, microbatches=micro, virtual_pipeline=chunks)
    run = Run(mode="training", optimizer="none", parallelism=split)
    w = training(b.build(), replace(run, parallelism=Parallelism()))
    latency = roofline(w, GPU)
    done = schedule(w, latency, 0.0, run)
    each = float(w.runs @ latency[:, 0]) / stages
    assert float(done.step_s[0]) == pytest.approx(
        each * (micro + (stages - 1) / chunks)
    )  # Narayanan et al. 2021, 2.2.2
    assert float(done.bubble_s[0]) == pytest.approx(each * (stages - 1) / chunks)
    sent = schedule(w, latency, 0.0, run, transfer_s=1e-3)  # beside another chunk's computation, but for the first
    assert float(sent.step_s[0] - done.step_s[0]) == pytest.approx(2e-3 * (stages - 1))


def _simulated(forward: list[float], backward: list[float], micro: int, kind: str, transfer: float) -> float:
    """When a pipeline ends whose stages run their microbatches in the order of their schedule."""
    stages = len(forward)
    orders = []
    for stage in range(stages):
        ahead = micro if kind == "gpipe" else min(stages - stage - 1, micro)
        order = [("F", m) for m in range(ahead)]
        for m in range(micro - ahead):
            order += [("F", ahead + m), ("B", m)]
        orders.append(order + [("B", m) for m in range(micro - ahead, micro)])
    ends: dict[tuple[str, int, int], float] = {}
    free, done = [0.0] * stages, [0] * stages
    while any(done[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            while done[stage] < len(orders[stage]):
                pass_, m = orders[stage][done[stage]]
                before = stage - 1 if pass_ == "F" else stage + 1
                needed = (pass_, before, m) if 0 <= before < stages else ("F", stage, m)
                if needed not in ends and (pass_ == "B" or before >= 0):
                    break
                arrived = ends.get(needed, 0.0) + (transfer if 0 <= before < stages else 0.0)
                takes = forward[stage] if pass_ == "F" else backward[stage]
                free[stage] = ends[pass_, stage, m] = max(free[stage], arrived) + takes
                done[stage] += 1
    return max(ends.values())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("gpipe", "1f1b")),
    st.lists(st.floats(1.0, 1.3), min_size=2, max_size=8),
    st.integers(1, 32),
    st.sampled_from((0.0, 0.05)),
)
def test_unbalanced_pipelines_equal_a_simulation(kind: str, seconds: list[float], micro: int, transfer: float) -> None:
    stages = len(seconds)
    b = Builder("fp32")
    for _ in range(stages):
        b.begin()
        b.add("linear", outputs=2**20, parameters=2**20, m=1024, n=1024, k=1024)
    parallelism = Parallelism(pipeline=stages, microbatches=micro, schedule=kind)  # type: ignore[arg-type]
    run = Run(mode="training", optimizer="adam", parallelism=parallelism)
    w = training(b.build(), replace(run, optimizer="none", parallelism=Parallelism()))
    w = replace(w, ops=with_column(w.ops, "count", np.where(w.ops.kind == OP_CODE["linear"], 1.0, 0.0)))
    latency = np.array(seconds)[w.origin[w.block], None]
    found = float(schedule(w, latency, 0.0, run, transfer_s=transfer).step_s[0])
    runs = np.bincount(w.block, weights=w.ops.column("count"))
    backward = [float(t * n) for t, n in zip(seconds, runs[stages:][::-1], strict=True)]
    true = _simulated(seconds, backward, micro, kind, transfer)
    assert found == pytest.approx(true) if kind == "gpipe" else true - 1e-9 < found < 1.15 * true


def test_intervals_add_up_within_groups_and_in_squares_between() -> None:
    w = gpt2()
    latency = roofline(w, GPU)
    done = schedule(w, latency, 0.0, Run())
    group, of = np.where(w.ops.kind == OP_CODE["linear"], 0, 1), np.arange(len(w))[:, None]
    wide = _answer(latency[:, 0], 0.9, 1.2)
    step = float(done.step_s[0])

    def ends(answer: Predictions, group: NDArray[np.intp]) -> list[float]:
        band = band_of_rows(done.rows_s, answer, of, group)
        return [float(end[0]) for end in band.ends(done.step_s, 0.8)]

    parts = np.array([done.rows_s[group == k].sum() for k in (0, 1)])
    assert ends(wide, group) == pytest.approx([step - 0.1 * np.hypot(*parts), step + 0.2 * np.hypot(*parts)])
    assert ends(wide, 0 * group) == pytest.approx([0.9 * step, 1.2 * step])
    assert ends(replace(wide, limit_s=0.95 * latency[:, 0]), 0 * group)[0] == pytest.approx(0.95 * step)


def _answer(latency_s: NDArray[np.float64], low: float, high: float) -> Predictions:
    code = np.zeros(len(latency_s), dtype=np.intp)
    return Predictions(latency_s, low * latency_s, high * latency_s, 0.0 * latency_s, code, code, code, code == 0)


def test_a_thousand_rows_on_thirty_gpus_take_milliseconds() -> None:
    b = Builder("fp32")
    for _ in range(400):
        b.add("relu", outputs=2**20, parameters=100, b=1024, h=1024)
    run = replace(TRAINING, parallelism=Parallelism(data=4))
    w = with_gradient_exchange(training(b.build(), run), run)
    latency = roofline(w, *[(GPU[0] * k, GPU[1]) for k in range(1, 31)])
    assert latency.shape[0] > 800
    times = []
    for _ in range(20):
        begun = process_time()
        schedule(w, latency, 6e-6, run)
        times.append(process_time() - begun)
    assert min(times) < 9e-3  # about 2 ms alone; the machine may be busy
