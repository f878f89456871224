"""Write the ATen calls of KernelBench's programs (evaluation.operators.kernelbench), by torch.export without data.

python -m evaluation.operators.kernelbench_programs FOLDER_OF_V0 FOLDER_OF_V01
"""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from runpy import run_path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from app.cli.trace import records_of
from app.networks.importers.aten import Ref
from evaluation.operators.kernelbench import PROGRAMS

_LEVELS = {"v0": (1, 2, 3), "v0.1": (1, 2)}
# Seconds after which a program is left out: recurrent networks are unrolled.
_SECONDS = 60


def _exported(file: Path) -> list[Any]:
    """Return the calls of one program, of a module that trains, without gradients."""
    signal.alarm(_SECONDS)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        program = run_path(str(file))
        inputs, model = tuple(program["get_inputs"]()), program["Model"](*program["get_init_inputs"]())
    with torch.no_grad():
        calls = records_of(torch.export.export(model, inputs, strict=False))
    signal.alarm(0)
    return [_without_refs(list(call)) for call in calls]


def _without_refs(argument: Any) -> Any:
    """Return an argument with {"of": name} in place of Refs."""
    if isinstance(argument, Ref):
        return {"of": argument.name}
    if isinstance(argument, list | tuple):
        return [_without_refs(item) for item in argument]
    if isinstance(argument, dict):
        return {name: _without_refs(item) for name, item in argument.items()}
    return argument


def _stop(*_: Any) -> None:
    raise TimeoutError(f"over {_SECONDS} s")


def _write(folders: Mapping[str, Path]) -> None:
    programs = {}
    for version, folder in folders.items():
        for level in _LEVELS[version]:
            for file in sorted((folder / f"level{level}").glob("*.py")):
                try:
                    programs[f"{version}/level{level}/{file.stem}"] = _exported(file)
                except Exception as error:
                    print(f"{file.name}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    PROGRAMS.write_bytes(gzip.compress(json.dumps(programs, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _stop)
    _write({"v0": Path(sys.argv[1]), "v0.1": Path(sys.argv[2])})
