"""What a network changes of times that were predicted of operators alone: one tuple of corrections, applied in order.

A correction changes the predictions of distinct rows ("row"), the time of each launch in the step ("launch"), what the
host adds to each launch ("host"), or the step as a whole ("step"). `where` says on which rows and GPUs of which runs it
applies, for all that is timed: steps of predictions and of sweeps, and the tables of served models.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from app.bands.band import HOST_COLLECTIVE, HOST_WAIT, INPUT_COPY
from app.coefficients import Coefficients
from app.networks.run import InputCopy
from app.ops import OP_CODE, OPS
from app.ops.gemm import ACCESSES_PER_CLOCK
from app.ops.network import NETWORK
from app.predictors.priors import IS_COLLECTIVE, SENDS
from app.predictors.roofline import PIPES_OF_DTYPE, formats_run
from app.stacks.facts import NO_WAIT
from app.steps.correction import NOWHERE, Correction, Subject, answer_s, of_architectures
from app.steps.rocm import ROCM
from app.steps.schedule import by_row
from app.steps.stages import memory
from app.tables.arrays import Bools, Floats
from app.tables.complete import PCIE_3_BYTES_PER_S, PCIE_4_BYTES_PER_S, PCIE_4_NODE_NM
from app.tables.gpus import GpuTable
from app.tables.ops import DTYPE_CODE, DTYPES, OUTPUT_BYTES, OpTable
from app.tables.predictions import COMPUTE
from app.tables.workload import FORWARD, Workload

_FITTED = Coefficients("steps")

# FlashAttention 2 on Hopper, as in PyTorch before 2.11. Attention on Hopper is learned of serving stacks, which run
# FlashAttention 3, and backward is timed at the rate of forward. TFLOP/s of both in FP16 without a causal mask on an
# H100 SXM by the keys of a query, for heads of 64 and of 128 elements (Shah et al. 2024, arXiv 2407.08608, figures 5
# and 6). Its kernels are for heads of multiples of 32 elements; others are padded (flash_attn 2.7, static_switch.h).
_ATTENTION, _SIXTEEN_BITS = OP_CODE["attention_prefill"], [DTYPE_CODE[name] for name in ("fp16", "bf16")]
_KEYS = np.log2([512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0])
# By head size and pass.
_THIRD = [_FITTED.numbers("third_flash_64"), _FITTED.numbers("third_flash_128")]
_FORWARD = [_FITTED.numbers("second_flash_64"), _FITTED.numbers("second_flash_128")]
_BACKWARD = [_FITTED.numbers("second_flash_64_backward"), _FITTED.numbers("second_flash_128_backward")]
_SECOND = np.array(_THIRD)[:, None] / np.stack([_FORWARD, _BACKWARD], axis=1)
_KERNEL_STEP = 32.0


def _runs_second_flash(subject: Subject) -> Bools:
    run, ops = subject.run, subject.ops
    # Training has the times of FlashAttention 1 as so many launches of the second (app.networks.transformers).
    first = run.release.first_flash and run.mode == "inference"
    others = run.attention == "eager" or first or run.release.cudnn_attention
    if run.mode not in ("inference", "training") or run.release.kernels is not None or others:
        return NOWHERE
    rows = (ops.kind == _ATTENTION) & np.isin(ops.dtype, _SIXTEEN_BITS)
    on: Bools = of_architectures(subject.gpus, ("hopper",))[:, None] & rows
    return on


def _second_flash(subject: Subject) -> Floats:
    """Return the time of FlashAttention 2 over the third's by keys and head size, of every row, float64 [u]."""
    ops = subject.ops
    keys, window = ops.column("context_length"), ops.column("window")
    keys = np.log2(np.where(window > 0.0, np.fmin(keys, window), keys))
    share = np.clip((_KERNEL_STEP * np.ceil(ops.column("head_dim") / _KERNEL_STEP) - 64.0) / 64.0, 0.0, 1.0)
    (of_64, of_128) = ([np.interp(keys, _KEYS, ratios) for ratios in passes] for passes in _SECOND)
    forward, backward = ((1.0 - share) * of_64[k] + share * of_128[k] for k in (0, 1))
    ratios: Floats = np.where(ops.column("backward") > 0.0, backward, forward)
    return ratios


