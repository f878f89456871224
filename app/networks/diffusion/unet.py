"""U-Nets of latent diffusion (Rombach et al. 2022; SDXL, Podell et al. 2023): Diffusers' UNet2DConditionModel.

Residual blocks of two convolutions that take the time step, behind each of which some levels have transformers with
attention over the level's pixels and to the text. The way up also reads the outputs of the way down. Norms are group
norms, which read their input twice; PyTorch copies concatenations, and the planes before and after a transformer.

A sample is an image with a prompt: with classifier-free guidance an image is two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from app.networks.diffusion.architecture import ImageDecoder, TextEncoder
from app.networks.diffusion.rows import DenoiserRows
from app.networks.run import Run, refuse
from app.networks.transformers.row_writer import Flow
from app.tables.workload import Workload

# Pixels per side of a latent pixel, passes of a group norm over its input, inner features of a gated part by its width.
SIDE, _GROUP_NORM, _INNER = 8, 3.0, 4.0


@dataclass(frozen=True, slots=True)
class Level:
    """A level: its channels, heads, and layers of its transformers, on the way down and up; 0: it has none."""

    channels: int
    heads: int
    layers: int
    layers_up: int


@dataclass(frozen=True, slots=True)
class UNet:
    """A U-Net.

    channels     of the latent that it reads, and of that which it writes
    levels       from the latent's size on: each has half the side of the one before it
    blocks       residual blocks of a level on the way down; it has one more on the way up
    text         features of a text token
    text_tokens  tokens of a prompt, as its pipeline pads them
    pooled       features of the second embedding beside the time step's (SDXL); 0: none
    side         pixels per side of an image by default: those that it was trained on
    middle       layers of the transformer in the middle
    """

    channels: tuple[int, int]
    levels: tuple[Level, ...]
    blocks: int
    text: int
    pooled: int
    side: int
    middle: int
    text_tokens: int = 77
    encoders: tuple[TextEncoder, ...] = ()
    decoder: ImageDecoder | None = None

    @property
    def time(self) -> int:
        """Features of a time step."""
        return 4 * self.levels[0].channels


class _Plane(NamedTuple):
    """Samples of a device, height and width of a level in latent pixels, and tokens of the text."""

    batch: float
    high: float
    wide: float
    text: float

    @property
    def pixels(self) -> float:
        return self.high * self.wide

    @property
    def samples(self) -> float:
        return self.batch * self.pixels

    @property
    def sides(self) -> tuple[float, float]:
        return self.high, self.wide

    def scaled(self, by: float) -> _Plane:
        return self._replace(high=self.high * by, wide=self.wide * by)


def write_unet(model: UNet, run: Run) -> Workload:
    """Return the rows of one device. Raises BadInput for images that are no whole number of the last level's pixels."""
    least = SIDE * 2 ** (len(model.levels) - 1)
    for name, pixels in (("image_size", run.image_size), ("image_width", run.image_width)):
        if pixels % least:
            refuse(("workload", name), f"must be a multiple of {least} pixels, one of the last level; found {pixels}")
    if run.frames > 1:
        refuse(("workload", "frames"), "this network makes images: it has one frame")
    rows, first = DenoiserRows(model.levels[0].channels, run), model.levels[0].channels
    plane = _Plane(float(run.device_batch), run.image_size / SIDE, run.image_width / SIDE, float(run.sequence))
    rows.builder.begin()
    for features in (first, model.pooled):
        if features:
            rows.chained((), plane.batch, ((features, model.time), (model.time, model.time)), "conditioning")
    rows.convolution((), plane.batch, (model.channels[0], first), plane.sides, "input", kernel=3)
    plane = _down(rows, model, plane)
    top = model.levels[-1]
    _residual(rows, model, (top.channels, top.channels), plane)
    _transformer(rows, model, top, model.middle, plane)
    _residual(rows, model, (top.channels, top.channels), plane)
    plane = _up(rows, model, plane)
    rows.builder.begin()
    x = _activated_norm(rows, (), plane, first, "output_norm")
    rows.convolution(x, plane.batch, (first, model.channels[1]), plane.sides, "output", kernel=3)
    return rows.builder.build()


def _down(rows: DenoiserRows, model: UNet, plane: _Plane) -> _Plane:
    """Add the way down, and return the last level's plane."""
    before = model.levels[0].channels
    for level in model.levels:
        for _ in range(model.blocks):
            _residual(rows, model, (before, level.channels), plane)
            _transformer(rows, model, level, level.layers, plane)
            before = level.channels
        if level is not model.levels[-1]:
            rows.builder.begin()
            channels = (level.channels, level.channels)
            rows.convolution((), plane.batch, channels, plane.sides, "downsampling", kernel=3, stride=2)
            plane = plane.scaled(0.5)
    return plane


