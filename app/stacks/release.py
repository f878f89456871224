"""A release of a software stack: all that it does, resolved from its name once a request, as a value."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import nan
from typing import Any, Literal, NamedTuple

from app.coefficients import Coefficients
from app.stacks import registry
from app.stacks.facts import (
    HOST_FACTS,
    NO_RULES,
    NO_WAIT,
    RELEASE_FACTS,
    RULE_FACTS,
    SCHEDULER_FACTS,
    Host,
    HostTimes,
    HostWait,
    LayerRules,
    Scheduler,
)
from app.stacks.registry import Stack, Version, default_stack, kernel_code, match_name, stacks, to_version, version_in
from app.warning_codes import CodedWarning, warning

# Formats that eager PyTorch runs where no software is named.
EAGER_DTYPES = ("fp64", "fp32", "tf32")
_OWN_VERSION = re.compile(r"[-_ ]v?\d")
_NAMES_CACHED = 4096
# A host's time for a launch over the usual host's.
_HOST_SHARES = Coefficients("physics").by_name("host_launch_share")
# Modes in which a stack lowers layers by its own rules.
_RULED_MODES = {"serving": ("prefill", "decode"), "training": ("training",)}


class Assumption(NamedTuple):
    """Assumption for a serving stack or version without measurements.

    warning  what is assumed
    other    "version" or "stack": what was measured is another one, which widens intervals
    """

    warning: CodedWarning
    other: str


@dataclass(frozen=True, slots=True)
class Release:
    """What a release does in a mode. Equal releases take the same times, whatever they are called.

    software    the name as given, "" for none
    name        its stack's name, for unknown software its own without the version
    stack       the stack whose facts these are: of unknown software the default one
    version     major, minor and patch, None without one
    known       its stack is known
    eager       the host launches each operator; else CUDA graphs are replayed
    assumption  what is assumed of a release that nobody measured, in serving
    kernels     the stack whose own kernels run the layers; None: PyTorch's, one by one
    code        the code of these kernels in trained artefacts; None: of no stack's
    rules       how layers are lowered
    eager_host_s    host seconds of the mean operator, where the host launches each
    launcher        who launches them, by how quick it is; None: any host
    host_wait       what steps wait for the host of a serving engine
    stream_wait_s   what an arriving request waits for its front end, per stream of tokens that this sends
    host_beside     what the host of a serving engine takes of a step beside its device, which waits where that is more
    ranks_s         of a step on several devices, for which their hosts wait for one another
    drift           share of an answer by which those of equal lengths end apart, so that a closed loop leaves its step
    sums_by_library  all-reduces are left to NCCL
    waits_in_sums   the host waits for each collective of Intel's GPUs
    early_launch    a kernel is set up while the one before it ends (programmatic dependent launch)
    untuned_products  columns and depth of products in FP8 by blocks that AITER has no settings of for CDNA 3
    reads_by_head   on ROCm, attention that decodes reads keys and values for each query head
    product_tile    on CDNA 3, rows of a product in 16 bits after which it reads the weights again, and most such rows
    first_flash     fused attention is FlashAttention 1
    cudnn_attention  fused attention on Hopper is cuDNN's
    fuses_attention  training in 16 bits and fewer runs fused attention
    multi_tensor    the update is torch.optim's, an operation after the other, not one fused kernel
    quantised_cache  format of the KV cache of models in 8 bits and fewer whose files do not say; None: attention's
    fuses_training  rows of training are fused kernels, not PyTorch's own
    gradient_bucket  parameters of a bucket of gradients, at least and per data-parallel device; None: PyTorch's
    gathers_beside_forward  updated weights are gathered beside the next forward pass
    recompute       what backward recomputes where the request does not say
    recompute_or    what more it recomputes where memory is short, and in which share of layers, the least first
    selects_operators  recomputation that is called selective is of operators, not of attention's scores
    zero            stage of ZeRO where the request does not say
    splits_sequence  tensor parallelism splits the layers between its products too
    copies_units    ZeRO 3 copies a unit's weights out of what was gathered, and its gradients into what is reduced
    reduces_in_fp32  gradients are reduced in FP32, whatever the format of the weights
    complex_rotary  rotary positions are a product of complex numbers in FP32, which no compiler fuses
    trains_mtp      layers of multi-token prediction that a model has are trained with it
    fused_loss      one kernel reads logits and writes their gradients in the logits' format, not several in FP32
    scheduler       of serving stacks
    host            the name of its host's times among `host_times`, of serving stacks
    """

    software: str = field(compare=False)
    name: str = field(compare=False)
    stack: str = field(compare=False)
    version: Version | None = field(compare=False)
    known: bool = field(compare=False)
    eager: bool = field(compare=False)
    eager_host_s: float
    launcher: Host | None = None
    assumption: Assumption | None = field(default=None, compare=False)
    kernels: str | None = None
    code: int | None = None
    rules: LayerRules = NO_RULES
    host_wait: HostWait = NO_WAIT
    stream_wait_s: float = field(default=0.0, compare=False)
    host_beside: HostWait = field(default=NO_WAIT, compare=False)
    ranks_s: float = field(default=0.0, compare=False)
    drift: float = field(default=0.0, compare=False)
    sums_by_library: bool = False
    waits_in_sums: bool = False
    early_launch: bool = False
    untuned_products: tuple[tuple[float, float], ...] = ()
    reads_by_head: bool = False
    product_tile: tuple[float, float] | None = None
    first_flash: bool = False
    cudnn_attention: bool = False
    fuses_attention: bool = field(default=True, compare=False)
    multi_tensor: bool = False
    quantised_cache: str | None = None
    fuses_training: bool = False
    gradient_bucket: tuple[float, float] | None = None
    gathers_beside_forward: bool = False
    recompute: Literal["none", "selective", "selective_op", "full"] = field(default="none", compare=False)
    recompute_or: tuple[tuple[tuple[str, ...], float], ...] = field(default=(), compare=False)
    selects_operators: bool = field(default=False, compare=False)
    zero: Literal[0, 1, 2, 3] = field(default=0, compare=False)
    splits_sequence: bool = field(default=False, compare=False)
    copies_units: bool = False
    reduces_in_fp32: bool = False
    complex_rotary: bool = False
    trains_mtp: bool = False
    fused_loss: bool = False
    scheduler: Scheduler | None = field(default=None, compare=False)
    host: str = field(default="", compare=False)

    @property
    def is_assumed(self) -> bool:
        """Whether another stack's kernels and host stand for its own."""
        return self.assumption is not None and self.assumption.other == "stack"

    @property
    def column(self) -> float:
        """The column `stack` of its operators: the code of its kernels, NaN for none."""
        return nan if self.code is None else float(self.code)

    def on_host(self, host: Host | None) -> Release:
        """Return the release as this host launches its operators; None: the usual host."""
        if host is None:
            return self
        return replace(self, launcher=host, eager_host_s=_HOST_SHARES[host] * self.eager_host_s)

    def recomputation(self, given: bool | str | None) -> tuple[str, ...]:
        """Return what backward recomputes (`Run.recompute`): as given, else as usual."""
        named = self.recompute if given is None else given
        if named in (False, "none"):
            return ()
        if named == "selective":
            return ("selective_op" if self.selects_operators else "core_attn",)
        return (named if isinstance(named, str) else "full",)

    def without_attention(self) -> Release:
        """Return the release as of a network without attention, which is the same whatever its kernels are."""
        return replace(self, first_flash=False, cudnn_attention=False)


