"""Workload of a network on the command line, from a built-in name or a configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.cli.request_fields import put_fields, read_json


def model_workload(model: str, options: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the workload of kind `model` without options that are None; `fields` are FIELD=VALUE."""
    is_file = model.endswith(".json") or Path(model).is_file()
    network = {"config": read_json(Path(model))} if is_file else {"name": model}
    given = {name: value for name, value in options.items() if value is not None}
    workload: dict[str, Any] = {"kind": "model", **network, **given}
    put_fields(workload, fields)
    return workload
