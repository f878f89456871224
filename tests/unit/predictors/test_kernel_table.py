"""PM2Lat's equations by hand, and tables recovered from synthetic rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.groups import S_SEEN, S_SEEN_OUTSIDE, S_SIBLING, S_UNSEEN_OUTSIDE, operator_codes
from app.ops.figures import Products
from app.predictors.papers.pm2lat.kernels import KernelChooser, fit_line
from app.predictors.papers.pm2lat.predictor import KernelTable
from app.predictors.papers.pm2lat.throughput_table import (
    DEPTHS,
    KNOTS,
    LEAST_LOG_WAVES,
    WAVES,
    Layout,
    fit_table,
    place,
    throughput,
    waves,
)
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import operators

SIBLING = replace(
    TURING,
    id="sibling",
    sm_count=2 * TURING.sm_count,
    memory_bandwidth_bytes_per_s=2 * TURING.memory_bandwidth_bytes_per_s,
)
GPUS = GpuTable.from_specs([TURING, SIBLING, VOLTA])
OVERHEAD_S = 1e-5


def products(*rows: tuple[float, float, float, float]) -> Products:
    return Products(*np.array(rows, dtype=np.float64).T)


def test_partial_tiles_and_waves_count_as_whole() -> None:
    # 129 x 65 takes 2 x 2 tiles of 128 x 64; 40 SMs; 3 such products are 12 blocks, 50 are 200.
    asked = products((1, 129, 65, 8), (3, 129, 65, 8), (50, 129, 65, 8))
    filled, counted = waves(asked, Layout(128, 64, 1), 40.0)
    np.testing.assert_allclose(filled, [0.1, 0.3, 5.0])
    np.testing.assert_allclose(counted, [1, 1, 5])
    # Two blocks on every SM: a wave is 80 blocks and takes as long as two of one block each.
    np.testing.assert_allclose(waves(asked, Layout(128, 64, 2), 40.0)[1], [2, 2, 6])
    # Not rounded up, but never under a whole wave.
    np.testing.assert_allclose(waves(asked, Layout(128, 64, 0), 37.0)[1], [1, 1, 200 / 37])


def table_of(by_depth: Any) -> Any:
    """A log table whose throughput depends on K alone."""
    return np.log(np.repeat(np.asarray(by_depth, dtype=np.float64), WAVES))[None]


def test_equation_2_is_linear_in_k_between_powers_of_two() -> None:
    log_table = table_of(100.0 + np.arange(DEPTHS))
    at = place(
        products((1, 64, 64, 256), (1, 64, 64, 320), (1, 64, 64, 511), (1, 64, 64, 512)), Layout(64, 64, 1), 10.0
    )
    # log2 K is 8; 320 is a quarter of the way from 256 to 512.
    np.testing.assert_allclose(throughput(log_table, at), [108, 108.25, 108 + 255 / 256, 109])


def test_throughput_is_constant_beyond_the_last_knot() -> None:
    log_table = table_of(100.0 + np.arange(DEPTHS))
    at = place(products((1, 64, 64, 2.0**30), (1, 64, 64, 0.5), (1e9, 64, 64, 1)), Layout(64, 64, 1), 10.0)
    np.testing.assert_allclose(throughput(log_table, at), [117, 100, 100])
    assert at.knot.max() < KNOTS


def test_equation_1_scales_the_duration() -> None:
    # newDur = orgDur x newK / 8192 x orgThrPut / newThrPut, for a kernel whose throughput doubles from 1024 to 8192.
    by_depth = np.where(np.arange(DEPTHS) <= 10, 1e9, 2e9)
    at = place(products((1, 64, 64, 8192), (1, 64, 64, 1024)), Layout(64, 64, 1), 10.0)
    long_s, short_s = np.exp(at.log_work) / throughput(table_of(by_depth), at)
    assert short_s == pytest.approx(long_s * 1024 / 8192 * 2e9 / 1e9)


def test_throughput_is_interpolated_in_log_waves() -> None:
    log_table = np.log(np.tile(np.arange(1.0, WAVES + 1), DEPTHS))[None]
    at = place(products((10, 64, 64, 64), (40, 64, 64, 64)), Layout(64, 64, 1), 10.0)
    np.testing.assert_allclose(throughput(log_table, at), [1 - LEAST_LOG_WAVES, 3 - LEAST_LOG_WAVES])


def truth(shapes: Products, layout: Layout, sms: Any) -> Any:
    """Rational in K, as the paper finds."""
    return OVERHEAD_S + waves(shapes, layout, sms)[1] * shapes.k / (4e8 * shapes.k / (shapes.k + 100.0))


def test_a_sweep_is_recovered() -> None:
    layout = Layout(128, 64, 1)
    sweep = products(*[(1, 1280, 640, 2.0**k) for k in range(5, 14)])
    seconds = truth(sweep, layout, 10.0)
    fit = fit_table(place(sweep, layout, 10.0), seconds, OVERHEAD_S)
    assert fit.error < 0.03
    between = products((1, 1280, 640, 384), (1, 1280, 640, 3000))
    at = place(between, layout, 10.0)
    found = OVERHEAD_S + np.exp(at.log_work) / throughput(fit.log_table[None], at)
    np.testing.assert_allclose(found, truth(between, layout, 10.0), rtol=0.03)


def wide(ops: OpTable) -> Any:
    return ops.column("n") >= 500


def kernel(ops: OpTable, gpu: Any) -> list[str]:
    return ["turing_sgemm_128x64_tn" if of else "turing_sgemm_32x32_sliced1x4_tn" for of in wide(ops)]


def time(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    m, n, k = (ops.column(name) for name in "mnk")
    shapes, sms = Products(m * 0 + 1, m, n, k), gpus.column("sm_count")[gpu]
    return np.where(wide(ops), truth(shapes, Layout(128, 64, 1), sms), 0.4 * truth(shapes, Layout(32, 32, 1), sms))


@pytest.fixture(scope="module")
def learned() -> KernelTable:
    run = measured("linear", random_shapes("mnk", 2500), GPUS, (0,), time, kernel=kernel)
    stream = measured("relu", random_shapes("bh", 200), GPUS, (0,), stream_s)
    return KernelTable().fit_operators([run, stream], GPUS)


def stream_s(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    return 5e-6 + 8.0 * ops.column("b") * ops.column("h") / 2e11


def ask(predictor: KernelTable, ops: OpTable, gpu: int) -> Any:
    i = np.arange(len(ops))
    return predictor.predict(ops, GPUS, i, i * 0 + gpu, evidence=no_evidence(ops))


def test_two_kernels_and_the_choice_between_them_are_recovered(learned: KernelTable) -> None:
    ops = operators("linear", *random_shapes("mnk", 300, seed=5))
    on = np.zeros(300, dtype=np.intp)
    answer = ask(learned, ops, 0)
    error = np.abs(answer.latency_s / time(ops, GPUS, on) - 1)
    assert np.median(error) < 0.02
    assert error.mean() < 0.06
    assert (answer.group == operator_codes(ops.kind, ops.dtype, S_SEEN)).mean() > 0.9


def test_k_sweeps_of_few_depths_are_enough() -> None:
    sizes, depths = ((4096, 2048), (512, 256)), (64, 256, 1024, 4096)
    sweeps = [{"m": m, "n": n, "k": k} for m, n in sizes for k in depths]
    predictor = KernelTable().fit_operators([measured("linear", sweeps, GPUS, (0,), time, kernel=kernel)], GPUS)
    between = operators("linear", *({"m": m, "n": n, "k": 3000} for m, n in sizes))
    on = np.zeros(len(between), dtype=np.intp)
    np.testing.assert_allclose(ask(predictor, between, 0).latency_s, time(between, GPUS, on), rtol=0.15)


def test_only_siblings_share_their_table(learned: KernelTable) -> None:
    ops = operators("relu", {"b": 512, "h": 512}, {"b": 2**18, "h": 4096})
    mine, lent, other = (ask(learned, ops, gpu) for gpu in (0, 1, 2))
    # Twice the SMs and the bandwidth: half the device time, the same overhead.
    floor = learned.cells_["relu fp32"].kernels[0].overhead_s
    np.testing.assert_allclose(lent.latency_s - floor, (mine.latency_s - floor) / 2)
    assert lent.group[0] == operator_codes(ops.kind[:1], ops.dtype[:1], S_SIBLING)[0]
    assert lent.group[1] == operator_codes(ops.kind[:1], ops.dtype[:1], S_UNSEEN_OUTSIDE)[0]
    assert mine.group[1] == operator_codes(ops.kind[:1], ops.dtype[:1], S_SEEN_OUTSIDE)[0]
    assert np.isnan(other.latency_s).all()


def test_backward_is_two_products(learned: KernelTable) -> None:
    forward = operators("linear", {"m": 512, "n": 768, "k": 320})
    back = operators("linear", {"m": 512, "n": 768, "k": 320, "backward": 1})
    parts = operators("linear", {"m": 512, "n": 320, "k": 768}, {"m": 320, "n": 768, "k": 512})
    # dX = dY W is m x k over n, dW = dY^T X is as large as k x n over m.
    assert ask(learned, back, 0).latency_s[0] == pytest.approx(ask(learned, parts, 0).latency_s.sum())
    assert ask(learned, forward, 0).latency_s[0] < ask(learned, back, 0).latency_s[0]


def test_a_line_in_bytes_and_instructions_is_recovered() -> None:
    draw = np.random.default_rng(0)
    metrics = draw.uniform(1e5, 1e8, (4, 200))
    slopes = np.array([1e-11, 0.0, 2e-12, 3e-13])
    line = fit_line(metrics, 4e-6 + slopes @ metrics, 4e-6)
    np.testing.assert_allclose(line, [4e-6, *slopes], rtol=1e-4, atol=1e-18)


def test_the_kernel_chooser_separates_by_threshold_and_restores_its_state() -> None:
    features = np.linspace(0, 1, 200)[:, None]
    kernel = np.digitize(features[:, 0], [0.3, 0.7])
    chooser = KernelChooser.fitted(features, kernel)
    np.testing.assert_array_equal(chooser.choose(features), kernel)
    np.testing.assert_array_equal(KernelChooser.from_state(chooser.state()).choose(features), kernel)
    assert KernelChooser.fitted(features, kernel * 0).choose(features).max() == 0


def test_custom_kernels_follow_the_same_rule() -> None:
    def attention_s(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        blocks = ops.column("batch") * ops.column("heads") * np.ceil(ops.column("query_length") / 64)
        return 8e-6 + np.ceil(blocks / gpus.column("sm_count")[gpu]) * ops.column("context_length") * 3e-9

    shapes = [
        {"batch": b, "heads": 16, "head_dim": 128, "query_length": q, "context_length": q}
        for b in (1, 2, 4, 8, 16, 32)
        for q in (64, 128, 200, 256, 400, 512, 700, 1024, 2048, 3000, 4096)
    ]
    run = measured(
        "attention_prefill", shapes, GPUS, (0,), attention_s, kernel=lambda ops, gpu: ["vllm_flash_attn_fa3"] * len(ops)
    )
    predictor = KernelTable().fit_operators([run], GPUS)
    ops = operators(
        "attention_prefill", *[dict(shapes[k], context_length=shapes[k]["query_length"]) for k in range(60)]
    )
    found = ask(predictor, ops, 0).latency_s
    assert np.mean(np.abs(found / attention_s(ops, GPUS, np.zeros(60, dtype=np.intp)) - 1)) < 0.1
