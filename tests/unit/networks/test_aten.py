"""ATen calls as torch.export writes them to the JSON graph, without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from app.networks.importers.aten import BUFFER, GETITEM, INPUT, PARAMETER, Record, Ref, graph
from app.networks.importers.json_graph import lower
from app.networks.run import Run
from app.ops import OPS, kinds_of
from app.tables.ops import DTYPES
from app.tables.workload import Workload
from app.wire.graph_form import check_graph

Shape = Sequence[int]


def outside(name: str, shape: Shape, kind: str = INPUT, dtype: str = "float32") -> Record:
    return Record(name, kind, (), {}, [(shape, dtype)])


def call(name: str, target: str, args: Sequence[Any], *shapes: Shape, **kwargs: Any) -> Record:
    named = name if target == GETITEM else f"aten.{target}"
    target = GETITEM if target == GETITEM else named
    return Record(name, target, args, kwargs, [(shape, "float32") for shape in shapes])


def lowered(*records: Record) -> Workload:
    return lower(check_graph(graph("net", records)), Run())


def ops(workload: Workload) -> list[str]:
    return [OPS[code].name for code in workload.ops.kind]


def macs(workload: Workload) -> float:
    found = 0.0
    for kind in kinds_of(workload.ops):
        if kind.op.products is not None or kind.op.name == "recurrent":
            found += float((kind.op.work(kind.table).flops * kind.table.column("count")).sum()) / 2
    return found


X, Y = Ref("x"), Ref("y")


def test_layers_and_their_weights() -> None:
    workload = lowered(
        outside("w", [512, 784], PARAMETER),
        outside("b", [512], PARAMETER),
        outside("mean", [512], BUFFER),
        outside("x", [32, 1, 28, 28]),
        call("flat", "flatten.using_ints", [X, 1], [32, 784]),
        call("y", "linear.default", [Ref("flat"), Ref("w"), Ref("b")], [32, 512]),
        call("act", "relu_.default", [Y], [32, 512]),
        call("again", "mm.default", [Ref("act"), Ref("w")], [32, 784]),
    )
    assert ops(workload) == ["linear", "relu", "linear"]
    assert workload.parameters.tolist() == [784 * 512 + 512, 0, 0]
    assert workload.edges.tolist() == [[0, 1], [1, 2]]
    assert not workload.unknown


@pytest.mark.parametrize(
    ("target", "args", "weight", "x", "y", "expected"),
    [
        ("mm.default", [X, Ref("w")], [7, 11], [5, 7], [5, 11], 5 * 7 * 11),
        ("addmm.default", [Ref("w2"), X, Ref("w")], [7, 11], [5, 7], [5, 11], 5 * 7 * 11),
        ("matmul.default", [X, Ref("w")], [7, 11], [2, 5, 7], [2, 5, 11], 10 * 7 * 11),
        ("conv2d.default", [X, Ref("w"), None, [2, 2], [3, 3]], [64, 3, 7, 7], [2, 3, 224, 224], [2, 64, 112, 112],
         2 * 112 * 112 * 64 * 147),
        ("conv2d.padding", [X, Ref("w"), None, [1, 1], "same", [1, 1], 4], [4, 1, 3, 3], [1, 4, 9, 9], [1, 4, 9, 9],
         81 * 4 * 9),
        ("conv1d.default", [X, Ref("w"), None, [2]], [8, 4, 3], [1, 4, 33], [1, 8, 16], 16 * 8 * 12),
        ("convolution.default", [X, Ref("w"), None, [1, 1], [0, 0], [2, 2], False, [0, 0], 1], [8, 4, 3, 3],
         [1, 4, 9, 9], [1, 8, 5, 5], 25 * 8 * 36),
        ("convolution.default", [X, Ref("w"), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1], [4, 8, 3, 3],
         [1, 4, 8, 8], [1, 8, 17, 17], 64 * 4 * 72),
        ("conv3d.default", [X, Ref("w"), None, 1, 0, 1, 2], [8, 2, 3, 3, 3], [1, 4, 5, 6, 7], [1, 8, 3, 4, 5],
         60 * 8 * 54),
    ],
)  # fmt: skip
def test_products(target: str, args: list[Any], weight: Shape, x: Shape, y: Shape, expected: float) -> None:
    workload = lowered(
        outside("w", weight, PARAMETER), outside("w2", [1], BUFFER), outside("x", x), call("y", target, args, y)
    )
    assert macs(workload) == expected
    assert workload.parameters.sum() > 0 and not workload.unknown


@pytest.mark.parametrize(
    ("equation", "a", "b", "out", "op", "expected"),
    [
        ("bijl,lk->bijk", [2, 3, 4, 5], [5, 7], [2, 3, 4, 7], "linear", 24 * 5 * 7),
        ("bhqd,bhkd->bhqk", [2, 3, 4, 5], [2, 3, 6, 5], [2, 3, 4, 6], "bmm", 6 * 4 * 6 * 5),
        ("ij,k->ijk", [2, 3], [4], [2, 3, 4], "linear", 24),
        ("ij,jk->i", [2, 3], [3, 4], [2], "memory", 0),
    ],
)
def test_einsum(equation: str, a: Shape, b: Shape, out: Shape, op: str, expected: float) -> None:
    workload = lowered(
        outside("a", a), outside("b", b), call("y", "einsum.default", [equation, [Ref("a"), Ref("b")]], out)
    )
    assert ops(workload) == [op]
    assert macs(workload) == expected


def test_a_matrix_times_a_vector_reads_the_matrix_as_weights() -> None:
    workload = lowered(
        outside("a", [64, 4096]), outside("x", [4096, 1]), call("y", "matmul.default", [Ref("a"), X], [64, 1])
    )
    (kind,) = kinds_of(workload.ops)
    assert kind.op.name == "linear"
    assert [kind.table.column(name).tolist() for name in "mnk"] == [[1], [64], [4096]]


def test_convolutions_in_fp32_run_in_tf32_where_channels_are_aligned() -> None:
    def format_of(channels: int, dtype: str = "fp32") -> str:
        form = graph("net", [
            outside("w", [8, channels, 3, 3], PARAMETER),
            outside("x", [1, channels, 9, 9]),
            call("y", "conv2d.default", [X, Ref("w")], [1, 8, 7, 7]),
        ])  # fmt: skip
        return DTYPES[lower(check_graph(form), Run(dtype=dtype)).ops.dtype[0]]

    assert [format_of(8), format_of(3), format_of(8, "bf16")] == ["tf32", "fp32", "bf16"]


@pytest.mark.parametrize(
    ("target", "args", "expected", "rows"),
    [
        ("batch_norm.default", [X, None, None, None, None, True], "batch_norm_training", [2 * 81, 4]),
        ("batch_norm.default", [X, None, None, None, None, False], "batch_norm", [2 * 81, 4]),
        ("_native_batch_norm_legit_no_training.default", [X, None, None, None, None, 0.1], "batch_norm", [2 * 81, 4]),
        ("_native_batch_norm_legit.no_stats", [X, None, None, True, 0.1, 1e-5], "batch_norm_training", [2 * 81, 4]),
        ("instance_norm.default", [X, None, None, None, None, True], "batch_norm_training", [81, 8]),
        ("group_norm.default", [X, 2], "batch_norm_training", [2 * 81, 4]),
    ],
)
def test_norms_of_channels(target: str, args: list[Any], expected: str, rows: list[int]) -> None:
    workload = lowered(outside("x", [2, 4, 9, 9]), call("y", target, args, [2, 4, 9, 9]))
    (kind,) = kinds_of(workload.ops)
    assert kind.op.name == expected
    assert [kind.table.column(name)[0] for name in "bh"] == rows


def test_composites_are_the_kernels_that_they_launch() -> None:
    workload = lowered(
        outside("x", [32, 100]),
        outside("target", [32], dtype="int64"),
        call("y", "cross_entropy_loss.default", [X, Ref("target")], []),
    )
    assert ops(workload) == ["softmax", "memory", "memory"]
    assert not workload.unknown


def test_a_graph_of_indices_has_the_format_of_its_inputs() -> None:
    records = [outside("x", [8, 16]), Record("y", "aten.argmax.default", [X, 1], {}, [([8], "int64")])]
    assert graph("net", records)["dtype"] == "fp32"
    assert ops(lowered(*records)) == ["memory"]


def test_attention_with_views_and_the_copy_of_a_transposed_reshape() -> None:
    shape = [2, 4, 9, 16]
    workload = lowered(
        outside("x", [2, 9, 3, 4, 16]),
        call("p", "permute.default", [X, [2, 0, 3, 1, 4]], [3, 2, 4, 9, 16]),
        call("u", "unbind.int", [Ref("p")], shape, shape, shape),
        call("q", GETITEM, [Ref("u"), 0], shape),
        call("k", GETITEM, [Ref("u"), 1], shape),
        call("v", GETITEM, [Ref("u"), 2], shape),
        call("a", "scaled_dot_product_attention.default", [Ref("q"), Ref("k"), Ref("v"), None, 0.0, True], shape),
        call("t", "transpose.int", [Ref("a"), 1, 2], [2, 9, 4, 16]),
        call("r", "reshape.default", [Ref("t"), [2, 9, 64]], [2, 9, 64]),
        call("s", "softmax.int", [Ref("r"), -1], [2, 9, 64]),
    )
    assert ops(workload) == ["attention_prefill", "copy", "softmax"]
    assert macs(workload) == 2 * 2 * 4 * 16 * 45


def test_masks_do_not_reduce_work() -> None:
    shape = [2, 4, 9, 16]
    workload = lowered(
        outside("x", shape),
        outside("m", [9, 9]),
        call("a", "scaled_dot_product_attention.default", [X, X, X, Ref("m")], shape),
    )
    assert macs(workload) == 2 * 2 * 4 * 16 * 81


def test_pools_norms_and_the_rest() -> None:
    image = [2, 8, 14, 14]
    workload = lowered(
        outside("g", [8], PARAMETER),
        outside("x", image),
        call("n", "_native_batch_norm_legit_no_training.default", [X, Ref("g")], image, [0], [0]),
        call("n0", GETITEM, [Ref("n"), 0], image),
        call("p", "max_pool2d.default", [Ref("n0"), [3, 3], [2, 2], [1, 1]], [2, 8, 7, 7]),
        call("a", "adaptive_avg_pool2d.default", [Ref("p"), [3, 3]], [2, 8, 3, 3]),
        call("l", "layer_norm.default", [Ref("a"), [8, 3, 3]], [2, 8, 3, 3]),
        call("c", "cat.default", [[Ref("l"), Ref("l")], 1], [2, 16, 3, 3]),
        call("m", "mul.Tensor", [Ref("c"), 2.0], [2, 16, 3, 3]),
        call("f", "fancy.default", [Ref("m")], [2, 16]),
    )
    assert ops(workload) == ["batch_norm", "max_pool2d", "avg_pool2d", "layer_norm", "memory", "mul_scalar", "memory"]
    assert dict(workload.unknown) == {"fancy": 1}
    assert workload.ops.column("h")[3] == 72


def test_recurrent_layers() -> None:
    params = [Ref(f"w{k}") for k in range(8)]
    shapes = [[512, 64], [512, 128], [512], [512], [512, 128], [512, 128], [512], [512]]
    workload = lowered(
        *(outside(f"w{k}", shape, PARAMETER) for k, shape in enumerate(shapes)),
        outside("x", [16, 4, 64]),
        call("y", "lstm.input", [X, [], params, True, 2, 0.0, False, False, False], [16, 4, 128], [2, 4, 128]),
    )
    assert ops(workload) == ["recurrent", "recurrent"]
    assert macs(workload) == 16 * 4 * 512 * (64 + 128 + 128 + 128)
    assert workload.parameters.sum() == sum(a[0] * (a[1] if len(a) > 1 else 1) for a in shapes)


def test_dtypes() -> None:
    workload = lowered(
        outside("w", [100, 64], PARAMETER, "bfloat16"),
        outside("i", [2, 8], INPUT, "int64"),
        Record("e", "aten.embedding.default", [Ref("w"), Ref("i")], {}, [([2, 8, 64], "bfloat16")]),
    )
    assert ops(workload) == ["embedding"]
    form = graph("net", [outside("w", [100, 64], PARAMETER, "bfloat16")])
    assert form["dtype"] == "bf16"
    assert (
        DTYPES[lower(graph("n", [outside("x", [3]), call("y", "relu.default", [X], [3])]), Run()).ops.dtype[0]]
        == "fp32"
    )


def test_an_invalid_call_is_named() -> None:
    with pytest.raises(ValueError, match=r"y \(aten.mm.default\): argument 1 of mm is not a tensor"):
        lowered(outside("x", [3]), call("y", "mm.default", [X, 3], [3]))


def test_without_pytorch_the_command_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.argv[1:] = ['trace', 'a:b']; from app.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gpucast[torch]" in done.stderr
