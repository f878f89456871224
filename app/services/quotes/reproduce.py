"""Save an answer (`save: true`) with the versions that it comes from, and reproduce it from them.

Predictor versions, GPU figures and prices are those of the saved answer; code and stored measurements are current.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import structs
from sqlalchemy import Connection

from app import __version__
from app.engine.catalogue import catalog_of
from app.engine.corrections import FitHere, corrected
from app.engine.engine import POOLED, Engine, Served
from app.engine.measured_operators import measured_operators
from app.engine.prices import PriceBook
from app.engine.snapshot import Snapshot
from app.engine.versions import Stores, load_version
from app.errors import GpucastError, TooLarge, Unavailable
from app.services.compare.job_plan import answer_plan
from app.services.compare.request import read_compare, read_plan
from app.services.compare.served_compare import answer_compare
from app.services.dispatch import predict_workload
from app.services.graphs.graph_store import Graphs
from app.store import gpus, measurements, quotes
from app.store.artifacts import ArtifactRefused
from app.store.keys import Owner
from app.store.quotes import Saved
from app.store.revision import PARTS
from app.store.session import Database
from app.tables.complete import spec_from_dict, spec_to_dict
from app.tables.gpus import GpuTable
from app.wire.compare_form import CompareRequest, CompareResponse, ServingCompareResponse
from app.wire.job_plan_form import PlanRequest, PlanResponse, ServingPlanResponse
from app.wire.predict_body import Request, Response, read_request

Pins = Mapping[str, Any]

log = logging.getLogger(__name__)

_LOADING = threading.Lock()  # versions that are no longer served: one at a time in memory


@dataclass(frozen=True, slots=True)
class Derived:
    """Result of reproducing an answer.

    `unchanged` is None if it cannot be reproduced: `gone` lists why. `since` lists changes since it was saved.
    """

    unchanged: bool | None
    differences: list[Difference]
    gone: list[str]
    since: list[str]


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Access to what reproducing an answer needs."""

    database: Database
    stores: Stores
    graphs: Graphs
    max_rows: int

    def run(self, engine: Engine, saved: Saved) -> Derived:
        """Reproduce a saved answer from its versions; what prevents it is in `gone`."""
        with self.database.begin(long=True) as connection:
            since = _since(connection, engine, saved.versions)
            try:
                pinned = _pinned_engine(connection, engine, saved.versions, self.stores)
                book = PriceBook.of(gpus.load_prices(connection, until=saved.created_at))
            except ArtifactRefused as error:
                return Derived(None, [], [error.detail], since)
        try:
            now = self._answer(Snapshot.of(replace(pinned, prices=book)), saved)
        except Unavailable:
            raise
        except GpucastError as error:
            return Derived(None, [], [error.detail], since)
        changed = differences(json.loads(saved.answer), json.loads(msgspec.json.encode(now)))
        return Derived(not changed, changed, [], since)

    def _answer(self, snapshot: Snapshot, saved: Saved) -> object:
        body, day = saved.request.encode(), saved.created_at.date()
        most, graphs = self.max_rows, self.graphs
        if saved.kind == "compare":
            return answer_compare(snapshot, read_compare(body), max_rows=most, graphs=graphs, today=day)
        if saved.kind == "plan":
            return answer_plan(snapshot, read_plan(body), max_rows=most, graphs=graphs, today=day)
        return predict_workload(snapshot, read_request(body), max_rows=most, graphs=graphs)


def _pinned_engine(connection: Connection, engine: Engine, versions: Pins, stores: Stores) -> Engine:
    """Return the engine with the saved GPU figures and predictor versions. Raises ArtifactRefused if one is gone."""
    then = {gpu: spec_from_dict(spec) for gpu, spec in versions["gpus"].items()}
    specs = [then.pop(spec.id, spec) for spec in engine.catalog.specs] + [*then.values()]
    if specs != [*engine.catalog.specs]:
        engine = replace(engine, catalog=catalog_of(specs), gpus=GpuTable.from_specs(specs))
    pins = {(pin["predictor"], pin["gpu"] or POOLED): pin["version"] for pin in versions["predictors"]}
    served = {key: version for key, version in engine.served.items() if key[0] not in {name for name, _ in pins}}
    current = {key: engine.served[key] for key, version in pins.items() if _version(engine, key) == version}
    return replace(engine, served={**served, **current, **_load_versions(connection, engine, pins, current, stores)})


def _load_versions(
    connection: Connection,
    engine: Engine,
    pins: Mapping[tuple[str, str], str],
    current: Mapping[tuple[str, str], Served],
    stores: Stores,
) -> dict[tuple[str, str], Served]:
    """Return the versions that are no longer served, calibrated like the served ones."""
    with _LOADING:
        gpus = engine.gpus
        versions = {
            key: _load(connection, stores, gpus, key, version) for key, version in pins.items() if key not in current
        }
        if not versions:
            return {}
        _, with_rows = measured_operators(connection, engine.catalog, gpus, versions, None, PARTS)
        return {key: corrected(key[0], item, gpus, FitHere())[0] for key, item in with_rows.items()}


def _load(connection: Connection, stores: Stores, gpus: GpuTable, key: tuple[str, str], version: str) -> Served:
    """Return one version. The reason of a refusal has paths and only goes to the log."""
    try:
        return load_version(connection, stores, gpus, key, version)
    except ArtifactRefused as error:
        log.warning("%s", error.detail)
        raise ArtifactRefused(f"version {version} of {key[0]} is gone from the model store") from error


