"""FlashAttention 2 in place of the third: on which GPUs, of which runs, and how much longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.engine.catalogue import load_seed_specs
from app.networks.run import Run
from app.stacks.release import release_of
from app.steps.corrections import CORRECTIONS
from app.steps.timing import corrected_rows
from app.tables.gpus import GpuTable
from app.tables.ops import OpTable
from app.tables.predictions import Predictions
from tests.unit.operators import mixed, operators

GPUS = GpuTable.from_specs([spec for spec in load_seed_specs() if spec.id in ("a100-sxm4-80gb", "h100-sxm5-80gb")])
PYTORCH = Run(dtype="bf16", attention="flash")
_SECOND_FLASH = [correction for correction in CORRECTIONS if correction.name == "second_flash"]


def _table(dtype: str = "bf16", *, backward: bool = False) -> OpTable:
    shape = {"batch": 1, "heads": 8, "kv_heads": 8, "query_length": 16384, "context_length": 16384}
    attention = (shape | {"head_dim": size, "backward": float(backward)} for size in (128, 64))
    gelu = operators("gelu", {"b": 1024, "h": 1024}, dtype=dtype)
    return mixed([operators("attention_prefill", *attention, dtype=dtype), gelu])


def _ratios(run: Run, dtype: str = "bf16", *, backward: bool = False) -> np.ndarray:
    table = _table(dtype, backward=backward)
    n = len(table) * len(GPUS)
    ones, codes = np.ones(n), np.zeros(n, dtype=np.intp)
    answer = Predictions(ones, 0.5 * ones, 2.0 * ones, 0.1 * ones, codes, codes, codes, ones > 0.0)
    corrected = corrected_rows(answer, table, run, GPUS, _SECOND_FLASH)
    assert corrected.low_s == pytest.approx(0.5 * corrected.latency_s)
    assert corrected.high_s == pytest.approx(2.0 * corrected.latency_s)
    return corrected.latency_s.reshape(len(GPUS), len(table))


def test_attention_of_pytorch_takes_longer_on_hopper_only() -> None:
    corrected = dict(zip(GPUS.ids, _ratios(PYTORCH), strict=True))
    assert corrected["a100-sxm4-80gb"].tolist() == [1.0, 1.0, 1.0]
    # 648 against 370, and 497 against 324 TFLOP/s in figure 5 of the paper.
    assert corrected["h100-sxm5-80gb"] == pytest.approx([648 / 370, 497 / 324, 1.0])


def test_its_backward_takes_twice_as_long_as_the_rate_of_forward_says() -> None:
    """322 and 291 TFLOP/s in figure 6 of the paper, under PyTorch and what runs its kernels, FlashAttention 1 too."""
    h100 = GPUS.ids.index("h100-sxm5-80gb")
    for software in ("pytorch-2.6", "torchtitan", "deepspeed", "pytorch-2.1"):
        run = replace(PYTORCH, mode="training", release=release_of(software, "training"))
        assert _ratios(run)[h100] == pytest.approx([648 / 370, 497 / 324, 1.0])
        assert _ratios(run, backward=True)[h100] == pytest.approx([648 / 322, 497 / 291, 1.0])


@pytest.mark.parametrize(
    "run",
    [
        replace(PYTORCH, release=release_of("vllm")),
        replace(PYTORCH, mode="training", release=release_of("megatron", "training")),
        replace(PYTORCH, attention="eager"),
        replace(PYTORCH, release=release_of("pytorch-2.1")),
        replace(PYTORCH, release=release_of("pytorch-2.11")),
    ],
)
def test_other_stacks_and_other_kernels_are_as_they_were(run: Run) -> None:
    assert (_ratios(run) == 1.0).all()


def test_formats_of_other_kernels_are_as_they_were() -> None:
    assert (_ratios(PYTORCH, "fp32") == 1.0).all()


def test_heads_between_its_kernels_are_padded() -> None:
    shape = {"batch": 1, "heads": 8, "kv_heads": 8, "query_length": 16384, "context_length": 16384}
    table = operators("attention_prefill", *(shape | {"head_dim": size} for size in (72, 96, 97, 128)), dtype="bf16")
    ones, codes = np.ones(4), np.zeros(4, dtype=np.intp)
    answer = Predictions(ones, ones, ones, ones, codes, codes, codes, ones > 0.0)
    h100 = GPUS.ids.index("h100-sxm5-80gb")
    corrected = corrected_rows(answer, table, PYTORCH, GPUS.take(np.array([h100])), _SECOND_FLASH).latency_s
    assert corrected[0] == corrected[1]
    assert corrected[2] == corrected[3]
    assert corrected[0] < corrected[2]
