"""Limits and untrained times of operators: tiles, launch floors, links, run states."""

from dataclasses import replace

import numpy as np
import pytest

from app.bands.groups import PRIOR_HALF_WIDTH
from app.engine.catalogue import load_seed_specs
from app.ops import OPS, kinds_of
from app.ops.figures import Grid, Products
from app.ops.gemm import CANDIDATES, fill_grid, wave_efficiency
from app.predictors.auto.operators.model import Learned
from app.predictors.physics.clock_model import LANES_CAP, bandwidths, compute_rates
from app.predictors.physics.operator_features import OperatorFeatures, operator_features, products_of
from app.predictors.priors import HOP_S, IN_TURN_SHARE
from app.predictors.roofline import hardware_limit, roofline
from app.stacks.registry import code_of
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, OpTable
from app.tables.predictions import BOUNDS, Estimate
from tests.unit.operators import mixed, operators

PRIOR_OF = {op.name: op.prior for op in OPS}
CATALOG = Catalog(load_seed_specs())
NAMES = ("h100-sxm5-80gb", "nvidia-l4", "l40s", "tesla-p100-pcie-16gb", "amd-instinct-mi210")
GPUS = GpuTable.from_specs([CATALOG.resolve(name) for name in NAMES])
H100, L4, L40S, P100, MI210 = range(5)
BIG = {"m": 8192, "n": 8192, "k": 8192}


def ask(table: OpTable, gpu: int) -> Estimate:
    return Learned().estimate(table, GPUS, np.arange(len(table)), np.full(len(table), gpu))


def op_features(table: OpTable) -> OperatorFeatures:
    kinds = kinds_of(table)
    return operator_features(table, kinds, products_of(kinds))


def limit_s(table: OpTable, gpu: int) -> float:
    return float(hardware_limit(table, GPUS, np.array([0]), np.array([gpu])).latency_s[0])


def test_tiles_of_a_product() -> None:
    tiles = Grid(np.empty((len(CANDIDATES), 1)), np.empty((len(CANDIDATES), 1)), np.empty(1))
    fill_grid(Products(*(np.array([size]) for size in (2.0, 4096.0, 4000.0, 1024.0))), tiles)
    square = CANDIDATES.tolist().index([128, 128])
    assert tiles.blocks[square, 0] == 2 * 32 * 32
    assert tiles.fill[square, 0] == pytest.approx(4000 / 4096)
    assert tiles.splits[0] == 4


def test_batches_of_narrow_products_have_no_small_tiles() -> None:
    # Half of a tile's columns take as long as all of them; one product by itself has a smaller tile
    batch = [{"b": 4096, "m": 256, "n": n, "k": 1024} for n in (32, 64)]
    narrow, wide = ask(operators("bmm", *batch), P100).latency_s
    assert narrow == pytest.approx(wide, rel=0.01)
    narrow, wide = ask(operators("linear", *[{"m": 1 << 20, "n": n, "k": 1024} for n in (32, 64)]), P100).latency_s
    assert narrow < 0.8 * wide


def test_batched_products_use_no_split_k() -> None:
    # What would keep one SM busy is cut into four where a library multiplies single matrices
    size = {"m": 128, "n": 128, "k": 1024}
    single, batch = op_features(operators("linear", size)), op_features(operators("bmm", {"b": 1, **size}))
    assert single.splits[0] == 4
    assert batch.splits[0] == 1
    # A tile of a batch pays for its ends as for eight steps more
    np.testing.assert_allclose(batch.fill, single.fill * 1024 / 1032)


def test_waves() -> None:
    # 1,024 blocks on 108 SMs: 9.48 waves take their time, not that of ten
    assert wave_efficiency(1024, 1, 108, False) == 1
    # but of ten where all blocks have the only tile there is
    assert wave_efficiency(1024, 1, 108, True) == pytest.approx(1024 / 1080)
    assert wave_efficiency(20, 1, 40, True) == 0.5
    # Ten blocks on 40 SMs, each cut into four
    assert wave_efficiency(10, 4, 40, False) == 1
    assert wave_efficiency(10, 1, 40, False) == 0.25


