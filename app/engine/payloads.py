"""Payloads of artefacts as this version of the code reads them, whatever version wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.predictors.intervals.positional import from_positional_groups_of_0_1_0
from app.store import artifacts
from app.store.artifacts import ArtifactRefused


def load_payload(folder: Path, sha256: str) -> dict[str, Any]:
    """The payload of an artefact; ArtifactRefused says why it cannot be used."""
    payload = artifacts.load(folder, sha256)
    try:
        return {**payload, "intervals": from_positional_groups_of_0_1_0(payload["intervals"])}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ArtifactRefused(f"Its intervals cannot be read: {error!r}.") from error
