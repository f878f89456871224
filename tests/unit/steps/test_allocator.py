"""Time of a step that starts with an empty allocator, against counts by hand."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.networks.build import Builder
from app.networks.run import Run
from app.networks.training_pass import training
from app.steps.corrections import FULL_S, HIP_SEGMENT_S, SEGMENT_S
from app.steps.schedule import schedule
from app.steps.timing import corrected_launches
from app.tables.arrays import Floats
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.workload import BACKWARD, FORWARD, Workload
from tests.unit.network_samples import gpt2, roofline

CATALOG = Catalog(load_seed_specs())
GPUS = GpuTable.from_specs([CATALOG.resolve(name) for name in ("a100-pcie-80gb", "amd-instinct-mi210", "tesla-p4")])
RUN = Run(mode="training", optimizer="none", emptied=True)
MIB = 2**20


def allocating(w: Workload, run: Run, gpus: GpuTable, targets: list[int]) -> tuple[Floats, Floats]:
    """The host's seconds in the driver per launch, and what a launch waits for memory."""
    none = np.zeros((len(w), len(targets)))
    device_s, host_s = corrected_launches(none, w, run, gpus.take(np.array(targets)))
    return np.broadcast_to(host_s, none.shape), device_s


def test_segments_follow_tensor_sizes() -> None:
    """Softmax keeps what it wrote: 40 MiB alone, 4 MiB in a fifth of a segment, half of one in a quarter."""
    b = Builder("fp32")
    for size in (40 * MIB, 4 * MIB, MIB // 2):
        b.add("softmax", outputs=size // 4, b=size // 4096, h=1024)
    host, _ = allocating(b.build(), RUN, GPUS, [0, 1])
    np.testing.assert_allclose(host, np.outer([1.0, 0.2, 0.25], [SEGMENT_S, HIP_SEGMENT_S]))


def test_only_the_forward_pass_of_training_calls_the_driver() -> None:
    w = training(gpt2(layers=2), RUN)
    host, _ = allocating(w, RUN, GPUS, [0])
    assert host[w.phase == FORWARD].any() and not host[w.phase != FORWARD].any()
    assert not np.any(allocating(gpt2(layers=2), Run(emptied=True), GPUS, [0]))


def test_nearly_full_memory_is_released_once() -> None:
    """GPT-2 Large trained on 4,096 tokens fills the 8 GB of a P4."""
    w = training(gpt2(), RUN)
    _, stall = allocating(w, RUN, GPUS, [0, 2])
    np.testing.assert_allclose(w.runs @ stall, [0.0, FULL_S])


def test_a_step_takes_the_slower_of_host_and_device() -> None:
    w = training(gpt2(), RUN)
    times = roofline(w, (1e15, 1e15), (1e12, 1e11))  # a device that hardly takes time, and one that takes long
    host, _ = allocating(w, RUN, GPUS, [0, 0])
    before, after = (schedule(w, times, asked, replace(RUN)).phases_s for asked in (0.0, host))
    assert after[FORWARD, 0] == pytest.approx(float(w.runs @ host[:, 0]), rel=0.01)
    assert after[FORWARD, 1] < 1.05 * before[FORWARD, 1]
    np.testing.assert_allclose(after[BACKWARD], before[BACKWARD], rtol=0.01)
