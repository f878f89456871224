"""Answers of kind `serving` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.charts import Bar, interval_chart
from app.cli.drawing import Drawing

if TYPE_CHECKING:
    from app.cli.options import WorkloadOptions
    from app.wire.serving_form import ServedTime, ServingPrediction, ServingResponse

_COLUMNS = (
    f"{'GPU':<24}{'TTFT ms':>10}{'p90':>10}{'TPOT ms':>9}{'p90':>9}{'interval':>18}{'tokens/s/GPU':>14}"
    f"{'most requests/s':>17}"
)


def show_served(options: WorkloadOptions, answer: bytes) -> None:
    """Print an answer as the options say."""
    import msgspec

    from app.wire.serving_form import ServingResponse

    response = msgspec.json.decode(answer, type=ServingResponse)
    options.show(response, response.predictions, lambda: _show(response), lambda: _drawn(response))


def _show(response: ServingResponse) -> None:
    print(_COLUMNS)
    for item in response.predictions:
        print(_line(item))
    for item in response.predictions:
        for warning in item.warnings:
            print(f"{item.gpu}: {warning}")
    for left_out in response.skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")


def _line(item: ServingPrediction) -> str:
    served = item.serving
    most = f"{served.highest_rate_per_s:>17.4g}"
    if served.ttft_ms is None:
        return f"{item.gpu:<24}{f'saturated by {served.saturated_by}':>70}{'':>14}{most}"
    ends = "" if served.tpot_ms is None else f"{served.tpot_ms.interval.low:.4g} to {served.tpot_ms.interval.high:.4g}"
    return (
        f"{item.gpu:<24}{_times(served.ttft_ms, 10)}{_times(served.tpot_ms, 9)}{ends:>18}"
        f"{served.output_tokens_per_s_per_gpu:>14.4g}{most}"
    )


def _times(time: ServedTime | None, width: int) -> str:
    if time is None:
        return " " * 2 * width
    return f"{time.mean:>{width}.4g}" + (f"{'':>{width}}" if time.p90 is None else f"{time.p90:>{width}.4g}")


def _drawn(response: ServingResponse) -> Drawing:
    bars = [
        Bar(item.gpu, item.latency_ms, item.interval_ms.low, item.interval_ms.high)
        for item in response.predictions
        if item.latency_ms is not None and item.interval_ms is not None
    ]
    return interval_chart(bars, title="Time of a request", x_label="milliseconds")
