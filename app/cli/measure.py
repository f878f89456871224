"""`gpucast measure`: time kernels, operators and models on this machine's device, into one Parquet file."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import BadInput

if TYPE_CHECKING:
    from app.measure.device import Device
    from app.measure.output import Output
    from app.measure.point import Point
    from app.measure.runner import Runner
    from app.measure.upload import Server, Told

_S_PER_MINUTE = 60.0
_REASONS_SHOWN = 10
# Of the time, what setting up leaves to measure at least, and what goes to kernels' names where operators are measured.
_LEAST_SHARE, _NAMED_SHARE = 0.5, 0.25
# Suites whose kernels the profiler names; the others know them, or run many.
_NAMED = ("operators", "plan")
# Where no bar can be drawn, a line comes so often, seconds.
_LINE_EVERY_S = 15.0


def command(  # noqa: PLR0913 - one parameter per option
    out: Annotated[Path, typer.Option(help="Parquet file; one that is there goes on where it stopped.")],
    *,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="device, kernels, operators or models; again for more. Without: all that the device has."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Time to take, preparations included; 0 only sends what the file has.")
    ] = 10.0,
    server: Annotated[str | None, typer.Option(metavar="URL", help="Send the file there afterwards.")] = None,
    key: Annotated[str | None, typer.Option(envvar="GPUCAST_API_KEY", help="API key of that server.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only what that server would have measured next.")] = False,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of the workload that the plan is for.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="What to call the device; without: as its driver does.")] = None,
    software: Annotated[
        str | None, typer.Option(help="What to call eager PyTorch; host launches count where it begins with pytorch.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the CPU that compute.")] = None,
    devices: Annotated[
        int, typer.Option(min=1, help="Processes of so many threads that train networks together, data parallel.")
    ] = 1,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this operator, kernel or network; again for more.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this number format; again for more.")] = None,
    most_spread: Annotated[
        float, typer.Option(min=0.0, help="Spread between trials above which a time is not reported.")
    ] = 0.1,
) -> None:
    """Measure this machine's GPU, or its CPU where it has none."""
    from app.measure.campaign import DeviceLost, facts
    from app.measure.device_figures import figures, summary
    from app.measure.output import Output, alone
    from app.measure.runner import Runner
    from app.measure.upload import Server

    began, seconds = time.monotonic(), minutes * _S_PER_MINUTE
    device = _together(_device(gpu, software, threads, dtype), devices)
    if device.peers is not None and (plan or suite != ["models"]):
        raise BadInput("Several devices run the suite models alone: say --suite models, without --plan.")
    sink = None if server is None else Server(server, key)
    if plan and sink is None:
        raise BadInput("--plan asks a server: name it with --server URL.")
    if workload is not None and not plan:
        raise BadInput("--workload is what a plan is for: add --plan.")
    if sink is not None:
        sink.greet()
    with alone(out):
        output = Output(out, device.description, facts(device))
        print(f"{device.name}, {device.software}: {len(output.rows)} points are in {out}", file=sys.stderr)
        asked = _asked(suite, only, device) if sink is None or not plan else [_planned(sink, device, workload)]
        end, lost = max(began + seconds, time.monotonic() + _LEAST_SHARE * seconds), False
        try:
            with _stopped_by_terminate():
                _run(Runner(device, most_spread=most_spread), output, asked, end)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
        except DeviceLost as error:
            print(f"goes on in a new process, as {error}", file=sys.stderr)
            lost = True
        finally:
            if device.peers is not None:
                device.peers.close()
            of_device = output.of(dict(asked).get("device", ()))
            found = figures(of_device)
            output.raise_to({"memory_bandwidth_bytes_per_s": found.get("triad_bandwidth_bytes_per_s", 0.0)})
            output.write()
        if lost:
            _again((end - time.monotonic()) / _S_PER_MINUTE)
        _tell(output)
        for line in summary(of_device, output.facts):
            print(f"  {line}")
        if sink is not None:
            send(sink, output, found)


def _device(gpu: str | None, software: str | None, threads: int | None, dtypes: Sequence[str] | None) -> Device:
    """The device under the names and with the formats asked for."""
    from app.measure.device import find

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
    """The device as one of a group, where there are cores enough for all of it."""
    import psutil

    from app.measure.data_parallel import Peers

    if devices == 1:
        return device
    cores, needed = psutil.cpu_count() or 1, devices * device.sm_count
    if device.kind != "cpu" or needed > cores:
        raise BadInput(f"Only processes on a CPU train together, and {needed} threads of {cores} are asked for.")
    return replace(device, peers=Peers(devices, device.sm_count))