def test_cut_tensor_units_reach_a_higher_share_of_peak() -> None:
    names = ("l40s", "l40", "rtx-6000-ada", "rtx-4090", "h100-sxm5-80gb", "h20")
    gpus = GpuTable.from_specs([CATALOG.resolve(name) for name in names])
    np.testing.assert_array_equal(gpus.column("cut_bf16_tensor"), [1, 2, 1, 2, 1, 4])
    np.testing.assert_array_equal(gpus.column("cut_int8_tensor"), [1, 2, 1, 1, 1, 4])
    attention = {"batch": 1, "heads": 8, "kv_heads": 8, "head_dim": 128, "query_length": 8192, "context_length": 8192}
    for op, dims, uncut, cut in (("linear", BIG, 0.85, 0.8), ("attention_prefill", attention, 0.5, 0.6)):
        row = operators(op, dims, dtype="bf16")
        answer = Learned().estimate(row, gpus, np.zeros(6, int), np.arange(6)).latency_s
        used = roofline(row, gpus, np.zeros(6, int), np.arange(6)).latency_s / answer
        assert (used[[0, 2, 4]] < uncut).all(), (op, used)
        assert (used[[1, 3, 5]] > cut).all(), (op, used)
        assert (answer[[1, 5]] > answer[[0, 4]]).all()


def test_sustained_rates_follow_board_power() -> None:
    busy, cool, in_network = compute_rates(GPUS)[:, DTYPE_CODE["fp32"]]
    peak = GPUS.column("peak_fp32_flops")
    np.testing.assert_allclose(cool[L4:MI210], LANES_CAP * peak[L4:MI210])
    # Measured on long FP32 products: L4 (72 W) a third of its boost peak, P100 over nine tenths (modelling.md, 8)
    assert busy[L4] / peak[L4] == pytest.approx(0.33, abs=0.05)
    assert busy[P100] / peak[P100] == pytest.approx(0.93, abs=0.05)
    # Between other operators 95 % of the board power instead of 80: in proportion, the voltage is at its least there;
    # matrix units do not change
    assert in_network[L4] / busy[L4] == pytest.approx(0.95 / 0.8, rel=0.04)
    assert in_network[MI210] == busy[MI210]


def test_without_power_and_process_node_the_clock_is_unchanged() -> None:
    bare = replace(CATALOG.resolve("nvidia-l4"), board_power_w=None, process_node_nm=None)
    busy, cool, in_network = compute_rates(GpuTable.from_specs([bare]))[:, DTYPE_CODE["fp32"], 0]
    assert busy == cool == in_network


def test_bandwidth_by_memory_type() -> None:
    names = ("h100-sxm5-80gb", "nvidia-l4", "rtx-4090", "rtx-pro-6000-server", "arc-pro-b60", "tesla-p4")
    gpus = GpuTable.from_specs([CATALOG.resolve(name) for name in names])
    share = bandwidths(gpus) / gpus.column("memory_bandwidth_bytes_per_s")
    np.testing.assert_allclose(share, [0.87, 0.80, 0.94, 0.95, 0.95, 0.77])


def test_fp32_products_of_an_h200_as_measured() -> None:
    """Our H200 ran a product of 8192 at 50.6 TFLOP/s for a minute, at its boost clock, so no network ran it faster."""
    gpus = GpuTable.from_specs([CATALOG.resolve("h200-sxm-141gb")])
    alone, _, in_network = compute_rates(gpus)[:, DTYPE_CODE["fp32"], 0]
    assert alone == in_network
    table = operators("linear", BIG)
    (seconds,) = Learned().estimate(table, gpus, np.zeros(1, int), np.zeros(1, int)).latency_s
    assert 2.0 * 8192**3 / seconds == pytest.approx(50.6e12, rel=0.03)


def test_fp32_products_of_a_large_ada_card_as_known() -> None:
    """55 to 60 TFLOP/s of a matrix product of 8192 are known of the RTX 4090, where its peak is 82.6."""
    gpus = GpuTable.from_specs([CATALOG.resolve("rtx-4090")])
    assert 48e12 < compute_rates(gpus)[0, DTYPE_CODE["fp32"], 0] < 62e12


def test_fp16_is_computed_in_fp32_where_its_own_pipe_is_slower() -> None:
    gpus = GpuTable.from_specs([CATALOG.resolve(name) for name in ("gtx-1080-ti", "tesla-p100-pcie-16gb")])
    rates = compute_rates(gpus)[0]
    assert rates[DTYPE_CODE["fp16"], 0] == rates[DTYPE_CODE["fp32"], 0]
    assert rates[DTYPE_CODE["fp16"], 1] > 1.8 * rates[DTYPE_CODE["fp32"], 1]