# Kernels of PyTorch that load one element at a time, in the pipelines of diffusion models. PyTorch's element-wise
# kernels load 16 bytes at once where all operands are contiguous, equally large and of one format, else (shifts, scales
# and gates of a modulation, rotary positions, casts) an element, too few bytes in flight for a fast memory: an SM
# accesses some 3.5 elements of 16 bits per clock, as gated activations of vLLM before 0.6 (3.35 on A100, 3.7 on H100)
# and PyTorch's layer norm of phi-2 (3.2, 3.6) in Vidur's profiles (MIT). Operators that stand for such kernels have two
# accesses per element; casts between 16 and 32 bits access an element twice per 6 bytes.
_BROADCAST = [OP_CODE[name] for name in ("mul_scalar", "add_scalar", "layer_norm")]
_CAST, _CAST_BYTES = OP_CODE["memory"], 6.0


def _loads_singly(subject: Subject) -> Bools:
    if subject.run.part is None or subject.run.release.kernels is not None:
        return NOWHERE
    on: Bools = (_accesses(subject.ops) > 0.0)[None]
    return on


def _accesses(ops: OpTable) -> Floats:
    """Return the elements that each row reads and writes one at a time, float64 [u]."""
    sixteen = np.isin(ops.dtype, _SIXTEEN_BITS)
    each = np.where(np.isin(ops.kind, _BROADCAST), 2.0 * ops.column("b") * ops.column("h"), 0.0)
    casts = np.where(ops.kind == _CAST, 2.0 / _CAST_BYTES * ops.column("bytes"), 0.0)
    accesses: Floats = np.where(sixteen, np.nan_to_num(each) + np.nan_to_num(casts), 0.0)
    return accesses


def _single_loads_s(subject: Subject) -> Floats:
    gpus = subject.gpus
    per_s = ACCESSES_PER_CLOCK * gpus.column("sm_count") * gpus.column("boost_clock_hz")
    return _accesses(subject.ops) / per_s[:, None]


# Products of tensor units in a network minute after minute, on a hot card at its board power: they were measured alone,
# for milliseconds, on a cool one. Steps of serving stacks are left as they are, as what else they take was fitted to
# whole served loads; and convolutions before Ampere and without HBM, whose rate was set on whole networks.
STEADY = _FITTED.number("steady_products")
_PRODUCTS = [OP_CODE[name] for name in ("linear", "bmm", "moe", "conv2d")]
# (number format, pipe of tensor units that multiplies it)
_TENSOR_PIPES = tuple(
    (code, pipe)
    for code, name in enumerate(DTYPES)
    for pipe in PIPES_OF_DTYPE[name]
    if name not in ("fp64", "fp32", "tf32") and pipe.endswith("_tensor")
)
_CONV2D, _HBM, _SET_ON_NETWORKS = OP_CODE["conv2d"], "/hbm", ("pascal", "volta")


def _is_busy_product(subject: Subject) -> Bools:
    if subject.run.mode not in ("training", "inference"):
        return NOWHERE
    ops, gpus = subject.ops, subject.gpus
    has_units = np.zeros((len(gpus), len(DTYPES)), dtype=np.bool_)
    for code, pipe in _TENSOR_PIPES:
        has_units[:, code] |= np.isfinite(gpus.column(f"peak_{pipe}_flops"))
    has_units = np.take_along_axis(has_units, formats_run(gpus).T, axis=1)
    names = gpus.architectures or ("",) * len(gpus)
    set_apart = np.array([name.endswith(_HBM) and not name.startswith(_SET_ON_NETWORKS) for name in names])
    slows = has_units[:, ops.dtype] & (set_apart[:, None] | (ops.kind != _CONV2D))
    on: Bools = np.isin(ops.kind, _PRODUCTS) & slows & (subject.bound == COMPUTE)
    return on


