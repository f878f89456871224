"""Times of serving stacks' hosts by kind of model."""

from __future__ import annotations

from app.engine.serving_hosts import SHIPPED, ServingHosts, host_name
from app.serving.stacks import HOST, HostTimes


def test_models_without_latent_attention_have_vllms_host_under_sglang() -> None:
    hosts = ServingHosts()
    assert hosts.of("sglang", "sglang", latent=False) == hosts.of("vllm", "vllm", latent=False)
    assert hosts.of("sglang", "sglang", latent=True) == HOST["sglang-latent"]


def test_a_fit_to_models_without_latent_attention_leaves_the_others_as_they_ship() -> None:
    slow = HostTimes(request_s=0.5)
    hosts = ServingHosts("3", {"sglang": slow})
    assert hosts.of("sglang", "sglang", latent=False) == slow
    assert hosts.of("sglang", "sglang", latent=True) == HOST["sglang-latent"]
    assert hosts.version_of("sglang") == "3"
    assert hosts.version_of(host_name("sglang", latent=True)) == SHIPPED


def test_other_stacks_have_one_host_for_all_models() -> None:
    assert [host_name(stack, latent=True) for stack in ("vllm", "trtllm")] == ["vllm", "trtllm"]