def test_large_products_run_near_the_sustained_rate() -> None:
    answer = ask(operators("linear", BIG, dtype="bf16"), H100)
    rate = compute_rates(GPUS)[0, DTYPE_CODE["bf16"], H100]
    assert answer.latency_s[0] == pytest.approx(2 * 8192**3 / rate, rel=0.2)
    assert BOUNDS[answer.bound[0]] == "compute"


def test_a_cool_card_is_faster() -> None:
    busy, cool = ask(operators("linear", BIG, BIG | {"burst": 1}), L4).latency_s
    assert cool < 0.5 * busy


def test_products_in_networks_run_between_burst_and_sustained_clocks() -> None:
    busy, cool, in_network = ask(operators("linear", BIG, BIG | {"burst": 1}, BIG | {"eager": -1}), L4).latency_s
    assert cool < 0.7 * in_network < 0.7 * 0.85 * busy


def test_small_operators_take_the_launch_time() -> None:
    tiny = {"b": 1, "h": 128}
    eager, graph, half = (
        ask(operators("relu", tiny), H100),
        ask(operators("relu", tiny | {"eager": 0}), H100),
        ask(operators("relu", tiny, dtype="bf16"), H100),
    )
    assert eager.latency_s[0] == PRIOR_OF["add"].host_s
    assert graph.latency_s[0] == pytest.approx(PRIOR_OF["add"].device_s, rel=0.01)
    assert half.latency_s[0] == pytest.approx(graph.latency_s[0], rel=0.01)
    assert BOUNDS[eager.bound[0]] == "launch"


def test_large_elementwise_operators_are_memory_bound() -> None:
    answer = ask(operators("add", {"b": 65536, "h": 8192, "eager": 0}), H100)
    moved_s = 3 * 4 * 65536 * 8192 / (PRIOR_OF["add"].memory * bandwidths(GPUS)[H100])
    assert answer.latency_s[0] == pytest.approx(moved_s, rel=0.02)
    assert BOUNDS[answer.bound[0]] == "memory"


def test_operators_in_networks_read_recent_outputs_from_l2() -> None:
    # Three times 8, 32 and 128 MiB, of which an SM of the H100 finds 25 again
    for rows, left in ((2048, 1.0), (8192, 0.74), (32768, 0.93)):
        row = {"b": rows, "h": 1024}
        alone, between = ask(operators("add", row | {"eager": 0}, row | {"eager": -1}), H100).latency_s
        assert between == pytest.approx(left * alone, rel=0.03)


def test_weights_in_serving_stacks_come_from_dram() -> None:
    row = {"m": 8, "n": 4096, "k": 4096}  # 32 MiB of the L40S's 96, and of six layers in turn
    in_turn, again = ask(operators("linear", row, row | {"eager": 1}, dtype="bf16"), L40S).latency_s
    weights_s = 2 * 4096 * 4096 / (IN_TURN_SHARE * bandwidths(GPUS)[L40S])
    assert in_turn - PRIOR_OF["linear"].device_s == pytest.approx(weights_s, rel=0.01)
    assert again == PRIOR_OF["linear"].host_s


def test_intermediate_results_of_experts_leave_the_l2() -> None:
    # A rank has one expert of 11 MiB, but its kernels pass on rows of all 131,072 pairs
    layer = {"hidden": 2816, "intermediate": 704, "experts": 128, "top_k": 8, "expert_parallel": 128}
    few, many = ask(operators("moe", *(layer | {"tokens": n} for n in (16, 16384)), dtype="bf16"), L40S).latency_s
    handed_on_s = 2 * 2 * 131072 * (2 * 704 + 2816) / (PRIOR_OF["moe"].memory * bandwidths(GPUS)[L40S])
    assert few < 2 * PRIOR_OF["moe"].device_s
    assert handed_on_s < many < 1.2 * handed_on_s


def test_libraries_hand_on_the_pairs_of_other_ranks_or_do_not() -> None:
    layer = {"tokens": 8192, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8, "expert_parallel": 128}
    vllm, trtllm = (layer | {"stack": code_of(name)} for name in ("vllm", "trtllm"))
    triton, cutlass = ask(operators("moe", vllm, trtllm, dtype="bf16"), L40S).latency_s
    assert triton > 4 * cutlass  # 3980 and 300 us measured


