"""NeuSight's equations by hand, the choice of tiles, and a known law recovered by the networks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.bands.groups import S_SEEN, S_UNTRAINED, operator_codes
from app.errors import NotTrained
from app.ops import OP_CODE, OPS
from app.predictors.papers.base import Cell
from app.predictors.papers.neusight.equations import (
    Decomposed,
    Tiles,
    decompose,
    devices_of,
    kernels_of,
    tile_of_kernel,
    tiles_of_grids,
)
from app.predictors.papers.neusight.network import LEAST_UTILISATION, Examples, Network, utilisation
from app.predictors.papers.neusight.predictor import TileWave, even_tiles, evenly
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from tests.unit.kernels import TURING
from tests.unit.measured import measured, no_evidence, random_shapes
from tests.unit.operators import mixed, operators

pytestmark = pytest.mark.slow

# 10 SMs, 10 TFLOP/s, 500 GB/s, 1 MB of L2, 8 GB.
SMALL = replace(
    TURING,
    id="small",
    sm_count=10,
    peak_flops={"fp32": 1e13},
    memory_bandwidth_bytes_per_s=5e11,
    l2_bytes=1e6,
    memory_bytes=8e9,
)
BIG = replace(SMALL, id="big", sm_count=40, peak_flops={"fp32": 4e13}, memory_bandwidth_bytes_per_s=2e12)
NEAR = replace(BIG, id="near", sm_count=36)
GPUS = GpuTable.from_specs([SMALL, BIG, NEAR])
FP32 = DTYPE_CODE["fp32"]


def decomposed(table: OpTable, tile: tuple[float, float], gpu: int = 0) -> Decomposed:
    op = OPS[int(table.kind[0])]
    ((_, kernels),) = kernels_of(op, table, FP32)
    on = devices_of(GPUS, op, FP32).take(np.full(len(table), gpu))
    return decompose(kernels, np.array([tile] * len(table)).T, on, op, FP32)


def ask(model: TileWave, table: OpTable, gpu: int = 0) -> Any:
    n = len(table)
    return model.predict(table, GPUS, np.arange(n), np.full(n, gpu), evidence=no_evidence(table))


def test_a_product_in_tiles_and_waves() -> None:
    found = decomposed(operators("bmm", {"b": 3, "m": 200, "n": 300, "k": 64}), (64, 128))
    # 3 x ceil(200 / 64) x ceil(300 / 128) = 36 tiles on 10 SMs: 4 waves.
    assert found.waves[0] == 4
    # 11.52 MFLOP a matrix... intensity 2 m n k / 4 (m k + k n + m n) = 7.68e6 / 368,000 FLOP/B: 10.4 TFLOP/s of
    # bandwidth, so the peak is the roof; a tile is 2 x 64 x 128 x 64 FLOP, ten at a time, four times.
    tile_flops, tile_bytes = 2 * 64 * 128 * 64, 4 * (64 * 64 + 64 * 128 + 64 * 128)
    roofline = min(7.68e6 / 368_000 * 5e11, 1e13)
    assert found.ideal_s[0] == pytest.approx(4 * 10 * tile_flops / roofline)
    compute, memory = tile_flops / 1e12, tile_bytes / 5e10
    expected = [compute, memory, 4 * tile_bytes / 1e5, 4 * tile_bytes / 8e8, compute / memory]
    np.testing.assert_allclose(2.0 ** found.inputs[0], expected)


def test_rows_and_elements_in_tiles() -> None:
    # A row a tile: 25 tiles on 10 SMs.
    assert decomposed(operators("softmax", {"b": 25, "h": 4096}), (np.nan, np.nan)).waves[0] == 3
    # The tensor flat: ceil(25 x 100 / 512) = 5 tiles, one wave; intensity 1 FLOP per 12 bytes.
    add = decomposed(operators("add", {"b": 25, "h": 100}), (1, 512))
    assert add.waves[0] == 1
    assert add.ideal_s[0] == pytest.approx(10 * 512 * 12 / 5e11)


def test_utilisation_is_bounded() -> None:
    alpha, beta = np.array([0.9, 0.1, 1.0]), np.array([0.4, 0.9, 0.0])
    np.testing.assert_allclose(utilisation(alpha, beta, np.array([4.0, 1.0, 1.0])), [0.8, LEAST_UTILISATION, 1.0])


def test_backward_of_a_product_is_two() -> None:
    table = operators("linear", {"m": 8, "n": 32, "k": 16, "backward": 1})
    parts = kernels_of(OPS[OP_CODE["linear"]], table, FP32)
    assert [part.sizes[:, 0].tolist() for _, part in parts] == [[1, 8, 16, 32], [1, 32, 16, 8]]
    assert sum(part.work.flops[0] for _, part in parts) == 4 * 8 * 32 * 16


def test_tiles_by_name_and_grid() -> None:
    assert tile_of_kernel("ampere_sgemm_128x64_tn") == (64, 128)
    assert tile_of_kernel("cutlass_80_simt_sgemm_128x256_8x4_tn_align1") == (256, 128)
    assert tile_of_kernel("ampere_sgemm_32x32_sliced1x4_tn") == (32, 32)
    assert tile_of_kernel("Cijk_Alik_Bljk_SB_MT128x96x32_MI32x32x2x1_SE") == (96, 128)
    assert np.isnan(tile_of_kernel("splitKreduce_kernel1x4")).all()
    grid = np.array([[4.0, np.nan], [2.0, 1.0], [1.0, 1.0]])
    tiles = tiles_of_grids(np.array([4000.0, 100.0]), grid)
    assert tiles[:, 0].tolist() == [1.0, 512.0]
    assert np.isnan(tiles[1, 1])


def test_tiles_come_from_the_nearest_measured_product_and_gpu() -> None:
    sizes = np.array([[1.0] * 4, [64.0, 4096.0, 64.0, 4096.0], [64.0, 4096.0, 64.0, 4096.0], [64.0] * 4])
    tile = np.array([[32.0, 128.0, 64.0, 64.0], [32.0, 64.0, 64.0, 64.0]])
    figures = np.log(np.array([[10.0, 40.0, 36.0]]))
    tiles = Tiles.measured(sizes, tile, np.array([0, 0, 1, 1]), GPUS.ids, figures)
    assert tiles.gpus == ("small", "big")
    # One point is enough where all have one tile.
    assert np.diff(tiles.first).tolist() == [2, 1]
    assert tiles.nearest_gpus(["near", "big", "small"], figures[:, ::-1]).tolist() == [1, 1, 0]
    asked = np.array([[1.0, 1.0], [100.0, 2000.0], [100.0, 2000.0], [64.0, 64.0]])
    np.testing.assert_array_equal(tiles.choose(asked, np.array([0, 0])), [[32, 128], [32, 64]])
    np.testing.assert_array_equal(tiles.choose(asked, np.array([1, 1])), 64)
    newer = Tiles.measured(sizes[:, :1], tile[:, :1], np.array([0]), GPUS.ids, figures).over(tiles)
    assert (newer.gpus, np.diff(newer.first).tolist()) == (("small", "big"), [1, 1])


def test_without_measured_tiles_the_most_even_tile_is_used() -> None:
    sizes = np.array([[1.0], [1024.0], [1024.0], [64.0]])
    # 32 tiles of 256 x 128 in one wave of 32; of 40 SMs smaller ones waste less.
    assert even_tiles(sizes, np.array([32.0]))[:, 0].tolist() == [256, 128]
    assert even_tiles(sizes, np.array([40.0])).prod() < 256 * 128


def test_a_network_recovers_a_known_law() -> None:
    draw = np.random.default_rng(0)
    inputs = draw.uniform(-3, 3, (4000, 5))
    waves = np.rint(2.0 ** draw.uniform(0, 6, 4000))
    used = 0.9 / (1 + np.exp(-inputs[:, 0])) - 0.01 / waves
    ideal = 2.0 ** draw.uniform(-15, 0, 4000)
    examples = Examples(inputs, waves, ideal, ideal / np.maximum(used, LEAST_UTILISATION))
    learn, test = np.arange(3000), np.arange(3000, 4000)
    network = Network.fit(examples.take(learn), decay=0.1)
    found = utilisation(*network.predict(inputs[test]), waves[test])
    assert np.mean(np.abs(used[test] / found - 1)) < 0.05
    beyond = network.predict(np.full((1, 5), 40.0)), network.predict(np.full((1, 5), 400.0))
    np.testing.assert_array_equal(*beyond)


def law(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
    """80 % of the roofline, in 64 x 128 tiles, less a tenth in a single wave."""
    op = OPS[int(ops.kind[0])]
    ((_, kernels),) = kernels_of(op, ops, FP32)
    found = decompose(
        kernels, np.array([[64.0], [128.0]]) + np.zeros(len(gpu)), devices_of(gpus, op, FP32).take(gpu), op, FP32
    )
    return found.ideal_s / (0.8 - 0.1 / found.waves)


def named(ops: OpTable, gpu: Any) -> list[str]:
    return ["any_sgemm_128x64_tn"] * len(ops)


@pytest.fixture(scope="module")
def model() -> TileWave:
    runs = [measured("linear", random_shapes("mnk", 400, high=8192), GPUS, (0, 1), law, kernel=named)]
    return TileWave().fit_operators(runs, GPUS)


def test_a_law_of_tiles_and_waves_is_learned(model: TileWave) -> None:
    table = operators("linear", *random_shapes("mnk", 100, high=8192, seed=1))
    for gpu in range(3):
        answer, true = ask(model, table, gpu), law(table, GPUS, np.full(len(table), gpu))
        assert np.mean(np.abs(answer.latency_s / true - 1)) < 0.05
    assert ask(model, table).group[0] == operator_codes(table.kind, table.dtype, S_SEEN)[0]


def test_tiles_and_networks_are_small(model: TileWave) -> None:
    cell = model.cells_["linear fp32"]
    assert len(cell.tiles.tile) == 2
    assert sum(part.nbytes for part in cell.network.weights) < 50_000


def test_backward_is_the_sum_of_its_products(model: TileWave) -> None:
    backward = operators("linear", {"m": 512, "n": 2048, "k": 1024, "backward": 1})
    parts = operators("linear", {"m": 512, "n": 1024, "k": 2048}, {"m": 2048, "n": 1024, "k": 512})
    assert ask(model, backward).latency_s[0] == pytest.approx(ask(model, parts).latency_s.sum(), rel=1e-12)


def test_unknown_operators_are_memory_bound_and_untrained_ones_nan(model: TileWave) -> None:
    table = mixed(
        [
            operators("rms_norm", {"b": 1000, "h": 1000}),
            operators("memory", {"bytes": 1e9}),
            operators("softmax", {"b": 8, "h": 8}),
            operators("linear", {"m": 8, "n": 8, "k": 8}, dtype="bf16"),
            operators("all_reduce", {"message_bytes": 1e6, "devices": 2}),
        ]
    )
    answer = ask(model, table)
    np.testing.assert_allclose(answer.latency_s[:2], [(8e6 + 4e3) / 5e11, 2e-3])
    assert np.isnan(answer.latency_s[2:]).all()
    assert (answer.group == operator_codes(table.kind, table.dtype, S_UNTRAINED)).all()


def test_unmeasured_elementwise_operators_use_their_familys_network() -> None:
    def third(ops: OpTable, gpus: GpuTable, gpu: Any) -> Any:
        return decomposed_s(ops, gpu) / 0.3

    def decomposed_s(ops: OpTable, gpu: Any) -> Any:
        op = OPS[int(ops.kind[0])]
        ((_, kernels),) = kernels_of(op, ops, FP32)
        tile = np.array([[1.0], [512.0]]) + np.zeros(len(gpu))
        return decompose(kernels, tile, devices_of(GPUS, op, FP32).take(gpu), op, FP32).ideal_s

    shapes = random_shapes("bh", 300)
    model = TileWave().fit_operators([measured(name, shapes, GPUS, (0, 1), third) for name in ("relu", "add")], GPUS)
    assert model.cells_["relu fp32"].network is model.cells_["add fp32"].network
    silu = operators("silu", *random_shapes("bh", 50, seed=2))
    answer = ask(model, silu).latency_s
    assert np.mean(np.abs(answer / third(silu, GPUS, np.zeros(50, dtype=np.intp)) - 1)) < 0.1


def test_gpus_have_equal_weight() -> None:
    gpu = np.array([0] * 10 + [1] * 3)
    assert evenly(gpu, gpu >= 0).tolist() == list(range(13))
    assert evenly(gpu, gpu == 1).tolist() == [10, 11, 12]


def test_too_few_rows_raise_not_trained() -> None:
    few = measured("linear", random_shapes("mnk", 10), GPUS, (0,), law, kernel=named)
    conv = measured("copy", random_shapes("bh", 60), GPUS, (0,), lambda ops, gpus, gpu: np.ones(len(ops)))
    with pytest.raises(NotTrained, match="too few"):
        TileWave().fit_operators([few, conv], GPUS)
    nothing = Cell(OPS[OP_CODE["linear"]], "fp32", np.arange(0), few.rows.ops.take(np.arange(0)), np.arange(0))
    assert TileWave()._learned(nothing) is None