@cache
def plain_release() -> Release:
    """Return the framework's usual release, which runs what nothing else is known of."""
    return release_of(default_stack("framework").name)


def default_software(mode: str, dtype: str) -> str:
    """Return the stack that a run without software is timed with: eager PyTorch in training and in wide formats."""
    eager = mode == "training" or dtype in EAGER_DTYPES
    return default_stack("framework" if eager else "serving").name


@lru_cache(_NAMES_CACHED)
def release_of(software: str, mode: str = "inference") -> Release:
    """Return the release of this name in a mode of running; software that is not known is of the default stack."""
    beginning, own, eager = match_name(software) or ("", None, False)
    named = own is not None and own.kind != "launcher" and not (eager and own.kind == "serving")
    # Launchers and unknown software run the default serving stack's kernels, what is eager the framework's.
    stack = own if own is not None and named else default_stack("framework" if eager else "serving")
    version = version_in(software.lower()[len(beginning) :]) if named else None
    serves = stack.kind == "serving"
    lowers = serves or (stack.kind == "training" and mode == "training")
    values = {**default_stack("framework").values(None, mode), **stack.values(version, mode)}
    return Release(
        software=software,
        name=own.name if own is not None and own.kind == "serving" else _OWN_VERSION.split(software.lower())[0],
        stack=stack.name,
        version=version,
        known=own is not None,
        eager=eager,
        assumption=_assumption(software, own, version) if serves else None,
        kernels=stack.name if lowers else None,
        code=kernel_code(stack) if lowers else None,
        rules=LayerRules(**_among(RULE_FACTS, values)) if mode in _RULED_MODES.get(stack.kind, ()) else NO_RULES,
        scheduler=Scheduler(**_among(SCHEDULER_FACTS, values)) if serves else None,
        host=stack.name if "host_times" in values else stack.kernels_of or "",
        **_among(RELEASE_FACTS, values),
    )


