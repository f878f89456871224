"""What a software's name and version say of how it launches kernels and sums."""

from __future__ import annotations

import pytest

from app.ops.stacks import EAGER_HOST_S, eager_host_s, is_first_engine, sums_by_library


@pytest.mark.parametrize(
    ("software", "library"),
    [("trtllm-0.10", True), ("tensorrt-llm-0.9", True), ("trtllm-0.11", False), ("trtllm", False), ("vllm-0.5", False)],
)
def test_tensorrt_llm_summed_by_nccl_before_0_11(software: str, *, library: bool) -> None:
    assert sums_by_library(software) is library


@pytest.mark.parametrize(
    ("software", "first"),
    [("vllm-0.5.0", True), ("vllm-0.6", False), ("vllm", False), ("sglang-0.4", False), (None, False)],
)
def test_the_first_engine_is_vllm_before_0_6(software: str | None, *, first: bool) -> None:
    assert is_first_engine(software) is first


def test_old_pytorch_takes_its_host_longer_and_longest_in_training() -> None:
    assert eager_host_s("pytorch-1.0", "training") > eager_host_s("pytorch-1.0", "inference") > EAGER_HOST_S
    for software in ("pytorch-2.0", "pytorch", None):
        assert eager_host_s(software, "training") == eager_host_s(software, "inference") == EAGER_HOST_S
