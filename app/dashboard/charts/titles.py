"""Titles of charts: a workload in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST = 84
# Figures of a workload, in order, and the words around them.
_FIGURES = (
    ("mode", "{}"),
    ("software", "{}"),
    ("batch", "batch {:,}"),
    ("sequence", "{:,} tokens"),
    ("input_tokens", "{:,} to"),
    ("output_tokens", "{:,} tokens"),
    ("image_size", "{:,} pixels"),
    ("frames", "{:,} frames"),
    ("dtype", "{}"),
)
_LOADS = (("concurrency", "{:,} in flight"), ("rate_per_s", "{:g} requests/s"), ("burst", "{:,} at once"))


def workload_title(workload: Mapping[str, Any]) -> str:
    """Return a workload of the API in one line: its name, how it runs, its sizes, its formats."""
    kind = workload.get("kind")
    if kind == "operators":
        parts = _operators(workload.get("operators") or [{}])
    elif kind == "kernel":
        parts = [str(workload.get("name") or "a kernel"), str(workload.get("dtype") or "fp32")]
    else:
        parts = [_name(workload), *(_said(words, workload.get(name)) for name, words in _FIGURES)]
        parts += [_said(words, (workload.get("load") or {}).get(name)) for name, words in _LOADS]
    text = ", ".join(part for part in parts if part).replace(" to, ", " to ")
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."


def _operators(operators: list[Mapping[str, Any]]) -> list[str]:
    first = operators[0]
    sizes = [f"{name} {value:g}" for name, value in first.items() if isinstance(value, int | float)]
    more = f"and {len(operators) - 1} more" if len(operators) > 1 else ""
    return [str(first.get("op", "operators")), *sizes, str(first.get("dtype", "")), more]


def _name(workload: Mapping[str, Any]) -> str:
    config = workload.get("config") or {}
    named = workload.get("name") or config.get("_name_or_path") or config.get("model_type")
    return str(named or f"a {workload.get('kind', 'workload')}")


def _said(words: str, value: Any) -> str:
    """Return a figure in its words; empty for none, or one of another type than they are for."""
    if value is None or (":" in words and not isinstance(value, int | float)):
        return ""
    return words.format(value)