def test_marlin_multiplies_at_the_rate_of_older_tensor_units() -> None:
    layer = {"tokens": 16384, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8}
    bf16, int4 = (ask(operators("moe", layer, dtype=dtype), H100).latency_s[0] for dtype in ("bf16", "int4_wo"))
    assert 1.3 * bf16 < int4 < 2.5 * bf16
    ada_bf16, ada_int4 = (ask(operators("moe", layer, dtype=dtype), L40S).latency_s[0] for dtype in ("bf16", "int4_wo"))
    assert ada_int4 < 1.1 * ada_bf16


def test_heads_of_a_group_share_a_block_of_a_window_where_the_library_lets_them() -> None:
    shape = {"batch": 256, "kv_heads": 1, "head_dim": 64, "context_length": 1024, "window": 128}
    table = operators("attention_decode", shape | {"heads": 8}, shape | {"heads": 64}, dtype="bf16")
    few, many = ask(table, L40S).latency_s  # by FlashAttention-2; 75 and 524 us measured
    assert many > 4 * few
    few, many = ask(table, H100).latency_s  # by FlashAttention-3; 24 and 26 us
    assert many < 1.5 * few


def test_strided_tensors_beyond_the_l2_are_read_in_bursts() -> None:
    # 32 rows interleaved, of which a burst of 64 bytes holds 16; few pass through the L2 in sectors of 32 bytes
    few, many = ({"b": 32, "h": rows * 1024, "eager": 0} for rows in (256, 65536))
    for row, least, most in ((few, 1.5, 1.7), (many, 5.9, 6.1)):
        tables = operators("add", row), operators("add_strided", row | {"stride": 32})
        even, strided = ask(mixed(tables), H100).latency_s
        assert least < strided / even < most


def test_random_numbers_are_compute_bound_on_fast_memory_only() -> None:
    row = {"b": 2.0**20, "h": 256, "eager": 0}
    for gpu, least, most in ((H100, 1.1, 1.3), (L4, 1.0, 1.01)):
        drawn, copied = (ask(operators(op, row), gpu).latency_s[0] for op in ("dropout", "relu"))
        assert least < drawn / (9 / 8 * copied) < most


@pytest.mark.parametrize(("op", "short", "long"), [("layer_norm", 512, 1024), ("softmax", 1280, 2048)])
def test_reduction_cost_per_row_does_not_depend_on_its_length(op: str, short: int, long: int) -> None:
    rows = 2.0**20
    answers = ask(operators(op, {"b": rows, "h": short}, {"b": rows, "h": long}), H100).latency_s
    assert answers[1] < 0.95 * long / short * answers[0]
    # What rows that stay in registers take is in their bytes
    answers = ask(operators("softmax", {"b": rows, "h": 512}, {"b": rows, "h": 1024}), H100).latency_s
    assert answers[1] == pytest.approx(2.0 * answers[0], rel=0.03)


def test_short_rows_have_cheaper_reductions() -> None:
    """Heads of 128 elements in BF16, one warp's load: four times as fast as if all of a long row's threads met."""
    rows = {"b": 65536.0, "eager": 0}
    short, long = ask(operators("layer_norm", rows | {"h": 128}, rows | {"h": 1024}, dtype="bf16"), H100).latency_s
    assert 0.2 < short / long < 0.28
    assert short < 6.5e-5


def test_rms_norm_reduces_faster_than_layer_norm() -> None:
    dims = {"b": 65536.0, "h": 1024, "eager": 0}
    of_rms, of_layer = (ask(operators(op, dims, dtype="bf16"), H100).latency_s[0] for op in ("rms_norm", "layer_norm"))
    moved_s = 2 * 2 * 65536 * 1024 / bandwidths(GPUS)[H100]
    assert moved_s < of_rms < 1.2 * moved_s < 0.5 * of_layer


def test_unvectorised_row_tails_take_extra_iterations() -> None:
    rows = {"b": 2.0**20, "eager": 0}
    whole, left = ask(operators("softmax", rows | {"h": 2048}, rows | {"h": 1984}), H100).latency_s
    assert left > 1.1 * whole
    # Memory that is slow enough is all that counts, whatever the threads do
    whole, left = ask(operators("softmax", rows | {"h": 2048}, rows | {"h": 1984}), L4).latency_s
    assert left < whole


