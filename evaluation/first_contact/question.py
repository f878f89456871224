"""A measured figure and the requests, as a user sends them, whose answers predict it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from app.errors import NotFound

Body = Mapping[str, Any]
Row = Mapping[str, Any]
# As a user asks; with the settings of the source's launch scripts that no user sends.
ASKED, SCRIPTED = "user", "scripts"
# Of a file with more rows so many are recorded, evenly spaced.
MOST_CASES = 4000


class Levels(NamedTuple):
    """What a figure's error may depend on; empty where it has none.

    figure        tpot, ttft, static, training, network, energy, kernel, an operator's family, collective, memory
    gpu           id in the catalogue, or the source's name
    model         network, kernel or operator
    architecture  dense, experts, latent, sparse, hybrid, convnet, diffusion
    dtype         number format of the weights and products, as asked
    stack, version    software and its release
    devices, nodes
    split         parallelism but for the number of devices
    load          of served models: concurrency, rate_per_s, burst or trace
    """

    figure: str
    gpu: str
    model: str
    architecture: str = ""
    dtype: str = ""
    stack: str = ""
    version: str = ""
    devices: int = 1
    nodes: int = 1
    split: str = ""
    load: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One measured figure.

    case      what identifies the measurement within its source
    measured  milliseconds of times, joules, or GiB of memory
    parts     how often each request's answer is contained
    reading   where the figure stands in an answer: a name in `reading.READINGS`
    asked     ASKED or SCRIPTED
    reason    why there is no request
    """

    case: str
    levels: Levels
    measured: float
    parts: Sequence[tuple[float, Body]] = ()
    reading: str = "latency"
    asked: str = ASKED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of first contacts.

    name         of its file in the ledger
    origin       where it is from, with its licence
    questions    its questions, of a data folder
    assumptions  what it does not say, as it is asked
    recorded_in  the ledger's file that has its first contact, where that is of an older evaluation
    """

    name: str
    origin: str
    questions: Callable[[Path], Iterator[Question]] = field(repr=False)
    assumptions: Sequence[str] = ()
    recorded_in: str = ""


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a Parquet file. Raises NotFound without it."""
    if not path.is_file():
        raise NotFound(f"No {path}: pass the folder of the data sets by --data.")
    rows: list[Row] = pq.read_table(path, columns=columns).to_pylist()
    return rows


def evenly(rows: Sequence[Row], most: int = MOST_CASES) -> Sequence[Row]:
    """Return at most `most` rows, evenly spaced."""
    if len(rows) <= most:
        return rows
    return [rows[k * len(rows) // most] for k in range(most)]


def release(software: str) -> tuple[str, str]:
    """Return the stack and the version of a name as requests have it."""
    stack, _, version = software.partition("-")
    return stack, version


def architecture_of(config: Body) -> str:
    """Return the class of a decoder by the fields of its configuration."""
    text = {**config, **(config.get("text_config") or {})}
    layers = {str(kind) for kind in text.get("layer_types") or ()}
    if text.get("index_topk"):
        return "sparse"
    if layers & {"linear_attention", "conv", "mamba"} or {"mamba_num_heads", "ssm_state_size", "conv_L_cache"} & set(
        text
    ):
        return "hybrid"
    if text.get("kv_lora_rank"):
        return "latent"
    experts = (text.get(name) for name in ("num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts"))
    return "experts" if any(number and number > 1 for number in experts) else "dense"
