"""`gpucast evaluate`: reproduced tables of papers, and our own accuracy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from app.cli.options import DATA_VARIABLE, Data, DataIfAny
from app.errors import BadInput
from app.training.row_limits import MOST_LEARNED, MOST_TEST_ROWS, MOST_TRAIN

if TYPE_CHECKING:
    from evaluation.papers import Cell

METRICS = ("mape", "median_ape", "median_ratio", "within_10", "within_25", "within_50", "coverage_80")
TITLES = {
    "3": "Table 3, experiment 1: TITAN V from the other GPUs",
    "4": "Table 4, experiment 2: largest sizes, from other GPUs",
    "5": "Table 5, experiment 3: four kernels not trained on",
    "6": "Table 6: MAPE of every regressor in the three experiments",
}

JsonCells: TypeAlias = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write every cell to this JSON file.")
]

command = typer.Typer(no_args_is_help=True)


def _measured_files(what: str) -> Any:
    """Return an option of files that exist, any number of them."""
    return typer.Option(exists=True, dir_okay=False, metavar="FILE", help=f"{what}; repeat for several.")


@command.callback()
def studies() -> None:
    """Reproduce papers' tables and evaluate our own accuracy."""


@command.command("cross-gpu-kernels")
def cross_gpu_kernels(
    data: Data,
    json_file: JsonCells = None,
    own: Annotated[
        list[Path] | None,
        _measured_files("File of `gpucast measure --suite kernels`, whose GPU joins the cleaned rows"),
    ] = None,
) -> None:
    """Reproduce tables 3 to 6 of the cross-GPU kernels paper, and repeat the experiments on cleaned rows.

    DIR may also be the folder with the authors' CSV files and gpu_metrics.json.
    """
    from evaluation.papers import evaluate_cross_gpu_kernels

    if json_file is not None:
        _refuse_unwritable(json_file)
    study = evaluate_cross_gpu_kernels(inside if (inside := data / "cuda_kernels").is_dir() else data, own or ())
    print("\n".join([*_published(study.published), *_clean(study.clean), *study.notes]))
    if json_file is not None:
        body = {"study": study.name, "cells": [*study.published, *study.clean]}
        json_file.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


@command.command("operators")
def operators(  # noqa: PLR0913, PLR0917  (typer makes an option of each)
    data: Data,
    json_file: JsonCells = None,
    predictor: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Evaluate only this predictor; repeat for several.")
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Evaluate only this family of operators; repeat for several."),
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Evaluate only this protocol; repeat for several.")
    ] = None,
    test_rows: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Test on at most this many rows per operator, dtype and GPU.")
    ] = MOST_TEST_ROWS,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROWS", help="Train on at most this many rows each (default: all; 800 with a GPU left out)."
        ),
    ] = None,
    intervals: Annotated[
        bool, typer.Option(help="Fit the intervals of `auto` on rows held out in each fold (ten times slower).")
    ] = True,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            "--readme",
            help="Write the tables of docs/reference/results.md and evaluation/records/operators.json; what is not"
            " evaluated now stays as recorded.",
        ),
    ] = False,
) -> None:
    """Evaluate predictors of deep-learning operators on rows, configurations and GPUs held out of training."""
    from evaluation.operator_report import body, lines, record
    from evaluation.operators import evaluate_operators

    if json_file is not None:
        _refuse_unwritable(json_file)
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


@command.command("own-operators")
def own_operators(
    data: Data,
    file: Annotated[
        list[Path] | None,
        _measured_files("File of `gpucast measure --suite operators` (default: our H100 and H200)"),
    ] = None,
    json_file: JsonCells = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Evaluate this predictor; repeat for several (default: auto, kernel_table)."),
    ] = None,
) -> None:
    """Evaluate predictors on operators of `gpucast measure`, with and without such rows in training."""
    from app.config import SEED_MEASUREMENTS
    from evaluation.own_operators import evaluate_own_operators
    from evaluation.own_operators import lines as own_lines

    if json_file is not None:
        _refuse_unwritable(json_file)
    files = file or sorted(SEED_MEASUREMENTS.glob("*.parquet"))
    predictors = predictor or ("auto", "kernel_table")
    found = evaluate_own_operators(data, files, predictors, progress=lambda line: typer.echo(line, err=True))
    print("\n".join(own_lines(found)))
    if json_file is not None:
        json_file.write_text(json.dumps({"study": "own-operators", "cells": found}, indent=1) + "\n", "utf-8")