def test_softmax_threads_depend_on_bytes() -> None:
    """A thread loads eight elements of 16 bits for four of 32: rows of as many bytes are met by as many threads."""
    rows = {"b": 2.0**20, "eager": 0}
    (full,) = ask(operators("softmax", rows | {"h": 2048}), H100).latency_s
    half, short = ask(operators("softmax", rows | {"h": 4096}, rows | {"h": 2048}, dtype="bf16"), H100).latency_s
    assert half == pytest.approx(full, rel=0.03)
    assert short < 0.6 * half


def test_every_step_of_a_recurrence_is_a_launch() -> None:
    row = {"batch": 1, "input": 8, "hidden": 200, "eager": 0}
    short, long = ask(operators("recurrent", row | {"steps": 10}, row | {"steps": 1000}), H100).latency_s
    assert long == pytest.approx(1004 / 14 * short, rel=0.05)
    at_once = ask(operators("recurrent", row | {"steps": 1000, "hidden": 128}), H100).latency_s[0]
    assert at_once < 0.4 * long


@pytest.mark.parametrize(
    ("dtype", "sizes", "backward", "measured_s"),
    [
        ("bf16", (57, 64, 53, 22, 0), 0, 133e-6),
        ("bf16", (24, 192, 448, 44, 2), 0, 263e-6),
        ("bf16", (5, 256, 23, 64, 2), 1, 1.98e-3),
        ("bf16", (20, 54, 2752, 384, 0), 1, 10.2e-3),
        ("fp32", (38, 1121, 43, 236, 1), 0, 406e-6),  # one kernel of cuDNN runs all steps
        ("fp32", (15, 428, 107, 30, 2), 1, 658e-6),
        ("fp32", (8, 1620, 821, 160, 0), 1, 3.19e-3),
    ],
)
def test_recurrent_layers_wait_for_launches_of_each_step_and_beside_them(
    dtype: str, sizes: tuple[int, ...], backward: int, measured_s: float
) -> None:
    """Measured on an H100; the host launches those backward and in FP32."""
    row = dict(zip(("batch", "input", "hidden", "steps", "cell"), sizes, strict=True))
    row |= {"backward": backward, "eager": float(dtype == "fp32" or backward)}
    found = ask(operators("recurrent", row, dtype=dtype), H100).latency_s[0]
    assert found == pytest.approx(measured_s, rel=0.3)


def test_an_all_reduce_is_bound_by_its_link() -> None:
    # A ring of eight sends 2 x 7/8 of 1 GB from each device, over 450 GB/s
    table = operators("all_reduce", {"message_bytes": 1e9, "devices": 8}, dtype="bf16")
    assert limit_s(table, H100) == pytest.approx(1.75e9 / 450e9)
    answer = ask(table, H100)
    assert BOUNDS[answer.bound[0]] == "communication"
    assert answer.latency_s[0] > limit_s(table, H100)


def collective_s(name: str, gpu: int, *rows: dict[str, float]) -> np.ndarray:
    return ask(operators(name, *({"devices": 8} | row for row in rows), dtype="bf16"), gpu).latency_s


def test_ring_steps_are_sequential() -> None:
    few, many = collective_s("all_gather", H100, *({"message_bytes": 512, "devices": n} for n in (2, 8)))
    assert many - few == pytest.approx(6 * HOP_S, rel=0.05)
    few, many = collective_s("all_reduce", H100, *({"message_bytes": 512, "devices": n} for n in (2, 8)))
    assert many - few == pytest.approx(12 * HOP_S, rel=0.05)
    at_once = collective_s("all_reduce", H100, {"message_bytes": 512, "implementation": 2})
    assert at_once == pytest.approx(collective_s("all_to_all", H100, {"message_bytes": 512}), rel=0.05)
    assert at_once < 0.6 * many


def test_the_local_part_of_a_collective_is_copied() -> None:
    # Half of the bytes are sent, an eighth of them not by eight: 0.57 by the link alone, 0.74 and 0.78 on H100 and A100
    two, eight = collective_s("all_gather", H100, *({"message_bytes": 2**30, "devices": n} for n in (2, 8)))
    assert two / eight == pytest.approx(0.74, abs=0.03)


def test_medium_messages_reach_less_of_nvlink() -> None:
    size = {"message_bytes": 2.0**24}
    middling, large = collective_s("all_gather", H100, size, {"message_bytes": 2.0**30})
    assert middling > 1.3 * large / 64
    middling, large = collective_s("all_gather", L40S, size, {"message_bytes": 2.0**30})
    assert middling == pytest.approx(large / 64, rel=0.05)


