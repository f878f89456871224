"""Files of torch.onnx.export, written in both of its ways, against PyTorch's own counts of FLOPs and parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.networks.importers.json_graph import lower
from app.networks.importers.onnx.walk import read
from app.networks.run import Run
from app.ops import OPS, kinds_of, work_of
from app.tables.workload import Workload
from app.wire.graph_form import check_graph

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
F = torch.nn.functional

pytestmark = pytest.mark.slow

HEADS, WIDTH, VOCABULARY = 4, 64, 100
PRODUCTS = ("linear", "bmm", "conv2d", "recurrent", "attention_prefill")


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A residual block of a convolutional network, with a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Hardswish(), nn.Conv2d(16, 16, 1))
        self.head = nn.Linear(16, 10)

    def forward(self, image: Any) -> Any:
        x = F.relu(self.stem(image))
        x = F.interpolate(x + self.block(x), scale_factor=2.0)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Encoder(nn.Module):  # type: ignore[misc,name-defined]
    """One layer of an encoder: words and positions, attention, GELU, and a result per sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.head = nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH), nn.Linear(WIDTH, 3)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, ids: Any) -> Any:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        parts = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        found = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(found))
        x = self.norms[1](x + self.down(F.gelu(self.up(x))))
        return self.head(x[:, 0])


class Decoder(nn.Module):  # type: ignore[misc,name-defined]
    """One layer of a decoder with a cache: rotary positions, RMS norms and a gated feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.norms = nn.ParameterList([torch.ones(WIDTH), torch.ones(WIDTH)])

    def forward(self, ids: Any, keys: Any, values: Any) -> Any:
        x = self.words(ids)
        (batch, new), past = ids.shape, keys.shape[2]
        parts = self.qkv(self.norm(x, 0)).view(batch, new, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        angle = torch.arange(past, past + new)[:, None] / 10_000 ** (torch.arange(0, WIDTH // HEADS, 2) / 16)
        query, key = (self.turned(part, angle) for part in parts[:2])
        keys, values = torch.cat([keys, key], 2), torch.cat([values, parts[2]], 2)
        found = F.scaled_dot_product_attention(query, keys, values)
        x = x + self.out(found.transpose(1, 2).reshape(batch, new, WIDTH))
        gate, up = self.up(self.norm(x, 1)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        return self.head(x), keys, values

    def norm(self, x: Any, index: int) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norms[index]

    def turned(self, x: Any, angle: Any) -> Any:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()], -1)


class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
    """Two layers of an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(24, 32, 2, batch_first=True, bidirectional=True)

    def forward(self, x: Any) -> Any:
        return self.layers(x)[0]


class Case(NamedTuple):
    """A network, its example inputs by name, names of free axes, and their sizes when it is read."""

    make: Callable[[], Any]
    inputs: dict[str, Any]
    axes: dict[str, dict[int, str]]
    sizes: dict[str, int]


def ids(batch: int, length: int) -> Any:
    return torch.zeros(batch, length, dtype=torch.int64)


def held(batch: int, length: int) -> Any:
    return torch.zeros(batch, HEADS, length, WIDTH // HEADS)


CASES = {
    "convolutions": Case(Block, {"image": torch.zeros(2, 3, 64, 64)}, {"image": {0: "batch"}}, {"batch": 5}),
    "encoder": Case(
        Encoder, {"ids": ids(2, 12)}, {"ids": {0: "batch", 1: "tokens"}}, {"batch": 3, "tokens": 20}
    ),
    "decoder": Case(
        Decoder,
        {"ids": ids(2, 1), "keys": held(2, 9), "values": held(2, 9)},
        {"ids": {0: "batch"}, "keys": {0: "batch", 2: "past"}, "values": {0: "batch", 2: "past"}},
        {"batch": 3, "past": 33},
    ),
    "recurrent": Case(Recurrent, {"x": torch.zeros(2, 7, 24)}, {"x": {0: "batch"}}, {"batch": 3}),
}  # fmt: skip


def exported(case: Case, network: Any, path: Path, *, dynamo: bool) -> bytes:
    axes = {"dynamic_shapes": case.axes} if dynamo else {"dynamic_axes": case.axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, tuple(case.inputs.values()), path, input_names=list(case.inputs), dynamo=dynamo, verbose=False,
            external_data=False, **axes,
        )  # fmt: skip
    return path.read_bytes()


def resized(case: Case) -> list[Any]:
    """The example inputs, with the sizes at which the file is read."""
    return [
        x.new_zeros([case.sizes.get(case.axes[name].get(k, ""), size) for k, size in enumerate(x.shape)])
        for name, x in case.inputs.items()
    ]


def products(workload: Workload) -> float:
    """FLOPs of matrix products and convolutions."""
    kept = [OPS[code].name in PRODUCTS for code in workload.ops.kind]
    return float((work_of(workload.ops, kinds_of(workload.ops)).flops * workload.runs)[kept].sum())


@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", CASES)
def test_exports_have_the_work_and_the_parameters_that_pytorch_counts(name: str, dynamo: bool, tmp_path: Path) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    case = CASES[name]
    network = case.make().eval()
    # The counter sees products, not the libraries' own attention and LSTM.
    plain = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)
    with plain[0], plain[1], torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(*resized(case))
    graph = read(exported(case, network, tmp_path / "network.onnx", dynamo=dynamo), case.sizes)
    workload = lower(check_graph(graph), Run(), case.sizes)
    assert not workload.unknown
    assert products(workload) == pytest.approx(counter.get_total_flops(), rel=1e-9)
    assert workload.parameters.sum() == pytest.approx(sum(p.numel() for p in network.parameters()), rel=0.02)
