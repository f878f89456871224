"""The command line: sub-commands, registered in COMMANDS, whose modules are imported when they are called."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as missing:  # a checkout without installed packages, on a machine to measure
    sys.exit(f"gpucast needs {missing.name}: `make measure`, or pip install {missing.name}")

from typer.exceptions import TyperException

from app import __version__
from app.cli.shell import in_shell, options_for, with_value
from app.errors import GpucastError

# (name, module:function or Typer application, one line of help).
COMMANDS = (
    ("serve", "app.cli.serve:serve", "Start the whole service: database, API and worker."),
    ("worker", "app.cli.serve:worker", "Run queued retraining jobs."),
    ("predict", "app.cli.predict:predict", "Predict how long a workload takes on a GPU."),
    ("compare", "app.cli.predict:compare", "Rank GPUs by time, throughput, money or energy."),
    ("sbatch", "app.cli.cluster:sbatch", "Propose partition, GPUs and time limit of a Slurm job."),
    ("kueue", "app.cli.cluster:kueue", "Rank Kueue's resource flavours for a job, and label it."),
    ("dra", "app.cli.cluster:dra", "Select GPUs that meet a deadline, for Kubernetes' DRA."),
    ("plan", "app.cli.predict:plan", "Choose GPUs for a deadline, a budget or a throughput."),
    ("partition", "app.cli.devices:partition", "Split a network into stages over unequal GPUs."),
    ("sweep", "app.cli.predict:sweep", "Predict tables of millions of rows, to Parquet files."),
    ("scale", "app.cli.devices:scale", "Predict how throughput grows with devices and batch."),
    ("watch", "app.cli.watch:watch", "Compare a running vLLM with its prediction, by Prometheus."),
    ("tune-plan", "app.cli.tune_plan:tune_plan", "Choose what an auto-tuner runs first on a GPU."),
    ("prices", "app.cli.gpus:prices", "Import, list and delete GPU prices."),
    ("gpus", "app.cli.gpus:gpus", "List, show and add GPUs."),
    ("predictors", "app.cli.predictors:predictors", "List the predictors and the versions that answer."),
    ("import", "app.cli.measurements:import_files", "Import a folder of measurements."),
    ("measurements", "app.cli.measurements:measurements", "Delete stored measurements."),
    ("retrain", "app.cli.predictors:retrain", "Retrain a predictor from the stored measurements."),
    ("measure", "measure.commands:command", "Measure this machine's GPU or CPU, to a file."),
    ("train", "app.cli.predictors:train", "Train the predictors that ship with the code."),
    ("trace", "app.cli.trace:command", "Write the JSON graph of a PyTorch model."),
    ("evaluate", "evaluation.commands:command", "Reproduce papers' tables and evaluate our own accuracy."),
    ("keys", "app.cli.database:keys", "Create, list, rotate and revoke API keys."),
    ("doctor", "app.cli.database:doctor", "Check what a service needs on this machine."),
    ("migrate", "app.cli.database:migrate", "Migrate the database to a schema version, or check it."),
    ("backup", "app.cli.database:backup", "Write the database and the artefacts to one file."),
    ("restore", "app.cli.database:restore", "Restore a backup into an empty database."),
)

# Allocations, and younger collections, between two collections. Imports and artefacts leave millions of objects and few
# cycles: looking through them time and again took a sixth of `gpucast predict`.
_COLLECT_AFTER = (100_000, 50, 50)
# Commands that answer once, and whose objects all live until then: a collection finds nothing, and takes 0.1 s.
_ANSWER_ONCE = ("predict", "compare", "plan", "scale", "partition", "sbatch", "kueue", "dra")


def build(called: str | None) -> typer.Typer:
    """Return the application with the sub-command `called` ready to run, and the others as lines of help."""
    app = typer.Typer(
        name="gpucast",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain text: frames take 0.2 s more
    )
    app.callback()(_options)
    for name, module, line in COMMANDS:
        if name != called:
            app.command(name, help=line)(_unused)
            continue
        place, _, attribute = module.partition(":")
        command = getattr(import_module(place), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=line)
        else:
            app.command(name)(command)
    return app


def main() -> None:
    """Run `gpucast`; a user error is one line on standard error and exit status 1."""
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if called in _ANSWER_ONCE:
        gc.disable()
    else:
        gc.set_threshold(*_COLLECT_AFTER)
    try:
        sys.exit(build(called)(standalone_mode=False))
    except TyperException as error:
        if isinstance(error, typer.BadParameter):
            error.message = with_value(error.message, error.__cause__)
        error.show()  # type: ignore[attr-defined]  # those that commands raise have it
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(1)
    except GpucastError as error:
        print(f"gpucast: {in_shell(error.detail)}", file=sys.stderr)
        for wrong in (item for item in error.errors if len(error.errors) > 1 or item.msg not in error.detail):
            print(f"  {'.'.join(map(str, wrong.loc))}: {in_shell(wrong.msg)}", file=sys.stderr)
        if options := options_for(called, error.errors):
            print(f"  set by: {options}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith(("app.", "evaluation.", "measure.")):
            raise
        if missing.name in ("evaluation", "measure"):
            sys.exit(
                f"gpucast {called} needs the folder {missing.name}/ of the repository, which this installation lacks"
            )
        target = "measure" if called == "measure" else "install"
        sys.exit(f"gpucast {called} needs {missing.name}: `make {target}`, or pip install {missing.name}")


def _show_version(called: bool) -> None:
    if called:
        print(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Predict how long GPU work takes on any GPU, without running it there."""


def _unused() -> None:
    raise AssertionError("only the sub-command on the command line is ever run")
