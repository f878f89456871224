"""ConvNets by name: parameters, products and activations are the published ones."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np
import pytest

from app.errors import BadInput
from app.networks.convmeter_figures import figures
from app.networks.convnets import CONVNETS, blocks, lower
from app.networks.run import Parallelism, Run
from app.networks.training_pass import training
from app.ops import OPS, kinds_of, work_of
from app.tables.workload import Workload

# torchvision's `num_params`, and its `_ops` in 1e9 multiply-adds at the image size given; both without auxiliary
# classifiers.
PUBLISHED = {
    "alexnet": (61_100_840, 0.714, 224),
    "vgg11": (132_863_336, 7.609, 224),
    "vgg11_bn": (132_868_840, 7.609, 224),
    "vgg13": (133_047_848, 11.308, 224),
    "vgg13_bn": (133_053_736, 11.308, 224),
    "vgg16": (138_357_544, 15.47, 224),
    "vgg16_bn": (138_365_992, 15.47, 224),
    "vgg19": (143_667_240, 19.632, 224),
    "vgg19_bn": (143_678_248, 19.632, 224),
    "resnet18": (11_689_512, 1.814, 224),
    "resnet34": (21_797_672, 3.664, 224),
    "resnet50": (25_557_032, 4.089, 224),
    "resnet101": (44_549_160, 7.801, 224),
    "resnet152": (60_192_808, 11.514, 224),
    "resnext50_32x4d": (25_028_904, 4.23, 224),
    "resnext101_32x8d": (88_791_336, 16.414, 224),
    "resnext101_64x4d": (83_455_272, 15.46, 224),
    "wide_resnet50_2": (68_883_240, 11.398, 224),
    "wide_resnet101_2": (126_886_696, 22.753, 224),
    "mobilenet_v2": (3_504_872, 0.301, 224),
    "mobilenet_v3_small": (2_542_856, 0.057, 224),
    "mobilenet_v3_large": (5_483_032, 0.217, 224),
    "squeezenet1_0": (1_248_424, 0.819, 224),
    "squeezenet1_1": (1_235_496, 0.349, 224),
    "densenet121": (7_978_856, 2.834, 224),
    "densenet161": (28_681_000, 7.728, 224),
    "densenet169": (14_149_480, 3.36, 224),
    "densenet201": (20_013_928, 4.291, 224),
    "googlenet": (6_624_904, 1.498, 224),
    "inception_v3": (23_834_568, 5.713, 299),
    "mnasnet0_5": (2_218_512, 0.104, 224),
    "mnasnet0_75": (3_170_208, 0.215, 224),
    "mnasnet1_0": (4_383_312, 0.314, 224),
    "mnasnet1_3": (6_282_256, 0.526, 224),
    "efficientnet_b0": (5_288_548, 0.386, 224),
    "efficientnet_b1": (7_794_184, 0.687, 240),
    "efficientnet_b2": (9_109_994, 1.088, 288),
    "efficientnet_b3": (12_233_232, 1.827, 300),
    "efficientnet_b4": (19_341_616, 4.394, 380),
    "efficientnet_b5": (30_389_784, 10.266, 456),
    "efficientnet_b6": (43_040_704, 19.068, 528),
    "efficientnet_b7": (66_347_960, 37.746, 600),
    "efficientnet_v2_s": (21_458_488, 8.366, 384),
    "efficientnet_v2_m": (54_139_356, 24.582, 480),
    "efficientnet_v2_l": (118_515_272, 56.08, 480),
    "regnet_x_400mf": (5_495_976, 0.414, 224),
    "regnet_x_800mf": (7_259_656, 0.8, 224),
    "regnet_x_1_6gf": (9_190_136, 1.603, 224),
    "regnet_x_3_2gf": (15_296_552, 3.177, 224),
    "regnet_x_8gf": (39_572_648, 7.995, 224),
    "regnet_x_16gf": (54_278_536, 15.941, 224),
    "regnet_x_32gf": (107_811_560, 31.736, 224),
    "regnet_y_400mf": (4_344_144, 0.402, 224),
    "regnet_y_800mf": (6_432_512, 0.834, 224),
    "regnet_y_1_6gf": (11_202_430, 1.612, 224),
    "regnet_y_3_2gf": (19_436_338, 3.176, 224),
    "regnet_y_8gf": (39_381_472, 8.473, 224),
    "regnet_y_16gf": (83_590_140, 15.912, 224),
    "regnet_y_32gf": (145_046_770, 32.28, 224),
    "regnet_y_128gf": (644_812_894, 127.518, 224),
    "shufflenet_v2_x0_5": (1_366_792, 0.04, 224),
    "shufflenet_v2_x1_0": (2_278_604, 0.145, 224),
    "shufflenet_v2_x1_5": (3_503_624, 0.296, 224),
    "shufflenet_v2_x2_0": (7_393_996, 0.583, 224),
}
TRAINING = Run(mode="training")


def test_every_network_is_checked() -> None:
    assert set(PUBLISHED) == set(CONVNETS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_products_equal_the_published_ones(name: str) -> None:
    parameters, gmacs, side = PUBLISHED[name]
    found = figures(lower(name, Run(image_size=side)))
    assert found.weights == parameters
    assert found.flops / 2e9 == pytest.approx(gmacs, rel=0.01, abs=5e-4)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_rows_fit_together(name: str, mode: str) -> None:
    w = lower(name, Run(mode=mode, batch=2, image_size=PUBLISHED[name][2]))  # type: ignore[arg-type]
    assert [b.message for op, _, table in kinds_of(w.ops) for b in op.broken(table) if b.rows.any()] == []
    work = work_of(w.ops, kinds_of(w.ops))
    assert np.isfinite(work.bytes).all() and (work.bytes > 0).all()
    producers, consumers = w.edges
    assert (producers < consumers).all()
    # Only the first row reads nothing that a row wrote, only last rows are read by none.
    assert set(range(1, len(w))) == set(consumers.tolist())
    heads = {"linear", "conv2d", "avg_pool2d"}
    assert {OPS[w.ops.kind[row]].name for row in set(range(len(w))) - set(producers.tolist())} <= heads
    assert (np.diff(w.block) >= 0).all() and len(w.repeats) == w.block[-1] + 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_row_reads_what_its_producer_wrote(name: str) -> None:
    """Convolutions, normalisations and products: input elements are the producer's outputs."""
    w = lower(name, Run(image_size=PUBLISHED[name][2]))
    column = w.ops.column
    areas = column("input_size_height") * column("input_size_width")
    reads = {
        "conv2d": column("b") * column("in_channels") * areas,
        "batch_norm": column("b") * column("h"),
        "relu": column("b") * column("h"),
        "linear": column("m") * column("k"),
    }
    for producer, consumer in w.edges.T:
        expected = reads.get(OPS[w.ops.kind[consumer]].name)
        if expected is not None:
            assert expected[consumer] * 4.0 == w.output_bytes[producer], (w.names[producer], w.names[consumer])


