"""`gpucast measure`: measures kernels, operators and models on this machine, to one Parquet file."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import ServedModel, with_options
from app.cli.shell import stopped_by_terminate
from app.errors import BadInput
from measure.serving.commands import ServedLoads, ServingPlan, given, measure_serving

if TYPE_CHECKING:
    from measure.device import Device
    from measure.output import Output
    from measure.point import Point
    from measure.runner import Runner
    from measure.server import FigureReport, Server

_S_PER_MINUTE = 60.0
_REASONS_SHOWN = 10
# Least share of the time left after setup, and the share for profiling kernel names of measured operators.
_LEAST_SHARE, _NAMED_SHARE = 0.5, 0.25
# Suites whose kernel names the profiler records.
_NAMED = ("operators", "plan")
# Seconds between progress lines without a terminal.
_LINE_EVERY_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Options of where measurements go, and how long they may take."""

    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Parquet file to write, JSON with --serving; measuring resumes with an existing file.",
        ),
    ]
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", min=0.0, metavar="MINUTES", help="Time limit including setup, minutes; 0 only sends the file."
        ),
    ] = 10.0
    server: Annotated[
        str | None, typer.Option("--server", "--upload", metavar="URL", help="Send the file to this server afterwards.")
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", envvar="GPUCAST_API_KEY", metavar="KEY", help="API key of the server.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ThisMachine:
    """Options of what to measure of this machine's device."""

    suite: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Suite: device, kernels, operators or models; repeat for several (default: all that the device has).",
        ),
    ] = None
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only this operator, kernel or network; repeat for several."),
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="Measure only what the server's plan proposes.")] = False
    workload: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON file with the workload of the plan.")] = (
        None
    )
    saved_plan: Annotated[
        Path | None,
        typer.Option(
            "--saved-plan", metavar="FILE", help="Measure only the plan in FILE, an answer of GET /gpus/{name}/plan."
        ),
    ] = None
    in_graphs: Annotated[
        bool,
        typer.Option(
            "--in-graphs",
            help="Run operators of every format and phase in CUDA graphs, whose times do not depend on the host.",
        ),
    ] = False
    threads: Annotated[int | None, typer.Option(min=1, metavar="COUNT", help="CPU threads to compute with.")] = None
    devices: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Data-parallel CPU processes that train networks together.")
    ] = 1
    most_spread: Annotated[
        float, typer.Option(min=0.0, metavar="SHARE", help="Largest relative spread between trials of a reported time.")
    ] = 0.1

    @property
    def has_plan(self) -> bool:
        """Whether a plan says what is measured."""
        return self.plan or self.saved_plan is not None

    @property
    def is_given(self) -> bool:
        """Whether any option but the spread is."""
        chosen = (self.suite, self.only, self.has_plan, self.workload, self.threads, self.in_graphs)
        return any(chosen) or self.devices > 1


@with_options
def command(
    target: Target,
    machine: ThisMachine,
    loads: ServedLoads,
    served: ServedModel,
    *,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the device (default: the driver's).")] = None,
    software: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the software stack; times include host launches if it starts with pytorch."
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measure only this number format; repeat for several.")
    ] = None,
) -> None:
    """Measure this machine's GPU, or its CPU if it has no GPU; or with --serving a served model, from any machine."""
    if loads.serving is not None:
        if machine.is_given:
            raise BadInput(
                "--serving takes none of --suite, --only, --plan, --saved-plan, --workload, --threads, --devices and "
                "--in-graphs."
            )
        deployment = served.deployment(gpu, software, _only_one(dtype))
        plan = ServingPlan(loads, target.minutes, given(deployment))
        measure_serving(plan, target.out, target.server, target.key)
        return
    if loads.concurrency or served.is_given:
        raise BadInput("--concurrency, --model, --tensor, --image and --set need --serving URL.")
    began, seconds = time.monotonic(), target.minutes * _S_PER_MINUTE
    if machine.plan and machine.saved_plan is not None:
        raise BadInput("--plan asks a server and --saved-plan reads a file; pass one of them.")
    if machine.has_plan and (machine.suite or machine.only):
        raise BadInput("--plan and --saved-plan take neither --suite nor --only: a plan has its own rows.")
    _check_choices(machine)
    sink = _server(target.server, target.key, machine)
    from measure.output import alone

    with alone(target.out):
        device = _together(_device(gpu, software, machine.threads, dtype), machine.devices)
        if machine.in_graphs and device.kind != "cuda":
            raise BadInput(f"--in-graphs needs a GPU with CUDA; {device.name} has no graphs.")
        device = replace(device, in_graphs=machine.in_graphs)

        def requested() -> list[tuple[str, Sequence[Point]]]:
            from measure.server import planned, saved

            if machine.saved_plan is not None:
                return [_planned(*saved(machine.saved_plan, device))]
            if machine.plan and sink is not None:
                return [_planned(*planned(sink, device, machine.workload))]
            return _requested(machine.suite, machine.only, device)

        _measure(device, target.out, requested, sink, (began, seconds), machine.most_spread)


