"""Artefacts of other code versions in the store of a real service: loaded, or refused with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import SHIPPED_MODELS, Settings
from app.engine.shipped import shipped_versions
from app.predictors.auto.operators.models.features import SHAPE_FEATURES
from app.store import artifacts, versions
from app.store.session import Database
from tests.service import Service

Payload = dict[str, Any]
LINEAR = {"kind": "operators", "operators": [{"op": "linear", "m": 4096, "n": 3840, "k": 1280, "dtype": "bf16"}]}
LAST = SHAPE_FEATURES - 2


@pytest.fixture(scope="module")
def shipped() -> Payload:
    """The shipped `auto`."""
    return shipped_versions(SHIPPED_MODELS)["auto"].payload()


def serve(database: Database, settings: Settings, payload: Payload) -> str:
    """Publish a payload as a version of `auto` that is served; returns the version's name."""
    sha256 = artifacts.publish(settings.models_dir, payload, {})
    with database.begin() as connection:
        version = versions.add(
            connection,
            predictor="auto",
            gpu_id="*",
            artifact_sha256=sha256,
            training_set_sha256="0" * 64,
            card={},
        )
        versions.serve(connection, version.id)
    return version.version


@contextmanager
def started(settings: Settings, folder: Path) -> Iterator[Service]:
    with Service(settings, folder / "log") as running:
        yield running


def answering(service: Service) -> str:
    """The version of `auto` that answers."""
    answer = service.client.post("/predict", json={"gpu": "l40s", "workload": LINEAR}).raise_for_status().json()
    return str(answer["predictions"][0]["predictor"]["version"])


def notes(service: Service) -> list[str]:
    """Why artefacts are refused, as readiness shows it."""
    return list(service.client.get("/readyz").raise_for_status().json()["parts"]["store"]["notes"])


def before_a_feature(payload: Payload) -> Payload:
    """The artefact as a tree would have made it that had one shape feature less."""
    axes = {
        axis: [*names[:LAST], names[-1]] if axis.startswith("features of ") else names
        for axis, names in payload["schema"]["axes"].items()
    }
    return {**shorter(payload), "schema": {**payload["schema"], "axes": axes}}


def shorter(payload: Payload) -> Payload:
    """Without the last shape feature but one, as arrays hold it."""
    state = payload["state"]
    cells = {
        key: {**cell, **{end: np.delete(cell[end], LAST) for end in ("low", "high")}}
        for key, cell in state["operators"].items()
    }
    return {**payload, "state": {**state, "operators": cells}}


def without_a_schema(payload: Payload) -> Payload:
    """As an older version of the code would have published it, which named nothing."""
    return {name: of for name, of in shorter(payload).items() if name != "schema"}


def nonsense(payload: Payload) -> Payload:
    """Trees whose thresholds are words."""
    state = payload["state"]
    (key, cell), *others = state["operators"].items()
    trees = {**cell["shared"]["trees"], "threshold": np.array(["x"])}
    cells = {key: {**cell, "shared": {**cell["shared"], "trees": trees}}, **dict(others)}
    return {**payload, "state": {**state, "operators": cells}}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (before_a_feature, "features of add: there were 26, and are 27"),
        (without_a_schema, "revision of features: "),
        (nonsense, "Its state does not fit this version of the code: "),
    ],
    ids=["a feature less", "a feature less, and no schema", "nonsense"],
)
def test_an_incompatible_artefact_falls_back_to_the_shipped_version(
    settings: Settings,
    database: Database,
    shipped: Payload,
    tmp_path: Path,
    changed: Callable[[Payload], Payload],
    reason: str,
) -> None:
    version = serve(database, settings, changed(shipped))
    with started(settings, tmp_path) as service:
        assert answering(service) == shipped_versions(SHIPPED_MODELS)["auto"].version
        (note,) = notes(service)
        assert note.startswith(f"auto {version} for * is not served: ")
        assert reason in note
        (auto,) = [one for one in service.client.get("/predictors").json()["items"] if one["name"] == "auto"]
        assert auto["answering"] == [{"gpu": None, "version": shipped_versions(SHIPPED_MODELS)["auto"].version}]


def test_a_version_with_known_names_is_served(
    settings: Settings, database: Database, shipped: Payload, tmp_path: Path
) -> None:
    version = serve(database, settings, {**shipped, "marker": 1})
    with started(settings, tmp_path) as service:
        assert answering(service) == version
        assert notes(service) == []


def test_without_a_shipped_or_compatible_version_the_untrained_predictor_answers(
    settings: Settings, database: Database, shipped: Payload, tmp_path: Path
) -> None:
    serve(database, settings, before_a_feature({**shipped, "marker": 2}))
    with started(dataclasses.replace(settings, shipped_dir=tmp_path / "none"), tmp_path) as service:
        assert answering(service).endswith("+untrained")
