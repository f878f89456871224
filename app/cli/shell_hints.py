"""Errors of the service in the words of the command line: options for fields, commands for routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.errors import FieldError

_OPTIONS = {
    "gpu": "--gpu NAME",
    "gpus": "--gpu NAME",
    "predictor": "--predictor NAME",
    "coverage": "--coverage SHARE",
    "deadline_s": "--deadline SECONDS, --budget USD or --throughput PER_S",
    "by": "--by FIGURE",
    "workload.name": "--model NAME",
    "workload.mode": "--mode MODE",
    "workload.batch": "--batch BATCH",
    "workload.sequence": "--sequence TOKENS",
    "workload.image_size": "--image-size PIXELS",
    "workload.dtype": "--dtype NAME",
}
# Commands about a workload, which have these options.
_ABOUT_A_WORKLOAD = ("predict", "compare", "plan", "scale", "partition", "sbatch", "kueue", "dra")
_ROUTES = {"GET /gpus": "`gpucast gpus list`", "GET /predictors": "`gpucast predictors`"}


def in_shell(detail: str) -> str:
    """Return a message with commands in place of routes."""
    for route, command in _ROUTES.items():
        detail = detail.replace(route, command)
    return detail


def options_for(command: str | None, errors: Sequence[FieldError]) -> str:
    """Return the options of a command that set the wrong fields; empty if none does.

    Other fields of a workload have --set.
    """
    found = []
    for error in errors if command in _ABOUT_A_WORKLOAD else ():
        place = ".".join(map(str, error.loc))
        nested = place.removeprefix("workload.")
        if place in _OPTIONS:
            found.append(_OPTIONS[place])
        elif nested != place:
            found.append(f"--set {nested}=VALUE")
    return ", ".join(dict.fromkeys(found))


def with_value(message: str, cause: BaseException | None) -> str:
    """Return the message about an option's value with the value, which a failed validation holds."""
    failed: list[Any] = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    message, value = message.removeprefix("Value error, "), repr(failed[0].get("input")) if failed else ""
    return message if value in message else f"{message.rstrip('.')}, got {value}"
