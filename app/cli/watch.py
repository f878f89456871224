"""`gpucast watch`: times of a running vLLM, read from Prometheus, beside the prediction for the load that it has."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from app.cli.options import AsJson, with_options
from app.cli.predict import predict_body
from app.cli.show import figure
from app.cli.workload_options import Answer, File, NetworkOptions, SetFields
from app.config import Settings
from app.errors import BadInput, Unavailable

if TYPE_CHECKING:
    import httpx

    from app.wire.serving_form import ServedTime, ServingPrediction

OUTSIDE = 3  # exit status of --once; 1 is an error, 2 a wrong option
_TTFT = "vllm:time_to_first_token_seconds"
# Time per output token by the version of vLLM: of requests, then between tokens, then as it was named before.
_TPOT = ("request_time_per_output_token_seconds", "inter_token_latency_seconds", "time_per_output_token_seconds")
_PREFIX = ("prefix_cache", "gpu_prefix_cache")


class Watched(msgspec.Struct, kw_only=True):
    """One figure: measured mean over the window and predicted mean with its interval, milliseconds."""

    measured_ms: float | None
    predicted_ms: float | None
    low_ms: float | None
    high_ms: float | None
    outside: bool


class Period(msgspec.Struct, kw_only=True):
    """What one window of Prometheus has, and what is predicted for its load; `outside`: a figure left its interval.

    rate_per_s  requests that got a first token
    in_flight   mean of running and waiting requests
    requests    those of the window; figures of fewer than asked for are not judged
    """

    at: str
    gpu: str
    requests: int
    judged: bool
    rate_per_s: float
    in_flight: float
    input_tokens: float
    output_tokens: float
    prefix_hit: float | None
    saturated: bool
    ttft: Watched
    tpot: Watched
    outside: bool


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Options of what is watched, and how often."""

    prometheus: Annotated[str, typer.Option(metavar="URL", help="Prometheus that scrapes the engines.")]
    match: Annotated[
        str, typer.Option(metavar="LABELS", help='Labels of the engines\' series, like model_name="llama",job="vllm".')
    ] = ""
    every: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Seconds between two lines.")] = 60
    window: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="Seconds over which Prometheus takes means.")
    ] = 300
    least_requests: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="Requests that a window needs to be judged.")
    ] = 30
    once: Annotated[
        bool, typer.Option("--once", help=f"Print one line; exit status {OUTSIDE} if a figure is outside.")
    ] = False
    textfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="Also write metrics for node_exporter's textfile collector."),
    ] = None


@with_options
def watch(
    options: WatchOptions,
    *,
    file: File = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="GPU that they run on (id, alias or name).")],
    fields: SetFields = None,
    answer: Answer,
    as_json: AsJson = False,
) -> None:
    """Compare a running vLLM, as Prometheus has it, with the prediction for the same deployment and load."""
    import httpx

    request = NetworkOptions(run={}, fields=fields).request(file, gpu=gpu, **answer)
    if request["workload"].get("kind") != "serving":
        raise BadInput('watch compares served models: send a workload with "kind": "serving".')
    settings = Settings.from_env()
    with httpx.Client(base_url=options.prometheus.rstrip("/"), timeout=settings.request_timeout_s) as client:
        while True:
            engines = _Engines(client, options.match, options.window)
            try:
                period = _period(engines, request, options.least_requests)
            except Unavailable as error:
                if options.once:
                    raise
                print(f"gpucast: {error.detail}", file=sys.stderr)  # a Prometheus that restarts ends no watch
                time.sleep(options.every)
                continue
            print(msgspec.json.encode(period).decode() if as_json else _line(period), flush=True)
            if options.textfile is not None:
                from app.store.files import write_whole

                write_whole(options.textfile, "".join(_metrics(period)).encode())
            if options.once:
                raise typer.Exit(OUTSIDE if period.outside else 0)
            time.sleep(options.every)


class _Sample(msgspec.Struct):
    value: tuple[float, str]


class _Vector(msgspec.Struct):
    result: list[_Sample] = []