def test_devices_on_pcie_share_host_bandwidth() -> None:
    two, eight = collective_s("all_gather", L40S, *({"message_bytes": 2**30, "devices": n} for n in (2, 8)))
    assert eight / two == pytest.approx(1.75 * 2, rel=0.02)


def test_winograd_may_quarter_the_limit() -> None:
    shape = {"b": 64, "in_channels": 256, "out_channels": 256, "kernel_size": 3, "input_size": 58}
    by_one, by_two = operators("conv2d", shape), operators("conv2d", shape | {"stride": 2})
    flops = 2 * 64 * 256 * 256 * 9 * 56 * 56
    peak = GPUS.column("peak_fp32_flops")[P100]
    assert limit_s(by_one, P100) == pytest.approx(flops / 4 / peak)
    assert limit_s(by_two, P100) == pytest.approx(flops / 4 / peak)  # a quarter of the outputs instead


def conv_s(gpu: int, *shapes: dict[str, float], dtype: str = "fp32") -> list[float]:
    usual = {"in_channels": 512, "out_channels": 512, "kernel_size": 3, "input_size": 24, "padding": 1, "b": 64}
    found: list[float] = ask(
        operators("conv2d", *(usual | shape for shape in shapes), dtype=dtype), gpu
    ).latency_s.tolist()
    return found


def test_winograd_is_used_if_it_is_fastest() -> None:
    by_one, by_two = conv_s(P100, {}, {"stride": 2, "input_size": 48})
    assert 0.3 < by_one / by_two < 0.5  # a quarter of the FLOPs, and its transforms
    # Few channels in leave its transforms nothing to save: as long as the plain product at most, whose blocks take 16
    # steps of the sum besides, which only rows in steps of one told
    by_one, by_two = conv_s(P100, {"in_channels": 4.0}, {"in_channels": 4.0, "stride": 2, "input_size": 48})
    assert 0.5 < by_one / by_two < 1.1 * (36 + 16) / 36 / 1.15


def test_winograd_processes_images_in_groups_of_sixteen() -> None:
    few, many, more = conv_s(P100, {"b": 49}, {"b": 64}, {"b": 65})
    assert many == pytest.approx(few, rel=0.1)
    assert more > 1.1 * many


WIDE = {"out_channels": 65, "b": 256}, {"out_channels": 129, "b": 256}


def test_winograd_tiles_are_larger_since_ampere() -> None:
    # 65 channels out are two tiles of 64, or one of 128; 129 are three or two
    old, new = ((many / few) for few, many in (conv_s(gpu, *WIDE) for gpu in (P100, L40S)))
    assert new > 1.15 * old


def test_hopper_has_no_kernels_for_winograd() -> None:
    by_one, by_two = conv_s(H100, {}, {"stride": 2, "input_size": 48})
    assert by_one == pytest.approx(by_two, rel=0.15)


def test_convolutions_in_16_bits_copy_odd_channels_to_whole_loads() -> None:
    whole, odd = conv_s(H100, {"in_channels": 504}, {"in_channels": 501}, dtype="bf16")
    assert whole < odd < 1.5 * whole
    whole, odd = conv_s(H100, {"in_channels": 16}, {"in_channels": 9}, dtype="bf16")
    assert odd > whole  # padded to as many, and copied one by one
    # A window of one element is a product of the images as they are
    whole, odd = conv_s(H100, {"kernel_size": 1}, {"kernel_size": 1, "in_channels": 511}, dtype="bf16")
    assert odd > 2.5 * whole


def test_depthwise_threads_compute_an_output_each() -> None:
    images = {"b": 128, "in_channels": 256, "out_channels": 256, "groups": 256, "input_size": 64}
    narrow, wide = conv_s(H100, images | {"kernel_size": 3}, images | {"kernel_size": 7, "padding": 3})
    assert 1.5 < wide / narrow < 49 / 9  # finding its place takes a thread as long as many elements
    forward, both = conv_s(H100, images, images | {"backward": 1})
    assert 2.5 < both / forward < 4.0
    forward, both = conv_s(H100, images, images | {"backward": 1}, dtype="fp16")  # cuDNN's
    assert both / forward == pytest.approx(2.0, rel=0.1)