@command.command("serving-steps")
def serving_steps(
    data: Data,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every point to this JSON file.")
    ] = None,
) -> None:
    """Compare the time per output token of measured LLM deployments with steps as their serving stacks run them."""
    from dataclasses import asdict

    from evaluation.convnets_by_operators import shipped_engine
    from evaluation.serving_steps import evaluate_serving_steps, lines

    if json_file is not None:
        _refuse_unwritable(json_file)
    found = evaluate_serving_steps(data, shipped_engine(), lambda line: typer.echo(line, err=True))
    print("\n".join(lines(found)))
    if json_file is not None:
        points = [{**each.point._asdict(), **asdict(each) | {"point": each.point.deployment}} for each in found]
        json_file.write_text(json.dumps(points, indent=1) + "\n", "utf-8")


@command.command("serving")
def serving(
    data: Data,
    fit: Annotated[
        bool, typer.Option("--fit", help="Also fit the times of stacks' hosts, with parts held out (minutes).")
    ] = False,
    results: Annotated[bool, typer.Option("--results", help="Write the tables of docs/reference/results.md.")] = False,
) -> None:
    """Compare measured loads on served LLMs with predictions: times to first token and per token, order, intervals."""
    from evaluation.convnets_by_operators import shipped_engine
    from evaluation.serving.record import record
    from evaluation.serving.report import lines
    from evaluation.serving.study import evaluate_serving

    study = evaluate_serving(data, shipped_engine(), fit=fit, progress=lambda line: typer.echo(line, err=True))
    print("\n".join(lines(study.outcomes)))
    for stack, found in study.fits.items():
        times = ", ".join(f"{name} {value:.3g}" for name, value in found._asdict().items())
        print(f"{stack}: times of the host fitted to all deployments: {times}")
    if results:
        record(study.outcomes)


@command.command("scorecard")
def scorecard(
    data: Data,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", "--results", metavar="FILE", help="Also write every case to this JSON file."),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this source; repeat for several (default: all).")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Ask at most this many cases of a source, evenly spaced.")
    ] = 2000,
    docs: Annotated[bool, typer.Option("--docs", help="Write the tables of docs/reference/scorecard.md.")] = False,
) -> None:
    """Predict whole workloads that others measured, as POST /predict does, and print the worst cells first."""
    from evaluation.scorecard import report
    from evaluation.scorecard.score import score, shipped_snapshot
    from evaluation.scorecard.sources import SOURCES

    if json_file is not None:
        _refuse_unwritable(json_file)
    known = {each.name: each for each in SOURCES}
    if unknown := [name for name in source or () if name not in known]:
        raise BadInput(f"Unknown source {unknown[0]!r}: use one of {', '.join(known)}.")
    if docs and source:
        raise BadInput("--docs records every source: omit --source.")
    chosen = [known[name] for name in source or known]
    snapshot = shipped_snapshot()
    found = [each for one in chosen for each in score(data, one, snapshot, rows, _print_progress)]
    print("\n".join(report.lines(found, chosen)))
    if json_file is not None:
        report.write_json(json_file, found)
    if docs:
        report.record(found, chosen)


@command.command("calibration")
def calibration(
    data: Data,
    json_file: JsonCells = None,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Evaluate only this family of operators; repeat for several."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Hold out only this GPU; repeat for several.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Train on at most this many rows per operator, dtype and GPU.")
    ] = MOST_TRAIN,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            "--readme",
            help="Write the tables of docs/reference/results.md and evaluation/records/calibration.json.",
        ),
    ] = False,
) -> None:
    """Evaluate a held-out GPU: without measurements, with 32 shapes chosen by the plan, and with 32 random shapes."""
    from evaluation import calibration_report
    from evaluation.calibration import evaluate_calibration

    if json_file is not None:
        _refuse_unwritable(json_file)
    if results and (family or gpu):
        raise BadInput("--results records every family and GPU: omit --family and --gpu.")
    study = evaluate_calibration(data, families=family or (), gpus=gpu or (), most_train=rows, progress=_print_progress)
    print("\n".join(calibration_report.lines(study)))
    if json_file is not None:
        json_file.write_text(json.dumps(calibration_report.body(study), indent=1) + "\n", "utf-8")
    if results:
        calibration_report.record(study)


