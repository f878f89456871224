"""`gpucast train`: the artefacts that ship with the code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Data
from app.cli.stopping import stopped_by_terminate
from app.config import SHIPPED_MODELS


def command(
    data: Data,
    out: Annotated[
        Path, typer.Option(help="Where artefacts go; replaces those of the same predictors.")
    ] = SHIPPED_MODELS,
    predictor: Annotated[list[str] | None, typer.Option(help="One of them; repeat for several. Default: all.")] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Train only this operator of `auto`, with those of its interval group; repeat for several. The others "
            "are kept from the artefact in OUT, if their rows are the same.",
        ),
    ] = None,
) -> None:
    """Train predictors of operators and networks in a throw-away database, and write what ships with the code."""
    from app.bootstrap.train_shipped import train_shipped, trainable

    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {what}", flush=True)

    with stopped_by_terminate():
        size = train_shipped(data, out, predictor or trainable(), tell, operators=operator or ())
    tell(f"{size / 1e6:.1f} MB in {out}")
