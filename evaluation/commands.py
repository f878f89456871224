"""`gpucast evaluate`: reproduced tables of papers, and our own accuracy."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from app.cli.options import DATA_VARIABLE, Data, DataIfAny
from app.errors import BadInput
from app.training.row_limits import MOST_LEARNED, MOST_TEST_ROWS, MOST_TRAIN

if TYPE_CHECKING:
    from evaluation.render import Report


def _files(what: str) -> Any:
    """Return an option of files that exist, any number of them."""
    return typer.Option(exists=True, dir_okay=False, metavar="FILE", help=f"{what}; repeat for several.")


def _names(what: str, metavar: str = "NAME") -> Any:
    """Return an option of names, any number of them."""
    return typer.Option(metavar=metavar, help=f"{what}; repeat for several.")


def _most(what: str) -> Any:
    """Return an option of a largest number of rows."""
    return typer.Option(min=1, metavar="ROWS", help=what)


def _writable(path: Path | None) -> Path | None:
    """Return the path. Raises BadInput, before any work, for a file that cannot be written."""
    try:
        if path is not None:
            path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise BadInput(f"Cannot write {path}: {error.strerror}. Pass --json a file that can be written.") from error
    return path


def _json_file(*names: str) -> Any:
    """Return the option of a file of results."""
    text = "Also write every result to this JSON file."
    return typer.Option(*names, metavar="FILE", callback=_writable, help=text)


JsonFile: TypeAlias = Annotated[Path | None, _json_file("--json")]
Results: TypeAlias = Annotated[
    bool,
    typer.Option("--results", "--readme", help="Write the tables of docs/reference/results.md and evaluation/records."),
]
Families: TypeAlias = Annotated[list[str] | None, _names("Evaluate only this family of operators")]

command = typer.Typer(no_args_is_help=True)


@command.callback()
def studies() -> None:
    """Reproduce papers' tables and evaluate our own accuracy."""


@command.command("cross-gpu-kernels")
def cross_gpu_kernels(
    data: Data,
    json_file: JsonFile = None,
    own: Annotated[
        list[Path] | None, _files("File of `gpucast measure --suite kernels`, whose GPU joins the cleaned rows")
    ] = None,
) -> None:
    """Reproduce tables 3 to 6 of the cross-GPU kernels paper, and repeat the experiments on cleaned rows.

    DIR may also be the folder with the authors' CSV files and gpu_metrics.json.
    """
    from evaluation.kernels.experiments import evaluate_cross_gpu_kernels

    inside = data / "cuda_kernels"
    _finish(evaluate_cross_gpu_kernels(inside if inside.is_dir() else data, own or ()), json_file)


@command.command("kernel-tuning")
def kernel_tuning(data: Data, json_file: JsonFile = None) -> None:
    """Carry auto-tuned kernels from one GPU to another, with the kernel and both GPUs left out of what is fitted."""
    from evaluation.kernels.tuning import evaluate_kernel_tuning

    _finish(evaluate_kernel_tuning(data), json_file)


@command.command("power")
def power(data: Data, json_file: JsonFile = None) -> None:
    """Compare measured power and energy with the physical model, by source and GPU, and with each GPU left out."""
    from evaluation.power import evaluate_power

    _finish(evaluate_power(data, _print_progress), json_file)


@command.command("kernelbench")
def kernelbench(data: Data, json_file: JsonFile = None) -> None:
    """Predict KernelBench's programs in eager PyTorch from their graphs (two minutes)."""
    from evaluation.operators.kernelbench import evaluate_kernelbench

    _finish(evaluate_kernelbench(data, _print_progress), json_file)


@command.command("operators")
def operators(  # noqa: PLR0913, PLR0917  (typer makes an option of each)
    data: Data,
    json_file: JsonFile = None,
    predictor: Annotated[list[str] | None, _names("Evaluate only this predictor")] = None,
    family: Families = None,
    protocol: Annotated[list[str] | None, _names("Evaluate only this protocol")] = None,
    test_rows: Annotated[int, _most("Test on at most this many rows per operator, dtype and GPU.")] = MOST_TEST_ROWS,
    rows: Annotated[
        int | None, _most("Train on at most this many rows each (default: all; 800 with a GPU left out).")
    ] = None,
    intervals: Annotated[
        bool, typer.Option(help="Fit the intervals of `auto` on rows held out in each fold (ten times slower).")
    ] = True,
    results: Results = False,
) -> None:
    """Evaluate predictors of deep-learning operators on rows, configurations and GPUs held out of training.

    With --results, what is not evaluated now stays as recorded.
    """
    from evaluation.operators.evaluate import evaluate_operators
    from evaluation.operators.report import report

    cells = evaluate_operators(
        data,
        predictors=predictor or (),
        families=family or (),
        protocols=protocol or (),
        most_test=test_rows,
        most_train=rows,
        intervals=intervals,
        progress=_print_progress,
    )
    _finish(report(cells), json_file, results)