def test_batch_and_dtype_scale_rows_and_not_weights() -> None:
    one, many = lower("mobilenet_v3_small", Run()), lower("mobilenet_v3_small", Run(batch=32, dtype="fp16"))
    kinds = kinds_of(one.ops)
    np.testing.assert_allclose(work_of(many.ops, kinds_of(many.ops)).flops, 32 * work_of(one.ops, kinds).flops)
    np.testing.assert_allclose(many.output_bytes, 16 * one.output_bytes)
    np.testing.assert_allclose(many.weight_bytes, one.weight_bytes / 2)
    np.testing.assert_array_equal(many.parameters, one.parameters)


def test_a_replica_takes_its_share_of_the_batch() -> None:
    split = lower("resnet18", Run(batch=64, parallelism=Parallelism(data=4, microbatches=2)))
    _assert_equal(split, lower("resnet18", Run(batch=8)))


@pytest.mark.parametrize(
    ("name", "changes", "field", "says"),
    [
        ("resnet-50", {}, "name", "resnet50"),
        ("qwertyuiop", {}, "name", "alexnet"),
        ("vgg16", {"image_size": 31}, "image_size", "at least 32"),
        ("alexnet", {"image_size": 1}, "image_size", "at least 63"),
        ("resnet50", {"image_size": 0}, "image_size", "1 to 4096"),
        ("resnet50", {"image_size": 10**9}, "image_size", "1 to 4096"),
        ("resnet50", {"mode": "decode"}, "mode", "training"),
        ("resnet50", {"dtype": "int8"}, "dtype", "bf16"),
        ("resnet50", {"parallelism": Parallelism(tensor=2)}, "parallelism", "tensor"),
    ],
)
def test_bad_input_names_the_field(name: str, changes: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        lower(name, replace(Run(), **changes))  # type: ignore[arg-type]
    (error,) = caught.value.errors
    assert error.loc[:2] == ("workload", field)
    assert says in error.msg


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_smallest_image_named_in_the_error_is_accepted(name: str) -> None:
    try:
        lower(name, Run(image_size=1))
    except BadInput as refused:
        least = int(refused.detail.split("at least ")[1].split()[0])
        lower(name, Run(image_size=least))
        with pytest.raises(BadInput):
            lower(name, Run(image_size=least - 1))


def test_blocks_make_up_the_network() -> None:
    whole = lower("resnet50", Run(batch=4))
    parts = blocks("resnet50", Run(batch=4))
    assert list(parts)[:3] == ["Stem1", "Bottleneck1", "Bottleneck2"]
    assert list(parts)[-2:] == ["Bottleneck16", "Head1"]
    assert parts["Bottleneck2"] is parts["Bottleneck3"]
    for summed, total in zip(np.sum([figures(w) for w in parts.values()], axis=0), figures(whole), strict=True):
        assert summed == pytest.approx(total)


def test_figures_of_a_convolution_by_hand() -> None:
    """ResNet's stem on 8 images of 32 pixels: 3 channels in, 64 of 16 x 16 out, windows of 7 x 7."""
    found = figures(blocks("resnet18", Run(batch=8, image_size=32))["Stem1"])
    inputs, outputs = 8 * 3 * 32 * 32, 8 * 64 * 16 * 16
    # Convolution, norm, rectifier and pooling; two of them have weights, and none convolves channel by channel.
    assert found == (inputs, outputs, 2 * outputs * 3 * 49, 64 * 3 * 49 + 2 * 64, 2, 0, 4)


def test_depthwise_convolutions_are_counted_apart() -> None:
    """MobileNetV2's second block: 96 channels of 56 pixels a side out of one of each, windows of 3 x 3, stride 2."""
    found = figures(blocks("mobilenet_v2", Run(batch=2))["InvertedResidual2"])
    assert found.depthwise == 2 * 2 * 96 * 56 * 56 * 9
    trained = Run(mode="training", batch=2)
    assert (
        figures(training(lower("mobilenet_v2", trained), trained)).operators
        == figures(lower("mobilenet_v2", trained)).operators
    )


@pytest.mark.parametrize(("name", "parameters"), [("googlenet", 13_004_888), ("inception_v3", 27_161_264)])
def test_training_adds_the_auxiliary_classifiers(name: str, parameters: int) -> None:
    assert figures(lower(name, Run(mode="training", image_size=299))).weights == parameters


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"googlenet", "inception_v3"}))
def test_training_adds_only_masks(name: str) -> None:
    trained, inferred = lower(name, TRAINING), lower(name, Run())
    masks = sum(row.endswith(".drop") for row in trained.names)
    assert len(trained) == len(inferred) + masks
    assert figures(trained) == figures(inferred)._replace(operators=figures(trained).operators)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_concatenation_holds_its_inputs(name: str) -> None:
    w = lower(name, Run(image_size=PUBLISHED[name][2]))
    producers, consumers = w.edges
    for row in np.flatnonzero([row.endswith(".concat") for row in w.names]):
        # Of ShuffleNet's unit at stride 1 one branch is half of what it reads.
        parts = [w.output_bytes[p] / (1 + w.names[p].endswith("shuffle")) for p in producers[consumers == row]]
        assert w.output_bytes[row] == sum(parts), w.names[row]


