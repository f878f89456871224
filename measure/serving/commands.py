"""`gpucast measure --serving`: measures closed loops on a served model's endpoint, to a JSON file."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app import __version__
from app.errors import BadInput

if TYPE_CHECKING:
    from app.formats.base import Row
    from app.formats.serving.files import DeploymentOptions
    from measure.connection import Connection
    from measure.serving.endpoint import Endpoint
    from measure.serving.loads import Measured, Results

_S_PER_MINUTE = 60.0
_LINE_EVERY_S = 5.0
# Share of a core from which on this process, not the endpoint, may set the times.
_BUSY = 0.8
# Most by which the tokens that the endpoint counts may differ from those wanted without a warning.
_OFF = 0.02


@dataclass(frozen=True, kw_only=True)
class ServedLoads:
    """Options of the loads to measure, and the endpoint that serves the model."""

    serving: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Measure the model that this OpenAI-compatible endpoint serves, instead."),
    ] = None
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="REQUESTS", help="serving: requests in flight; repeat for several (default: 1)."),
    ] = None
    input_tokens: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="serving: tokens of a prompt.")] = 1024
    output_tokens: Annotated[int, typer.Option(min=2, metavar="TOKENS", help="serving: tokens of an answer.")] = 256
    serving_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", metavar="KEY", help="serving: API key of the endpoint.")
    ] = None


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What to measure: loads on an endpoint, and the deployment, as far as the user says.

    deployment  gpu, software, image, model, dtype, tensor and fields of a workload, without those not given
    """

    loads: ServedLoads
    minutes: float
    deployment: Mapping[str, Any]

    @property
    def concurrencies(self) -> Sequence[int]:
        """Requests in flight of each load."""
        return tuple(dict.fromkeys(self.loads.concurrency or (1,)))


def measure_serving(plan: ServingPlan, out: Path, server_url: str | None, server_key: str | None) -> None:
    """Measure the loads that the file lacks, and upload all of it to the server, if there is one."""
    from measure.connection import Connection

    if not out.parent.is_dir():
        raise BadInput(f"--out {out}: there is no folder {out.parent}.")
    server = None if server_url is None else Connection(server_url, server_key)
    results = asyncio.run(_measure(plan, out, server))
    _report(results)
    if server is not None and results.points:
        _send(server, results)


async def _measure(plan: ServingPlan, out: Path, server: Connection | None) -> Results:
    from measure.serving.endpoint import Endpoint, find_prompts
    from measure.serving.loads import Results

    async with Endpoint(str(plan.loads.serving), plan.loads.serving_key) as endpoint:
        served = await endpoint.look_up()
        deployment = dict(plan.deployment)
        if served.engine is not None:
            deployment.setdefault("software", served.engine)
        header = {"tool": f"gpucast {__version__}", "model": served.model, "deployment": deployment}
        results = Results(out, header)
        print(f"{endpoint.url} serves {served.model}; {out} has {len(results.points)} loads", file=sys.stderr)
        if server is not None:
            _check(server, header, plan)
        lengths = plan.loads.input_tokens, plan.loads.output_tokens
        missing = [number for number in plan.concurrencies if not results.has(number, *lengths)]
        if missing and plan.minutes:
            prompts = await find_prompts(endpoint, plan.loads.input_tokens)
            _note_prompts(endpoint, prompts.words)
            await _until_stopped(_each(endpoint, prompts, missing, plan, results))
    return results


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it is done, or Ctrl-C or SIGTERM, which `timeout` sends, end it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await work
    except asyncio.CancelledError:
        task.uncancel()
        print("stopped: the loads that were done are in the file", file=sys.stderr)


async def _each(endpoint: Endpoint, prompts: Any, missing: Sequence[int], plan: ServingPlan, results: Results) -> None:
    """Measure each load in an equal share of the time that is left."""
    from measure.serving.loads import Measured, closed_loop, point_of

    end = time.monotonic() + plan.minutes * _S_PER_MINUTE
    for k, concurrency in enumerate(missing):
        seconds = max(end - time.monotonic(), 0.0) / (len(missing) - k)
        measured = Measured(concurrency, plan.loads.output_tokens)
        await closed_loop(endpoint, prompts, measured, seconds=seconds, observe=_Progress())
        results.add(point_of(measured, plan.loads.input_tokens))
        _note(measured, plan)


