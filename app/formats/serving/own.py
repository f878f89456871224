"""Results of `gpucast measure --serving`: an object with `serving_points`, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.formats.serving.point import (
    BenchmarkPoint,
    Reader,
    Record,
    figure,
    find,
    load_of,
    moment,
    positive,
    succeeded,
    text,
)

POINTS = "serving_points"


def matches(document: Record) -> bool:
    """Return whether this is a file of `gpucast measure --serving`."""
    return isinstance(document.get(POINTS), list)


def records(document: Record) -> Sequence[Record]:
    """Return the points, each with the file's model and deployment."""
    shared = {name: value for name, value in document.items() if name != POINTS}
    return [{**shared, **point} for point in document[POINTS] if isinstance(point, Mapping)]


def read(record: Record) -> BenchmarkPoint:
    """Return a point. Raises LeftOut."""
    requests = succeeded(figure(record, "requests"), figure(record, "failed"))
    tensor, fields = figure(record, "deployment", "tensor"), find(record, "deployment", "fields")
    config = find(record, "deployment", "model")
    return BenchmarkPoint(
        load=load_of(requests, positive(record, "concurrency"), None),
        input_tokens=positive(record, "input_tokens"),
        output_tokens=positive(record, "output_tokens"),
        length_spread=0.0,
        ttft_s=positive(record, "ttft_s", "mean"),
        tpot_s=positive(record, "tpot_s", "mean"),
        e2e_s=positive(record, "e2e_s", "mean"),
        requests=requests,
        output_tokens_per_s=figure(record, "output_tokens_per_s"),
        measured_at=moment(find(record, "measured_at")),
        model=text(record, "deployment", "model") or text(record, "model"),
        engine=text(record, "deployment", "software"),
        image=text(record, "deployment", "image"),
        gpu=text(record, "deployment", "gpu"),
        dtype=text(record, "deployment", "dtype"),
        parallelism={} if tensor is None else {"tensor": tensor},
        fields={
            **(fields if isinstance(fields, Mapping) else {}),
            **({"config": config} if isinstance(config, Mapping) else {}),
        },
    )


READER = Reader("gpucast measure", matches, read, records)
