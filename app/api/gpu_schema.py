"""JSON schemas of a GPU, generated from the table of fields that also validates one."""

from __future__ import annotations

from typing import Any

import msgspec

from app.tables.complete import REQUIRED
from app.tables.gpu_fields import KINDS, MEANINGS, NUMBERS, PROVENANCES
from app.tables.gpus import PIPES, GpuSpec

_RATE = {"type": ["number", "null"], "minimum": 1e6, "maximum": 1e21}
_TEXT = {"type": ["string", "null"], "maxLength": 200}


def gpu() -> dict[str, Any]:
    """Return the schema of a whole specification."""
    _, components = msgspec.json.schema_components([GpuSpec], ref_template="#/components/schemas/{name}")
    schema: dict[str, Any] = components["GpuSpec"]
    schema["title"] = "Gpu"
    return _described(schema)


def partial_gpu(*, required: bool) -> dict[str, Any]:
    """Return the schema of a partial description. Null means not given, and in `peak_flops` an unsupported pipe."""
    properties: dict[str, Any] = {
        "id": {"type": ["string", "null"], "pattern": "^[a-z0-9]+([.-][a-z0-9]+)*$", "maxLength": 100},
        **dict.fromkeys(("name", "vendor", "architecture", "memory_type", "link_type"), _TEXT),
        "source": {**_TEXT, "maxLength": 2000},
        "note": {**_TEXT, "maxLength": 2000},
        "kind": {"enum": [*KINDS, None]},
        "compute_capability": {"type": ["string", "null"], "pattern": r"^\d{1,2}\.\d$"},
        "aliases": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1, "maxLength": 200}},
        "peak_flops": {
            "type": ["object", "null"],
            "properties": dict.fromkeys(PIPES, _RATE),
            "additionalProperties": False,
        },
        "provenance": {"type": ["object", "null"], "additionalProperties": {"enum": list(PROVENANCES)}},
    }
    for name, allowed in NUMBERS.items():
        properties[name] = {
            "type": ["integer" if allowed.whole else "number", "null"],
            "minimum": allowed.low,
            "maximum": allowed.high,
        }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return _described({**schema, "required": list(REQUIRED)} if required else schema)


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the meaning of each field."""
    properties = {name: {"description": MEANINGS[name], **kind} for name, kind in schema["properties"].items()}
    return {**schema, "properties": properties}
