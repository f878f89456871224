"""Stored operator measurements in an engine: the index of exact matches, and the rows that versions did not learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from sqlalchemy import Connection

from app.engine.engine import Engine, MeasuredOperators, Served
from app.engine.exact_hits import OperatorIndex
from app.engine.measurement_tables import to_runs
from app.engine.unlearned import Group, GroupKey, Part, kept_groups, with_rows
from app.ops import OPS
from app.predictors.base import calibrated
from app.store import operator_rows, operators
from app.store.operators import Added
from app.store.revision import Part as Changed
from app.tables.catalog import Catalog
from app.tables.gpus import GpuTable
from app.tables.measurements import OperatorRuns

Versions = Mapping[tuple[str, str], Served]
_NAMES = tuple(op.name for op in OPS[1:])


def measured_operators(
    connection: Connection,
    catalog: Catalog,
    gpus: GpuTable,
    served: Versions,
    last: Engine | None,
    changed: frozenset[Changed],
) -> tuple[MeasuredOperators, dict[tuple[str, str], Served]]:
    """Return the index of stored operator rows, and the versions with the rows that they were not trained on.

    Reads only the rows added since `last`, if nothing else changed that they depend on.
    """
    learners = _learners(served)
    if last is None or changed & {"removed", "gpus"} or _versions_changed(learners, last):
        return _all(connection, catalog, gpus, served, learners, last)
    if "added" not in changed:
        return last.operators, dict(served)
    return _with_parts(last.operators, served, operator_rows.load(connection, ops=_NAMES, since=last.revision), gpus)


def with_added(last: Engine, added: Added) -> Engine:
    """Return an engine with new rows, as it would be read from a database that has no other changes."""
    parts = [part for part in added.parts if part[0].contexts[0].op in _NAMES]
    operators, served = _with_parts(last.operators, last.served, parts, last.gpus)
    return replace(last, operators=operators, served=served, revision=added.revision)


def _learners(served: Versions) -> Versions:
    return {key: item for key, item in served.items() if calibrated(item.uncalibrated or item.predictor)}


def _with_parts(
    last: MeasuredOperators, served: Versions, parts: Iterable[Part], gpus: GpuTable
) -> tuple[MeasuredOperators, dict[tuple[str, str], Served]]:
    learners, counts = _learners(served), Counter(last.counts)
    groups = {key: dict(item.unlearned) for key, item in learners.items()}

    def runs() -> Iterator[OperatorRuns]:
        for some in _in_turn(parts):
            _count(counts, some)
            yield from _sorted(some, learners, groups, gpus)

    index = last.index.updated(runs())
    return MeasuredOperators(index, dict(counts)), _with_unlearned(served, groups)


def _in_turn(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield the parts in lists of some ten thousand rows: a million at once would take a gigabyte."""
    some, rows = list[Part](), 0
    for part in parts:
        some.append(part)
        rows += len(part[0])
        if rows >= operator_rows.FEW:
            yield some
            some, rows = [], 0
    if some:
        yield some


def _sorted(
    parts: Sequence[Part], learners: Versions, groups: dict[tuple[str, str], dict[GroupKey, Group]], gpus: GpuTable
) -> list[OperatorRuns]:
    """Add rows to the `groups` of the versions that did not learn them, and return all of them as tables."""
    for key, item in learners.items():
        groups[key] = with_rows(groups[key], parts, item.rows, gpus.ids)
    return to_runs(parts, gpus)


def _count(counts: Counter[str], parts: Iterable[Part]) -> None:
    """Add the rows of `parts` to `counts` by GPU id."""
    for block, _ in parts:
        rows = np.bincount(block.context, minlength=len(block.contexts)).tolist()
        for item, number in zip(block.contexts, rows, strict=True):
            counts[item.gpu_id] += number


def _versions_changed(learners: Versions, last: Engine) -> bool:
    return any(key not in last.served or last.served[key].version != item.version for key, item in learners.items())


def _all(
    connection: Connection, catalog: Catalog, gpus: GpuTable, served: Versions, learners: Versions, last: Engine | None
) -> tuple[MeasuredOperators, dict[tuple[str, str], Served]]:
    """Read every stored row."""
    counts = operators.counts(connection)
    few = sum(counts.values()) <= operator_rows.FEW
    groups: dict[tuple[str, str], dict[GroupKey, Group]] = {key: {} for key in learners}

    def runs() -> Iterator[OperatorRuns]:
        for names in (_NAMES,) if few else ((name,) for name in _NAMES):
            for some in _in_turn(operator_rows.load(connection, ops=names)):
                yield from _sorted(some, learners, groups, gpus)

    index = OperatorIndex.build(runs(), len(gpus))
    for key, item in learners.items():
        groups[key] = kept_groups(groups[key], item.unlearned, _unchanged(item, catalog, last))
    return MeasuredOperators(index, counts), _with_unlearned(served, groups)


def _unchanged(version: Served, catalog: Catalog, last: Engine | None) -> frozenset[str]:
    """GPUs whose corrections of a version hold: they and all that it was trained on are specified as before."""
    before = {} if last is None else {spec.id: spec for spec in last.catalog.specs}
    same = frozenset(spec.id for spec in catalog.specs if before.get(spec.id) == spec)
    return same if version.gpus & before.keys() <= same else frozenset()


def _with_unlearned(
    served: Versions, groups: Mapping[tuple[str, str], dict[GroupKey, Group]]
) -> dict[tuple[str, str], Served]:
    return {key: replace(item, unlearned=groups[key]) if key in groups else item for key, item in served.items()}