# Collectives of Intel's GPUs under the first vLLM that ran there: the host waits for each, and launches the next.
# Seconds, and seconds per device.
_COLLECTIVE_S, _COLLECTIVE_DEVICE_S = _FITTED.each("host_collective_s", "host_collective_device_s")


def _waits_for_collectives(subject: Subject) -> Bools:
    of_intel = np.array([name.startswith("intel-") for name in subject.gpus.ids])
    on: Bools = of_intel[:, None] & IS_COLLECTIVE[subject.ops.kind]
    return on if subject.run.release.waits_in_sums else NOWHERE


def _host_collective_s(subject: Subject) -> Floats:
    wait: Floats = _COLLECTIVE_S + _COLLECTIVE_DEVICE_S * np.nan_to_num(subject.ops.column("devices"))
    return wait


# Programmatic dependent launch, from Hopper on (Release.early_launch): a kernel is set up while the one before it ends.
# Operators were measured without it. Seconds of each kernel that are saved, and the least part of it that is left.
_SAVED_S, _LEAST_LEFT = _FITTED.each("early_launch_saved_s", "early_launch_least_left")


def _launches_early(subject: Subject) -> Bools:
    if not subject.run.release.early_launch:
        return NOWHERE
    return of_architectures(subject.gpus, ("hopper", "blackwell"))[:, None]


def _early_launch(subject: Subject) -> Floats:
    return np.maximum(1.0 - _SAVED_S / answer_s(subject), _LEAST_LEFT)


# Standard deviation of the speed of equal GPUs, the slowest of which synchronous training waits for. Measured times of
# collectives, and of networks, have waited for all devices already.
_DEVICE_SPREAD = _FITTED.number("spread_of_gpus")
_TOGETHER = SENDS | (np.arange(len(OPS)) == OP_CODE[NETWORK.name])


def slowest_of(devices: int) -> float:
    """Return the expected time of the slowest of `devices` over the mean, for normal times (Blom's approximation)."""
    return 1.0 + _DEVICE_SPREAD * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


def _has_stragglers(subject: Subject) -> Bools:
    if subject.run.mode != "training" or subject.run.parallelism.devices == 1:
        return NOWHERE
    on: Bools = ~_TOGETHER[subject.ops.kind][:, None]
    return on


# PyTorch's caching allocator in a step that starts with an empty cache (the first, or after `empty_cache`). Tensors of
# 10 MiB or more get a driver segment each, over 1 MiB they share segments of 20 MiB, smaller ones of 2 MiB (PyTorch's
# CUDACachingAllocator). The host waits for new segments of tensors saved for backward; other memory is reused. When it
# is nearly full, cached segments are freed, which synchronises the device. Seconds per segment in CUDA and in HIP; the
# share of memory from which they are freed, and the seconds that this takes.
_MIB = 2.0**20
_LARGE_BYTES, _SMALL_BYTES, _SHARED_BYTES, _SMALL_SEGMENT_BYTES = 10.0 * _MIB, _MIB, 20.0 * _MIB, 2.0 * _MIB
SEGMENT_S, HIP_SEGMENT_S = _FITTED.each("cuda_segment_s", "hip_segment_s")
FULL_FROM, FULL_S = _FITTED.each("memory_full_from", "freeing_s")


def _allocates(subject: Subject) -> Bools:
    if not subject.run.emptied or subject.run.mode != "training":
        return NOWHERE
    on: Bools = (_workload(subject).phase == FORWARD)[:, None]
    return on


def _segment_s(subject: Subject) -> Floats:
    """Return the host's seconds in the driver per launch: of its saved output, and of what else it saves, [n, g]."""
    w = _workload(subject)
    count = w.ops.column("count")
    written = np.minimum(w.saved_bytes, w.output_bytes)
    segments = _segments_of(written / count) + _segments_of((w.saved_bytes - written) / count)
    of_hip = of_architectures(subject.gpus, ("cdna",))
    seconds: Floats = by_row(segments) * np.where(of_hip, HIP_SEGMENT_S, SEGMENT_S)
    return seconds


def _segments_of(size: Floats) -> Floats:
    shared = size / np.where(size > _SMALL_BYTES, _SHARED_BYTES, _SMALL_SEGMENT_BYTES)
    return np.where(size >= _LARGE_BYTES, 1.0, shared)