def _among(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the facts with these names."""
    return {name: value for name, value in values.items() if name in names}


@lru_cache(_NAMES_CACHED)
def software_columns(software: str) -> tuple[float, float]:
    """Return the columns `eager` and `stack` of an operator's row: 1 or 0, and the code of the kernels, NaN of none."""
    _, stack, eager = match_name(software) or ("", None, False)
    code = None if stack is None else kernel_code(stack)
    return float(eager), nan if code is None else float(code)


def is_eager(software: str) -> bool:
    """Return whether the host launches each operator of this software; a graph does where it is not known."""
    return bool(software_columns(software)[0])


def software_warnings(names: Iterable[str | None]) -> list[CodedWarning]:
    """Return a warning for each name, None left out, that is no known stack: a typo, perhaps."""
    unknown = dict.fromkeys(name for name in names if name and not release_of(name).known)
    text = "software {!r} is not known here: read as one that replays CUDA graphs"
    return [warning("software_unknown", text.format(name)) for name in unknown]


@cache
def host_times() -> dict[str, HostTimes]:
    """Return the times of hosts that ship, by stack, and by `stack`-mixture of its mixtures of experts."""
    times = {}
    for stack in stacks().values():
        values = stack.values(None, "decode")
        for fact, suffix in zip(HOST_FACTS, ("", "-mixture"), strict=True):
            if fact in values:
                times[f"{stack.name}{suffix}"] = values[fact]
    return times


# The version of the times that ship.
SHIPPED_HOSTS = f"shipped-{hashlib.sha256(json.dumps(host_times()).encode()).hexdigest()[:10]}"


def host_name(stack: str, *, mixture: bool) -> str:
    """Return the name among `host_times` of a stack's host, for a model with or without experts."""
    own = f"{stack}-mixture"
    return own if mixture and own in host_times() else stack


class ServingHosts(NamedTuple):
    """Times of hosts by `host_name`; `fitted` has those of `version`, and the others ship with the code."""

    version: str = SHIPPED_HOSTS
    fitted: Mapping[str, HostTimes] = {}

    def times(self) -> dict[str, HostTimes]:
        """Return the times of every stack's host."""
        return {**host_times(), **self.fitted}

    def of(self, release: Release, *, mixture: bool, latent: bool, devices: int = 1) -> HostTimes:
        """Return the times of a release's host, see `host_times_of`."""
        name = host_name(release.host, mixture=mixture)
        return host_times_of(self.fitted.get(name, host_times()[name]), release, latent=latent, devices=devices)

    def version_of(self, name: str) -> str:
        """Return the version that the times of a `host_name` are of."""
        return self.version if name in self.fitted else SHIPPED_HOSTS


def host_times_of(host: HostTimes, release: Release, *, latent: bool, devices: int = 1) -> HostTimes:
    """Return the times of a stack's host for a release, with what steps of an old one wait for it, and a model."""
    return host._replace(
        step_s=host.step_s + release.host_wait.step_s + (release.ranks_s if devices > 1 else 0.0),
        sequence_s=host.sequence_s + release.host_wait.sequence_s,
        request_s=host.request_s + (host.latent_s if latent else 0.0),
    )


def _assumption(software: str, own: Stack | None, version: Version | None) -> Assumption | None:
    """Return what is assumed in timing a serving stack; None if its version was measured, or it has none."""
    if not software.strip() or (own is not None and own.kind == "launcher"):
        return None
    default = default_stack("serving").name
    if own is None:
        text = f"software {software!r} is not known here: timed as {default}, in a wider interval"
        return Assumption(warning("software_unknown", text), "stack")
    if own.code is None:
        text = f"software {software!r}: none of {own.title} was measured: timed with kernels of {own.kernels_of}"
        return Assumption(warning("version_unmeasured", f"{text}, in a wider interval"), "stack")
    if version is None or version[:2] in {to_version(text)[:2] for text in own.measured}:
        return None
    known = ", ".join(own.measured)
    text = f"software {software!r}: no such version was measured ({own.name} {known} were), so the interval is wider"
    return Assumption(warning("version_unmeasured", text), "version")


def clear() -> None:
    """Forget all releases, after files of stacks changed."""
    registry.clear()
    release_of.cache_clear()
    software_columns.cache_clear()
    plain_release.cache_clear()
    host_times.cache_clear()
