import hashlib
import io
import json
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

from app.store.artifacts import ArtifactAbsent, ArtifactRefused, load, manifest, publish, verified

PAYLOAD = {
    "predictor": "auto",
    "state": {
        "weights": np.arange(6.0).reshape(2, 3),
        "fortran": np.asfortranarray(np.ones((3, 2))),
        "k": np.float64(3),
    },
    "names": ["a", "b"],
    "pair": (1, None, True),
    "empty": np.zeros((0, 4)),
    "text": np.array(["x", "yz"]),
}


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def plant(root: Path, data: bytes, **changed: Any) -> str:
    """Put foreign bytes into the store with a matching hash and manifest."""
    sha256 = hashlib.sha256(data).hexdigest()
    good = publish(root, {"a": 1}, {})
    told = {**manifest(root, good), "sha256": sha256, **changed}
    (root / f"{sha256}.joblib").write_bytes(data)
    (root / f"{sha256}.json").write_text(json.dumps(told))
    return sha256


def dumped(value: Any) -> bytes:
    buffer = io.BytesIO()
    joblib.dump(value, buffer)
    return buffer.getvalue()


def test_published_artefacts_are_read_back(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, PAYLOAD, {"predictor": "auto"})
    assert publish(tmp_path, PAYLOAD, {"predictor": "auto"}) == sha256
    loaded = load(tmp_path, sha256)
    np.testing.assert_array_equal(loaded["state"]["weights"], PAYLOAD["state"]["weights"])
    np.testing.assert_array_equal(loaded["state"]["fortran"], np.ones((3, 2)))
    assert loaded["pair"] == (1, None, True) and loaded["names"] == ["a", "b"] and loaded["empty"].shape == (0, 4)
    assert manifest(tmp_path, sha256)["predictor"] == "auto"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".joblib", ".json"], "no temporary file is left"


def test_a_file_is_verified_without_being_read(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, PAYLOAD, {"predictor": "auto"})
    assert verified(tmp_path, sha256)["predictor"] == "auto"
    target = tmp_path / "target"
    assert verified(tmp_path, plant(tmp_path, dumped(Bomb(target)))) and not target.exists()
    file = tmp_path / f"{sha256}.joblib"
    file.write_bytes(b"damaged")
    with pytest.raises(ArtifactAbsent, match="does not have the hash"):
        verified(tmp_path, sha256)
    file.unlink()
    with pytest.raises(ArtifactAbsent, match="cannot be read"):
        verified(tmp_path, sha256)


def test_a_damaged_artefact_is_refused(tmp_path: Path) -> None:
    sha256 = publish(tmp_path, PAYLOAD, {})
    path = tmp_path / f"{sha256}.joblib"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactRefused, match="damaged"):
        load(tmp_path, sha256)


@pytest.mark.parametrize("name", ["0" * 64, "../../etc/passwd", "", "A" * 64])
def test_an_unknown_hash_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactRefused):
        load(tmp_path, name)


@pytest.mark.parametrize(
    "changed",
    [
        {"libraries": {"numpy": "1.26.4"}},
        {"libraries": {"no-such-library": "1.0"}},
        {"libraries": None},
        {"format": 99},
        {"sha256": "f" * 64},
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    sha256 = plant(tmp_path, dumped({"a": 1}), **changed)
    with pytest.raises(ArtifactRefused):
        load(tmp_path, sha256)


@pytest.mark.parametrize("dump", [pickle.dumps, dumped], ids=["pickle", "joblib"])
@pytest.mark.parametrize("wrap", [lambda bomb: {"x": bomb}, lambda bomb: {"x": np.array([bomb], dtype=object)}])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, dump: Any, wrap: Any) -> None:
    target = tmp_path / "exploded"
    sha256 = plant(tmp_path / "store", dump(wrap(Bomb(target))))
    with pytest.raises(ArtifactRefused):
        load(tmp_path / "store", sha256)
    assert not target.exists()


@pytest.mark.parametrize("data", [b"", b"not a pickle", b"\x80\x04", dumped([1, 2]), b"(lp0\n" * 10])
def test_foreign_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    sha256 = plant(tmp_path, data)
    with pytest.raises(ArtifactRefused):
        load(tmp_path, sha256)


@pytest.mark.parametrize("value", [object(), print, np.array([{}], dtype=object), Path("x")])
def test_unloadable_artefacts_are_not_published(tmp_path: Path, value: Any) -> None:
    with pytest.raises((ArtifactRefused, TypeError, pickle.PicklingError)):
        publish(tmp_path, {"value": value}, {})
    assert not tmp_path.exists() or not list(tmp_path.iterdir())
