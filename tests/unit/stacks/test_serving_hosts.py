"""Times of serving stacks' hosts by kind of model."""

from __future__ import annotations

from app.stacks.facts import HostTimes
from app.stacks.release import SHIPPED_HOSTS, ServingHosts, host_name, host_times, release_of

SGLANG = release_of("sglang", "decode")


def test_models_without_latent_attention_have_vllms_host_under_sglang() -> None:
    hosts = ServingHosts()
    assert hosts.of(SGLANG, latent=False) == hosts.of(release_of("vllm", "decode"), latent=False)
    assert hosts.of(SGLANG, latent=True) == host_times()["sglang-latent"]


def test_a_fit_to_models_without_latent_attention_leaves_the_others_as_they_ship() -> None:
    slow = HostTimes(request_s=0.5)
    hosts = ServingHosts("3", {"sglang": slow})
    assert hosts.of(SGLANG, latent=False) == slow
    assert hosts.of(SGLANG, latent=True) == host_times()["sglang-latent"]
    assert hosts.version_of("sglang") == "3"
    assert hosts.version_of(host_name("sglang", latent=True)) == SHIPPED_HOSTS


def test_other_stacks_have_one_host_for_all_models() -> None:
    assert [host_name(stack, latent=True) for stack in ("vllm", "trtllm")] == ["vllm", "trtllm"]
