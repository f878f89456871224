"""Deriving a saved answer again, from the versions that it was given by.

The predictor versions, the GPUs' figures and the prices are those of then; the code and the stored measurements are
those of now.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import Connection

from app import __version__
from app.engine.catalogue import catalog_of
from app.engine.engine import POOLED, Engine, Served
from app.engine.gpu_rows import Snapshot
from app.engine.measured_operators import measured_operators
from app.engine.prices import PriceBook
from app.engine.versions import Stores, load_version
from app.errors import GpucastError, Unavailable
from app.services.compare.compare import compare
from app.services.compare.job_plan import choose_gpus
from app.services.compare.request import read_compare
from app.services.dispatch import predict_workload
from app.services.graphs.graph_store import Graphs
from app.services.quotes.differences import Difference, differences
from app.services.quotes.save import stored_measurements
from app.store import prices
from app.store.artifacts import ArtifactRefused
from app.store.quotes import Saved
from app.store.session import Database
from app.tables.complete import spec_from_dict
from app.tables.gpus import GpuTable
from app.wire.job_plan_form import read_plan
from app.wire.predict_body import read_request

Pins = Mapping[str, Any]

log = logging.getLogger(__name__)

_LOADING = threading.Lock()  # versions that are not served any more: one at a time in memory


@dataclass(frozen=True, slots=True)
class Derived:
    """What came of deriving an answer again.

    `unchanged` is None where it cannot be derived: `gone` says why. `since` says what is another today than then.
    """

    unchanged: bool | None
    differences: list[Difference]
    gone: list[str]
    since: list[str]


@dataclass(frozen=True, slots=True)
class Deriving:
    """Where answers are derived: an installation."""

    database: Database
    stores: Stores
    graphs: Graphs
    max_rows: int

    def again(self, engine: Engine, saved: Saved) -> Derived:
        """Derive a saved answer from its versions; whatever is in the way is told in `gone`."""
        with self.database.begin() as connection:
            since = _since(connection, engine, saved.versions)
            try:
                pinned = _pinned(connection, engine, saved.versions, self.stores)
                book = PriceBook.of(prices.load(connection, until=saved.created_at))
            except ArtifactRefused as error:
                return Derived(None, [], [error.detail], since)
        try:
            now = self._answer(Snapshot.of(replace(pinned, prices=book)), saved)
        except Unavailable:
            raise
        except GpucastError as error:
            return Derived(None, [], [error.detail], since)
        found = differences(json.loads(saved.answer), json.loads(msgspec.json.encode(now)))
        return Derived(not found, found, [], since)

    def _answer(self, snapshot: Snapshot, saved: Saved) -> object:
        body, day = saved.request.encode(), saved.created_at.date()
        most, graphs = self.max_rows, self.graphs
        if saved.kind == "compare":
            return compare(snapshot, read_compare(body), max_rows=most, graphs=graphs, today=day)
        if saved.kind == "plan":
            return choose_gpus(snapshot, read_plan(body), max_rows=most, graphs=graphs, today=day)
        return predict_workload(snapshot, read_request(body), max_rows=most, graphs=graphs)


def _pinned(connection: Connection, engine: Engine, versions: Pins, stores: Stores) -> Engine:
    """The engine with the GPUs' figures and the predictor versions of then; ArtifactRefused where one is gone."""
    then = {gpu: spec_from_dict(spec) for gpu, spec in versions["gpus"].items()}
    specs = [then.pop(spec.id, spec) for spec in engine.catalog.specs] + [*then.values()]
    if specs != [*engine.catalog.specs]:
        engine = replace(engine, catalog=catalog_of(specs), gpus=GpuTable.from_specs(specs))
    pins = {(one["predictor"], one["gpu"] or POOLED): one["version"] for one in versions["predictors"]}
    served = {key: one for key, one in engine.served.items() if key[0] not in {name for name, _ in pins}}
    here = {key: engine.served[key] for key, version in pins.items() if _version(engine, key) == version}
    return replace(engine, served={**served, **here, **_loaded(connection, engine, pins, here, stores)})


def _loaded(
    connection: Connection,
    engine: Engine,
    pins: Mapping[tuple[str, str], str],
    here: Mapping[tuple[str, str], Served],
    stores: Stores,
) -> dict[tuple[str, str], Served]:
    """The versions that are served no more, told of what was measured as those that are."""
    with _LOADING:
        gpus = engine.gpus
        found = {key: _load(connection, stores, gpus, key, version) for key, version in pins.items() if key not in here}
        return measured_operators(connection, gpus, found, None)[1] if found else {}


def _load(connection: Connection, stores: Stores, gpus: GpuTable, key: tuple[str, str], version: str) -> Served:
    """One version; why it is refused is for the log, with its paths."""
    try:
        return load_version(connection, stores, gpus, key, version)
    except ArtifactRefused as error:
        log.warning("%s", error.detail)
        raise ArtifactRefused(f"version {version} of {key[0]} is gone from the store of models") from error


def _version(engine: Engine, key: tuple[str, str]) -> str | None:
    one = engine.served.get(key)
    return None if one is None else one.version


def _since(connection: Connection, engine: Engine, versions: Pins) -> list[str]:
    """What is another today than when the answer was saved."""
    words = []
    if versions["code"] != __version__:
        words.append(f"the code was version {versions['code']} and is {__version__}")
    for one in versions["predictors"]:
        key = one["predictor"], one["gpu"] or POOLED
        now = _version(engine, key)
        if now != one["version"]:
            words.append(f"{one['predictor']} answered with version {one['version']} and now does with {now or 'none'}")
    specs = {spec.id: spec for spec in engine.catalog.specs}
    for gpu, then in versions["gpus"].items():
        if gpu not in specs:
            words.append(f"{gpu} is no longer in the catalogue")
        elif specs[gpu] != spec_from_dict(then):
            words.append(f"the catalogue has other figures of {gpu}")
    more = stored_measurements(connection) - versions["measurements"]
    if more:
        words.append(f"{more:,} measurements have come in" if more > 0 else f"{-more:,} fewer measurements are stored")
    return words