def _measure(
    device: Device,
    out: Path,
    requested_points: Callable[[], list[tuple[str, Sequence[Point]]]],
    sink: Server | None,
    time_s: tuple[float, float],
    most_spread: float,
) -> None:
    """Measure points on this machine's device, and send the file; `time_s` is when this began, and for how long."""
    from measure.device_suite import figures, seen_peaks, summary
    from measure.output import Output
    from measure.runner import DeviceLost, Runner, facts

    began, seconds = time_s
    output = Output(out, device.description, facts(device))
    print(f"{device.name}, {device.software}: {len(output.rows)} points are in {out}", file=sys.stderr)
    requested = requested_points()
    end, lost = max(began + seconds, time.monotonic() + _LEAST_SHARE * seconds), False
    try:
        with stopped_by_terminate():
            runner = Runner(device, most_spread=most_spread)
            output.facts |= runner.facts()
            _run(runner, output, requested, end)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except DeviceLost as error:
        print(f"continuing in a new process: {error}", file=sys.stderr)
        lost = True
    finally:
        if device.peers is not None:
            device.peers.close()
        of_device = output.of(dict(requested).get("device", ()))
        device_figures = figures(of_device)
        output.raise_to(seen_peaks(device_figures, output.device))
        output.write()
    if lost:
        _again((end - time.monotonic()) / _S_PER_MINUTE)
    _report(output)
    for line in summary(of_device, output.facts):
        print(f"  {line}")
    if sink is not None:
        send(sink, output, device_figures)


def _check_choices(machine: ThisMachine) -> None:
    """Raise BadInput for an unknown suite, and for several devices with anything but the suite models."""
    from measure.runner import SUITES

    unknown = [name for name in machine.suite or () if name not in SUITES]
    if unknown:
        raise BadInput(f"{unknown[0]!r} is not a suite; suites: {', '.join(SUITES)}.")
    if machine.devices > 1 and (machine.has_plan or machine.suite != ["models"]):
        raise BadInput("Several devices run only the suite models: pass --suite models, without --plan.")


def _server(address: str | None, key: str | None, machine: ThisMachine) -> Server | None:
    """Return the server, which answers, or None without an address. Raises BadInput for options that need others."""
    from measure.server import Server

    if machine.plan and address is None:
        raise BadInput("--plan needs a server: pass --server URL.")
    if machine.workload is not None and not machine.plan:
        raise BadInput("--workload needs --plan.")
    if address is None:
        return None
    server = Server(address, key)
    server.greet()
    return server


def _only_one(dtypes: Sequence[str] | None) -> str | None:
    """Return the number format of a served model's weights."""
    if dtypes and len(dtypes) > 1:
        raise BadInput("--serving takes one --dtype: the number format of the weights.")
    return dtypes[0] if dtypes else None


def _device(gpu: str | None, software: str | None, threads: int | None, dtypes: Sequence[str] | None) -> Device:
    """Return the device with the requested names and number formats."""
    from measure.device import find

    device = find(threads)
    unknown = [dtype for dtype in dtypes or () if dtype not in device.dtypes]
    if unknown:
        raise BadInput(f"{device.name} has no {unknown[0]} here: {', '.join(device.dtypes)}.")
    if software is not None:
        replayed = device.replayed.replace(device.software, software)
        device = replace(device, software=software, replayed=replayed)
    name = gpu or device.name
    return replace(
        device, name=name, description={**device.description, "name": name}, dtypes=tuple(dtypes or device.dtypes)
    )


def _together(device: Device, devices: int) -> Device:
    """Return the device as one of a group, if there are enough cores for all processes."""
    import psutil

    from measure.data_parallel import Peers

    if devices == 1:
        return device
    cores, needed = psutil.cpu_count() or 1, devices * device.sm_count
    if device.kind != "cpu" or needed > cores:
        raise BadInput(f"Only processes on a CPU train together, and this needs {needed} threads of {cores} cores.")
    return replace(device, peers=Peers(devices, device.sm_count))


