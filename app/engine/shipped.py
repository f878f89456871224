"""Artefacts that ship with the code: they answer wherever the database serves no version of its own.

`shipped.json` in their folder names the one of each predictor; nothing that it does not name is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.engine.payloads import load_payload
from app.predictors import BY_NAME
from app.store import artifacts
from app.store.artifacts import ArtifactRefused

LIST = "shipped.json"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The shipped version of a predictor; `manifest` as it stands beside the artefact."""

    predictor: str
    folder: Path
    sha256: str
    manifest: Mapping[str, Any]

    @property
    def version(self) -> str:
        """Its name."""
        return f"shipped-{self.sha256[:10]}"

    @property
    def card(self) -> Mapping[str, Any]:
        """What it was trained on, and its held-out errors."""
        card: Mapping[str, Any] = self.manifest["card"]
        return card

    def payload(self, without: Collection[str] = ()) -> dict[str, Any]:
        """What it is made of; ArtifactRefused if that is not what the list names.

        `without`: operators whose part of it is not to be used.
        """
        return load_payload(self.folder, self.sha256, without)


def shipped_versions(folder: Path) -> dict[str, Shipped]:
    """The shipped version of every predictor that has one; ArtifactRefused if the list of them is damaged."""
    path = folder / LIST
    if not path.exists():
        return {}
    try:
        listed = json.loads(path.read_bytes())["predictors"]
        named = {str(name): str(sha256) for name, sha256 in listed.items() if name in BY_NAME}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactRefused(f"{path} cannot be read: {error!r}.") from error
    return {name: Shipped(name, folder, sha256, _manifest(folder, sha256)) for name, sha256 in named.items()}


def shipped_version(predictor: str, folder: Path) -> Shipped | None:
    """That of one predictor."""
    return shipped_versions(folder).get(predictor)


def _manifest(folder: Path, sha256: str) -> dict[str, Any]:
    beside = artifacts.manifest(folder, sha256)
    card = beside.get("card")
    if not isinstance(card, dict) or not {"trained_on", "validation"} <= set(card):
        raise ArtifactRefused(f"The manifest of the shipped {sha256} has no accuracy card.")
    return beside


def write_list(folder: Path, named: Mapping[str, str]) -> None:
    """Name the shipped artefacts, by predictor, and drop those of before."""
    for path in (*folder.glob("*.joblib"), *folder.glob("*.json")):
        if path.stem not in named.values():
            path.unlink()
    (folder / LIST).write_text(json.dumps({"predictors": dict(named)}, indent=1, sort_keys=True) + "\n")
