"""What a network changes of its rows: kernels that load element by element, busy products, unmeasured kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.networks.run import Run
from app.ops.gemm import ACCESSES_PER_CLOCK
from app.stacks.release import release_of
from app.steps.corrections import CORRECTIONS, STEADY
from app.steps.rocm import HEAD_READS, TILE_READS
from app.steps.timing import corrected_rows
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import COMPUTE, MEMORY, Predictions
from tests.unit.operators import mixed, operators

KNOWN = (
    "a100-sxm4-80gb",
    "a30",
    "amd-instinct-mi250",
    "amd-instinct-mi300x",
    "amd-instinct-mi355x",
    "gtx-1080-ti",
    "h100-sxm5-80gb",
    "intel-max-1550",
    "rtx-2080-ti",
    "rtx-4090",
)
GPUS = GpuTable.from_specs([spec for spec in load_seed_specs() if spec.id in KNOWN])
DENOISED = Run(dtype="bf16", part="denoiser")
ROWS, WIDTH = 8192.0, 2432.0


def corrected(name: str, answer: Predictions, table: OpTable, run: Run, gpus: list[int]) -> Predictions:
    """The answer after the correction of this name alone."""
    alone = [correction for correction in CORRECTIONS if correction.name == name]
    return corrected_rows(answer, table, run, GPUS.take(np.array(gpus)), alone)


def _answer(n: int, seconds: float = 1e-5, bound: int = COMPUTE) -> Predictions:
    ones, codes = np.ones(n), np.zeros(n, dtype=np.intp)
    return Predictions(seconds * ones, 0.5 * seconds * ones, 2.0 * seconds * ones, 0.1 * seconds * ones,
                       codes + bound, codes, codes, ones > 0.0)  # fmt: skip


def _gpu(name: str) -> list[int]:
    return [GPUS.ids.index(name)]


def _modulation(dtype: str = "bf16") -> OpTable:
    same = {"b": ROWS, "h": WIDTH}
    return mixed([operators(op, same, dtype=dtype) for op in ("mul_scalar", "layer_norm", "gelu")])


def test_repeated_operands_are_loaded_no_faster_than_sms_access_elements() -> None:
    answer = corrected("single_loads", _answer(3), _modulation(), DENOISED, _gpu("h100-sxm5-80gb"))
    rate = ACCESSES_PER_CLOCK * GPUS.column("sm_count") * GPUS.column("boost_clock_hz")
    least = 2.0 * ROWS * WIDTH / rate[_gpu("h100-sxm5-80gb")[0]]
    assert answer.latency_s == pytest.approx([least, least, 1e-5])
    assert answer.high_s == pytest.approx(2.0 * answer.latency_s)


@pytest.mark.parametrize(
    ("gpu", "software", "slow"),
    [
        ("amd-instinct-mi300x", "sglang-0.5.9", True),
        ("amd-instinct-mi300x", "sglang-0.5.5", False),
        ("amd-instinct-mi300x", "sglang-0.5.12", False),
        ("amd-instinct-mi300x", "sglang", False),
        ("amd-instinct-mi355x", "sglang-0.5.9", False),
    ],
)
def test_a_product_without_settings_takes_its_depth_block_after_block(gpu: str, software: str, slow: bool) -> None:
    """DeepSeek's down projections for the latent part, 56 blocks of 128 deep, and another product beside them."""
    sizes = [{"m": 16.0, "n": n, "k": 7168.0} for n in (2112.0, 4096.0)]
    table = mixed([operators("linear", size, dtype="fp8_block") for size in sizes])
    run = Run(mode="decode", release=release_of(software, "decode"))
    seconds = corrected("untuned_products", _answer(2), table, run, _gpu(gpu)).latency_s
    assert seconds == pytest.approx([56 * 2.3e-6 if slow else 1e-5, 1e-5])


@pytest.mark.parametrize(
    ("gpu", "software", "times"),
    [
        ("amd-instinct-mi300x", "vllm-0.5", 8.0),
        ("amd-instinct-mi300x", "vllm-0.6.1", 8.0),
        ("amd-instinct-mi300x", "vllm-0.6.2", 0.0),
        ("amd-instinct-mi300x", "vllm", 0.0),
        ("amd-instinct-mi300x", "sglang", 0.0),
        ("amd-instinct-mi250", "vllm-0.5", 0.0),
        ("a100-sxm4-80gb", "vllm-0.5", 0.0),
    ],
)
def test_attention_of_the_first_vllm_on_rocm_reads_keys_for_every_query_head(
    gpu: str, software: str, times: float
) -> None:
    """Llama-2-70B: 64 query heads on 8 of keys and values, 32 sequences of 768 keys in 16 bits, a layer."""
    sizes = {"batch": 32.0, "heads": 64.0, "kv_heads": 8.0, "head_dim": 128.0, "context_length": 768.0}
    table = operators("attention_decode", sizes, dtype="fp16")
    run = Run(mode="decode", release=release_of(software, "decode"))
    seconds = corrected("reads_by_head", _answer(1), table, run, _gpu(gpu)).latency_s
    once_s = 2.0 * 32.0 * 8.0 * 128.0 * 768.0 * 2.0 / (HEAD_READS * 5.3e12)
    assert seconds == pytest.approx([max(times * once_s, 1e-5)], rel=0.01)