def _up(rows: DenoiserRows, model: UNet, plane: _Plane) -> _Plane:
    """Add the way up, and return the first level's plane."""
    kept, before = [*_kept(model)], model.levels[-1].channels
    for level in reversed(model.levels):
        for _ in range(model.blocks + 1):
            joined = before + kept.pop()
            _residual(rows, model, (joined, level.channels), plane, joins=True)
            _transformer(rows, model, level, level.layers_up, plane)
            before = level.channels
        if level is not model.levels[0]:
            rows.builder.begin()
            plane = plane.scaled(2.0)
            rows.moved((), plane.samples * before, 1.25 * rows.size, "enlarged")
            rows.convolution((), plane.batch, (before, before), plane.sides, "upsampling", kernel=3)
    return plane


def _kept(model: UNet) -> Iterator[int]:
    """Yield the channels of what the way down leaves for the way up, in order."""
    yield model.levels[0].channels
    for level in model.levels:
        yield from [level.channels] * (model.blocks + (level is not model.levels[-1]))


def _residual(
    rows: DenoiserRows, model: UNet, channels: tuple[int, int], plane: _Plane, *, joins: bool = False
) -> None:
    """Add a residual block: two convolutions, of which the second's input has the time step added."""
    (inputs, outputs), count = channels, plane.samples
    rows.builder.begin()
    rows.modulations(((model.time, outputs),), plane.batch, "residual.time")
    x = rows.joined((), count, inputs, "residual.joined") if joins else ()
    y = _activated_norm(rows, x, plane, inputs, "residual.first_norm")
    y = rows.convolution(y, plane.batch, (inputs, outputs), plane.sides, "residual.first", kernel=3)
    y = rows.each("add_scalar", y, count, outputs, "residual.time_sum")
    y = _activated_norm(rows, y, plane, outputs, "residual.second_norm")
    y = rows.convolution(y, plane.batch, (outputs, outputs), plane.sides, "residual.second", kernel=3)
    if inputs != outputs:
        y += rows.convolution(x, plane.batch, (inputs, outputs), plane.sides, "residual.shortcut")
    rows.summed_in(y, count, outputs, "residual")


def _norm(rows: DenoiserRows, x: Flow, plane: _Plane, width: int, name: str) -> Flow:
    elements = plane.samples * width
    moved = _GROUP_NORM * elements * rows.size
    return rows.add("memory", x, outputs=elements, name=name, parameters=2.0 * width, bytes=moved)


def _activated_norm(rows: DenoiserRows, x: Flow, plane: _Plane, width: int, name: str) -> Flow:
    return rows.each("silu", _norm(rows, x, plane, width, name), plane.samples, width, f"{name}.activation")


def _transformer(rows: DenoiserRows, model: UNet, level: Level, layers: int, plane: _Plane) -> None:
    """Add a transformer over the level's pixels, if it has layers."""
    if not layers:
        return
    width, count = level.channels, plane.samples
    rows.builder.begin()
    x = _norm(rows, (), plane, width, "transformer.norm")
    x = rows.joined(x, count, width, "transformer.tokens")
    rows.linear(x, count, width, width, "transformer.input", bias=True)
    rows.builder.begin(layers)
    _layer(rows, model, level, plane)
    rows.builder.begin()
    x = rows.linear((), count, width, width, "transformer.output", bias=True)
    rows.summed_in(rows.joined(x, count, width, "transformer.planes"), count, width, "transformer")


def _layer(rows: DenoiserRows, model: UNet, level: Level, plane: _Plane) -> None:
    """Add a layer: attention over the pixels, attention to the text, and a gated feed-forward part."""
    width, count = level.channels, plane.samples
    heads = (level.heads, level.channels // level.heads)
    x: Flow = ()
    for name, keys, features in (("attention", plane.pixels, width), ("cross", plane.text, model.text)):
        y = rows.plain_norm(x, count, width, f"{name}.norm", affine=True)
        read = y if name == "attention" else ()
        qkv = rows.linear(y, count, width, width, f"{name}.query")
        for part in ("key", "value"):
            qkv += rows.linear(read, plane.batch * keys, width, features, f"{name}.{part}")
        y = rows.attended(qkv, heads, plane.batch, (plane.pixels, keys), name)
        x = rows.summed_in(rows.linear(y, count, width, width, f"{name}.output", bias=True), count, width, name)
    inner = _INNER * width
    y = rows.plain_norm(x, count, width, "mlp.norm", affine=True)
    y = rows.linear(y, count, 2.0 * inner, width, "mlp.up", bias=True)
    y = rows.each("mul", rows.each("gelu", y, count, inner, "mlp.activation"), count, inner, "mlp.gate")
    rows.summed_in(rows.linear(y, count, width, inner, "mlp.down", bias=True), count, width, "mlp")