def _asked(
    suites: Sequence[str] | None, only: Sequence[str] | None, device: Device
) -> list[tuple[str, Sequence[Point]]]:
    """The points asked for of each suite, in the suites' own order."""
    from app.measure.suites import SUITES, points_of

    unknown = [name for name in suites or () if name not in SUITES]
    if unknown:
        raise BadInput(f"{unknown[0]!r} is no suite: {', '.join(SUITES)} are.")
    found = [(name, points_of(name, device)) for name in SUITES if name in (suites or SUITES)]
    known = dict.fromkeys(_named(point) for _, points in found for point in points)
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise BadInput(f"Nothing that is measured here is called {unknown[0]!r}: {', '.join(known)} are.")
    return [(name, [point for point in points if not only or _named(point) in only]) for name, points in found]


def _planned(server: Server, device: Device, workload: Path | None) -> tuple[str, Sequence[Point]]:
    """The points of a server's plan, and a word on those that cannot be measured here."""
    from app.measure.plan import planned

    points, others = planned(server, device, workload)
    if others:
        print(f"not measured here: {', '.join(sorted(set(others)))}", file=sys.stderr)
    return "plan", points


@contextmanager
def _stopped_by_terminate() -> Iterator[None]:
    """Being told to terminate, as by `timeout`, is Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _again(minutes: float) -> None:
    """The same command in place of this process, for the time that is left."""
    sys.stdout.flush()
    words = [*sys.argv[1:], "--minutes", f"{max(minutes, 0.0):.3f}"]
    os.execv(sys.executable, [sys.executable, "-m", "app.cli", *words])


def _run(runner: Runner, output: Output, asked: Sequence[tuple[str, Sequence[Point]]], end: float) -> None:
    """Each suite has an equal share of the time until `end`, but those that are always run whole; then come names."""
    from app.measure.campaign import name_kernels, pending
    from app.measure.suites import ALWAYS

    named = [points for name, points in asked if name in _NAMED and runner.device.kind == "cuda"]
    timed = end - _NAMED_SHARE * (end - time.monotonic()) * len(named) / len(asked)
    for k, (name, points) in enumerate(asked):
        now = time.monotonic()
        share = 1 if name in ALWAYS else len(asked) - k
        _measured(runner, output, name, pending(output, points), now + (timed - now) / share)
    for points in named:
        name_kernels(runner, output, points, until=end)


def _measured(runner: Runner, output: Output, label: str, points: Sequence[Point], until: float) -> None:
    """Measure with a bar of the points, which says what is measured; without a terminal, with a line now and then."""
    from app.measure.campaign import measure_all

    bar: Any
    said = time.monotonic()
    with typer.progressbar(length=len(points), label=label, file=sys.stderr, item_show_func=_shown) as bar:

        def told(point: Point, row: Mapping[str, Any]) -> None:
            nonlocal said
            bar.current_item = (point, row)
            bar.update(1)
            if not sys.stderr.isatty() and time.monotonic() - said >= _LINE_EVERY_S:
                said = time.monotonic()
                print(f"{label} {bar.pos} of {len(points)}: {_shown((point, row))}", file=sys.stderr, flush=True)

        measure_all(runner, output, points, until=until, told=told)


def _shown(item: tuple[Point, Mapping[str, Any]] | None) -> str:
    """A point that was measured, in a few words."""
    if item is None:
        return ""
    point, row = item
    took = f"{row['latency_ms']:.4g} ms" if "latency_ms" in row else str(row["outcome"])
    return f"{_named(point)} {point.workload.get('dtype', '')}: {took}"[:60]


def _named(point: Point) -> str:
    """The operator, kernel or network of a point."""
    return str(point.workload.get("op") or point.workload.get("name"))


def _tell(output: Output) -> None:
    """Rows by what became of them."""
    outcomes = Counter(str(row["outcome"]) for row in output.rows.values())
    print(f"{output.path}: {len(output.rows)} rows")
    for outcome, count in outcomes.most_common(_REASONS_SHOWN):
        print(f"  {count:6d} {outcome}")


def send(server: Server, output: Output, found: Mapping[str, float]) -> None:
    """Send the file and figures `found` of its device, SI units; tells what became of both."""
    _tell_figures(output.device_name, server.raise_peaks(output.device))
    sent = server.send(output.path)
    added = f"; registered {', '.join(sent.added_gpus)}" if sent.added_gpus else ""
    print(f"sent: {sent.inserted} new, {sent.unchanged} known before{added}")
    for reason, count in sent.left_out.most_common(_REASONS_SHOWN):
        print(f"  {count:6d} left out: {reason}")
    _tell_figures(output.device_name, server.tell_figures(output.device_name, found))


def _tell_figures(device: str, told: Told) -> None:
    """What became of figures of the device that the server lacked."""
    figures = [f"{name} {value:.4g}" for name, value in told.figures.items()]
    if told.taken:
        for figure in figures:
            print(f"  {device} has {figure} now")
    else:
        print(f"  {device} keeps the server's figures: only an admin's key sets {', '.join(figures)}")