def _version(engine: Engine, key: tuple[str, str]) -> str | None:
    served = engine.served.get(key)
    return None if served is None else served.version


def _since(connection: Connection, engine: Engine, versions: Pins) -> list[str]:
    changes = []
    if versions["code"] != __version__:
        changes.append(f"the code was version {versions['code']} and is {__version__}")
    for pin in versions["predictors"]:
        key = pin["predictor"], pin["gpu"] or POOLED
        now = _version(engine, key)
        if now != pin["version"]:
            changes.append(
                f"{pin['predictor']} answered with version {pin['version']} and now does with {now or 'none'}"
            )
    specs = {spec.id: spec for spec in engine.catalog.specs}
    for gpu, then in versions["gpus"].items():
        if gpu not in specs:
            changes.append(f"{gpu} is no longer in the catalogue")
        elif specs[gpu] != spec_from_dict(then):
            changes.append(f"the catalogue figures of {gpu} have changed")
    more = stored_measurements(connection) - versions["measurements"]
    if more:
        changes.append(
            f"{more:,} measurements have been added" if more > 0 else f"{-more:,} fewer measurements are stored"
        )
    return changes


MAX_BYTES = 4 * 2**20
SavableRequest = Request | CompareRequest | PlanRequest
SavableAnswer = Response | CompareResponse | PlanResponse | ServingCompareResponse | ServingPlanResponse
Answer = TypeVar("Answer", bound=SavableAnswer)


def save_answer(
    database: Database, snapshot: Snapshot, kind: str, request: SavableRequest, answer: Answer, owner: Owner
) -> Answer:
    """Save an answer and return it with its `id`.

    Raises TooLarge if it and its request exceed MAX_BYTES, and Conflict if the owner has too many.
    """
    body = msgspec.to_builtins(request)
    gpus = _answered_gpus(answer)
    if body["gpus"] == "all":  # the catalogue may change
        body["gpus"] = gpus or "all"
    texts = [msgspec.json.encode(item).decode() for item in (body, answer)]
    size = sum(map(len, texts))
    if size > MAX_BYTES:
        raise TooLarge(f"At most {MAX_BYTES:,} bytes of request and answer can be saved; these have {size:,}.")
    named = [*gpus, *(row["gpu"] for row in body["workload"].get("measured", ()))]
    with database.begin() as connection:
        versions = _versions(connection, snapshot.engine, request.predictor, gpus, named)
        workload = str(body["workload"]["kind"])
        saved_id = quotes.insert(
            connection, owner, kind=kind, workload=workload, request=texts[0], answer=texts[1], versions=versions
        )
    return structs.replace(answer, id=saved_id)


def _answered_gpus(answer: SavableAnswer) -> list[str]:
    if isinstance(answer, CompareResponse | ServingCompareResponse):
        return [row.gpu for row in answer.ranking]
    if isinstance(answer, PlanResponse | ServingPlanResponse):
        return [row.gpu for row in answer.choices]
    return [row.gpu for row in answer.predictions]


def _versions(
    connection: Connection, engine: Engine, predictor: str, gpus: Iterable[str], named: Iterable[Any]
) -> dict[str, Any]:
    """Return the versions behind the answer; inline specifications are already in the request."""
    keys = {(predictor, gpu if (predictor, gpu) in engine.served else POOLED) for gpu in gpus}
    specs = [engine.catalog.find(name) for name in named if isinstance(name, str)]
    catalogued = {spec.id: spec_to_dict(spec) for spec in specs if spec is not None and spec in engine.catalog.specs}
    return {
        "code": __version__,
        "revision": engine.revision,
        "predictors": [
            {"predictor": name, "gpu": None if gpu == POOLED else gpu, "version": engine.served[name, gpu].version}
            for name, gpu in sorted(keys)
        ],
        "gpus": catalogued,
        "measurements": stored_measurements(connection),
    }


def stored_measurements(connection: Connection) -> int:
    """Return the number of stored measurements."""
    return sum(measurements.counts(connection).values())


MOST = 100
# Sums in another order differ in the last digits; nothing measurable is below this.
TOLERANCE = 1e-9
# Not compared: a reproduced request names its GPUs, so GPUs of "all" are not skipped again.
_LEFT_OUT = ("id", "skipped")


class Difference(NamedTuple):
    """One changed value at `path` in the answer; None stands for a missing value."""

    path: str
    saved: Any
    now: Any


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Return the first MOST differences between two answers in plain containers."""
    compared = ({name: value for name, value in answer.items() if name not in _LEFT_OUT} for answer in (saved, now))
    changes = _walk("", *compared)
    return [difference for difference, _ in zip(changes, range(MOST), strict=False)]


def _walk(path: str, saved: Any, now: Any) -> Iterator[Difference]:
    if isinstance(saved, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*saved, *now]):
            yield from _walk(f"{path}.{name}" if path else name, saved.get(name), now.get(name))
    elif isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        for k, (before, after) in enumerate(zip(saved, now, strict=True)):
            yield from _walk(f"{path}.{k}", before, after)
    elif not _same(saved, now):
        yield Difference(path, saved, now)


def _same(saved: Any, now: Any) -> bool:
    if _is_number(saved) and _is_number(now):
        return isclose(saved, now, rel_tol=TOLERANCE)
    return bool(saved == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
