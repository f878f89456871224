"""What the error of a step or a served load is shared by (app.bands.error_model): software, GPU, network and format."""

from __future__ import annotations

from collections.abc import Sequence

from app.bands.error_model import Levels
from app.networks.run import Parallelism, Run
from app.ops import OP_CODE
from app.stacks.release import Release
from app.steps.networks import StepRows
from app.tables.architectures import generation_of
from app.tables.gpus import GpuTable

_CONVOLUTION = OP_CODE["conv2d"]
_TPU = "tpu"
_SPLIT = ("data", "context", "expert")


def figure_of_step(rows: StepRows, run: Run) -> str:
    """Return which figure of the error model a step is."""
    if run.part is not None:
        return "diffusion"
    if run.of_images or (rows.distinct.table.kind == _CONVOLUTION).any():
        return "network"
    return "training" if run.mode == "training" else "step"


def levels_of(rows: StepRows, run: Run, gpus: GpuTable, targets: Sequence[int], load: str = "") -> list[Levels]:
    """Return the levels of a step, or of a served load on it, on each target."""
    split = run.parallelism
    shared = Levels(
        stack=run.release.name,
        architecture=rows.architecture,
        model=rows.size,
        format=_format_of(run),
        version=_version_of(run.release),
        devices="nodes" if split.nodes > 1 else "many" if split.devices > 1 else "one",
        load=load,
        split=_split_of(split),
    )
    made = gpus.architectures or ("",) * len(gpus)
    return [shared._replace(gpu=gpus.ids[k], generation=generation_of(made[k])) for k in targets]


def is_assumed(run: Run, levels: Levels) -> bool:
    """Return whether kernels of another stack stand for those of a step, or those of GPUs for a TPU's."""
    return run.release.is_assumed or levels.generation.startswith(_TPU)


def _format_of(run: Run) -> str:
    formats = run.formats
    return run.dtype if formats is None else formats.linear or formats.experts or run.dtype


def _version_of(release: Release) -> str:
    """Return the stack's minor release: patches are alike."""
    return release.name if release.version is None else f"{release.name} {release.version[0]}.{release.version[1]}"


def _split_of(split: Parallelism) -> str:
    return " ".join(f"{name}{size}" for name in _SPLIT if (size := getattr(split, name)) > 1)
