"""`gpucast predictors`: what can answer, and which version of it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.options import AsJson, snapshot_of
from app.config import Settings
from app.dashboard.charts.drawing import refuse_other
from app.errors import BadInput, FieldError

if TYPE_CHECKING:
    from app.dashboard.charts.drawing import Drawing
    from app.engine.shipped import Shipped

_HEAD = f"{'predictor':<16}{'predicts':<32}{'answered by':<32}shipped version learned"


class Row(NamedTuple):
    """A predictor: what it predicts, the version that answers by GPU id or "*", and rows behind the shipped version."""

    name: str
    predicts: Sequence[str]
    answering: Mapping[str, str]
    shipped_rows: int | None


def command(
    *,
    predictor: Annotated[str, typer.Option(metavar="NAME", help="Predictor of --accuracy and --plot.")] = "auto",
    accuracy: Annotated[
        bool, typer.Option(help="Print the shipped version's errors on held-out rows by family instead.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg|.png", help="Also draw the shipped version's mean errors on unseen GPUs."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the predictors, what they predict, and the version of each that answers."""
    import json

    from app.engine.shipped import shipped_versions
    from app.predictors import BY_NAME

    refuse_other(plot)
    settings = Settings.from_env()
    shipped = shipped_versions(settings.shipped_dir)
    if plot is not None:
        _chart(_card(shipped, predictor), predictor).write(plot)
    if accuracy:
        _print_accuracy(_card(shipped, predictor), as_json=as_json)
        return
    with snapshot_of(settings) as (snapshot, _):
        served = {key: ready.version for key, ready in snapshot.engine.served.items()}
        hosts = snapshot.engine.hosts
    rows = [
        Row(
            name,
            each.can.predicts,
            {gpu: version for (predictor, gpu), version in sorted(served.items()) if predictor == name},
            int(shipped[name].card["trained_on"]["rows"]) if name in shipped else None,
        )
        for name, each in BY_NAME.items()
    ]
    if as_json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(_HEAD)
    for row in rows:
        print(_line(row))
    versions = ", ".join(f"{stack} {hosts.version_of(stack)}" for stack in hosts.times())
    print(f"hosts of serving stacks: {versions}")


def _card(shipped: Mapping[str, Shipped], predictor: str) -> Sequence[Mapping[str, Any]]:
    """Return a shipped predictor's errors on held-out rows. Raises BadInput for one that has none."""
    if predictor not in shipped:
        message = f"{predictor} ships no trained version; {', '.join(shipped)} do"
        raise BadInput(f"--predictor: {message}.", errors=[FieldError(("--predictor",), message)])
    rows: Sequence[Mapping[str, Any]] = shipped[predictor].card["validation"]
    return rows


def _chart(card: Sequence[Mapping[str, Any]], predictor: str) -> Drawing:
    from app.dashboard.charts.answers import accuracy_chart

    unseen = [row for row in card if row["split"] == "gpu_held_out" and row.get("gpu", "all") == "all"]
    return accuracy_chart(unseen, predictor, "on unseen GPUs")


def _print_accuracy(card: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    import json

    from app.services.learning.card_families import by_family

    found = by_family(card)
    if as_json:
        print(json.dumps([one._asdict() for one in found]))
        return
    print(f"{'held out':<24}{'family':<24}{'MAPE, %':>8}{'in the 80 % interval, %':>26}{'rows':>10}")
    for one in found:
        print(f"{one.split:<24}{one.family:<24}{one.mape:>8.1f}{one.coverage_80:>26.1f}{one.rows:>10,}")


def _line(row: Row) -> str:
    versions = [version if gpu == "*" else f"{version} on {gpu}" for gpu, version in row.answering.items()]
    answers = ", ".join(versions) or "nothing before it is trained"
    learned = "" if row.shipped_rows is None else f"{row.shipped_rows:,} rows"
    return f"{row.name:<16}{', '.join(row.predicts):<32}{answers:<32}{learned}"
