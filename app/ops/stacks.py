"""Launch mode and serving stack of a software, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from app.warning_codes import CodedWarning, warning

# Stacks whose host launches each operator; others replay CUDA graphs, so that only device time counts.
_EAGER = ("pytorch", "vllm-eager", "sglang-eager", "megatron", "nemo")
_GRAPHS = ("vllm", "sglang", "cudagraph", "trtllm", "tensorrt", "cuda", "nccl", "oneccl")


# Serving stacks whose kernels are learned apart; a column `stack` holds a code, NaN for any other software.
STACKS = ("vllm", "sglang", "trtllm")
_ALIASES = {"tensorrt": "trtllm"}
# Training by Megatron-LM's transformer layers with TransformerEngine, by names of its software.
MEGATRON = "megatron"
_VLLM = re.compile(r"vllm-(\d{1,3})\.(\d{1,3})")
_TRTLLM = re.compile(r"(?:trtllm|tensorrt(?:[-_]llm)?)-(\d{1,3})\.(\d{1,3})")
# TRTLLM_ENABLE_PDL is 0 unless set in the releases before, and 1 later (tensorrt_llm/_torch/flashinfer_utils.py).
_EARLY_LAUNCHES = (1, 1)
_TORCH = re.compile(r"pytorch-(\d{1,3})\.(\d{1,3})")
_MEGATRON = ("megatron", "nemo")
_OWN_VERSION = re.compile(r"[-_ ]v?\d")


def stack_of(software: str) -> float:
    """The code into STACKS of a software, NaN for any other."""
    name = software.lower()
    for prefix, stack in (*zip(STACKS, STACKS, strict=True), *_ALIASES.items()):
        if name.startswith(prefix):
            return float(STACKS.index(stack))
    return np.nan


def stack_name(software: str) -> str:
    """The name of a software's stack without its version, lower case; one of STACKS for those."""
    code = stack_of(software)
    return _OWN_VERSION.split(software.lower())[0] if np.isnan(code) else STACKS[int(code)]


def is_megatron(software: str | None) -> bool:
    """Return whether this software trains with Megatron-LM's layers."""
    return software is not None and software.lower().startswith(_MEGATRON)


def torch_version(software: str | None) -> tuple[int, int] | None:
    """Return the major and minor version of a PyTorch by its name, `pytorch-2.1` for example; None without one."""
    found = _TORCH.match((software or "").lower())
    return (int(found[1]), int(found[2])) if found else None


def launches_early(software: str | None) -> bool:
    """Return whether this software sets up a kernel while the one before it ends (programmatic dependent launch)."""
    name = (software or "").lower()
    found = _TRTLLM.match(name)
    version = (int(found[1]), int(found[2])) if found else _EARLY_LAUNCHES
    return stack_of(name) == STACKS.index("trtllm") and version >= _EARLY_LAUNCHES


class EngineHost(NamedTuple):
    """Seconds that the device waits for a serving engine's host: per step, and per sequence in it."""

    step_s: float
    sequence_s: float


NO_WAIT = EngineHost(0.0, 0.0)
# vLLM before a version, oldest first. Before 0.6 it schedules, samples and detokenises between steps:
# fitted to the A100's rows of LLM-Inference-Bench (1, 2 and 4 GPUs). Before 0.13, when its scheduler came to run beside
# the steps by default: fitted to Qwen3-32B on eight H100 with vLLM 0.12 (aiconfigurator's points, not of InferenceX).
_VLLM_HOSTS = {(0, 6): EngineHost(0.6e-3, 90e-6), (0, 13): EngineHost(0.4e-3, 29e-6)}


def engine_host(software: str | None) -> EngineHost:
    """Return what steps of this software wait for its host, by its version; nothing without one."""
    found = _VLLM.match((software or "").lower())
    if found is None:
        return NO_WAIT
    version = int(found[1]), int(found[2])
    return next((host for before, host in _VLLM_HOSTS.items() if version < before), NO_WAIT)


