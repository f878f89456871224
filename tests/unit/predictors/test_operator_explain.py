from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from app.bands.conformal import Intervals
from app.engine.engine import finished
from app.ops import kinds_of
from app.ops.gemm import CANDIDATES
from app.predictors.auto.operators.explain import Explanation, explained
from app.predictors.auto.operators.models.features import FEATURES, FULL, LINK_OR_TURNS, SPLITS, Rows, shape_features
from app.predictors.auto.operators.models.training_samples import fill_all, samples
from app.predictors.auto.predictor import Auto
from app.predictors.physics.analytic_model import (
    ANY_TILE,
    TERMS,
    TIME,
    composed,
    devices_of,
    fill_terms,
    work_s,
)
from app.predictors.physics.clock_model import IN_NETWORK, bandwidths, compute_rates
from app.predictors.physics.operator_features import operator_features, products_of
from app.predictors.roofline import hardware_limit
from app.tables.gpus import GpuTable
from app.tables.measurements import Evidence, Measurements
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import Predictions
from tests.unit.kernels import TURING, VOLTA
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import mixed, operators

SLOT = replace(TURING, id="slot", architecture="slot", board_power_w=70.0)
TWIN = replace(TURING, id="twin", sm_count=TURING.sm_count + 4, memory_bandwidth_bytes_per_s=900e9)
GPUS = GpuTable.from_specs([TURING, VOLTA, SLOT, TWIN])
SEEN, UNSEEN, FED_BY_SLOT, SIBLING = range(4)


