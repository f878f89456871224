"""What a software's name and version say of it."""

from __future__ import annotations

import pytest

from app.stacks.facts import NO_WAIT
from app.stacks.registry import stacks
from app.stacks.release import host_times, host_times_of, plain_release, release_of

EAGER_HOST_S = plain_release().eager_host_s


@pytest.mark.parametrize(
    ("software", "library"),
    [("trtllm-0.10", True), ("tensorrt-llm-0.9", True), ("trtllm-0.11", False), ("trtllm", False), ("vllm-0.5", False)],
)
def test_tensorrt_llm_summed_by_nccl_before_0_11(software: str, *, library: bool) -> None:
    assert release_of(software).sums_by_library is library


@pytest.mark.parametrize(("software", "first"), [("vllm-0.5.0", True), ("vllm-0.6", False), ("vllm", False)])
def test_the_host_of_vllm_before_0_6_waits_for_sums(software: str, *, first: bool) -> None:
    assert release_of(software, "decode").waits_in_sums is first


def test_steps_of_old_vllm_wait_for_its_host_in_serving() -> None:
    first, later, now = (release_of(f"vllm-{version}", "decode").host_wait for version in ("0.5", "v0.9", "0.13"))
    assert first.step_s > later.step_s > 0.0 == now.step_s
    assert release_of("vllm-0.5", "inference").host_wait == release_of("sglang-0.4", "decode").host_wait == NO_WAIT


def test_requests_wait_longer_for_the_front_end_of_newer_vllm() -> None:
    old, new, unnamed = (release_of(f"vllm{version}", "decode").stream_wait_s for version in ("-0.15", "-0.16", ""))
    assert 0.0 < old < new == unnamed


def test_the_host_of_tensorrt_llm_1_0_works_beside_the_device_and_waits_for_ranks() -> None:
    old, first, later, unnamed = (
        release_of(f"trtllm{version}", "decode") for version in ("-0.20", "-1.0.0rc3", "-1.1", "")
    )
    assert first.host_beside.sequence_s > 0.0 and first.drift > 0.0
    assert {(each.host_beside, each.ranks_s, each.drift) for each in (old, later, unnamed)} == {(NO_WAIT, 0.0, 0.0)}
    alone, several = (host_times_of(host_times()["trtllm"], first, latent=False, devices=n) for n in (1, 8))
    assert several.step_s - alone.step_s == first.ranks_s > 0.0


def test_old_pytorch_takes_its_host_longer_in_training() -> None:
    assert release_of("pytorch-1.0", "training").eager_host_s > EAGER_HOST_S
    for software in ("pytorch-1.0", "pytorch-2.0", "pytorch", "torchtitan"):
        assert release_of(software, "inference").eager_host_s == EAGER_HOST_S
    # Backward and the update are launched without Python.
    assert release_of("pytorch-2.0", "training").eager_host_s < EAGER_HOST_S


@pytest.mark.parametrize(
    "software", ["vllm", "vLLM-0.24.0", "sglang-0.5.14", "trtllm-1.3.0rc20", "tensorrt-llm-1.3.0", "pytorch-2.1", ""]
)
def test_measured_stacks_and_versions_are_not_doubted(software: str) -> None:
    assert release_of(software, "decode").assumption is None
    assert release_of("cudagraph", "decode").assumption is None  # a way of launching, of no stack in particular


def test_versions_that_nobody_measured_are_doubted_less_than_other_stacks() -> None:
    version, stack = (release_of(name, "decode").assumption for name in ("vllm-0.9.2", "lmdeploy-0.7"))
    assert version is not None and stack is not None
    assert "'vllm-0.9.2': no such version was measured" in version.warning.text
    assert "'lmdeploy-0.7' is not known here: timed as vllm" in stack.warning.text
    assert (version.other, stack.other) == ("version", "stack")


def test_a_stack_has_a_name_without_its_version() -> None:
    named = {"vllm-0.24": "vllm", "TensorRT-LLM-1.0": "trtllm", "lmdeploy-0.7": "lmdeploy", "tgi v3": "tgi"}
    assert {software: release_of(software).name for software in named} == named


def test_tgi_waited_for_its_host_before_it_replayed_graphs() -> None:
    before, since = release_of("tgi-1.0", "decode"), release_of("text-generation-inference-3.2", "decode")
    assert before.host_wait.sequence_s > 0.0 and since.host_wait == NO_WAIT
    assert before.scheduler is not None and not before.scheduler.mixes


def test_a_stack_whose_host_launches_each_operator_runs_no_kernels_of_its_own() -> None:
    eager, graphs = release_of("vllm-eager-0.5", "decode"), release_of("vllm-0.5", "decode")
    assert (eager.eager, eager.kernels, eager.code) == (True, None, None)
    assert (graphs.eager, graphs.kernels, graphs.code) == (False, "vllm", 0)
    assert release_of("megatron", "inference").kernels is None
    assert release_of("megatron", "training").kernels == "megatron"


def test_releases_that_do_the_same_are_equal_whatever_they_are_called() -> None:
    assert release_of("vllm-0.14", "decode") == release_of("vllm-0.24", "decode") == release_of("lmdeploy", "decode")
    assert release_of("pytorch-2.3") == release_of("pytorch-2.4")
    assert release_of("pytorch-2.1") != release_of("pytorch-2.3")
    assert release_of("pytorch-2.1").without_attention() == release_of("pytorch-2.3").without_attention()


def test_training_stacks_split_and_recompute_as_each_usually_does() -> None:
    named = (
        "torchtitan",
        "fsdp2",
        "ddp",
        "deepspeed-0.15",
        "megatron",
        "megatron-bridge-26.06",
        "nemo-25.09",
        "maxtext",
    )
    releases = [release_of(name, "training") for name in named]
    assert [release.zero for release in releases] == [3, 3, 0, 2, 0, 1, 1, 3]
    assert [release.recompute for release in releases] == ["selective_op", *["none"] * 6, "full"]
    assert [release.selects_operators for release in releases] == [*[True] * 4, *[False] * 3, True]
    assert not release_of("pytorch-2.1", "training").selects_operators
    assert [release.kernels for release in releases] == [*[None] * 4, *["megatron"] * 3, "maxtext"]
    assert all(release.known for release in releases)


def test_rows_of_a_fact_do_not_overlap_and_have_a_source() -> None:
    for stack in stacks().values():
        versions = [None, *((major, minor) for major in range(4) for minor in range(30))]
        for fact in stack.facts:
            assert fact.source
        for version in versions:
            for mode in ("inference", "training", "prefill", "decode"):
                held = [fact.fact for fact in stack.facts if fact.holds(version, mode)]
                assert len(held) == len(set(held)), (stack.name, version, mode)


def test_every_serving_stack_has_a_scheduler_and_a_host() -> None:
    for stack in stacks().values():
        release = release_of(stack.names[0], "decode")
        assert (release.scheduler is not None) == (stack.kind in ("serving", "launcher"))
        if release.scheduler is not None:
            assert release.host in host_times()