# Host seconds of PyTorch per operator that it launches. Before 2.0, in inference and in training: fitted to MnasNets
# and ShuffleNets in FP32 on an RTX 2080 Ti with PyTorch 1.0, in training between its host (80 us) and that of a TITAN V
# (50 us; torchvision_convnets of `gpucast evaluate scorecard`). In training autograd records each operator, and clears
# and accumulates each weight's gradient by kernels of their own.
EAGER_HOST_S, _FIRST_TORCH_HOST_S, _FIRST_TORCH_TRAINING_S, _SECOND_TORCH = 6e-6, 26e-6, 66e-6, (2, 0)


def eager_host_s(software: str | None, mode: str = "inference") -> float:
    """Return the host seconds of an operator in PyTorch, by its version."""
    version = torch_version(software)
    if version is None or version >= _SECOND_TORCH:
        return EAGER_HOST_S
    return _FIRST_TORCH_TRAINING_S if mode == "training" else _FIRST_TORCH_HOST_S


# Its own all-reduce was an option of the build in the releases before (perf-best-practices.md of TensorRT-LLM).
_OWN_SUMS = (0, 11)


def sums_by_library(software: str | None) -> bool:
    """Return whether this software leaves all-reduces to NCCL: TensorRT-LLM before 0.11."""
    found = _TRTLLM.match((software or "").lower())
    return found is not None and (int(found[1]), int(found[2])) < _OWN_SUMS


def is_first_engine(software: str | None) -> bool:
    """Return whether this software is vLLM before 0.6."""
    found = _VLLM.match((software or "").lower())
    return found is not None and (int(found[1]), int(found[2])) < next(iter(_VLLM_HOSTS))


class Assumption(NamedTuple):
    """Assumption for a serving stack or version without measurements.

    warning  what is assumed
    other    "version" or "stack": what was measured is another one, which widens intervals (app.bands.widths.OTHER)
    """

    warning: CodedWarning
    other: str


# Versions of which operators or deployments were measured, by major and minor: aiconfigurator's and LLMServingSim's
# tables, the served points of `gpucast evaluate serving`, and vLLM 0.5's static batches, to which its host was fitted.
_MEASURED = {
    "vllm": ((0, 5), (0, 12), (0, 14), (0, 15), (0, 18), (0, 19), (0, 20), (0, 24)),
    "sglang": ((0, 5),),
    "trtllm": ((1, 0), (1, 1), (1, 2), (1, 3)),
}
_VERSION = re.compile(r"[a-z-]*?-?v?(\d{1,4})\.(\d{1,4})")


def assumption_of(software: str | None) -> Assumption | None:
    """Return what is assumed in timing a serving stack by its name and version; None if it was measured."""
    name = (software or "").lower()
    if software is None or not software.strip() or is_eager(software):
        return None
    code = stack_of(software)
    if np.isnan(code):
        if name.startswith(_GRAPHS):
            return None
        text = f"software {software!r} is not known here: timed as vllm, in a wider interval"
        return Assumption(warning("software_unknown", text), "stack")
    stack, found = STACKS[int(code)], _VERSION.match(name)
    if found is None or (int(found[1]), int(found[2])) in _MEASURED[stack]:
        return None
    known = ", ".join(f"{major}.{minor}" for major, minor in _MEASURED[stack])
    text = f"software {software!r}: no such version was measured ({stack} {known} were), so the interval is wider"
    return Assumption(warning("version_unmeasured", text), "version")


def software_columns(software: str) -> tuple[float, float]:
    """The columns `eager` and `stack` of a software."""
    return is_eager(software), stack_of(software)


def is_eager(software: str) -> float:
    """1 where the host launches each operator of this stack, 0 where a graph does."""
    return float(software.lower().startswith(_EAGER))


def software_warnings(names: Iterable[str | None]) -> list[CodedWarning]:
    """Return a warning for each name, None left out, that is no known stack: a typo, perhaps."""
    unknown = dict.fromkeys(name for name in names if name and not name.lower().startswith((*_EAGER, *_GRAPHS)))
    return [
        warning("software_unknown", f"software {name!r} is not known here: read as one that replays CUDA graphs")
        for name in unknown
    ]
