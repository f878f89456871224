"""Between two kernels of a graph: what those save that are set up while the one before ends, and gaps."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.networks.run import Run
from app.stacks.release import plain_release, release_of
from app.steps.timing import corrected_rows
from app.tables.gpus import GpuTable
from app.tables.predictions import Predictions
from tests.unit.operators import mixed, operators

NVIDIA, AMD = ("a100-sxm4-80gb", "h100-sxm5-80gb"), ("amd-instinct-mi300x", "amd-instinct-mi355x")
SECONDS = np.array([1e-6, 3e-6, 1e-3])


def _times(software: str | None, ids: tuple[str, ...] = NVIDIA) -> dict[str, list[float]]:
    gpus = GpuTable.from_specs([spec for spec in load_seed_specs() if spec.id in ids])
    seconds, codes = np.tile(SECONDS, len(gpus)), np.zeros(len(SECONDS) * len(gpus), dtype=np.intp)
    answer = Predictions(seconds, 0.5 * seconds, 2.0 * seconds, seconds, codes, codes, codes, seconds > 0.0)
    table = mixed([operators("gelu", {"b": 8.0, "h": 8.0}, dtype="fp16")] * len(SECONDS))
    release = release_of(software, "decode") if software else plain_release()
    corrected = corrected_rows(answer, table, Run(mode="decode", release=release), gpus)
    assert ids == AMD or corrected.low_s == pytest.approx(0.5 * corrected.latency_s)
    return dict(zip(gpus.ids, corrected.latency_s.reshape(len(gpus), -1).tolist(), strict=True))


@pytest.mark.parametrize("software", ["trtllm", "trtllm-1.2.0rc6", "TensorRT-LLM-1.1"])
def test_tensorrt_llm_saves_a_part_of_every_kernel_from_hopper_on(software: str) -> None:
    times = _times(software)
    assert times["a100-sxm4-80gb"] == SECONDS.tolist()
    assert times["h100-sxm5-80gb"] == pytest.approx([0.5e-6, 2.25e-6, 999.25e-6])


@pytest.mark.parametrize("software", ["vllm-0.19", "sglang", "trtllm-1.0.0rc3", "tensorrt-llm-0.21", None])
def test_other_stacks_and_older_versions_launch_kernels_one_after_another(software: str | None) -> None:
    assert all(times == SECONDS.tolist() for times in _times(software).values())


def test_graphs_of_cdna_3_leave_gaps_between_kernels_of_serving_stacks() -> None:
    served, eager = _times("sglang", AMD), _times(None, AMD)
    for gpu, gap in (("amd-instinct-mi300x", 5.3e-6), ("amd-instinct-mi355x", 0.0)):
        assert served[gpu] == pytest.approx(SECONDS + gap)
        assert eager[gpu] == SECONDS.tolist()
