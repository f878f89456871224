"""Answers on the command line: figures and notes for people, served models in tables, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from app.wire.compare_form import ServingCompareResponse
    from app.wire.job_plan_form import ServingPlanResponse
    from app.wire.prediction_form import Skipped
    from app.wire.serving_form import ServedTime, ServingPrediction, ServingResponse

_UNITS = (("USD", 1.0), ("USD/1000", 1e3), ("USD/1M", 1e6))
_SERVED_COLUMNS = (
    f"{'GPU':<24}{'TTFT ms':>10}{'p90':>10}{'TPOT ms':>9}{'p90':>9}{'interval':>18}{'tokens/s/GPU':>14}"
    f"{'most requests/s':>17}"
)


def figure(value: float | None) -> str:
    """Return four significant digits, and all digits of a whole number up to a billion; a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def cost_unit(costs: Iterable[float | None]) -> tuple[str, float]:
    """Return the head and the factor by which the least cost is a cent or more: of one run, 1,000 or 1,000,000."""
    least = min((cost for cost in costs if cost), default=1.0)
    return next((unit for unit in _UNITS if least * unit[1] >= 0.01), _UNITS[-1])


def print_notes(
    of_gpus: Sequence[tuple[str, Sequence[str]]], skipped: Iterable[Skipped] = (), notes: Iterable[str] = ()
) -> None:
    """Print each warning once, after the GPUs that it is about; those that were skipped; and what holds for all."""
    gpus: dict[str, dict[str, None]] = {}  # a set that keeps its order
    for gpu, warnings in of_gpus:
        for warning in warnings:
            gpus.setdefault(warning, {})[gpu] = None
    every = len({gpu for gpu, _ in of_gpus})
    for warning, about in gpus.items():
        print(f"{'all' if 1 < every == len(about) else ', '.join(about)}: {warning}")
    for left_out in skipped:
        print(f"{left_out.gpu} skipped: {left_out.reason}")
    for note in notes:
        print(f"note: {note}")


def as_csv(items: Iterable[msgspec.Struct]) -> str:
    """Return a header of all fields of any item, and a line per item; absent and unknown figures are empty."""
    rows = [dict(flat(msgspec.to_builtins(item))) for item in items]
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all column names in the order of the fields; a nested object has the columns of any row that has it."""
    names = dict.fromkeys(name for row in rows for name in row)
    inner = {name: [other for other in names if other.startswith(f"{name}.")] for name in names}
    return list(dict.fromkeys(column for name in names for column in inner[name] or [name]))


def flat(item: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of an answer's row by dotted names; lists are text."""
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif isinstance(value, list) and not all(isinstance(item, str) for item in value):
            yield f"{before}{name}", msgspec.json.encode(value).decode()
        else:
            yield f"{before}{name}", "; ".join(value) if isinstance(value, list) else value


def show_served(response: ServingResponse) -> None:
    """Print predictions of a served model."""
    print(_SERVED_COLUMNS)
    for item in response.predictions:
        print(_served_line(item))
    print_notes([(item.gpu, item.warnings) for item in response.predictions], response.skipped)


def _served_line(item: ServingPrediction) -> str:
    served = item.serving
    most = f"{figure(served.highest_rate_per_s):>17}"
    if served.ttft_ms is None:
        return f"{item.gpu:<24}{f'saturated by {served.saturated_by}':>56}{'':>14}{most}"
    ends = "" if served.tpot_ms is None else f"{served.tpot_ms.interval.low:.4g} to {served.tpot_ms.interval.high:.4g}"
    return (
        f"{item.gpu:<24}{_served_times(served.ttft_ms, 10)}{_served_times(served.tpot_ms, 9)}{ends:>18}"
        f"{figure(served.output_tokens_per_s_per_gpu):>14}{most}"
    )


def _served_times(time: ServedTime | None, width: int) -> str:
    if time is None:
        return " " * 2 * width
    return f"{figure(time.mean):>{width}}" + (f"{'':>{width}}" if time.p90 is None else f"{figure(time.p90):>{width}}")


def show_served_ranking(answer: ServingCompareResponse) -> None:
    """Print a comparison of GPU types for a served model."""
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


_PLANNED_COSTS = {
    "USD/h": "usd_per_hour",
    "USD/month": "monthly_usd",
    "USD/M in": "usd_per_million_input_tokens",
    "USD/M out": "usd_per_million_output_tokens",
}


def show_served_plan(answer: ServingPlanResponse) -> None:
    """Print the deployments of a plan, and the Pareto set."""
    costs = "".join(f"{head:>11}" for head in _PLANNED_COSTS)
    print(f"{'':>4}{'GPU':<30}{'split':<16}{'sure':>6}{costs}{'TTFT ms':>10}{'TPOT ms':>9}")
    for choice in answer.choices:
        split, served = choice.parallelism, choice.serving
        name = f"{choice.gpu} x{choice.devices}{' *' if choice.meets else ''}"
        ways = f"{split.replicas} x tp{split.tensor}{f' ep{split.expert}' if split.expert > 1 else ''}"
        ways += f" dp{split.attention_data}" if split.attention_data > 1 else ""
        costs = "".join(f"{figure(getattr(choice.cost, name)):>11}" for name in _PLANNED_COSTS.values())
        times = f"{_served_times(served.ttft_ms, 10)[:10]}{_served_times(served.tpot_ms, 9)[:9]}"
        print(f"{choice.rank:>3} {name:<30}{ways:<16}{choice.probability:>6.0%}{costs}{times}")
    print("* keeps the limits; none does, the closest is first" if answer.best is None else "* keeps the limits")
    priced = [choice for choice in answer.choices if choice.cost.price_source]
    prices = [f"{figure(one.cost.price_usd_per_hour).strip()} USD/h: {one.cost.price_source}" for one in priced]
    print_notes([(one.gpu, [price]) for one, price in zip(priced, prices, strict=True)], [], [])
    print_notes(
        [(choice.gpu, choice.missing + choice.warnings) for choice in answer.choices], answer.skipped, answer.notes
    )
    _print_settings(answer)
    print("most tokens per second and user against most per second and GPU:")
    for point in answer.pareto:
        name = f"{point.gpu} x{point.devices}"
        rates = f"{figure(point.tokens_per_s_per_user):>9} {figure(point.tokens_per_s_per_gpu):>9}"
        print(f"  {name:<30}{point.concurrency:>6} in flight {rates}")


def _print_settings(answer: ServingPlanResponse) -> None:
    for choice in answer.choices:
        settings = choice.settings
        named = ("dtype", settings.dtype), ("kv_dtype", settings.kv_dtype)
        limits = ("max_batched_tokens", settings.max_batched_tokens), ("max_sequences", settings.max_sequences)
        shown = ", ".join(f"{name} {value}" for name, value in (*named, *limits) if value is not None)
        if shown:
            print(f"{choice.gpu}: {shown}")
