"""Networks on the command line: a built-in name or a configuration's file, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.fields import put_fields, read_json


def model_workload(model: str, options: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The workload of kind `model`; options that are None are left out, `fields` are FIELD=VALUE."""
    is_file = model.endswith(".json") or Path(model).is_file()
    network = {"config": read_json(Path(model))} if is_file else {"name": model}
    said = {name: value for name, value in options.items() if value is not None}
    workload: dict[str, Any] = {"kind": "model", **network, **said}
    put_fields(workload, fields)
    return workload
