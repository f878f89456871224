"""PyTorch networks match their graphs: parameters, shapes and layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

from app.networks.builtin import find_config  # noqa: E402
from app.networks.convmeter_figures import figures  # noqa: E402
from app.networks.convnets import lower  # noqa: E402
from app.networks.importers import hf  # noqa: E402
from app.networks.run import Run  # noqa: E402
from measure.device import Device  # noqa: E402
from measure.models_suite import BLOCKS, CONVNETS, points  # noqa: E402
from measure.point import Point  # noqa: E402
from measure.torch_convnets import convnet  # noqa: E402
from measure.torch_transformers import transformer  # noqa: E402

CPU = Device("cpu", "a CPU", ("fp32",), 16e9, 1, "pytorch-2", "pytorch-2")
# One of each kind of layer and of joining them.
SOME = ("alexnet", "googlenet", "mobilenet_v3_small", "regnet_y_400mf", "densenet121", "shufflenet_v2_x0_5", "vgg11_bn")
TRANSFORMERS = ("gpt2", "bert-base", "opt-1.3b", "llama-3-8b", "phi-3-mini", "qwen2.5-7b", "qwen3-4b", "mistral-7b")


@pytest.mark.parametrize("name", [*SOME, *BLOCKS[:5]])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_convnet_has_the_parameters_of_its_description(name: str, mode: str) -> None:
    with torch.device("meta"):
        net = convnet(name, 224, training=mode == "training")
    described = figures(lower(name, Run(mode, image_size=224)))  # type: ignore[arg-type]
    assert sum(p.numel() for p in net.parameters()) == described.weights


@pytest.mark.parametrize(
    "name", ["googlenet", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5", "squeezenet1_1"]
)
def test_a_convnet_runs_forward_and_back(name: str) -> None:
    side = 64
    net = convnet(name, side, training=True).train()
    logits = net(torch.randn(2, 3, side, side))
    assert {tuple(y.shape) for y in logits} == {(2, 1000, 1, 1)}
    torch.autograd.backward(logits, [torch.ones_like(y) for y in logits])
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_each_layer_has_the_described_output() -> None:
    """Repeated blocks have weights of their own, and run one after another."""
    w = lower("resnet50", Run(image_size=64))
    net = convnet("resnet50", 64, training=False).eval()
    written = []
    for layer in net.layers:
        layer.register_forward_hook(lambda module, inputs, y: written.append(y.numel()))
    with torch.inference_mode():
        net(torch.randn(1, 3, 64, 64))
    described = []
    for block in range(w.blocks):
        rows = np.flatnonzero(w.block == block)
        described += (w.output_bytes[rows] / 4.0).tolist() * int(w.repeats[block])
    assert written == described


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_has_the_parameters_of_its_configuration(name: str) -> None:
    config = find_config(name) or {}
    with torch.device("meta"):
        net = transformer(config, eager=True)
    w = hf.lower(config, Run(sequence=8))
    assert sum(p.numel() for p in net.parameters()) == w.parameters @ w.runs


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_eager_and_fused_compute_the_same(name: str) -> None:
    small = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "intermediate_size": 96, "ffn_dim": 96, "head_dim": 16, "sliding_window": 8}
    small |= {"word_embed_proj_dim": 64}
    given = find_config(name) or {}
    config = {key: small.get(key, value) for key, value in given.items()}
    config |= {"num_key_value_heads": 2} if "num_key_value_heads" in given else {}
    torch.manual_seed(0)
    eager, fused = (transformer(config, eager=eager).eval() for eager in (True, False))
    fused.load_state_dict(eager.state_dict())
    tokens = torch.randint(99, (2, 12))
    with torch.inference_mode():
        for one, other in zip(eager(tokens), fused(tokens), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        last = transformer(config, eager=False, last_only=True).eval()
        last.load_state_dict(eager.state_dict())
        if name != "bert-base":
            torch.testing.assert_close(last(tokens)[0], eager(tokens)[0][:, -1:], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def found() -> Sequence[Point]:
    return points(CPU)


def test_points_cover_every_network_before_repeating_one(found: Sequence[Point]) -> None:
    first = found[: len(CONVNETS)]
    assert len({point.workload["name"] for point in first}) >= len(CONVNETS) // 2 - 1
    assert len({point.digest for point in found}) == len(found)


def test_a_point_runs_in_phases(found: Sequence[Point]) -> None:
    point = next(p for p in found if p.workload["name"] == "squeezenet1_1" and p.workload["mode"] == "training")
    prepared = point.prepare()
    assert list(prepared.phases) == ["forward", "backward", "update"]
    for run in prepared.phases.values():
        run()
