"""Read aiconfigurator's own folder: systems/data/<gpu>/[<family>/]<framework>/<version>/<table>_perf.parquet, or .txt.

Tables become those by serving stack (aiconfigurator_tables): their columns are renamed, GPU, framework and version are
those of the folder, and all files of a table are joined, as its kernels are compared with one another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.errors import BadInput, FieldError, Malformed

_ROOTS = (
    "",
    "data",
    "systems/data",
    "src/aiconfigurator/systems/data",
    "aic-core/src/aiconfigurator_core/systems/data",
)
_PATTERNS = tuple(f"{'*/' * depth}*_perf.{kind}" for depth in (3, 4) for kind in ("parquet", "txt"))
_POINTER = b"version https://git-lfs"
# Columns of all tables -> those of tables by serving stack.
_RENAMED = {
    "latency": "latency_ms",
    "isl": "new_tokens",
    "seqlen": "new_tokens",
    "step": "past_tokens",
    "num_key_value_heads": "num_kv_heads",
    "topk": "top_k",
    "dispatch_avg_t_us": "dispatch_us",
    "combine_avg_t_us": "combine_us",
    "gemm_dtype": "dtype",
    "attn_dtype": "dtype",
    "bmm_dtype": "dtype",
    "allreduce_dtype": "dtype",
    "nccl_dtype": "dtype",
}
# What a table may leave out, and what that means; the rest of these is empty there.
_DEFAULTS: Mapping[str, object] = {"past_tokens": 0, "window_size": 0, "kv_cache_dtype": "bfloat16", "num_sites": 1}
_EMPTY = ("compress_ratio", "chunk_size", "num_slots", "dispatch_sms")
# Sizes of a state that tables of one variant have and those of another lack.
_STATES = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "d_state", "nheads", "head_dim", "n_groups")
_LINEAR = "linear_attention"
# Folders between a GPU's and a framework's, where there are any.
_FAMILIES = frozenset({"attention", "comm", "encoder_attention", "gemm", "hyper_connections", "linear_attention"})
_FAMILIES |= {"mhc", "mla", "mla_bmm", "moe", "quantize", "sparse_attention"}
# Columns whose words differ between versions of the collector, so that the table's own name decides.
_ALWAYS = ("op_name", "kernel_source")


class _Kind(NamedTuple):
    """A table of the folder: the table by serving stack that it is a part of, and columns that all its rows share."""

    table: str
    constants: Mapping[str, str] = {}


def _kinds() -> dict[str, _Kind]:
    named = {
        "gemm": ("gemm",),
        "attention_prefill": ("context_attention",),
        "attention_decode": ("generation_attention",),
        "attention_encoder": ("encoder_attention",),
        "mla": ("context_mla", "generation_mla"),
        "mla_bmm": ("mla_bmm",),
        _LINEAR: ("gdn", "kda", "mamba2"),
        "hyper_connections": ("mhc_module",),
        "moe": ("moe",),
        "all_reduce_custom": ("custom_allreduce",),
        "moe_wide_expert_parallel": ("wideep_moe",),
    }
    kinds = {name: _Kind(table) for table, names in named.items() for name in names}
    modules = {"mla_module": ("mla",), "sparse_attention_module": ("dsa", "msa", "dsv4_csa", "dsv4_hca")}
    for table, variants in modules.items():
        for variant in variants:
            kinds |= {f"{variant}_{phase}_module": _Kind(table) for phase in ("context", "generation")}
    for phase in ("context", "generation"):
        about = {"model": "deepseek-ai/DeepSeek-V3", "gemm_type": "fp8_block"}
        kinds[f"wideep_{phase}_mla"] = _Kind("mla_module", about | {"op_name": f"mla_{phase}"})
        kinds[f"wideep_{phase}_moe"] = _Kind("moe_wide_expert_parallel", {"op_name": f"moe_{phase}"})
    for mode in ("ll", "normal"):
        kinds[f"wideep_deepep_{mode}"] = _Kind("expert_all_to_all", {"op_name": mode, "kernel_source": "deepep"})
    for library in ("NCCL", "oneCCL"):
        kinds[library.lower()] = _Kind("collective", {"kernel_source": library})
    kinds["computescale"] = _Kind("quantize", {"op_name": "compute_scale"})
    kinds["scale_matrix"] = _Kind("quantize", {"op_name": "scale_matrix"})
    return kinds


KINDS = _kinds()


class Joined(NamedTuple):
    """All rows of a table by serving stack.

    name     its file's name
    table    the columns that were asked for
    skipped  reason -> number of rows left out
    ignored  column -> number of rows, of columns that say nothing more
    """

    name: str
    table: pa.Table
    skipped: Counter[str]
    ignored: Counter[str]


def upstream_files(folder: Path) -> list[Path]:
    """Return the files of aiconfigurator's own folder, in or below `folder`; none if it is not one."""
    for root in _ROOTS:
        if found := [path for pattern in _PATTERNS for path in (folder / root).glob(pattern)]:
            return sorted(found)
    return []