class _Progress:
    """Prints a line about a loop every few seconds."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, measured: Measured) -> None:
        from measure.serving.loads import PER_PLACE, times_of

        if time.monotonic() - self._last_s < _LINE_EVERY_S or not measured.completions:
            return
        self._last_s = time.monotonic()
        done, most = len(measured.completions), PER_PLACE * measured.concurrency
        times = {name: time["mean"] * 1e3 for name, time in times_of(measured.completions).items()}
        figures = ", ".join(f"{name[:-2].upper()} {value:.4g} ms" for name, value in times.items() if name != "itl_s")
        print(f"concurrency {measured.concurrency}: {done} of {most} requests, {figures}", file=sys.stderr, flush=True)


def _note_prompts(endpoint: Endpoint, words: int | None) -> None:
    if words is not None:
        print(f"the endpoint takes no token ids: prompts are {words} words", file=sys.stderr)
    if not endpoint.ignores_end:
        print("the endpoint takes no ignore_eos: outputs may end early", file=sys.stderr)


def _note(measured: Measured, plan: ServingPlan) -> None:
    """Print what makes a load less than it should be."""
    for reason, count in measured.failed.most_common(3):
        print(f"concurrency {measured.concurrency}: {count} requests failed: {reason}", file=sys.stderr)
    mean = sum(one.output_tokens for one in measured.completions) / len(measured.completions)
    if abs(mean / plan.loads.output_tokens - 1.0) > _OFF:
        print(f"outputs have {mean:.1f} tokens where {plan.loads.output_tokens} are wanted", file=sys.stderr)
    if measured.busy > _BUSY:
        print(
            f"concurrency {measured.concurrency}: this client computes {measured.busy:.0%} of the time, which adds to"
            " the times: measure from a faster machine, or at a lower concurrency",
            file=sys.stderr,
        )


def _report(results: Results) -> None:
    print(f"{results.path}: {len(results.points)} loads, means in ms")
    print(
        f"{'in flight':>9}{'requests':>10}{'failed':>8}{'TTFT':>10}{'TPOT':>9}{'p99':>9}{'request':>11}{'tokens/s':>10}"
    )
    for point in results.points:
        ttft, tpot, e2e = (point.get(name) or {} for name in ("ttft_s", "tpot_s", "e2e_s"))
        times = (ttft.get("mean"), tpot.get("mean"), tpot.get("p99"), e2e.get("mean"))
        shown = "".join(
            f"{'-' if time is None else f'{time * 1e3:.4g}':>{width}}"
            for time, width in zip(times, (10, 9, 9, 11), strict=True)
        )
        rate = point["output_tokens_per_s"]
        print(f"{point['concurrency']:>9}{point['requests']:>10}{point['failed']:>8}{shown}{rate:>10.4g}")


def _rows(document: Mapping[str, Any]) -> tuple[list[Row], list[str]]:
    """Return the measurements of a file, and why the others are left out. Raises BadInput that names an option."""
    from app.formats.serving.files import DeploymentOptions, to_row
    from app.formats.serving.reader import LeftOut
    from app.formats.serving.tools import OWN

    rows, left_out = list[Any](), list[str]()
    for record in OWN.records(document):
        try:
            rows.append(to_row(OWN.read(record), OWN.tool, DeploymentOptions()))
        except LeftOut as reason:
            left_out.append(f"{record.get('concurrency')} in flight: {reason}")
    return rows, left_out


def _check(server: Connection, header: Mapping[str, Any], plan: ServingPlan) -> None:
    """Have the server check a row of this deployment, before minutes are spent on the others."""
    from measure.connection import decoded
    from measure.serving.loads import POINTS

    times = {name: {"mean": seconds} for name, seconds in (("ttft_s", 1.0), ("tpot_s", 0.01), ("e2e_s", 100.0))}
    loads = {
        "concurrency": 1,
        "input_tokens": plan.loads.input_tokens,
        "output_tokens": plan.loads.output_tokens,
        "requests": 2,
    }
    rows, _ = _rows({**header, POINTS: [{**times, **loads}]})
    decoded(server.ask("POST", "/measurements", params={"dry_run": True}, json=rows))


def _send(server: Connection, results: Results) -> None:
    from measure.connection import decoded, of_gpucast

    rows, left_out = _rows(results.document)
    if rows:
        report = decoded(server.ask("POST", "/measurements", json=rows))
        with of_gpucast():
            print(f"sent: {int(report['inserted'])} new, {int(report['unchanged'])} known before")
    for reason in left_out:
        print(f"  left out: {reason}")


def given(options: DeploymentOptions) -> dict[str, Any]:
    """Return the options that the user gave, by name, as a file has them."""
    named = {item.name: getattr(options, item.name) for item in fields_of(options)}
    return {name: value for name, value in named.items() if value not in (None, {})}