@command.command("pm2lat")
def pm2lat(
    data: Data,
    json_file: JsonCells = None,
) -> None:
    """Reproduce PM2Lat's tables II and VI, and show our errors on the layers and GPUs that the data include."""
    from evaluation.pm2lat import evaluate_pm2lat
    from evaluation.pm2lat import lines as pm2lat_lines

    if json_file is not None:
        _refuse_unwritable(json_file)
    cells = evaluate_pm2lat(data, lambda line: typer.echo(line, err=True))
    print("\n".join(pm2lat_lines(cells)))
    if json_file is not None:
        json_file.write_text(json.dumps({"study": "pm2lat", "cells": cells}, indent=1) + "\n", "utf-8")


@command.command("convmeter")
def convmeter(
    data: DataIfAny = None,
    json_file: JsonCells = None,
    own: Annotated[
        bool, typer.Option("--own", help="Use only our own measurements, which need no data folder.")
    ] = False,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Hold out by family, network, gpu, or operators (all networks); repeat for several (default: all).",
        ),
    ] = None,
) -> None:
    """Show ConvMeter's tables 1 to 3: the paper's figures, and ours on held-out measured networks."""
    from evaluation.convmeter import published
    from evaluation.convmeter_report import lines as convmeter_lines
    from evaluation.convnets_by_operators import convmeter_cells

    if json_file is not None:
        _refuse_unwritable(json_file)
    if data is None and not own:
        raise BadInput(f"Pass the data folder by --data DIR or {DATA_VARIABLE}, or --own for our own data only.")
    cells = convmeter_cells(None if own else data, held_out or (), lambda line: typer.echo(line, err=True))
    print("\n".join(convmeter_lines(published(), cells)))
    if json_file is not None:
        body = {"study": "convmeter", "published": published(), "cells": cells}
        json_file.write_text(json.dumps(body, indent=1) + "\n", "utf-8")


@command.command("neusight-models")
def neusight_models(
    data: Data,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every run to this JSON file.")
    ] = None,
    predictor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Evaluate this predictor instead of auto; repeat for several."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="ROWS", help="Train on at most this many rows per operator and GPU (default: all)."
        ),
    ] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Also leave out each GPU in turn, with intervals from the others.")
    ] = False,
    results: Annotated[
        bool,
        typer.Option(
            "--results",
            "--readme",
            help="Write the tables of docs/reference/results.md and evaluation/records/neusight_models.json.",
        ),
    ] = False,
) -> None:
    """Compare whole models with NeuSight's measurements, on GPUs in training and on held-out GPUs."""
    from evaluation import model_report, models_left_out
    from evaluation.models import evaluate_models, read_study

    if json_file is not None:
        _refuse_unwritable(json_file)
    study = read_study(data)
    cells = evaluate_models(study, predictors=predictor or (), most_train=rows, progress=_print_progress)
    if left_out:
        cells += models_left_out.left_out(study, _print_progress)
    print("\n".join(model_report.lines(cells)))
    if json_file is not None:
        json_file.write_text(json.dumps(model_report.body(cells), indent=1) + "\n", "utf-8")
    if results:
        model_report.record(cells)


@command.command("ranking")
def ranking(
    data: Data,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write every order to this JSON file.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="ROWS", help="Train on at most this many rows per operator and GPU.")
    ] = MOST_LEARNED,
) -> None:
    """Compare the predicted order of held-out GPUs on whole models with the measured order."""
    from evaluation import ranking_report
    from evaluation.models import read_study
    from evaluation.ranking import evaluate_ranking

    if json_file is not None:
        _refuse_unwritable(json_file)
    found = evaluate_ranking(read_study(data), most=rows, progress=_print_progress)
    print("\n".join(ranking_report.lines(found)))
    if json_file is not None:
        json_file.write_text(json.dumps(ranking_report.body(found), indent=1) + "\n", "utf-8")


def _print_progress(line: str) -> None:
    typer.echo(line, err=True)


def _refuse_unwritable(path: Path) -> None:
    """Raise BadInput, before any work, for a file that cannot be written."""
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
    """Return a line per predictor, experiment and GPU, from consecutive cells."""
    if not cells:
        return []
    lines = [
        "Clean rows, experiments as the paper describes them; each GPU held out in turn",
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