def grouped(width: int) -> dict[str, float]:
    """A convolution of groups of `width` channels, with about the FLOPs of one of any other width."""
    groups = round(65536 / width**2)
    return {"b": 128, "in_channels": width * groups, "out_channels": width * groups, "groups": groups, "input_size": 28}


def test_narrow_groups_leave_tiles_of_tensor_units_empty() -> None:
    """Those of RegNet; with channels last there are kernels for some."""
    widths = [grouped(width) for width in (64, 24, 16)]
    wide, narrow, narrowest = conv_s(L40S, *widths, dtype="fp16")
    assert narrow > 2.0 * wide
    assert narrowest > 1.2 * narrow
    ordinary, of_its_own = conv_s(L40S, *({"channels_last": 1} | size for size in widths[1:]), dtype="fp16")
    assert ordinary > 2.0 * wide
    assert of_its_own < ordinary


def test_groups_in_fp32_take_a_time_of_their_flops() -> None:
    """RegNet's 3 x 3 on an H200 took 9 to 11 TFLOP/s, however wide their groups."""
    widths = [grouped(width) for width in (128, 8)]
    flops = [2.0 * 128 * 28**2 * 9.0 * one["in_channels"] ** 2 / one["groups"] for one in widths]
    rates = np.array(flops) / conv_s(H100, *widths)
    assert np.all((rates > 8e12) & (rates < 13e12))


def norm_s(name: str, gpu: int, *shapes: dict[str, float]) -> list[float]:
    found: list[float] = ask(operators(name, *shapes), gpu).latency_s.tolist()
    return found


def test_batch_norm_by_kept_statistics_takes_longer_than_its_bytes() -> None:
    """Measured on an H200: 61,440 x 896 in FP32 take 190 us, half as long again as its bytes."""
    gpus = GpuTable.from_specs([CATALOG.resolve("h200-sxm-141gb")])
    rows: dict[str, float] = {"b": 61440, "h": 896}
    table = mixed([operators("batch_norm", rows, rows | {"channels_last": 1}), operators("add_scalar", rows)])
    first, last, streamed = Learned().estimate(table, gpus, np.arange(3), np.zeros(3, dtype=np.intp)).latency_s
    assert first == pytest.approx(190e-6, rel=0.1)
    assert streamed < last < first


@pytest.mark.parametrize(("name", "phase"), [("batch_norm", {"backward": 1}), ("batch_norm_training", {})])
def test_batch_norm_in_training_has_a_block_per_channel(name: str, phase: dict[str, float]) -> None:
    few, some, many = norm_s(name, H100, *({"b": 1 << 20, "h": h} | phase for h in (8, 64, 1056)))
    assert few == pytest.approx(some, rel=0.1)  # of 132 SMs
    assert many > 4.0 * some
    forward = norm_s("batch_norm", H100, {"b": 1 << 20, "h": 8})[0]
    assert few > 5.0 * forward


def test_norms_of_odd_rows_take_two_kernels_that_load_one_element() -> None:
    """Measured in BF16 on an H100, which set no constant: 263,289 rows of 6,851 in 8.1 ms, 128 rows of 35 in 5.6 us."""
    shapes = [{"b": b, "h": h, "eager": 0.0} for b, h in ((263_289, 6851), (263_289, 6852), (128, 35))]
    odd, even, short = ask(operators("layer_norm", *shapes, dtype="bf16"), H100).latency_s
    assert odd == pytest.approx(8.1e-3, rel=0.05)
    assert even < 0.5 * odd
    assert short == pytest.approx(5.6e-6, rel=0.2)
    odd, even = norm_s("layer_norm", H100, *shapes[:2])  # of FP32 nothing is known
    assert odd == pytest.approx(even, rel=0.01)


def test_a_row_of_a_norm_takes_a_block_its_time() -> None:
    """Measured in BF16 on an H200: five rows of 24,640 take 49 us. Serving stacks have another kernel."""
    rows = [{"b": b, "h": 24_640, "eager": 0.0} for b in (5, 50, 50_000)]
    few, as_many, many = ask(operators("layer_norm", *rows, dtype="bf16"), H100).latency_s
    served = ask(operators("layer_norm", rows[0] | {"stack": 0.0}, {"b": 5, "h": 24_640}, dtype="bf16"), H100).latency_s
    assert (served < 0.2 * few).all()
    assert few == pytest.approx(49e-6, rel=0.1)
    assert as_many == pytest.approx(few, rel=0.01)
    assert many > 10 * few


