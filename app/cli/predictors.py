"""`gpucast predictors`: what can answer, and which version of it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.cli.options import AsJson, snapshot_of
from app.config import Settings

_HEAD = f"{'predictor':<16}{'predicts':<32}{'answered by':<32}shipped version learned"


class Row(NamedTuple):
    """A predictor: what it predicts, the version that answers by GPU id or "*", and rows behind the shipped version."""

    name: str
    predicts: Sequence[str]
    answering: Mapping[str, str]
    shipped_rows: int | None


def command(*, as_json: AsJson = False) -> None:
    """List the predictors, what they predict, and the version of each that answers."""
    import json

    from app.engine.shipped import shipped_versions
    from app.predictors import BY_NAME

    settings = Settings.from_env()
    shipped = shipped_versions(settings.shipped_dir)
    with snapshot_of(settings) as (snapshot, _):
        served = {key: ready.version for key, ready in snapshot.engine.served.items()}
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


def _line(row: Row) -> str:
    versions = [version if gpu == "*" else f"{version} on {gpu}" for gpu, version in row.answering.items()]
    answers = ", ".join(versions) or "nothing before it is trained"
    learned = "" if row.shipped_rows is None else f"{row.shipped_rows:,} rows"
    return f"{row.name:<16}{', '.join(row.predicts):<32}{answers:<32}{learned}"
