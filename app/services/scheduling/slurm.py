"""Slurm: which partition to send a job to, how many GPUs of which type to request, and for how long.

Partitions are lines of `sinfo --noheader --format "%R %a %l %D %G"`: name, availability, time limit, number of nodes,
generic resources such as `gpu:a100:4(S:0-1)`. A partition with nodes of several kinds has a line for each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from app.engine.gpu_types import gpu_of_type
from app.errors import BadInput, FieldError, NotFound
from app.tables.catalog import Catalog
from app.wire.job_plan_form import JobChoice

SINFO_FORMAT = "%R %a %l %D %G"
_COLUMNS = 5
# Name of GPUs whose type Slurm does not have, in `--name`.
UNTYPED = "gpu"
# [days-]hours:minutes:seconds, or fewer parts from the right.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")
# gpu:TYPE:COUNT or gpu:COUNT, with the sockets behind it; no_consume marks resources that are shared.
_GPU = re.compile(
    r"(?:^|,)gpu(?::(?P<type>(?!\d+(?:[,(]|$))[^:,()\s]+))?(?::no_consume)?(?::(?P<count>\d+))?(?=[,(]|$)"
)
_SOCKETS = re.compile(r"\([^)]*\)")
_UNLIMITED = ("infinite", "unlimited", "n/a")
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes of a partition with one type of GPU, `count` per node; `most_s` is the time limit, seconds.

    `word` is Slurm's name of the type, empty if it has none.
    """

    name: str
    most_s: float
    word: str
    gpu: str
    count: int
    nodes: int

    @property
    def shown(self) -> str:
        """Partition and type, as messages name them."""
        return f"{self.name} (gpu:{self.word or self.count})"


@dataclass(frozen=True, slots=True)
class Partitions:
    """Partitions with known GPUs, reason -> names of those left out, and which product a type was taken for."""

    known: Sequence[Partition]
    left_out: Mapping[str, Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def without(self) -> list[str]:
        """The partitions left out, one sentence per reason."""
        return [f"Left out of {', '.join(names)}: {reason}" for reason, names in self.left_out.items()]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A partition and a plan's choice to request from Slurm."""

    partition: Partition
    choice: JobChoice

    @property
    def options(self) -> list[str]:
        """Options for sbatch."""
        nodes, word = nodes_of(self.choice, self.partition), self.partition.word
        return [
            f"--partition={self.partition.name}",
            f"--nodes={nodes}",
            f"--gpus-per-node={f'{word}:' * bool(word)}{ceil(self.choice.devices / nodes)}",
            f"--time={slurm_time(self.choice.time_limit_s)}",
        ]


def parse_partitions(lines: Sequence[str], names: Mapping[str, str], catalog: Catalog) -> Partitions:
    """Return the partitions with GPUs; `names`: catalogue GPU of a Slurm type, UNTYPED for those without one.

    Raises BadInput for an invalid line or name, or if no GPU is known.
    """
    partitions: list[Partition] = []
    left_out: dict[str, list[str]] = {}
    notes: list[str] = []
    for number, line in enumerate(lines, start=1):
        parts = line.split(maxsplit=_COLUMNS - 1)
        if not parts:
            continue
        if len(parts) != _COLUMNS or not parts[3].isdigit():
            raise _refused(number, f"expected a name, up or down, a time, a number and resources, got {line[:100]!r}")
        name, most_s, resources = parts[0].rstrip("*"), _seconds(parts[2], number), _SOCKETS.sub("", parts[4])
        matches = list(_GPU.finditer(resources))
        if parts[1] != "up" or not matches:
            reason = f"the partition is {parts[1]}." if parts[1] != "up" else "it has no GPUs."
            left_out.setdefault(reason, []).append(name)
            continue
        for match in matches:
            word = match["type"] or ""
            try:
                gpu, note = gpu_of_type(word, names, catalog) if word else _untyped(names, catalog)
            except NotFound as error:
                left_out.setdefault(error.detail, []).append(name)
                continue
            partitions.append(Partition(name, most_s, word, gpu, int(match["count"] or 1), int(parts[3])))
            notes += [note] * bool(note)
    reasons = {reason: list(dict.fromkeys(them)) for reason, them in left_out.items()}
    known = Partitions(partitions, reasons, list(dict.fromkeys(notes)))
    if not partitions:
        raise BadInput(" ".join(["No partition has GPUs of a known type.", *known.without]))
    return known


def _untyped(names: Mapping[str, str], catalog: Catalog) -> tuple[str, str]:
    if UNTYPED in names:
        return gpu_of_type(UNTYPED, names, catalog)
    raise NotFound(f"GPUs whose type Slurm does not name (gpu:TYPE:COUNT). Name them with --name {UNTYPED}=GPU.")


def propose(choices: Sequence[JobChoice], partitions: Sequence[Partition]) -> Proposal | None:
    """Return the first choice that meets the goals within a partition's time limit and nodes, or None."""
    for choice in choices:
        fitting = [item for item in partitions if item.gpu == choice.gpu and not _too_small(choice, item)]
        if choice.meets and fitting:
            return Proposal(min(fitting, key=lambda item: item.most_s), choice)
    return None


def passed_over(choices: Sequence[JobChoice], partitions: Sequence[Partition], proposal: Proposal | None) -> list[str]:
    """Return a sentence for each partition that was not proposed, with the reason."""
    of_gpu = {choice.gpu: choice for choice in choices}
    chosen = None if proposal is None else proposal.partition
    return [f"{item.shown} not chosen: {_reason(of_gpu.get(item.gpu), item)}" for item in partitions if item != chosen]


def _reason(choice: JobChoice | None, partition: Partition) -> str:
    if choice is None:
        return f"{partition.gpu} cannot run this workload."
    if not choice.meets:
        return f"{partition.gpu} misses the goals: {'; '.join(choice.missing)}."
    if reason := _too_small(choice, partition):
        return reason
    cost = "" if choice.cost_usd is None else f" and costs {choice.cost_usd:.3g} USD"
    return f"{choice.devices} {partition.gpu} also do, but the job takes up to {slurm_time(choice.time_limit_s)}{cost}."


def _too_small(choice: JobChoice, partition: Partition) -> str:
    """Return why a partition's time limit or nodes do not suffice; empty if they do."""
    if choice.time_limit_s > partition.most_s:
        most, needed = slurm_time(partition.most_s), slurm_time(choice.time_limit_s)
        return f"its time limit is {most}, and the job takes up to {needed} on {choice.devices} {choice.gpu}."
    needed_nodes = nodes_of(choice, partition)
    if needed_nodes > partition.nodes:
        return f"{choice.devices} {choice.gpu} are {needed_nodes} nodes, and it has {partition.nodes}."
    return ""


def nodes_of(choice: JobChoice, partition: Partition) -> int:
    """Return the number of nodes that have the devices of a choice."""
    return ceil(choice.devices / partition.count)


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
