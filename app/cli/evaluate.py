"""`gpucast evaluate`: a paper's tables as we reproduce them, and our own accuracy beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DATA_VARIABLE, Data, DataIfAny
from app.errors import BadInput
from app.training.row_limits import MOST_LEARNED, MOST_TEST_ROWS, MOST_TRAIN

if TYPE_CHECKING:
    from app.evaluation.papers import Cell

METRICS = ("mape", "median_ape", "median_ratio", "within_10", "within_25", "within_50", "coverage_80")
TITLES = {
    "3": "Table 3, experiment 1: TITAN V from the other GPUs",
    "4": "Table 4, experiment 2: largest sizes, from other GPUs",
    "5": "Table 5, experiment 3: four kernels not trained on",
    "6": "Table 6: MAPE of every regressor in the three experiments",
}

command = typer.Typer(no_args_is_help=True)


@command.callback()
def studies() -> None:
    """Reproduce a paper's tables, and our own accuracy beside them."""


@command.command("cross-gpu-kernels")
def cross_gpu_kernels(
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every cell to this file")] = None,
) -> None:
    """Tables 3 to 6 of the cross-GPU kernels paper, then the same experiments on clean rows.

    DIR may also be the folder of the authors' CSV files and gpu_metrics.json itself.
    """
    from app.evaluation.papers import evaluate_cross_gpu_kernels

    if json_file is not None:
        _refuse_unwritable(json_file)
    study = evaluate_cross_gpu_kernels(inside if (inside := data / "cuda_kernels").is_dir() else data)
    print("\n".join([*_published(study.published), *_clean(study.clean), *study.notes]))
    if json_file is not None:
        body = {"study": study.name, "cells": [*study.published, *study.clean]}
        json_file.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


@command.command("operators")
def operators(  # noqa: PLR0913, PLR0917  (typer makes an option of each)
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every cell to this file")] = None,
    predictor: Annotated[list[str] | None, typer.Option(help="only this one; repeat for several")] = None,
    family: Annotated[list[str] | None, typer.Option(help="only this family of operators; repeat for several")] = None,
    protocol: Annotated[list[str] | None, typer.Option(help="only this protocol; repeat for several")] = None,
    test_rows: Annotated[
        int, typer.Option(min=1, help="ask at most this many rows per operator, dtype and GPU")
    ] = MOST_TEST_ROWS,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="train on at most this many rows likewise; unset: all, 800 where a GPU is left out"),
    ] = None,
    intervals: Annotated[
        bool, typer.Option(help="intervals of `auto` from rows held out inside each fold: ten times slower")
    ] = True,
    results: Annotated[
        bool,
        typer.Option(
            "--results", "--readme", help="write the tables of docs/reference/results.md, and evaluation/operators.json"
        ),
    ] = False,
) -> None:
    """Predictors of deep-learning operators on rows, configurations and GPUs that they did not learn from."""
    from app.evaluation.operator_report import body, lines, record
    from app.evaluation.operators import evaluate_operators

    if json_file is not None:
        _refuse_unwritable(json_file)
    if results and family:
        raise BadInput("--results records whole protocols: leave out --family.")
    study = evaluate_operators(
        data,
        predictors=predictor or (),
        families=family or (),
        protocols=protocol or (),
        most_test=test_rows,
        most_train=rows,
        intervals=intervals,
        progress=lambda line: typer.echo(line, err=True),
    )
    print("\n".join(lines(study)))
    if json_file is not None:
        json_file.write_text(json.dumps(body(study, study.cells), indent=1) + "\n", "utf-8")
    if results:
        record(study)


@command.command("calibration")
def calibration(
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every cell to this file")] = None,
    family: Annotated[list[str] | None, typer.Option(help="only this family of operators; repeat for several")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="hold out only this GPU; repeat for several")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="train on at most this many rows per operator, dtype and GPU")
    ] = MOST_TRAIN,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            "--readme",
            help="write the tables of docs/reference/results.md, and evaluation/calibration.json",
        ),
    ] = False,
) -> None:
    """A GPU held out: nothing measured on it, 32 shapes as the plan chooses them, as many at random."""
    from app.evaluation import calibration_report
    from app.evaluation.calibration import evaluate_calibration

    if json_file is not None:
        _refuse_unwritable(json_file)
    if results and (family or gpu):
        raise BadInput("--results records every family and GPU: leave out --family and --gpu.")
    study = evaluate_calibration(data, families=family or (), gpus=gpu or (), most_train=rows, progress=_said)
    print("\n".join(calibration_report.lines(study)))
    if json_file is not None:
        json_file.write_text(json.dumps(calibration_report.body(study), indent=1) + "\n", "utf-8")
    if results:
        calibration_report.record(study)


@command.command("pm2lat")
def pm2lat(
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every cell to this file")] = None,
) -> None:
    """PM2Lat's tables II and VI, and our errors on the same layers and GPUs where the data have them."""
    from app.evaluation.pm2lat import evaluate_pm2lat
    from app.evaluation.pm2lat import lines as pm2lat_lines

    if json_file is not None:
        _refuse_unwritable(json_file)
    cells = evaluate_pm2lat(data, lambda line: typer.echo(line, err=True))
    print("\n".join(pm2lat_lines(cells)))
    if json_file is not None:
        json_file.write_text(json.dumps({"study": "pm2lat", "cells": cells}, indent=1) + "\n", "utf-8")


