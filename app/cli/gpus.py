"""`gpucast gpus`: the GPU catalogue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.config import Settings
from app.errors import Conflict, Malformed

if TYPE_CHECKING:
    from app.bootstrap.runtime import Runtime
    from app.tables.catalog import Catalog
    from app.tables.gpus import GpuSpec

command = typer.Typer(no_args_is_help=True, help="List, show and add GPUs.")

_AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON of GET /gpus.")]
_Name = Annotated[str, typer.Argument(help="A GPU's id, alias or name.")]


@contextmanager
def _open() -> Iterator[tuple[Runtime, Catalog]]:
    from app.bootstrap.runtime import open_runtime
    from app.engine import catalogue

    with open_runtime(Settings.from_env()) as runtime:
        with runtime.database.begin() as connection:
            known = catalogue.load_catalog(connection)
        yield runtime, known


@command.command("list")
def list_gpus(as_json: _AsJson = False) -> None:
    """List the GPUs of this installation."""
    from app.tables.complete import spec_to_dict

    with _open() as (_, known):
        specs = known.specs
    if as_json:
        print(json.dumps({"items": [spec_to_dict(spec) for spec in specs]}, indent=2))
        return
    width = max(len(spec.id) for spec in specs)
    print(f"{'id':{width}}  {'SMs':>4}  {'TFLOP/s FP32':>12}  {'GB/s':>6}  {'GiB':>5}  name")
    for spec in specs:
        print(_line(spec, width))


def _line(spec: GpuSpec, width: int) -> str:
    flops, bandwidth = spec.peak_flops["fp32"] / 1e12, spec.memory_bandwidth_bytes_per_s / 1e9
    memory = spec.memory_bytes / 2**30
    return f"{spec.id:{width}}  {spec.sm_count:4d}  {flops:12.2f}  {bandwidth:6.0f}  {memory:5.0f}  {spec.name}"


@command.command("show")
def show(name: _Name) -> None:
    """Show all figures of a GPU and their sources."""
    from app.tables.complete import spec_to_dict

    with _open() as (_, known):
        spec = known.resolve(name)
    print(json.dumps(spec_to_dict(spec), indent=2))


@command.command("add")
def add(file: Annotated[Path, typer.Argument(help="JSON file of one GPU; - reads standard input.")]) -> None:
    """Add a GPU, existing or planned; figures missing from the file are inferred."""
    from app.store import gpus
    from app.tables.complete import complete

    spec = complete(_read(file))
    with _open() as (runtime, known):
        clashes = known.taken(spec)
        if clashes:
            raise Conflict("Another GPU has that name.", errors=clashes)
        with runtime.database.begin() as connection:
            gpus.insert_spec(connection, spec, "user")
    print(f"Added {spec.id}.")


def _read(file: Path) -> Any:
    try:
        return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Malformed(f"{file} is not a readable JSON file: {error}") from error
