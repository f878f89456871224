"""What the shell sees: errors in the words of the command line, and SIGTERM as Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from app.errors import FieldError

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
    if command not in _ABOUT_A_WORKLOAD:
        return ""
    from app.cli.options import OPTIONS_OF_FIELDS

    places = [".".join(map(str, error.loc)) for error in errors]
    options = [OPTIONS_OF_FIELDS.get(place) or _set_option(place) for place in places]
    return ", ".join(dict.fromkeys(filter(None, options)))


def _set_option(place: str) -> str | None:
    """Return the option for a field of the workload that has none of its own."""
    return f"--set {place.removeprefix('workload.')}=VALUE" if place.startswith("workload.") else None


def with_value(message: str, cause: BaseException | None) -> str:
    """Return the message about an option's value with the value, which a failed validation holds."""
    failed: list[Any] = cause.errors() if cause is not None and hasattr(cause, "errors") else []
    message, value = message.removeprefix("Value error, "), repr(failed[0].get("input")) if failed else ""
    return message if value in message else f"{message.rstrip('.')}, got {value}"


@contextmanager
def stopped_by_terminate() -> Iterator[None]:
    """Handle SIGTERM, which `timeout` and schedulers send, as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