# Blocks that ConvMeter's paper predicts one by one (table 2): network, and block by its number from 1. The paper does
# not say where it starts to count, which MobileNetV3 it means, nor which MBConv and which convolution.
PAPER_BLOCKS = (
    ("resnext50_32x4d", "Bottleneck1"),
    ("resnet50", "Bottleneck4"),
    ("inception_v3", "Conv2d3"),
    ("resnet18", "BasicBlock7"),
    ("mobilenet_v3_large", "InvertedResidual2"),
    ("regnet_x_8gf", "ResBottleneckBlock3"),
    ("wide_resnet50_2", "Bottleneck9"),
    ("efficientnet_b0", "MBConv2"),
    ("mobilenet_v2", "InvertedResidual3"),
)


@pytest.mark.parametrize(("name", "block"), PAPER_BLOCKS)
def test_the_papers_blocks_exist_by_name(name: str, block: str) -> None:
    run = replace(TRAINING, image_size=299)
    assert figures(lower(f"{name}/{block}", run)) == figures(blocks(name, run)[block])
    assert len(training(lower(f"{name}/{block}", run), run)) > len(lower(f"{name}/{block}", run))


def test_an_unknown_block_lists_the_networks_blocks() -> None:
    with pytest.raises(BadInput, match="resnet18 has no block 'Bottleneck1'; there are Stem1, BasicBlock1"):
        lower("resnet18/Bottleneck1", Run())


def test_saved_activations_by_hand() -> None:
    """A basic block: two inputs and two outputs of convolutions, kept once each; the rest is overwritten in place."""
    part = blocks("resnet18", Run(mode="training", batch=2))["BasicBlock2"]
    plane = 2 * 64 * 56 * 56 * 4.0
    # conv -> norm (its input) -> relu (its output), conv -> norm, add, relu (its output, the next block's input)
    assert part.saved_bytes.tolist() == [plane, 0.0, plane, plane, 0.0, 0.0, plane]
    assert OPS[part.ops.kind[-1]].name == "relu"


def test_activations_of_whole_networks_are_those_of_pytorch() -> None:
    """VGG-16 keeps 14 M elements of rectifiers, pools and the image, and an index per maximum."""
    w = lower("vgg16", Run(mode="training"))
    assert w.saved_bytes @ w.repeats[w.block] == pytest.approx(4 * (13.56e6 + 1.51e6 + 0.15e6) + 8 * 1.51e6, rel=0.01)


def test_lowering_is_quick() -> None:
    lower("resnet50", Run())
    start = time.process_time()
    for batch in range(1, 51):
        lower("resnet50", Run(batch=batch))
    assert (time.process_time() - start) / 50 < 2e-3


def _assert_equal(a: Workload, b: Workload) -> None:
    np.testing.assert_array_equal(a.ops.dims, b.ops.dims)
    for f in fields(Workload):
        if f.name not in ("ops", "unknown"):
            np.testing.assert_array_equal(getattr(a, f.name), getattr(b, f.name))
