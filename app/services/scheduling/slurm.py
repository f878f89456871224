"""Slurm: which partition to send a job to, how many GPUs to ask for, and for how long.

Partitions are lines as `sinfo --noheader --format "%R %l %G"` prints them: name, longest time, generic resources such
as `gpu:a100:4(S:0-1)`. What Slurm calls a GPU is the administrator's word: `names` says which GPU it is where it is no
name of the catalogue.
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
    """A partition with one type of GPU, `count` of them per node; `most_s` is its longest time."""

    name: str
    most_s: float
    gpu: str
    count: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """Partitions whose GPUs are known, and the names of those with others by the reason why these were left out."""

    known: Sequence[Partition]
    left_out: Mapping[str, Sequence[str]]

    @property
    def without(self) -> list[str]:
        """Which GPUs were left out, and why, a sentence for each reason."""
        return [f"Left out of {', '.join(names)}: {reason}" for reason, names in self.left_out.items()]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to ask Slurm for."""

    partition: Partition
    choice: Choice

    @property
    def options(self) -> list[str]:
        """Options of sbatch."""
        each = self.partition.count
        nodes = ceil(self.choice.devices / each)
        return [
            f"--partition={self.partition.name}",
            f"--nodes={nodes}",
            f"--gpus-per-node={ceil(self.choice.devices / nodes)}",
            f"--time={slurm_time(self.choice.time_limit_s)}",
        ]


def partitions_of(lines: Sequence[str], names: Mapping[str, str], catalog: Catalog) -> Partitions:
    """The partitions that have GPUs; BadInput for a line of another form, a wrong name, or if no GPU is known."""
    found: list[Partition] = []
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
                found.append(Partition(name, most_s, catalog.resolve(names.get(word, word)).id, int(count)))
            except NotFound as error:
                if word in names:
                    raise BadInput(f"--name {word}={names[word]}: {error.detail}") from None
                left_out.setdefault(f"{error.detail} Say which it is: --name {word}=GPU", []).append(name)
    known = Partitions(found, {reason: list(dict.fromkeys(them)) for reason, them in left_out.items()})
    if not found:
        raise BadInput(" ".join(["No partition has GPUs of a known type.", *known.without]))
    return known


def proposed(choices: Sequence[Choice], partitions: Sequence[Partition]) -> Proposal | None:
    """The first choice that meets the goals and that a partition has time for; None where there is none."""
    for choice in choices:
        fitting = [one for one in partitions if one.gpu == choice.gpu and choice.time_limit_s <= one.most_s]
        if choice.meets and fitting:
            return Proposal(min(fitting, key=lambda one: one.most_s), choice)
    return None


def slurm_time(seconds: float) -> str:
    """days-hours:minutes:seconds, rounded up to a minute."""
    minutes = ceil(seconds / _MINUTE_S)
    days, left = divmod(minutes, _DAY_S // _MINUTE_S)
    return f"{days}-{left // 60:02}:{left % 60:02}:00"


def _seconds(words: str, number: int) -> float:
    """Slurm's time: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    if words.lower() in _UNLIMITED:
        return inf
    found = _TIME.fullmatch(words)
    if found is None:
        raise _refused(number, f"{words[:50]!r} is no time as Slurm writes it")
    rest = [int(part) for part in found["rest"].split(":")]
    if found["days"] is not None:
        units = (_HOUR_S, _MINUTE_S, 1)
    else:
        units = (_HOUR_S, _MINUTE_S, 1) if len(rest) == 3 else (_MINUTE_S, 1, 0)
    return int(found["days"] or 0) * _DAY_S + float(sum(part * unit for part, unit in zip(rest, units, strict=False)))


def _refused(number: int, words: str) -> BadInput:
    return BadInput(f"partitions, line {number}: {words}", errors=[FieldError(("partitions", number), words)])