def slow(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    limit = hardware_limit(ops, gpus, np.arange(len(gpu)), gpu).latency_s
    return 3e-5 + (1.8 + 0.3 * np.sin(np.arange(len(gpu)))) * limit


@cache
def trained_auto() -> Auto:
    """`auto` trained on operators of GPUs that it has seen."""
    return Auto().fit_operators(
        [
            measured("linear", random_shapes("mnk", 450), GPUS, (SEEN, FED_BY_SLOT), slow),
            measured("softmax", random_shapes("bh", 60), GPUS, (SEEN,), slow),
        ],
        GPUS,
    )


ASKED = mixed(
    [
        operators("linear", {"m": 512, "n": 640, "k": 320}, {"m": 2**17, "n": 640, "k": 320}),
        operators("linear", {"m": 512, "n": 640, "k": 320, "eager": 0}),
        operators("softmax", {"b": 1024, "h": 512}),
        operators("relu", {"b": 4096, "h": 512}),
    ]
)


def ask(
    predictor: Auto, ops: OpTable, target: int, evidence: Evidence | None = None
) -> tuple[Predictions, list[Explanation]]:
    i, j = np.arange(len(ops)), np.full(len(ops), target)
    estimate = predictor.predict(ops, GPUS, i, j, evidence=evidence or no_evidence(ops))
    answer = finished(estimate, hardware_limit(ops, GPUS, i, j), Intervals.prior().log_offsets(0.8), 0.8)
    return answer, explained(predictor.operators_, ops, GPUS, np.full(len(ops), target), answer)


def combine(answer: Predictions, found: list[Explanation]) -> None:
    """Members, physics and what is left of corrections make up the answers."""
    for one, latency_s in zip(found, answer.latency_s, strict=True):
        physics, *learned = one.members
        assert physics.source == "physics"
        correction = one.fading * sum(member.weight * member.log_correction for member in learned)
        if one.whole:
            combined = max(physics.latency_s * np.exp(correction), one.physics.limit)
        else:
            terms = np.array([[figure] for figure in (*one.physics, np.nan)])
            combined = composed(terms, 0, work_s(terms, 0) * np.exp(correction))
        assert combined == pytest.approx(latency_s, rel=1e-6)


@pytest.mark.parametrize("target", [SEEN, UNSEEN, FED_BY_SLOT, SIBLING])
def test_members_combine_to_the_prediction(target: int) -> None:
    combine(*ask(trained_auto(), ASKED, target))


def test_explanations_name_the_borrowed_dtype_of_a_collective() -> None:
    shapes = [{"message_bytes": 2.0**size, "devices": 2} for size in np.arange(12, 28, 0.03).tolist()]
    taught = {
        dtype: measured("all_reduce", shapes, GPUS, (gpu,), slow, dtype=dtype)
        for gpu, dtype in enumerate(("fp16", "bf16"))
    }
    asked = [*shapes[::90], {"message_bytes": 2.0**31, "devices": 2}, {"message_bytes": 2.0**20, "devices": 8}]
    answer, found = ask(
        Auto().fit_operators(list(taught.values()), GPUS), operators("all_reduce", *asked, dtype="bf16"), SEEN
    )
    combine(answer, found)
    assert {(one.learned, one.members[1].source) for one in found} == {("fp16", "own")}
    assert [one.fading == 1.0 for one in found] == [True] * (len(asked) - 1) + [False]


@pytest.mark.parametrize("target", [SEEN, SIBLING])
def test_explanations_name_both_neighbouring_device_counts(target: int) -> None:
    shapes = [{"message_bytes": 2.0**size, "devices": n} for size in range(12, 28) for n in (2, 8)]
    trained = Auto().fit_operators([measured("all_reduce", shapes, GPUS, (SEEN,), slow, dtype="fp16")], GPUS)
    asked = [{"message_bytes": 2.0**size, "devices": n} for size in (4, 16, 31) for n in (2, 3, 4, 8, 64)]
    combine(*ask(trained, operators("all_reduce", *asked, dtype="fp16"), target))


def test_explanations_name_the_members_and_the_situation() -> None:
    _, seen = ask(trained_auto(), ASKED, SEEN)
    assert [[member.source for member in one.members] for one in seen] == [["physics", "own"]] * 4 + [["physics"]]
    assert [one.situation for one in seen] == ["seen", "seen_outside", "seen", "calibrated", "untrained"]
    assert [one.learned for one in seen] == ["fp32"] * 4 + [None]
    assert [one.whole for one in seen] == [True, True, False, True, True]
    assert seen[1].fading < seen[0].fading == 1.0
    _, unseen = ask(trained_auto(), ASKED, UNSEEN)
    assert [(member.source, member.gpu) for member in unseen[0].members[1:]] == [("sibling", GPUS.ids[SEEN])]
    _, slot = ask(trained_auto(), ASKED, FED_BY_SLOT)
    assert [one.members[1].weight for one in slot[:3]] == [0.5] * 3
    assert [one.situation for one in slot[:3]] == ["calibrated", "seen_outside", "calibrated"]


def test_a_measured_operator_is_predicted_by_its_measurement() -> None:
    first = np.array([0])
    hit = Evidence(Measurements(ASKED.take(first), np.array([SEEN]), np.array([1e-3])), first)
    answer, found = ask(trained_auto(), ASKED, SEEN, hit)
    assert [one.situation for one in found[:2]] == ["measured", "seen_outside"]
    assert [(member.source, member.weight) for member in found[0].members] == [
        ("physics", 0.0),
        ("own", 0.0),
        ("measured", 1.0),
    ]
    assert found[0].members[-1].latency_s == answer.latency_s[0] == 1e-3


def test_a_matrix_product_by_hand() -> None:
    gemm = operators("linear", {"m": 4096, "n": 4096, "k": 1024, "eager": 0})
    answer, (one,) = ask(Auto(), gemm, SEEN)
    flops, moved = 2.0 * 4096 * 4096 * 1024, 4.0 * (2 * 4096 * 1024 + 4096 * 4096)
    rate, bandwidth = compute_rates(GPUS)[IN_NETWORK, DTYPE_CODE["fp32"], SEEN], bandwidths(GPUS)[SEEN]
    assert one.roof.intensity == pytest.approx(flops / moved)
    assert one.roof.ridge == pytest.approx(rate / bandwidth)
    assert one.roof.compute_share == pytest.approx(flops / rate / answer.latency_s[0])
    assert moved > GPUS.column("l2_bytes")[SEEN]
    assert one.roof.dram_share == pytest.approx(moved / bandwidth / answer.latency_s[0])
    assert one.tile is not None
    assert (one.tile.rows, one.tile.columns) in [tuple(tile) for tile in CANDIDATES.astype(int)]
    assert one.tile.blocks == 4096 / one.tile.rows * 4096 / one.tile.columns
    sms = GPUS.column("sm_count")[SEEN]
    assert one.tile.waves == pytest.approx(one.tile.blocks / sms)
    assert one.tile.wave_efficiency == min(one.tile.waves, 1.0)
    assert 0 < one.clock_hz <= GPUS.column("boost_clock_hz")[SEEN]


def test_the_tile_of_winograd_is_that_of_its_products() -> None:
    shape = {"b": 64, "in_channels": 512, "out_channels": 512, "kernel_size": 3, "input_size": 24, "padding": 1}
    _, (one,) = ask(Auto(), operators("conv2d", shape), SEEN)
    assert one.tile is not None
    assert (one.tile.rows, one.tile.columns) == (128, 64)
    assert one.tile.blocks == 36 * (64 * 6 * 6 / 128) * (512 / 64)


def test_features_show_how_decoding_fills_the_sms() -> None:
    slots = 2 * TURING.sm_count  # blocks at once
    one = {"batch": 1, "heads": 16, "kv_heads": 8, "head_dim": 64, "context_length": 256 * slots}
    rows = operators(
        "attention_decode", one, one | {"batch": slots}, one | {"batch": slots, "window": 256}, dtype="fp16"
    )
    features = samples(Measurements(rows, np.full(3, SEEN), np.ones(3)), GPUS).features
    cut = slots // 8
    turns = np.ceil(slots / cut)
    np.testing.assert_allclose(features[FULL], [8 * cut / slots, 1, 1], rtol=1e-5)
    np.testing.assert_allclose(np.exp(features[LINK_OR_TURNS]), [turns, slots, 1], rtol=1e-5)
    np.testing.assert_allclose(np.exp(features[SPLITS]), [turns / 8, 1, 1], rtol=1e-5)
    product = operators("linear", {"m": 8, "n": 4096, "k": 4096}, dtype="fp16")
    together, j = mixed([product, rows]), np.full(4, SEEN)
    kinds = kinds_of(together)
    among = operator_features(together, kinds, products_of(kinds))
    alone = operator_features(product, kinds_of(product), products_of(kinds_of(product)))
    assert among.loops[0].tolist() == [0, 8, 8 * slots, 16 * slots]
    assert alone.loops.shape[1] == 0
    shape = shape_features(kinds, products_of(kinds), 4)
    every, both = Rows(shape, among, devices_of(GPUS), np.empty((TERMS, 4))), np.empty((FEATURES, 4), dtype=np.float32)
    fill_terms(among, every.devices, (np.arange(4), j), np.full(4, ANY_TILE), every.terms)
    fill_all(every, j, both)
    np.testing.assert_array_equal(both[:, 1:], features)
    np.testing.assert_array_equal(both[:, :1], samples(Measurements(product, j[:1], np.ones(1)), GPUS).features)


def test_only_products_have_tiles_and_a_burst_runs_at_boost_clock() -> None:
    _, (softmax,) = ask(Auto(), operators("softmax", {"b": 4096, "h": 512}), SEEN)
    assert softmax.tile is None
    _, (burst,) = ask(Auto(), operators("linear", {"m": 512, "n": 512, "k": 512, "burst": 1}), SEEN)
    assert burst.clock_hz == GPUS.column("boost_clock_hz")[SEEN]


def test_the_roofline_excludes_tile_padding() -> None:
    row = operators("attention_prefill", {"batch": 1, "heads": 1, "head_dim": 64, "context_length": 16}, dtype="bf16")
    _, (one,) = ask(Auto(), row, SEEN)
    assert one.roof.intensity == pytest.approx(4.0 * 64 * (16 * 17 / 2) / (4 * 2.0 * 16 * 64))


def test_libraries_with_one_tile_always_use_it() -> None:
    only = 3  # 128 x 64, which no product this narrow would be given

    def time(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return samples(Measurements(ops, gpu, np.ones(len(gpu))), gpus, np.full(len(gpu), only)).terms[TIME]

    runs = measured("bmm", random_shapes("bmnk", 60, low=16, high=600), GPUS, (SEEN,), time)
    answer, found = ask(
        Auto().fit_operators([runs], GPUS), operators("bmm", {"b": 999, "m": 64, "n": 640, "k": 64}), SEEN
    )
    assert found[0].tile is not None
    assert (found[0].tile.rows, found[0].tile.columns) == tuple(CANDIDATES[only])
    combine(answer, found)
