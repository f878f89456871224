"""Report of measured loads on served models: errors by part, coverage of intervals, and order of deployments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import to_builtins

from app.bands.error_model import Levels, error_models
from app.services.serving.served_points import NEAREST, UNKNOWN_OPERATORS, distance
from app.tables.arrays import Floats
from evaluation.render import Report, Table, markdown
from evaluation.serving.loads import ARRIVALS, INFERENCEX, ML_ENERGY, OTHERS, REQUESTS, TGI, Load
from evaluation.serving.outcomes import DEPLOYMENT, HELD_OUT, Evaluated, Outcome
from evaluation.study import Errors, grouped

# Levels of loads of one deployment.
_ALIKE = Levels(load="closed")
MARKER, HELD_OUT_MARKER = "serving: serving --results", "serving, held out: serving --fit --results"
_PARTS: dict[str, Callable[[Load], str]] = {
    "source": lambda load: load.source,
    "model": lambda load: f"{load.source} {load.model}",
    "GPU": lambda load: f"{load.source} {load.gpu}",
    "format": lambda load: f"{load.source} {load.dtype}",
    "stack": lambda load: f"{load.source} {load.stack}",
    "deployment": lambda load: load.deployment,
}
# Rows of the results page: a source, and a stack of it or all.
_ROWS: dict[str, tuple[str, str | None]] = {
    "InferenceX, all (goal: 9, 7; 19, 13)": (INFERENCEX, None),
    "InferenceX, vLLM": (INFERENCEX, "vllm"),
    "InferenceX, TensorRT-LLM": (INFERENCEX, "trtllm"),
    "InferenceX, SGLang (DeepSeek-R1)": (INFERENCEX, "sglang"),
    "open arrivals (blis; goal: medians of 10, 25, 10)": (ARRIVALS, None),
    "trace on RTX 4090": (REQUESTS, None),
    "others' closed loops (their TTFT is measured otherwise)": (OTHERS, None),
    "ML.ENERGY on H100, median time between tokens": (ML_ENERGY, None),
    "TGI of 2023, whose host bounds it": (TGI, None),
}
_PAGE_FIGURES = ("tpot_ms", "ttft_ms", "e2e_ms")


def errors(outcomes: Sequence[Outcome], figure: str) -> Errors:
    """Return the errors of a figure of FIGURES, over what was measured and is not saturated."""
    return Errors.of([outcome.results[figure] for outcome in outcomes if figure in outcome.results])


def held_out_errors(outcomes: Sequence[Outcome], figure: str, name: str = DEPLOYMENT) -> Errors:
    """Return the same with times of the host fitted without what `name` says, where something was left to fit to."""
    results = [outcome.results[figure]["held_out"] for outcome in outcomes if figure in outcome.results]
    return Errors.of([held_out[name] for held_out in results if name in held_out])


def _inferencex(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.load.source == INFERENCEX]


def shifted(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Return the mean error of the time per output token in percent, as predicted, and as if others were measured.

    The others are the nearest loads of the same deployment of InferenceX, as app.services.serving.served_points uses
    them.
    """
    answered = [outcome for outcome in _inferencex(outcomes) if outcome.prediction.serving.tpot_ms is not None]
    plain, moved = [], []
    for group in grouped(answered, lambda outcome: outcome.load.deployment).values():
        forms = [to_builtins(outcome.load.workload) for outcome in group]
        logs = [np.log(_tpot_ms(outcome) / outcome.load.measured.tpot_ms) for outcome in group]
        for k, form in enumerate(forms):
            others = sorted((j for j in range(len(group)) if j != k), key=lambda j: distance(forms[j], form))
            plain.append(abs(np.expm1(logs[k])))
            uploads = [(_ALIKE, float(logs[j])) for j in others[:NEAREST]]
            shift = error_models()["tpot"].learned(_ALIKE, UNKNOWN_OPERATORS, uploads).shift[0]
            moved.append(abs(np.expm1(logs[k] - shift)))
    return float(100.0 * np.mean(plain)), float(100.0 * np.mean(moved))


