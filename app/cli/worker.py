"""`gpucast worker`: the worker alone, beside API processes that run elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from app.config import Settings


def command(
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Take retrainings from the queue until SIGTERM or Ctrl-C; the running one is finished first."""
    from app.runtime import logs
    from app.worker import run

    settings = Settings.from_env()
    logs.configure(settings)
    run(settings, with_parent=with_parent)