def left_out(files: Sequence[Path]) -> list[str]:
    """Return the tables of `files` for whose rows no operator stands, and files that Git LFS has not fetched."""
    unknown = {path.name for path in files if _stem(path) not in KINDS}
    pointers = {f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in files if _is_pointer(path)}
    return [*sorted(unknown), *(f"{name} (not fetched: git lfs pull)" for name in sorted(pointers))]


def joined_tables(files: Sequence[Path], wanted: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> Iterator[Joined]:
    """Yield the rows of `files` by table; `wanted`: file name of a table -> its columns of text and of numbers."""
    by_table: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        if _stem(path) in KINDS and not _is_pointer(path):
            by_table[f"{KINDS[_stem(path)].table}.parquet"].append(path)
    for name, paths in sorted(by_table.items()):
        skipped, ignored = Counter[str](), Counter[str]()
        parts = [_read(path, wanted[name], skipped, ignored) for path in paths]
        yield Joined(name, pa.concat_tables(parts), skipped, ignored)


def _stem(path: Path) -> str:
    return path.stem.removesuffix("_perf")


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _read(
    path: Path, wanted: tuple[Sequence[str], Sequence[str]], skipped: Counter[str], ignored: Counter[str]
) -> pa.Table:
    """Return a file's rows under the columns `wanted`, of text and of numbers; BadInput names those that it lacks."""
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.csv.read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise Malformed(f"{path.name} cannot be read: {str(error)[:200]}") from error
    columns = _columns(table, path)
    words, numbers = wanted
    kept: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name in (*words, *numbers):
        kind = pa.string() if name in words else pa.float64()
        if name in columns:
            kept[name] = _cast(columns[name], kind, path, name)
        elif name in _DEFAULTS or name in _EMPTY or (name in _STATES and KINDS[_stem(path)].table == _LINEAR):
            kept[name] = pa.array([_DEFAULTS.get(name)] * table.num_rows, kind)
    if lacking := [name for name in (*words, *numbers) if name not in kept]:
        errors = [FieldError((path.name, name), "this column is missing") for name in lacking]
        raise BadInput(f"{path}: columns {', '.join(lacking)} are missing.", errors=errors)
    ignored.update({name: table.num_rows for name in columns if name not in kept})
    return _with_times(pa.table(kept), skipped)


def _columns(table: pa.Table, path: Path) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Return a file's columns under the names of tables by serving stack, with those of its folder."""
    kind, rows = KINDS[_stem(path)], table.num_rows
    columns = {_RENAMED.get(name, name): table[name] for name in table.column_names}
    if "moe_dtype" in columns:
        columns["dtype"] = columns["moe_dtype"]
    for part in ("dispatch", "combine"):
        times = [f"{part}_{step}_us" for step in ("transmit", "notify")]
        if set(times) <= set(columns):
            columns[f"{part}_us"] = pc.add(*(columns.pop(name) for name in times))
    gpu = path.parents[3 if path.parents[2].name in _FAMILIES else 2].name
    run = {"gpu": gpu, "framework": path.parents[1].name.lower(), "framework_version": path.parent.name}
    columns.setdefault("op_name", pa.array([_stem(path)] * rows))
    columns |= {name: pa.array([value] * rows) for name, value in {**run, **_absent(kind, columns)}.items()}
    return columns


def _absent(kind: _Kind, columns: Mapping[str, object]) -> dict[str, str]:
    """Return the constants of a table that its columns do not say better; its operation and library they never do."""
    return {name: value for name, value in kind.constants.items() if name in _ALWAYS or name not in columns}


def _cast(column: pa.ChunkedArray | pa.Array, kind: pa.DataType, path: Path, name: str) -> pa.ChunkedArray | pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise BadInput(f"{path}: column {name} has other values than {kind}: {str(error)[:200]}") from error


def _with_times(table: pa.Table, skipped: Counter[str]) -> pa.Table:
    """Return the rows with a time above zero, which the collector writes where a measurement or a difference failed."""
    times = [name for name in ("latency_ms", "dispatch_us", "combine_us") if name in table.column_names]
    positive = np.all([table[name].to_numpy() > 0.0 for name in times], axis=0)
    if not positive.all():
        skipped["times of zero"] += int((~positive).sum())
    return table.filter(pa.array(positive))
