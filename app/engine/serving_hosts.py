"""Stored versions of the times of serving stacks' hosts, which a retraining fitted to measured loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from app.stacks.facts import HostTimes
from app.stacks.release import ServingHosts, host_times
from app.store import artifacts, versions
from app.store.artifacts import ArtifactAbsent, ArtifactRefused
from app.store.versions import Version

# The name of what is retrained, beside those of predictors.
SERVING_HOSTS = "serving-hosts"


def payload_of(fitted: Mapping[str, HostTimes]) -> dict[str, Any]:
    """Return the payload of an artefact that `stored_hosts` reads."""
    return {"predictor": SERVING_HOSTS, "hosts": {stack: host._asdict() for stack, host in fitted.items()}}


def stored_hosts(connection: Connection, folder: Path, version: Version) -> ServingHosts:
    """Return a stored version's times, fetched from the database if `folder` lacks them. Raises ArtifactRefused."""
    try:
        payload = artifacts.load(folder, version.artifact_sha256)
    except ArtifactAbsent:
        versions.fetch_artifact(connection, folder, version.artifact_sha256)
        payload = artifacts.load(folder, version.artifact_sha256)
    try:
        fitted = {stack: HostTimes(**times) for stack, times in payload["hosts"].items() if stack in host_times()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ArtifactRefused(f"It holds no times of hosts that this version of the code reads: {error!r}.") from error
    return ServingHosts(version.version, fitted)


def served_version(connection: Connection) -> Version | None:
    """Return the stored version that is served; None: what ships."""
    return next((one for one in versions.served(connection) if one.predictor == SERVING_HOSTS), None)