def _freeing_s(subject: Subject) -> Floats:
    """Return the seconds that a launch waits for freed memory, [g]."""
    w = _workload(subject)
    full = memory(w, subject.run).required_bytes > FULL_FROM * subject.gpus.column("memory_bytes")
    launches = np.maximum(w.runs[..., w.phase == FORWARD].sum(axis=-1), 1.0)
    seconds: Floats = full * FULL_S / launches
    return seconds


# Waits of a serving engine's steps for its host, of old releases (Release.host_wait).


def _waits_for_engine(subject: Subject) -> Bools:
    return np.array([subject.run.release.host_wait != NO_WAIT])


def _engine_host_s(subject: Subject) -> Floats:
    wait, each = subject.run.release.host_wait
    return _per_gpu(subject, wait + each * subject.run.batch / subject.run.parallelism.data)


# Copy of a step's input from host memory to its devices, which the step waits for: shares of the slot's bandwidth that
# copies attain, bytes of a token's id, and colours of a pixel.
_COPY_SHARES = _FITTED.by_name("input_copy_shares")
_TOKEN_BYTES, _COLOURS = 8.0, 3.0


def _copies_input(subject: Subject) -> Bools:
    of_device: Bools = subject.gpus.column("warp_size") != 1.0  # a CPU's memory is the host's
    return of_device if subject.run.input_copy != "none" else NOWHERE


def _input_copy_s(subject: Subject) -> Floats:
    """Return the seconds of the copy: of images in the format they are computed in, or of tokens, [g]."""
    run, gpus = subject.run, subject.gpus
    if run.of_images:
        sample = _COLOURS * run.image_size**2 * OUTPUT_BYTES[DTYPE_CODE[run.dtype]]
    else:
        sample = _TOKEN_BYTES * (1 if run.mode == "decode" else run.sequence)
    copied = _per_gpu(subject, sample * run.batch / run.parallelism.data)
    return copied / host_rate(gpus, run.input_copy)


def host_rate(gpus: GpuTable, memory: InputCopy) -> Floats:
    """Return the bytes per second that a device copies from host memory of this kind, [g]."""
    older = gpus.column("process_node_nm") > PCIE_4_NODE_NM
    by_age = np.where(older, PCIE_3_BYTES_PER_S, PCIE_4_BYTES_PER_S)
    link = np.fmin(gpus.column("slot_bandwidth_bytes_per_s"), gpus.column("link_bandwidth_bytes_per_s"))
    rate: Floats = _COPY_SHARES[memory] * np.fmin(link, by_age)
    return rate


CORRECTIONS = (
    Correction("second_flash", "row", _runs_second_flash, _second_flash),
    Correction("single_loads", "row", _loads_singly, least_s=_single_loads_s),
    Correction("steady_products", "row", _is_busy_product, lambda _: np.array(STEADY)),
    Correction("host_collectives", "row", _waits_for_collectives, added_s=_host_collective_s, band=HOST_COLLECTIVE),
    *ROCM,
    Correction("early_launch", "row", _launches_early, _early_launch),
    Correction(
        "stragglers",
        "launch",
        _has_stragglers,
        lambda subject: np.array(slowest_of(subject.run.parallelism.devices)),
    ),
    Correction("allocator_segments", "host", _allocates, added_s=_segment_s),
    Correction("allocator_freeing", "launch", _allocates, added_s=_freeing_s),
    Correction("engine_host", "step", _waits_for_engine, added_s=_engine_host_s, band=HOST_WAIT),
    Correction("input_copy", "step", _copies_input, added_s=_input_copy_s, band=INPUT_COPY),
)


def _per_gpu(subject: Subject, figure: float | Floats) -> Floats:
    """Return a figure, one or per configuration, for every GPU, float64 [g]: configurations follow one another."""
    each = np.atleast_1d(np.asarray(figure, dtype=np.float64))
    return np.tile(each, len(subject.gpus) // len(each))


def _workload(subject: Subject) -> Workload:
    assert subject.workload is not None
    return subject.workload
