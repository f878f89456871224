"""Answers of kind `serving` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli.figures import figure, print_notes
from app.dashboard.charts.drawing import Drawing

if TYPE_CHECKING:
    from app.cli.options import WorkloadOptions
    from app.wire.prediction_form import PredictResponse
    from app.wire.served_choice_form import ServingCompareResponse, ServingPlanResponse
    from app.wire.serving_form import ServedTime, ServingPrediction, ServingResponse

_COLUMNS = (
    f"{'GPU':<24}{'TTFT ms':>10}{'p90':>10}{'TPOT ms':>9}{'p90':>9}{'interval':>18}{'tokens/s/GPU':>14}"
    f"{'most requests/s':>17}"
)


def show_served(options: WorkloadOptions, answer: bytes, title: str) -> None:
    """Print an answer as the options say."""
    import msgspec

    from app.wire.serving_form import ServingResponse

    response = msgspec.json.decode(answer, type=ServingResponse)

    def drawn() -> Drawing:
        from app.dashboard.charts.answers import prediction_chart

        return prediction_chart(response, title)

    options.show(response, response.predictions, lambda: _show(response), drawn)


def _show(response: ServingResponse) -> None:
    print(_COLUMNS)
    for item in response.predictions:
        print(_line(item))
    show_notes(response)


def show_notes(response: PredictResponse | ServingResponse) -> None:
    """Print the warnings of the GPUs, and the GPUs that were skipped."""
    print_notes([(item.gpu, item.warnings) for item in response.predictions], response.skipped)


def _line(item: ServingPrediction) -> str:
    served = item.serving
    most = f"{figure(served.highest_rate_per_s):>17}"
    if served.ttft_ms is None:
        return f"{item.gpu:<24}{f'saturated by {served.saturated_by}':>56}{'':>14}{most}"
    ends = "" if served.tpot_ms is None else f"{served.tpot_ms.interval.low:.4g} to {served.tpot_ms.interval.high:.4g}"
    return (
        f"{item.gpu:<24}{_times(served.ttft_ms, 10)}{_times(served.tpot_ms, 9)}{ends:>18}"
        f"{figure(served.output_tokens_per_s_per_gpu):>14}{most}"
    )


def _times(time: ServedTime | None, width: int) -> str:
    if time is None:
        return " " * 2 * width
    return f"{figure(time.mean):>{width}}" + (f"{'':>{width}}" if time.p90 is None else f"{figure(time.p90):>{width}}")


def show_served_ranking(options: WorkloadOptions, answer: ServingCompareResponse, title: str) -> None:
    """Print a comparison as the options say."""

    def drawn() -> Drawing:
        from app.dashboard.charts.answers import served_ranking_chart

        return served_ranking_chart(answer, title)

    options.show(answer, answer.ranking, lambda: _show_ranking(answer), drawn)


def _show_ranking(answer: ServingCompareResponse) -> None:
    print(
        f"{'':>4}{'GPU':<30}{'TTFT ms':>10}{'TPOT ms':>9}{'tokens/s/GPU':>14}{'USD/M tokens':>14}{'J/token':>9}  fits"
    )
    for row in answer.ranking:
        served = row.serving
        name = f"{row.gpu}{f' x{row.devices}' if row.devices > 1 else ''}{' *' if row.pareto else ''}"
        figures = (
            None if served.ttft_ms is None else served.ttft_ms.mean,
            None if served.tpot_ms is None else served.tpot_ms.mean,
            row.tokens_per_s_per_gpu,
            row.cost_per_million_tokens,
            row.cost.energy_per_token_j,
        )
        shown = "".join(f"{figure(value):>{width}}" for value, width in zip(figures, (10, 9, 14, 14, 9), strict=True))
        print(f"{row.rank:>3} {name:<30}{shown}  {'yes' if row.memory.fits else 'no'}")
    print("* no other GPU type gives a user as many tokens a second and as many per GPU")
    print_notes([(row.gpu, row.warnings) for row in answer.ranking], answer.skipped, answer.notes)


def show_served_plan(options: WorkloadOptions, answer: ServingPlanResponse, title: str) -> None:
    """Print a plan as the options say."""

    def drawn() -> Drawing:
        from app.dashboard.charts.answers import served_plan_chart

        return served_plan_chart(answer, title)

    options.show(answer, answer.choices, lambda: _show_plan(answer), drawn)


def _show_plan(answer: ServingPlanResponse) -> None:
    print(f"{'':>4}{'GPU':<30}{'split':<16}{'sure':>6}{'USD/h':>9}{'USD/M tokens':>14}{'TTFT ms':>10}{'TPOT ms':>9}")
    for choice in answer.choices:
        split, served = choice.parallelism, choice.serving
        name = f"{choice.gpu} x{choice.devices}{' *' if choice.meets else ''}"
        ways = f"{split.replicas} x tp{split.tensor}{f' ep{split.expert}' if split.expert > 1 else ''}"
        ways += f" dp{split.attention_data}" if split.attention_data > 1 else ""
        costs = f"{figure(choice.cost.usd_per_hour):>9}{figure(choice.cost.cost_per_million_tokens):>14}"
        times = f"{_times(served.ttft_ms, 10)[:10]}{_times(served.tpot_ms, 9)[:9]}"
        print(f"{choice.rank:>3} {name:<30}{ways:<16}{choice.probability:>6.0%}{costs}{times}")
    print("* keeps the limits; none does, the closest is first" if answer.best is None else "* keeps the limits")
    print_notes(
        [(choice.gpu, choice.missing + choice.warnings) for choice in answer.choices], answer.skipped, answer.notes
    )
    _settings(answer)
    print("most tokens per second and user against most per second and GPU:")
    for point in answer.pareto:
        name = f"{point.gpu} x{point.devices}"
        rates = f"{figure(point.tokens_per_s_per_user):>9} {figure(point.tokens_per_s_per_gpu):>9}"
        print(f"  {name:<30}{point.concurrency:>6} in flight {rates}")


def _settings(answer: ServingPlanResponse) -> None:
    for choice in answer.choices:
        settings = choice.settings
        named = ("dtype", settings.dtype), ("kv_dtype", settings.kv_dtype)
        limits = ("max_batched_tokens", settings.max_batched_tokens), ("max_sequences", settings.max_sequences)
        shown = ", ".join(f"{name} {value}" for name, value in (*named, *limits) if value is not None)
        if shown:
            print(f"{choice.gpu}: {shown}")
