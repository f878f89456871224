"""Report of `gpucast evaluate convmeter`: the paper's errors, then ours by run, and for the networks of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from app.predictors.papers.convmeter.predictor import ConvMeter
from evaluation.convmeter import ALL, PREDICTORS
from evaluation.convnets_by_operators import OWN, TIMM

Result = Mapping[str, Any]

TITLES = {
    "family": "families held out",
    "network": "networks held out, as in the paper",
    "gpu": "the GPU held out, fitted to the other",
    "operators": "networks that gpucast has too, as the sum of their operators: trained on no network",
}
_OWNERS = {OWN: "Our own", TIMM: "timm's"}
# Largest MAPE, percent, with networks held out, by what is timed; the paper reports 25 and 18.
GOALS = {"inference": 18.0, "step": 16.0}
_HEAD = f"{'predictor':<15}{'R2':>8}{'RMSE ms':>10}{'NRMSE':>8}{'MAPE %':>8}{'median':>8}{'n':>6}{'none':>6}"
# timm's families of the networks that the paper used; it has no AlexNet and no SqueezeNet.
PAPER_FAMILIES = (
    *("vgg", "resnet", "resnext", "wide_resnet", "densenet", "inception"),
    *("mobilenetv2", "mobilenetv3", "efficientnet", "regnet"),
)


def lines(published: Sequence[Result], cells: Sequence[Result]) -> list[str]:
    """Return all tables as lines of text."""
    return [*_published(published), *_by_run(cells), *_own_by_family(cells), *_by_family(cells)]


def _published(cells: Sequence[Result]) -> Iterator[str]:
    """Return the table of the paper's errors."""
    yield "The paper's figures"
    yield f"  {'table':<7}{'what':<37}{'device':<27}{'R2':>8}{'RMSE ms':>10}{'NRMSE':>8}{'MAPE %':>8}"
    for cell in cells:
        what = f"  {cell['table']:<7}{cell['what']:<37}{cell['device']:<27}{_figure(cell.get('r2'), 8, 3)}"
        yield what + "".join(
            _figure(cell[name], width, 2) for name, width in (("rmse_ms", 10), ("nrmse", 8), ("mape", 8))
        )
    yield ""


def _by_run(cells: Sequence[Result]) -> Iterator[str]:
    """Return a table per data set and protocol, with a line per run and predictor."""
    for (data, owner), (protocol, title) in product(_OWNERS.items(), TITLES.items()):
        rows = [cell for cell in cells if (cell["data"], cell["held_out"], cell["family"]) == (data, protocol, ALL)]
        if rows:
            width = max(50, *(len(cell["run"]) + 1 for cell in rows))
            yield f"{owner} ConvNets, {title}\n  {'run':<{width}}{'dtype':<6}{_HEAD}"
            for cell in rows:
                yield f"  {cell['run']:<{width}}{cell['dtype']:<6}{_scores(cell)}"
            if (data, protocol) == (OWN, "network"):
                yield from _goals(rows)
            yield ""


def _goals(cells: Sequence[Result]) -> Iterator[str]:
    """Return whether each run reaches its goal; the goals are for one CPU core, as in the paper."""
    for cell in cells:
        goal = GOALS.get(cell["run"].rpartition(" ")[2])
        if goal is not None and cell["predictor"] == ConvMeter.name:
            verdict = "reached" if cell["mape"] <= goal else "missed"
            yield f"  goal for {cell['run']}: {goal:g} % at most, {verdict}"


def _own_by_family(cells: Sequence[Result]) -> Iterator[str]:
    """Return the MAPE of our own networks, a line per family and a column per run."""
    rows = [
        cell for cell in cells if (cell["data"], cell["held_out"], cell["predictor"]) == (OWN, "family", ConvMeter.name)
    ]
    if not rows:
        return
    timed = {run: run.rpartition(" ")[2] for run in dict.fromkeys(cell["run"] for cell in rows)}
    yield f"Our own networks, families held out: MAPE % of {ConvMeter.name}"
    yield f"  {'family':<15}" + "".join(f"  {what:>17}" for what in timed.values())
    for family in dict.fromkeys(cell["family"] for cell in rows):
        mape = {cell["run"]: cell["mape"] for cell in rows if cell["family"] == family}
        yield f"  {family:<15}" + "".join("  " + _figure(mape.get(run), max(17, len(timed[run])), 1) for run in timed)
    yield ""


def _by_family(cells: Sequence[Result]) -> Iterator[str]:
    """Return the MAPE of the paper's networks: median run and range over runs; the JSON has every run."""
    cells = [cell for cell in cells if cell["data"] == TIMM]
    if not any(cell["held_out"] == "family" for cell in cells):
        return
    yield "The paper's networks, families held out: MAPE %, the middle run (the best to the worst)"
    yield f"  {'family':<15}" + "".join(f"{cls.name:>34}" for cls in PREDICTORS)
    for family in PAPER_FAMILIES:
        of_family = [cell for cell in cells if (cell["held_out"], cell["family"]) == ("family", family)]
        spans = []
        for cls in PREDICTORS:
            mapes = sorted(cell["mape"] for cell in of_family if cell["predictor"] == cls.name)
            middle = mapes[len(mapes) // 2] if mapes else float("nan")
            spans.append(f"{middle:.1f} ({mapes[0]:.1f} to {mapes[-1]:.1f})" if mapes else "-")
        yield f"  {family:<15}" + "".join(f"{span:>34}" for span in spans)


def _scores(cell: Result) -> str:
    figures = ((cell["r2"], 8, 3), (cell["rmse_ms"], 10, 1), (cell["nrmse"], 8, 3), (cell["mape"], 8, 1))
    text = "".join(_figure(*figure) for figure in figures)
    return f"{cell['predictor']:<15}{text}{cell['median_ape']:>8.1f}{cell['n']:>6}{cell['unanswered']:>6}"


def _figure(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"
