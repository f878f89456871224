"""Times of serving stacks' hosts by kind of model."""

from __future__ import annotations

from app.stacks.facts import HostTimes
from app.stacks.release import SHIPPED_HOSTS, ServingHosts, host_name, host_times, release_of

SGLANG = release_of("sglang", "decode")


def test_models_without_experts_have_vllms_host_under_sglang() -> None:
    hosts = ServingHosts()
    assert hosts.of(SGLANG, mixture=False, latent=False) == hosts.of(
        release_of("vllm", "decode"), mixture=False, latent=False
    )
    assert hosts.of(SGLANG, mixture=True, latent=True) == host_times()["sglang-mixture"]


def test_a_fit_to_models_without_experts_leaves_the_others_as_they_ship() -> None:
    slow = HostTimes(request_s=0.5)
    hosts = ServingHosts("3", {"sglang": slow})
    assert hosts.of(SGLANG, mixture=False, latent=False) == slow
    assert hosts.of(SGLANG, mixture=True, latent=True) == host_times()["sglang-mixture"]
    assert hosts.version_of("sglang") == "3"
    assert hosts.version_of(host_name("sglang", mixture=True)) == SHIPPED_HOSTS


def test_other_stacks_have_one_host_for_all_models() -> None:
    assert [host_name(stack, mixture=True) for stack in ("vllm", "trtllm")] == ["vllm", "trtllm"]