class _Answer(msgspec.Struct):
    """What Prometheus answers to a query: a sample for each series, or an error."""

    status: str
    error: str = ""
    data: _Vector = msgspec.field(default_factory=_Vector)


class _Engines:
    """Figures of all engines together over a window, by queries to Prometheus."""

    def __init__(self, client: httpx.Client, match: str, window_s: int) -> None:
        self._client, self._match, self.window_s = client, match, window_s

    def rate(self, counter: str) -> float | None:
        """Return increments of a counter per second; None without the series."""
        return self._value(self._rates(counter))

    def mean(self, *histograms: str) -> float | None:
        """Return the mean of the first of these histograms that there is; None without any or without requests."""
        return self._value(" or ".join(f"{self._rates(f'{n}_sum')} / {self._rates(f'{n}_count')}" for n in histograms))

    def ratio(self, caches: tuple[str, ...], part: str, whole: str) -> float | None:
        """Return the share of a counter in another one, of the first pair that there is."""
        pairs = ((f"vllm:{cache}_{part}_total", f"vllm:{cache}_{whole}_total") for cache in caches)
        return self._value(" or ".join(f"{self._rates(one)} / {self._rates(all_)}" for one, all_ in pairs))

    def level(self, gauge: str) -> float:
        """Return the mean of a gauge over the window; 0 without the series."""
        return self._value(f"sum(avg_over_time({self._series(gauge)}))") or 0.0

    def _rates(self, counter: str) -> str:
        return f"sum(rate({self._series(counter)}))"

    def _series(self, name: str) -> str:
        return f"{name}{{{self._match}}}[{self.window_s}s]"

    def _value(self, query: str) -> float | None:
        """Return the one sample of a query; None for no sample and for NaN, which is a mean of nothing."""
        import httpx

        try:
            response = self._client.get("/api/v1/query", params={"query": query})
            answer = msgspec.json.decode(response.content, type=_Answer)
            value = float(answer.data.result[0].value[1]) if answer.data.result else math.nan
        except (httpx.HTTPError, msgspec.DecodeError, ValueError, RecursionError) as error:
            raise Unavailable(f"No answer of Prometheus at {self._client.base_url}: {error!r}.") from error
        if answer.status != "success":
            raise BadInput(f"Prometheus refuses {query}: {answer.error}")
        return value if math.isfinite(value) else None


def _period(engines: _Engines, request: dict[str, Any], least_requests: int) -> Period:
    """Return what a window has, and the prediction for its load."""
    rate, prompt = engines.rate(f"{_TTFT}_count"), engines.mean("vllm:request_prompt_tokens")
    generated = engines.mean("vllm:request_generation_tokens")
    in_flight = engines.level("vllm:num_requests_running") + engines.level("vllm:num_requests_waiting")
    if rate is None:
        raise BadInput(f"Prometheus has no series {_TTFT}_count of these engines: see --match and --window.")
    if not rate or prompt is None or generated is None:
        idle = Watched(measured_ms=None, predicted_ms=None, low_ms=None, high_ms=None, outside=False)
        return Period(
            at=_now(), gpu=request["gpu"], requests=0, judged=False, rate_per_s=0.0, in_flight=in_flight,
            input_tokens=0.0, output_tokens=0.0, prefix_hit=None, saturated=False, ttft=idle, tpot=idle, outside=False,
        )  # fmt: skip
    hit = engines.ratio(_PREFIX, "hits", "queries")
    load = {"rate_per_s": rate, "concurrency": max(1, round(in_flight))}
    predicted = _predicted(request, load, prompt, generated, hit)
    requests, served = round(rate * engines.window_s), predicted.serving
    judged = requests >= least_requests
    seconds = engines.mean(_TTFT), engines.mean(*(f"vllm:{name}" for name in _TPOT))
    ttft, tpot = (_watched(s, t, judged) for s, t in zip(seconds, (served.ttft_ms, served.tpot_ms), strict=True))
    return Period(
        at=_now(), gpu=predicted.gpu, requests=requests, judged=judged, rate_per_s=rate, in_flight=in_flight,
        input_tokens=prompt, output_tokens=generated, prefix_hit=hit, saturated=served.saturated, ttft=ttft, tpot=tpot,
        # An engine that bears what is predicted to saturate it is faster than predicted.
        outside=judged and (served.saturated or ttft.outside or tpot.outside),
    )  # fmt: skip