@command.command("convmeter")
def convmeter(
    data: DataIfAny = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every cell to this file")] = None,
    own: Annotated[bool, typer.Option("--own", help="our own measurements alone, which need no data folder")] = False,
    held_out: Annotated[
        list[str] | None,
        typer.Option(help="family, network, gpu, or operators (all networks); repeat for several; unset: all"),
    ] = None,
) -> None:
    """ConvMeter's tables 1 to 3: the paper's figures, and ours on measured networks that were held out."""
    from app.evaluation.convmeter import published
    from app.evaluation.convmeter_report import lines as convmeter_lines
    from app.evaluation.convnets_by_operators import convmeter_cells

    if json_file is not None:
        _refuse_unwritable(json_file)
    if data is None and not own:
        raise BadInput(f"Say where the data sets are: --data DIR, or {DATA_VARIABLE}; or --own for ours alone.")
    cells = convmeter_cells(None if own else data, held_out or (), lambda line: typer.echo(line, err=True))
    print("\n".join(convmeter_lines(published(), cells)))
    if json_file is not None:
        body = {"study": "convmeter", "published": published(), "cells": cells}
        json_file.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


@command.command("neusight-models")
def neusight_models(
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every run to this file")] = None,
    predictor: Annotated[
        list[str] | None, typer.Option(help="this one instead of auto; repeat for several beside one another")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="train on at most this many rows per operator and GPU; unset: all")
    ] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="also every GPU left out in turn, with intervals from the others")
    ] = False,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            "--readme",
            help="write the tables of docs/reference/results.md, and evaluation/neusight_models.json",
        ),
    ] = False,
) -> None:
    """Whole models end to end against NeuSight's measured ones, on GPUs learned from and never seen."""
    from app.evaluation import model_report, models_left_out
    from app.evaluation.models import evaluate_models, read_study

    if json_file is not None:
        _refuse_unwritable(json_file)
    study = read_study(data)
    cells = evaluate_models(study, predictors=predictor or (), most_train=rows, progress=_said)
    if left_out:
        cells += models_left_out.left_out(study, _said)
    print("\n".join(model_report.lines(cells)))
    if json_file is not None:
        json_file.write_text(json.dumps(model_report.body(cells), indent=1) + "\n", "utf-8")
    if results:
        model_report.record(cells)


@command.command("ranking")
def ranking(
    data: Data,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write every order to this file")] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="train on at most this many rows per operator and GPU")
    ] = MOST_LEARNED,
) -> None:
    """Whole models on GPUs that were left out: the predicted order of the GPUs against the measured one."""
    from app.evaluation import ranking_report
    from app.evaluation.models import read_study
    from app.evaluation.ranking import evaluate_ranking

    if json_file is not None:
        _refuse_unwritable(json_file)
    found = evaluate_ranking(read_study(data), most=rows, progress=_said)
    print("\n".join(ranking_report.lines(found)))
    if json_file is not None:
        json_file.write_text(json.dumps(ranking_report.body(found), indent=1) + "\n", "utf-8")


def _said(line: str) -> None:
    typer.echo(line, err=True)


def _refuse_unwritable(path: Path) -> None:
    """Before the minute of work, not after it."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise BadInput(f"Cannot write {path}: {error.strerror}. Pass --json a file that can be written.") from error


def _published(cells: Sequence[Cell]) -> list[str]:
    lines = []
    for table, of_table in groupby(cells, lambda cell: str(cell["table"])):
        lines += [
            TITLES[table],
            f"  {'predictor':<12}{'experiment':<12}{'metric':<14}{'paper':>10}{'ours':>10}{'n':>6}",
        ]
        for cell in of_table:
            figures = f"{cell['paper']:>10.2f}{cell['measured']:>10.2f}{cell['n']:>6}"
            lines.append(f"  {cell['predictor']:<12}{cell['experiment']:<12}{cell['metric']:<14}{figures}")
        lines.append("")
    return lines


def _clean(cells: Sequence[Cell]) -> list[str]:
    """A line per predictor, experiment and GPU, whose cells stand together."""
    if not cells:
        return []
    lines = [
        "Clean rows, the experiments as the text describes them; each GPU held out in turn",
        f"  {'experiment':<14}{'predictor':<12}{'gpu':<16}" + "".join(f"{name:>13}" for name in METRICS) + f"{'n':>6}",
    ]
    for (experiment, predictor, gpu), group in groupby(
        sorted(cells, key=lambda cell: str(cell["experiment"])),
        lambda cell: (cell["experiment"], cell["predictor"], cell["gpu"]),
    ):
        row = {cell["metric"]: cell for cell in group}
        figures = "".join(f"{row[name]['measured']:>13.2f}" if name in row else f"{'-':>13}" for name in METRICS)
        lines.append(f"  {experiment:<14}{predictor:<12}{gpu:<16}{figures}{next(iter(row.values()))['n']:>6}")
    return [*lines, ""]
