"""Payloads of artefacts as this version of the code reads them, whatever version wrote them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from app.bands.positional import from_positional_groups_of_0_1_0
from app.predictors import BY_NAME
from app.store import artifacts, versions
from app.store.artifacts import ArtifactAbsent, ArtifactRefused
from app.training.schemas import differences, schema_of_0_1_0

MOST_LISTED = 3


def load_payload(folder: Path, sha256: str, without: Collection[str] = ()) -> dict[str, Any]:
    """The payload of an artefact; ArtifactRefused names what it relies on and this version of the code lacks.

    `without`: operators whose part of it is not to be used.
    """
    payload = artifacts.load(folder, sha256)
    try:
        if "schema" not in payload:
            payload = from_0_1_0(payload)
        lacking = list(differences(payload, without))
    except Exception as error:
        raise ArtifactRefused(f"What it relies on cannot be read: {error!r}.") from error
    if lacking:
        more = f"; {len(lacking) - MOST_LISTED} other differences" if len(lacking) > MOST_LISTED else ""
        raise ArtifactRefused(f"This version of the code reads it no more: {'; '.join(lacking[:MOST_LISTED])}{more}.")
    return payload


def stored_payload(connection: Connection, folder: Path, sha256: str) -> dict[str, Any]:
    """The payload of an artefact that some process of this installation trained.

    If it is missing or damaged in `folder`, it is fetched from the database.
    """
    try:
        return load_payload(folder, sha256)
    except ArtifactAbsent:
        versions.fetch_artifact(connection, folder, sha256)
    return load_payload(folder, sha256)


def from_0_1_0(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload of 0.1.0 as one of today: interval groups by name, and a schema."""
    if payload["predictor"] not in BY_NAME:
        raise ArtifactRefused(f"No predictor is called {payload['predictor']!r}.")
    named = {**payload, "intervals": from_positional_groups_of_0_1_0(payload["intervals"])}
    return {**named, "schema": schema_of_0_1_0(named).state()}
