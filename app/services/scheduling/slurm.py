"""Slurm: which partition to send a job to, how many GPUs to request, and for how long.

Partitions are lines of `sinfo --noheader --format "%R %l %G"`: name, time limit, generic resources such as
`gpu:a100:4(S:0-1)`. GPU types are named by the administrator: `names` maps those that are not in the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from app.errors import BadInput, FieldError, NotFound
from app.tables.catalog import Catalog
from app.wire.job_plan_form import Choice

# [days-]hours:minutes:seconds, or fewer parts from the right.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
_GPU = re.compile(r"gpu:(?P<type>[^:,()\s]+):(?P<count>\d+)")
_UNTYPED = re.compile(r"\bgpu:\d+(?![^,()\s])")
_NO_TYPE = "GPUs whose type Slurm does not name (gpu:TYPE:COUNT)."
_UNLIMITED = ("infinite", "unlimited", "n/a")
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition with one type of GPU, `count` per node; `most_s` is its time limit, seconds."""

    name: str
    most_s: float
    gpu: str
    count: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """Partitions with known GPUs, and reason -> names of partitions left out."""

    known: Sequence[Partition]
    left_out: Mapping[str, Sequence[str]]

    @property
    def without(self) -> list[str]:
        """The partitions left out, one sentence per reason."""
        return [f"Left out of {', '.join(names)}: {reason}" for reason, names in self.left_out.items()]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A partition and a plan's choice to request from Slurm."""

    partition: Partition
    choice: Choice

    @property
    def options(self) -> list[str]:
        """Options for sbatch."""
        each = self.partition.count
        nodes = ceil(self.choice.devices / each)
        return [
            f"--partition={self.partition.name}",
            f"--nodes={nodes}",
            f"--gpus-per-node={ceil(self.choice.devices / nodes)}",
            f"--time={slurm_time(self.choice.time_limit_s)}",
        ]


def parse_partitions(lines: Sequence[str], names: Mapping[str, str], catalog: Catalog) -> Partitions:
    """Return the partitions with GPUs. Raises BadInput for an invalid line or name, or if no GPU is known."""
    partitions: list[Partition] = []
    left_out: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        parts = line.split(maxsplit=2)
        if not parts:
            continue
        if len(parts) != 3:
            raise _refused(number, f"expected a name, a time and resources, got {line[:100]!r}")
        name, most_s, resources = parts[0].rstrip("*"), _seconds(parts[1], number), parts[2]
        if _UNTYPED.search(resources):
            left_out.setdefault(_NO_TYPE, []).append(name)
        for word, count in _GPU.findall(resources):
            try:
                partitions.append(Partition(name, most_s, catalog.resolve(names.get(word, word)).id, int(count)))
            except NotFound as error:
                if word in names:
                    raise BadInput(f"--name {word}={names[word]}: {error.detail}") from None
                left_out.setdefault(f"{error.detail} Name it with --name {word}=GPU", []).append(name)
    known = Partitions(partitions, {reason: list(dict.fromkeys(them)) for reason, them in left_out.items()})
    if not partitions:
        raise BadInput(" ".join(["No partition has GPUs of a known type.", *known.without]))
    return known


def propose(choices: Sequence[Choice], partitions: Sequence[Partition]) -> Proposal | None:
    """Return the first choice that meets the goals within a partition's time limit, or None."""
    for choice in choices:
        fitting = [item for item in partitions if item.gpu == choice.gpu and choice.time_limit_s <= item.most_s]
        if choice.meets and fitting:
            return Proposal(min(fitting, key=lambda item: item.most_s), choice)
    return None


def slurm_time(seconds: float) -> str:
    """Return days-hours:minutes:seconds, rounded up to a minute."""
    minutes = ceil(seconds / _MINUTE_S)
    days, left = divmod(minutes, _DAY_S // _MINUTE_S)
    return f"{days}-{left // 60:02}:{left % 60:02}:00"


def _seconds(text: str, number: int) -> float:
    """Return seconds from minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]]."""
    if text.lower() in _UNLIMITED:
        return inf
    match = _TIME.fullmatch(text)
    if match is None:
        raise _refused(number, f"{text[:50]!r} is not a time in Slurm's format")
    rest = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        units = (_HOUR_S, _MINUTE_S, 1)
    else:
        units = (_HOUR_S, _MINUTE_S, 1) if len(rest) == 3 else (_MINUTE_S, 1, 0)
    return int(match["days"] or 0) * _DAY_S + float(sum(part * unit for part, unit in zip(rest, units, strict=False)))


def _refused(number: int, message: str) -> BadInput:
    return BadInput(f"partitions, line {number}: {message}", errors=[FieldError(("partitions", number), message)])
