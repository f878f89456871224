"""`gpucast sweep`: predicts tables of millions of operators or models, to a folder of Parquet files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import with_options
from app.cli.workload_options import Answer, EachGpu
from app.config import Settings
from app.services.sweep import CHUNK_ROWS


@with_options
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Parquet file with the columns of POST /predict/batch, or a JSON grid of all combinations: "
            '{"op": "linear", "dtype": "bf16", "m": [1, 64], "n": [1024, 4096], "k": 4096}. '
            "For models, columns are the fields of POST /predict's workload (docs/reference/models.md, Sweeps)."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Folder for the answers; an interrupted sweep resumes.")],
    *,
    gpu: EachGpu,
    answer: Answer,
    chunk_rows: Annotated[
        int, typer.Option(min=1, max=1 << 24, metavar="ROWS", help="Rows per Parquet file.")
    ] = CHUNK_ROWS,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the workers of this Dask scheduler.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Delete earlier answers and start over.")] = False,
) -> None:
    """Predict a table of operators or models on one or more GPUs."""
    from app.bootstrap.assemble import installed_snapshot
    from app.services.sweep.chunks import chunk_path, missing_chunks, plan_sweep, run_locally, run_on_dask
    from app.services.sweep.sweep_rows import open_rows
    from app.wire.decoding import convert
    from app.wire.prediction_form import PREDICT_EXAMPLE, BaseRequest

    request = convert(answer, BaseRequest, example=PREDICT_EXAMPLE)
    snapshot, refused = installed_snapshot(Settings.from_env())
    for problem in refused:
        print(f"gpucast: {problem}", file=sys.stderr)
    rows = open_rows(source)
    plan = plan_sweep(snapshot, rows, gpu, request.predictor, request.coverage, chunk_rows=chunk_rows)
    left = missing_chunks(plan, folder, restart=restart)
    done = plan.chunks - len(left)
    print(f"{plan.rows:,} rows on {', '.join(plan.gpus)}: {done} of {plan.chunks} chunks are done", file=sys.stderr)
    if dask is None:
        answered = run_locally(snapshot, rows, plan, folder, left)
    else:
        answered = run_on_dask(dask, source.resolve(), plan, folder.resolve(), left, open_snapshot=installed_snapshot)
    with typer.progressbar(length=plan.chunks, label="chunks", file=sys.stderr) as bar:
        bar.update(done)
        for _ in answered:
            bar.update(1)
    print(
        f"{folder}: {plan.chunks} files, {chunk_path(folder, 0).name} the first; {plan.rows * len(plan.gpus):,} answers"
    )