@command.command("own-operators")
def own_operators(
    data: Data,
    file: Annotated[
        list[Path] | None, _files("File of `gpucast measure --suite operators` (default: our H100 and H200)")
    ] = None,
    json_file: JsonFile = None,
    predictor: Annotated[list[str] | None, _names("Evaluate this predictor instead of auto and kernel_table")] = None,
) -> None:
    """Evaluate predictors on operators of `gpucast measure`, with and without such rows in training."""
    from app.config import SEED_MEASUREMENTS
    from evaluation.operators.own import evaluate_own_operators, report

    files = file or sorted(SEED_MEASUREMENTS.glob("*.parquet"))
    predictors = predictor or ("auto", "kernel_table")
    _finish(report(evaluate_own_operators(data, files, predictors, progress=_print_progress)), json_file)


@command.command("serving-steps")
def serving_steps(data: Data, json_file: JsonFile = None) -> None:
    """Compare the time per output token of measured LLM deployments with steps as their serving stacks run them."""
    from evaluation.serving.steps import evaluate_serving_steps, report
    from evaluation.study import shipped_engine

    _finish(report(evaluate_serving_steps(data, shipped_engine(), _print_progress)), json_file)


@command.command("serving")
def serving(
    data: Data,
    fit: Annotated[
        bool, typer.Option("--fit", help="Also fit the times of stacks' hosts, with parts held out (minutes).")
    ] = False,
    results: Annotated[bool, typer.Option("--results", help="Write the tables of docs/reference/results.md.")] = False,
) -> None:
    """Compare measured loads on served LLMs with predictions: times to first token and per token, order, intervals."""
    from evaluation.serving.outcomes import evaluate_serving
    from evaluation.serving.report import report
    from evaluation.study import shipped_engine

    _finish(report(evaluate_serving(data, shipped_engine(), fit=fit, progress=_print_progress)), None, results)


@command.command("scorecard")
def scorecard(
    data: Data,
    json_file: Annotated[Path | None, _json_file("--json", "--results")] = None,
    source: Annotated[list[str] | None, _names("Only this source")] = None,
    rows: Annotated[int, _most("Ask at most this many cases of a source, evenly spaced.")] = 2000,
    docs: Annotated[bool, typer.Option("--docs", help="Write the tables of docs/reference/scorecard.md.")] = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Ask what answers here, of the sources whose files are there, and keep the run for /accuracy to draw.",
        ),
    ] = False,
) -> None:
    """Predict whole workloads that others measured, as POST /predict does, and print the worst cells first."""
    from app.cli.workload_options import snapshot_of
    from app.config import Settings
    from evaluation import scorecard as card
    from evaluation.sources import STUDIES
    from evaluation.study import PREDICTOR, chosen, shipped_snapshot

    selected = list(chosen("source", {study.name: study for study in STUDIES}, source or ()).values())
    if (docs or keep) and source:
        raise BadInput("--docs and --keep record every source: omit --source.")
    settings = Settings.from_env()
    if keep:
        selected = [study for study in selected if card.file_of(data, study).is_file()] or selected  # which says so
    answers = snapshot_of(settings, PREDICTOR, stored_graphs=False) if keep else nullcontext((shipped_snapshot(), None))
    with answers as (snapshot, _):
        results = [
            result for study in selected for result in card.evaluate(data, study, snapshot, rows, _print_progress)
        ]
    done = card.report(results, selected, settings.scorecard_file if keep else None)
    _finish(done, json_file, docs)
    if keep and done.record is not None:
        card.keep(done.record, settings.scorecard_file)


@command.command("first-contact")
def first_contact(
    data: Data,
    source: Annotated[list[str] | None, _names("Only this source")] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Ask the gpucast that runs there (default: this checkout).")
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="The commit of the gpucast at --url, which the ledger names.")
    ] = None,
    json_file: JsonFile = None,
    results: Annotated[bool, typer.Option("--results", help="Write the table of docs/reference/results.md.")] = False,
) -> None:
    """Record what this version says of sources that nobody has looked at yet; the ledger keeps it for good.

    Without --source, records every source at hand that the ledger lacks. Prints the errors of all first contacts.
    """
    from evaluation.first_contact.record import record_sources
    from evaluation.first_contact.report import report

    record_sources(data, source or (), url, version, _print_progress)
    _finish(report(), json_file, results)