@pytest.mark.parametrize(("rows", "passes"), [(1.0, 1), (16.0, 1), (17.0, 2), (64.0, 4), (256.0, 16), (8192.0, 16)])
def test_few_rows_on_an_mi300x_that_nobody_tuned_read_the_weights_for_every_tile(rows: float, passes: int) -> None:
    table = operators("linear", {"m": rows, "n": 22016.0, "k": 4096.0}, dtype="fp16")
    first, tuned = (Run(mode="decode", release=release_of(name, "decode")) for name in ("vllm-0.5", "vllm-0.7"))
    seconds = [
        float(corrected("product_tiles", _answer(1), table, run, _gpu(gpu)).latency_s[0])
        for run, gpu in ((first, "amd-instinct-mi300x"), (tuned, "amd-instinct-mi300x"), (first, "h100-sxm5-80gb"))
    ]
    assert seconds == pytest.approx([passes * 2.0 * 22016.0 * 4096.0 / (TILE_READS * 5.3e12), 1e-5, 1e-5], rel=0.01)


def test_slow_memory_hides_how_elements_are_loaded() -> None:
    """An RTX 4090 moves the same bytes in 79 us at its bandwidth, and accesses the elements in 35."""
    answer = corrected("single_loads", _answer(3, 79e-6), _modulation(), DENOISED, _gpu("rtx-4090"))
    assert answer.latency_s == pytest.approx(79e-6)


@pytest.mark.parametrize("run", [replace(DENOISED, release=release_of("vllm")), Run(dtype="bf16")])
def test_serving_stacks_and_other_networks_load_whole_vectors(run: Run) -> None:
    answer = corrected("single_loads", _answer(3), _modulation(), run, _gpu("h100-sxm5-80gb"))
    assert answer.latency_s == pytest.approx(1e-5)


def _products(dtype: str) -> OpTable:
    image = {
        "b": 8.0, "in_channels": 64.0, "out_channels": 64.0, "groups": 1.0, "kernel_size_height": 3.0,
        "kernel_size_width": 3.0, "input_size_height": 56.0, "input_size_width": 56.0,
    }  # fmt: skip
    linear = operators("linear", {"m": 4096.0, "n": 4096.0, "k": 4096.0}, dtype=dtype)
    return mixed(
        [linear, operators("conv2d", image, dtype=dtype), operators("gelu", {"b": 8.0, "h": 8.0}, dtype=dtype)]
    )


@pytest.mark.parametrize(
    ("gpu", "dtype", "longer"),
    [
        ("h100-sxm5-80gb", "bf16", [STEADY, STEADY, 1.0]),
        ("h100-sxm5-80gb", "fp32", [1.0, 1.0, 1.0]),
        ("a30", "fp16", [STEADY, STEADY, 1.0]),
        ("rtx-2080-ti", "fp16", [STEADY, 1.0, 1.0]),
        ("rtx-4090", "fp16", [STEADY, 1.0, 1.0]),
        ("gtx-1080-ti", "fp16", [1.0, 1.0, 1.0]),
    ],
)
def test_products_of_tensor_units_take_longer_in_training(gpu: str, dtype: str, longer: list[float]) -> None:
    answer = corrected("steady_products", _answer(3), _products(dtype), Run(mode="training"), _gpu(gpu))
    assert answer.latency_s == pytest.approx(1e-5 * np.array(longer))


def test_products_that_wait_for_memory_and_those_of_serving_are_as_alone() -> None:
    table = _products("bf16")
    for run, bound in ((Run(mode="training"), MEMORY), (Run(mode="prefill"), COMPUTE), (Run(mode="decode"), COMPUTE)):
        answer = corrected("steady_products", _answer(3, bound=bound), table, run, _gpu("h100-sxm5-80gb"))
        assert answer.latency_s == pytest.approx(1e-5)


FIRST_ENGINE = release_of("vllm-0.5")


def _sums() -> OpTable:
    shapes = ({"message_bytes": 8192.0, "devices": devices} for devices in (2.0, 4.0))
    return mixed(
        [operators("all_reduce", *shapes, dtype="fp16"), operators("gelu", {"b": 8.0, "h": 8.0}, dtype="fp16")]
    )


def test_the_first_vllm_on_intel_waits_for_each_collective() -> None:
    """A step of Llama-2-7b has some 65 all-reduces and took 38 ms more on two devices, 64 ms more on four."""
    answer = corrected("host_collectives", _answer(3), _sums(), Run(release=FIRST_ENGINE), _gpu("intel-max-1550"))
    added = answer.latency_s - 1e-5
    assert added[2] == 0.0
    assert 65 * added[:2] == pytest.approx([38e-3, 64e-3], rel=0.05)
    assert (answer.low_s < answer.latency_s).all()
    assert (answer.latency_s < answer.high_s).all()


@pytest.mark.parametrize(("run", "gpu"), [(Run(), "intel-max-1550"), (Run(release=FIRST_ENGINE), "h100-sxm5-80gb")])
def test_later_releases_and_other_makes_do_not_wait(run: Run, gpu: str) -> None:
    assert corrected("host_collectives", _answer(3), _sums(), run, _gpu(gpu)).latency_s == pytest.approx(1e-5)