def _requested(
    suites: Sequence[str] | None, only: Sequence[str] | None, device: Device
) -> list[tuple[str, Sequence[Point]]]:
    """Return the requested points of each suite, in the suites' order."""
    from measure.runner import SUITES, points_of

    by_suite = [(name, points_of(name, device)) for name in SUITES if name in (suites or SUITES)]
    known = dict.fromkeys(_target(point) for _, points in by_suite for point in points)
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise BadInput(f"{unknown[0]!r} is not measured here; choose from {', '.join(known)}.")
    return [(name, [point for point in points if not only or _target(point) in only]) for name, points in by_suite]


def _planned(points: Sequence[Point], others: Sequence[str]) -> tuple[str, Sequence[Point]]:
    """Return a plan's points, and print those that cannot be measured here."""
    if others:
        print(f"not measured here: {', '.join(sorted(set(others)))}", file=sys.stderr)
    return "plan", points


def _again(minutes: float) -> None:
    """Replace this process by the same command, for the remaining time."""
    sys.stdout.flush()
    arguments = [*sys.argv[1:], "--minutes", f"{max(minutes, 0.0):.3f}"]
    os.execv(sys.executable, [sys.executable, "-m", "app.cli", *arguments])


def _run(runner: Runner, output: Output, requested: Sequence[tuple[str, Sequence[Point]]], end: float) -> None:
    """Measure the suites in equal shares of the time until `end`, then profile kernel names.

    Suites of ALWAYS run completely.
    """
    from measure.runner import ALWAYS, name_kernels, pending

    named = [points for name, points in requested if name in _NAMED and runner.device.kind == "cuda"]
    timed = end - _NAMED_SHARE * (end - time.monotonic()) * len(named) / len(requested)
    for k, (name, points) in enumerate(requested):
        now = time.monotonic()
        share = 1 if name in ALWAYS else len(requested) - k
        _measured(runner, output, name, pending(output, points), now + (timed - now) / share)
    for points in named:
        name_kernels(runner, output, points, until=end)


def _measured(runner: Runner, output: Output, label: str, points: Sequence[Point], until: float) -> None:
    """Measure points with a progress bar, or without a terminal with progress lines."""
    from measure.runner import measure_all

    bar: Any
    last_line_s = time.monotonic()
    with typer.progressbar(length=len(points), label=label, file=sys.stderr, item_show_func=_shown) as bar:

        def observe(point: Point, row: Mapping[str, Any]) -> None:
            nonlocal last_line_s
            bar.current_item = (point, row)
            bar.update(1)
            if not sys.stderr.isatty() and time.monotonic() - last_line_s >= _LINE_EVERY_S:
                last_line_s = time.monotonic()
                print(f"{label} {bar.pos} of {len(points)}: {_shown((point, row))}", file=sys.stderr, flush=True)

        measure_all(runner, output, points, until=until, observe=observe)


def _shown(item: tuple[Point, Mapping[str, Any]] | None) -> str:
    if item is None:
        return ""
    point, row = item
    took = f"{row['latency_ms']:.4g} ms" if "latency_ms" in row else str(row["outcome"])
    return f"{_target(point)} {point.workload.get('dtype', '')}: {took}"[:60]


def _target(point: Point) -> str:
    """Return the operator, kernel or network of a point."""
    return str(point.workload.get("op") or point.workload.get("name"))


def _report(output: Output) -> None:
    outcomes = Counter(str(row["outcome"]) for row in output.rows.values())
    print(f"{output.path}: {len(output.rows)} rows")
    for outcome, count in outcomes.most_common(_REASONS_SHOWN):
        print(f"  {count:6d} {outcome}")


def send(server: Server, output: Output, device_figures: Mapping[str, float]) -> None:
    """Send the file and the device's figures (SI units), and print the results."""
    _report_figures(output.device_name, server.raise_peaks(output.device))
    sent = server.send(output.path)
    added = f"; registered {', '.join(sent.added_gpus)}" if sent.added_gpus else ""
    print(f"sent: {sent.inserted} new, {sent.unchanged} known before{added}")
    for doubt in sent.doubtful:
        print(f"  doubtful: {doubt}")
    for reason, count in sent.left_out.most_common():
        print(f"  {count:6d} left out: {reason}")
    _report_figures(output.device_name, server.send_figures(output.device_name, device_figures))


def _report_figures(device: str, observe: FigureReport) -> None:
    """Print which of the device's figures the server took."""
    figures = [f"{name} {value:.4g}" for name, value in observe.figures.items()]
    if observe.taken:
        for figure in figures:
            print(f"  {device} has {figure} now")
    else:
        print(f"  {device} keeps the server's figures: only an admin's key sets {', '.join(figures)}")