def test_softmax_and_norms_read_more_backward() -> None:
    """Measured on an H200 in FP32: 24 bytes per element of softmax, 28 of norms, where 12 are by definition."""
    rows: dict[str, float] = {"b": 65536, "h": 4096}
    by_definition = norm_s("mul", H100, rows)[0]
    assert norm_s("softmax", H100, rows | {"backward": 1})[0] == pytest.approx(24 / 12 * by_definition, rel=0.2)
    assert norm_s("rms_norm", H100, rows | {"backward": 1})[0] == pytest.approx(28 / 12 * by_definition, rel=0.2)


@pytest.mark.parametrize(
    ("dtype", "b", "h", "measured_s"),
    [
        ("bf16", 58_910, 56, 302e-6),  # a block per 32 columns goes through all rows
        ("bf16", 40_504, 95, 214e-6),
        ("bf16", 459_197, 27, 505e-6),  # several blocks share rows
        ("bf16", 757_306, 153, 913e-6),
        ("fp32", 349_504, 192, 700e-6),
        ("fp32", 11_269, 3101, 500e-6),  # odd rows are read more often
        ("fp32", 13_897, 32_011, 6.42e-3),
    ],
)
def test_norms_backward_take_blocks_for_their_parameters(dtype: str, b: int, h: int, measured_s: float) -> None:
    """Measured on an H100, which set no constant."""
    row: dict[str, float] = {"b": b, "h": h, "backward": 1}
    assert ask(operators("rms_norm", row, dtype=dtype), H100).latency_s[0] == pytest.approx(measured_s, rel=0.2)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pooling_is_bound_by_its_threads(name: str) -> None:
    images: dict[str, float] = {"b": 64, "channels": 256, "kernel_size": 3, "input_size": 64, "stride": 1}
    single, half = (ask(operators(name, images, dtype=dtype), H100).latency_s[0] for dtype in ("fp32", "bf16"))
    assert half == pytest.approx(single, rel=0.1)
    forward, wide, back = norm_s(name, H100, images, images | {"kernel_size": 7}, images | {"backward": 1})
    assert 0.8 * forward < back < 4.0 * forward
    assert forward < wide < 49 / 9 * forward
    of_all = norm_s(name, H100, images | {"kernel_size": 64, "backward": 1})[0]  # PyTorch's mean
    assert of_all < 0.4 * back


def test_a_dtype_without_a_pipe_is_memory_bound() -> None:
    answer = ask(operators("linear", BIG, dtype="nvfp4"), P100)
    assert np.isfinite(answer.latency_s[0])
    assert BOUNDS[answer.bound[0]] == "memory"


def test_interval_groups_have_their_own_prior_widths() -> None:
    answer = ask(operators("softmax", {"b": 8, "h": 8}), L40S)
    assert PRIOR_HALF_WIDTH[answer.group[0]] == PRIOR_OF["softmax"].width


def test_aligned_rows_are_read_once_in_16_bit_dtypes() -> None:
    """Of 16 bits: one 8 elements longer takes as long but for its bytes, one of a part of a load reads them thrice."""
    rows = {"b": 8192.0, "eager": 0}
    whole, longer, ragged = (
        ask(operators("softmax", rows | {"h": length}, dtype="bf16"), H100).latency_s[0]
        for length in (8184, 8192, 8185)
    )
    assert longer == pytest.approx(whole, rel=0.01)
    assert ragged > 1.5 * whole
    # A row that shared memory cannot hold is read thrice whatever its length is
    fits, over = (
        ask(operators("softmax", rows | {"h": length}, dtype="bf16"), H100).latency_s[0] for length in (24576, 24584)
    )
    assert over > 1.2 * fits


def test_winograd_blocks_hold_several_images_without_tensor_units() -> None:
    # Of 7 x 7 outputs a block of 8 x 16 has one image, where it may have two of 8 x 8; few channels out: no F(4 x 4)
    small = {"input_size": 7, "out_channels": 32, "b": 512, "in_channels": 128}
    wide = small | {"input_size": 14, "b": 128}  # as many outputs, of which a block has 8 x 14 either way
    without, since = (narrow / full for narrow, full in (conv_s(gpu, small, wide) for gpu in (P100, L4)))
    assert without < 0.9 * since