def _tpot_ms(outcome: Outcome) -> float:
    time = outcome.prediction.serving.tpot_ms
    assert time is not None
    return time.mean


def macro(outcomes: Sequence[Outcome], figure: str) -> float:
    """Return the mean over InferenceX's models, GPUs and formats of the mean error of a figure of FIGURES, percent."""
    groups = grouped(_inferencex(outcomes), lambda outcome: outcome.load[1:4]).values()
    return float(np.mean([errors(group, figure).mape for group in groups])) if groups else np.nan


class Pairs(NamedTuple):
    """Pairs of deployments under one load, and the percentage of them in the measured order.

    apart, right_apart  the same of those whose measured times differ by `APART` or more
    """

    pairs: int
    right: float
    apart: int
    right_apart: float


# Two runs of one configuration with other images differ by 11 % (serving_points); half of it is above the noise.
APART = 0.05


def order(outcomes: Sequence[Outcome]) -> Pairs:
    """Return how deployments of one model at one load are ordered by time per output token."""
    answered = [outcome for outcome in _inferencex(outcomes) if outcome.prediction.serving.tpot_ms is not None]
    groups = grouped(answered, lambda outcome: (outcome.load.model, *_load(outcome.load)))
    times = [[(outcome.load.measured.tpot_ms, _tpot_ms(outcome)) for outcome in group] for group in groups.values()]
    pairs = [pair for group in times for pair in combinations(group, 2) if pair[0][0] != pair[1][0]]
    right = np.array([(a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs], dtype=np.bool_)
    apart = np.array([abs(np.log(a[0] / b[0])) >= APART for a, b in pairs], dtype=np.bool_)
    every, clear = (float(100.0 * some.mean()) if len(some) else np.nan for some in (right, right[apart]))
    return Pairs(len(right), every, int(apart.sum()), clear)


def _load(load: Load) -> tuple[float | None, float | None, float | None]:
    return load.workload.load.concurrency, load.workload.input_tokens, load.workload.output_tokens


def energy(outcomes: Sequence[Outcome]) -> Floats:
    """Return the relative errors of joules per generated token, percent, of loads whose energy was measured."""
    pairs = [(item.energy_j, item.load.measured.energy_j) for item in outcomes if item.energy_j is not None]
    predicted, measured = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    known = np.isfinite(measured)
    return 100.0 * (predicted[known] / measured[known] - 1.0)


def overloads(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Return the loads that outran their engine, and those of them that are predicted to saturate it."""
    measured = [outcome for outcome in outcomes if outcome.load.measured.overloaded]
    return len(measured), sum(outcome.prediction.serving.saturated for outcome in measured)


def report(evaluated: Evaluated) -> Report:
    """Return the tables by part and the summary; the table of parts held out if hosts were fitted."""
    outcomes = evaluated.outcomes
    pages = {MARKER: list(_page(outcomes))}
    if held_out := list(_held_out(outcomes)):
        columns = dict.fromkeys(("InferenceX, hosts fitted without each", "loads", "TPOT", "TTFT"), "d")
        rows = [(name, tpot.cases, *(_means(part) for part in (tpot, ttft))) for name, tpot, ttft in held_out]
        pages[HELD_OUT_MARKER] = markdown(Table("", columns, rows))
    blocks = [*_by_part(outcomes), "", *_summary(outcomes), *_fits(evaluated)]
    return Report(blocks=blocks, body={"study": "serving"}, pages=pages)


def _means(part: Errors) -> str:
    return f"{part.mape:.1f}, {part.median:.1f}" if part.answered else ""


def _held_out(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Errors, Errors]]:
    """Yield what was held out, if hosts were fitted, and errors of TPOT and TTFT where something was left to fit to."""
    for name in HELD_OUT if any(outcome.fitted for outcome in outcomes) else ():
        known = [outcome for outcome in outcomes if name in outcome.fitted]
        yield name, held_out_errors(known, "tpot_ms", name), held_out_errors(known, "ttft_ms", name)


def _by_part(outcomes: Sequence[Outcome]) -> Iterator[str | Table]:
    """Yield a table per way to part the loads."""
    yield "Means over requests of measured loads, error in percent: mape, median, bias; points within 80 % intervals;"
    yield "with the host's times fitted without each deployment: mape and median (InferenceX alone)."
    columns = {"points": "d"}
    for name in ("TPOT", "TTFT"):
        columns |= {f"{name} {figure}": ".1f" for figure in ("mape", "median", "bias")}
        columns |= {f"{name} within": ".0f", f"{name} held out": ".1f", f"{name} median held out": ".1f"}
    columns |= {f"E2E {figure}": ".1f" for figure in ("mape", "median", "bias")}
    for part, by in _PARTS.items():
        groups = sorted(grouped(outcomes, lambda outcome, by=by: by(outcome.load)).items())  # type: ignore[misc]
        yield Table("", {part: "", **columns}, [(name, *_line(group)) for name, group in groups])


def _line(outcomes: Sequence[Outcome]) -> list[float]:
    figures: list[float] = [len(outcomes)]
    for name in ("tpot_ms", "ttft_ms"):
        part, held_out = errors(outcomes, name), held_out_errors(outcomes, name)
        figures += [part.mape, part.median, part.mean_bias, part.held, held_out.mape, held_out.median]
    whole = errors(outcomes, "e2e_ms")
    return [*figures, whole.mape, whole.median, whole.mean_bias]


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield sentences on parts held out, and those of the results page."""
    for name, *parts in _held_out(outcomes):
        tpot, ttft = (f"{part.mape:.1f} mean, {part.median:.1f} median" for part in parts)
        yield f"hosts fitted without each {name:10} TPOT {tpot}; TTFT {ttft}; {parts[0].cases} loads"
    yield from _sentences(outcomes)


def _fits(evaluated: Evaluated) -> Iterator[str]:
    """Yield the times of each stack's host that were fitted."""
    for stack, host in evaluated.fits.items():
        times = ", ".join(f"{name} {value:.3g}" for name, value in host._asdict().items())
        yield f"{stack}: times of the host fitted to all deployments: {times}"


def _page(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the results page."""
    yield "| | loads | TPOT | within | TTFT | within | end to end |"
    yield "|---|---|---|---|---|---|---|"
    for name, (source, stack) in _ROWS.items():
        loads = [item for item in outcomes if item.load.source == source and stack in (None, item.load.stack)]
        tpot, ttft, whole = (errors(loads, figure) for figure in _PAGE_FIGURES)
        within = (f"{part.held:.0f}" if part.answered else "" for part in (tpot, ttft))
        figures = (_means(tpot), next(within), _means(ttft), next(within), _means(whole))
        yield f"| {name} | {len(loads)} | {' | '.join(figures)} |"
    yield ""
    yield from _sentences(outcomes)


def _sentences(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield sentences on corrections by others, spread, order, overloads and energy."""
    (plain, moved), pairs = shifted(outcomes), order(outcomes)
    (many, saturated), off = overloads(outcomes), np.abs(energy(outcomes))
    yield "With the nearest other loads of each deployment measured (`POST /measurements`), TPOT of InferenceX goes"
    yield f"from {plain:.1f} to {moved:.1f} % in the mean. The mean of its models, GPUs and formats is"
    yield f"{macro(outcomes, 'tpot_ms'):.1f} % (goal 9). Of {pairs.pairs:,} pairs of its deployments under one load,"
    yield f"{pairs.right:.1f} % are in the measured order of TPOT (goal 96); of the {pairs.apart:,} pairs that"
    yield f"differ by {100 * APART:.0f} % or more, {pairs.right_apart:.1f} %. Of {many} loads of blis that outran their"
    yield f"engine, {saturated} are predicted to saturate it. The energy of a token on ML.ENERGY's {len(off)} loads is"
    yield f"{off.mean():.1f} % off in the mean and {np.median(off):.1f} % in the median (goal 20)."
