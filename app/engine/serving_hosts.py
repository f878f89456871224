"""Times of the hosts of serving stacks: those that ship, or those that a retraining fitted to measured loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection

from app.stacks.facts import HostTimes
from app.stacks.release import Release, host_times
from app.store import artifacts, versions
from app.store.artifacts import ArtifactAbsent, ArtifactRefused
from app.store.versions import Version

# The name of what is retrained, beside those of predictors.
SERVING_HOSTS = "serving-hosts"
SHIPPED = f"shipped-{hashlib.sha256(json.dumps(host_times()).encode()).hexdigest()[:10]}"


def host_name(stack: str, *, latent: bool) -> str:
    """Return the name among `host_times` of a stack's host, for a model with or without latent attention."""
    own = f"{stack}-latent"
    return own if latent and own in host_times() else stack


class ServingHosts(NamedTuple):
    """Times of hosts by `host_name`; `fitted` has those of `version`, and the others ship with the code."""

    version: str = SHIPPED
    fitted: Mapping[str, HostTimes] = {}

    def times(self) -> dict[str, HostTimes]:
        """Return the times of every stack's host."""
        return {**host_times(), **self.fitted}

    def of(self, release: Release, *, latent: bool) -> HostTimes:
        """Return the times of a release's host, see `times_of`."""
        name = host_name(release.host, latent=latent)
        return times_of(self.fitted.get(name, host_times()[name]), release, latent=latent)

    def version_of(self, name: str) -> str:
        """Return the version that the times of a `host_name` are of."""
        return self.version if name in self.fitted else SHIPPED


def times_of(host: HostTimes, release: Release, *, latent: bool) -> HostTimes:
    """Return the times of a stack's host for a release, with what steps of an old one wait for it, and a model."""
    return host._replace(
        step_s=host.step_s + release.host_wait.step_s,
        sequence_s=host.sequence_s + release.host_wait.sequence_s,
        request_s=host.request_s + (host.latent_s if latent else 0.0),
    )


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
