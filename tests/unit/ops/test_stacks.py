"""What is known of a software by its name and version."""

from math import hypot

import pytest

from app.ops.stacks import assumption_of, stack_name


@pytest.mark.parametrize(
    "software", [None, "", "vllm", "vLLM-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20", "pytorch-2.1"]
)
def test_measured_stacks_and_versions_are_not_doubted(software: str | None) -> None:
    assert assumption_of(software) is None
    assert assumption_of("tensorrt-llm-1.3.0") is None
    assert assumption_of("cudagraph") is None  # a way of launching, of no stack in particular


def test_versions_that_nobody_measured_are_doubted_less_than_other_stacks() -> None:
    version, stack = assumption_of("vllm-0.9.2"), assumption_of("lmdeploy-0.7")
    assert version is not None and stack is not None
    assert "'vllm-0.9.2': no such version was measured" in version.message
    assert "'lmdeploy-0.7' is not known here: timed as vllm" in stack.message
    assert 0 < version.step < stack.step
    assert 0 < version.first < stack.first
    # Versions differ by 15 % in their first token on average, 1.6 times which holds 80 %.
    assert hypot(version.step, version.first) == pytest.approx(1.6 * 0.15)


def test_a_stack_has_a_name_without_its_version() -> None:
    named = {"vllm-0.24": "vllm", "TensorRT-LLM-1.0": "trtllm", "lmdeploy-0.7": "lmdeploy", "tgi v3": "tgi"}
    assert {software: stack_name(software) for software in named} == named