@command.command("error-model")
def error_model(
    data: Data,
    json_file: JsonFile = None,
    answers: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Keep this version's answers here, or take them."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write seed_data/error_model.json and its tables.")] = False,
) -> None:
    """Fit the error model of whole answers, and check its intervals on first contacts left out (five minutes)."""
    from app.cli.workload_options import snapshot_of
    from app.config import Settings
    from evaluation.first_contact.bands import evaluate
    from evaluation.first_contact.record import SOURCES
    from evaluation.study import PREDICTOR

    with snapshot_of(Settings.from_env(), PREDICTOR, stored_graphs=False) as (snapshot, _):
        report = evaluate(snapshot, data, list(SOURCES.values()), answers, _print_progress, write=write)
    _finish(report, json_file, write)


@command.command("calibration")
def calibration(
    data: Data,
    json_file: JsonFile = None,
    family: Families = None,
    gpu: Annotated[list[str] | None, _names("Hold out only this GPU")] = None,
    rows: Annotated[int, _most("Train on at most this many rows per operator, dtype and GPU.")] = MOST_TRAIN,
    results: Results = False,
) -> None:
    """Evaluate a held-out GPU: without measurements, with 32 shapes chosen by the plan, and with 32 random shapes."""
    from evaluation.operators.calibration import evaluate_calibration, report

    if results and (family or gpu):
        raise BadInput("--results records every family and GPU: omit --family and --gpu.")
    cells = evaluate_calibration(data, families=family or (), gpus=gpu or (), most_train=rows, progress=_print_progress)
    _finish(report(cells, rows), json_file, results)


@command.command("pm2lat")
def pm2lat(data: Data, json_file: JsonFile = None) -> None:
    """Reproduce PM2Lat's tables II and VI, and show our errors on the layers and GPUs that the data include."""
    from evaluation.operators.pm2lat import evaluate_pm2lat, report

    _finish(report(evaluate_pm2lat(data, _print_progress)), json_file)


@command.command("convmeter")
def convmeter(
    data: DataIfAny = None,
    json_file: JsonFile = None,
    own: Annotated[
        bool, typer.Option("--own", help="Use only our own measurements, which need no data folder.")
    ] = False,
    held_out: Annotated[
        list[str] | None, _names("Hold out only by family, network, gpu, or operators (all networks)", "KIND")
    ] = None,
) -> None:
    """Show ConvMeter's tables 1 to 3: the paper's figures, and ours on held-out measured networks."""
    from evaluation.networks.convmeter import convmeter_cells, report

    if data is None and not own:
        raise BadInput(f"Pass the data folder by --data DIR or {DATA_VARIABLE}, or --own for our own data only.")
    _finish(report(convmeter_cells(None if own else data, held_out or (), _print_progress)), json_file)


@command.command("neusight-models")
def neusight_models(
    data: Data,
    json_file: JsonFile = None,
    predictor: Annotated[list[str] | None, _names("Evaluate this predictor instead of auto")] = None,
    rows: Annotated[int | None, _most("Train on at most this many rows per operator and GPU (default: all).")] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Also leave out each GPU in turn, with intervals from the others.")
    ] = False,
    results: Results = False,
) -> None:
    """Compare whole models with NeuSight's measurements, on GPUs in training and on held-out GPUs."""
    from evaluation.networks import models
    from evaluation.networks.neusight import read_data

    measured = read_data(data)
    cells = models.evaluate_models(measured, predictors=predictor or (), most_train=rows, progress=_print_progress)
    if left_out:
        cells += models.left_out(measured, _print_progress)
    _finish(models.report(cells), json_file, results)


@command.command("ranking")
def ranking(
    data: Data,
    json_file: JsonFile = None,
    rows: Annotated[int, _most("Train on at most this many rows per operator and GPU.")] = MOST_LEARNED,
) -> None:
    """Compare the predicted order of held-out GPUs on whole models with the measured order."""
    from evaluation.networks.neusight import read_data
    from evaluation.networks.ranking import evaluate_ranking, report

    _finish(report(evaluate_ranking(read_data(data), most=rows, progress=_print_progress)), json_file)


def _print_progress(line: str) -> None:
    typer.echo(line, err=True)


def _finish(report: Report, json_file: Path | None, results: bool = False) -> None:
    """Print a report, write it to a JSON file, and its tables and record into the repository, as asked."""
    from evaluation.render import dumped, text_lines

    print("\n".join(text_lines(report.blocks)))
    if json_file is not None:
        json_file.write_text(dumped(report.body), "utf-8")
    if results:
        report.publish()