def _predicted(
    request: dict[str, Any], load: dict[str, float], prompt: float, generated: float, hit: float | None
) -> ServingPrediction:
    """Return the prediction of a deployment for the measured load, a closed loop if the workload has one."""
    from app.wire.serving_form import ServingResponse, ServingWorkload

    usual = {field.name: field.default for field in msgspec.structs.fields(ServingWorkload)}
    workload = dict(request["workload"])
    spread = workload.get("length_spread", usual["length_spread"])
    for name, mean in (("input", prompt), ("output", generated)):
        half = workload.get(f"{name}_spread", spread) / 2  # lengths are uniform in (1 - spread) to 1 of the most
        workload[f"{name}_tokens"] = max(1, round(mean / (1 - half)))
    own = workload.get("load") or {}
    if "concurrency" in own:
        workload["load"] = {"concurrency": load["concurrency"]}
    else:
        kept = {name: own[name] for name in ("burstiness", "max_concurrency") if name in own}
        workload["load"] = {"rate_per_s": load["rate_per_s"], **kept}
    if hit is not None and hit < 1:
        workload["prefix_hit"] = hit
    body = msgspec.json.encode({**request, "workload": workload})
    return msgspec.json.decode(predict_body(Settings.from_env(), body), type=ServingResponse).predictions[0]


def _watched(seconds: float | None, predicted: ServedTime | None, judged: bool) -> Watched:
    measured = None if seconds is None else 1e3 * seconds
    if predicted is None:
        return Watched(measured_ms=measured, predicted_ms=None, low_ms=None, high_ms=None, outside=False)
    low, high = predicted.interval.low, predicted.interval.high
    outside = judged and measured is not None and not low <= measured <= high
    return Watched(measured_ms=measured, predicted_ms=predicted.mean, low_ms=low, high_ms=high, outside=outside)


def _line(period: Period) -> str:
    if not period.rate_per_s:
        return f"{period.at}  no requests"
    lengths = f"{figure(period.input_tokens)}+{figure(period.output_tokens)} tokens"
    load = f"{figure(period.rate_per_s)} requests/s of {lengths}, {figure(period.in_flight)} in flight"
    figures = (f"{name} {_shown(one)}" for name, one in (("TTFT", period.ttft), ("TPOT", period.tpot)))
    side = ("OUTSIDE" if period.outside else "inside") if period.judged else f"not judged: {period.requests} requests"
    saturated = "  predicted to saturate" if period.saturated else ""
    return f"{period.at}  {load}  {'  '.join(figures)}{saturated}  {side}"


def _shown(one: Watched) -> str:
    interval = "" if one.low_ms is None else f", {figure(one.low_ms)} to {figure(one.high_ms)}"
    return f"{figure(one.measured_ms)} ms (predicted {figure(one.predicted_ms)}{interval})"


def _metrics(period: Period) -> Iterator[str]:
    """Yield the lines of Prometheus's text format; figures that there are not are left out."""
    labels = f'gpu="{period.gpu}"'
    yield "# TYPE gpucast_watch_seconds gauge\n"
    for name, one in (("ttft", period.ttft), ("tpot", period.tpot)):
        values = (
            ("measured", one.measured_ms), ("predicted", one.predicted_ms), ("low", one.low_ms), ("high", one.high_ms)
        )  # fmt: skip
        for value, ms in values:
            if ms is not None:
                yield f'gpucast_watch_seconds{{{labels},figure="{name}",value="{value}"}} {ms / 1e3:.9g}\n'
    yield f"# TYPE gpucast_watch_outside gauge\ngpucast_watch_outside{{{labels}}} {int(period.outside)}\n"
    yield f"# TYPE gpucast_watch_requests gauge\ngpucast_watch_requests{{{labels}}} {period.requests}\n"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
