from pathlib import Path

import numpy as np
import pytest

from app.store.files import load, save

WHOLE = np.arange(1000.0).reshape(50, 20)


def test_objects_are_read_back(tmp_path: Path) -> None:
    item = {
        "wide": WHOLE,
        "fortran": np.asfortranarray(WHOLE[:3]),
        "strided": WHOLE[:, ::3],
        "empty": np.zeros((0, 4), np.float32),
        "text": ("a", np.array(["x", "yz"]), np.float64(3)),
    }
    save(tmp_path / "file", item)
    found = load(tmp_path / "file")
    assert found.keys() == item.keys() and found["text"][::2] == item["text"][::2]
    for name in ("wide", "fortran", "strided", "empty"):
        np.testing.assert_array_equal(found[name], item[name], strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "no temporary file is left"


def test_arrays_that_share_memory_share_it_in_the_file(tmp_path: Path) -> None:
    flat = WHOLE.ravel()
    save(tmp_path / "file", [flat[100:300], WHOLE, flat[900:], flat[200:400]])
    first, whole, last, second = load(tmp_path / "file")
    assert (tmp_path / "file").stat().st_size < 1.2 * WHOLE.nbytes
    assert np.shares_memory(first, whole) and np.shares_memory(last, whole) and np.shares_memory(first, second)
    np.testing.assert_array_equal(second, flat[200:400])


def test_what_is_written_to_an_array_reaches_no_other_reader(tmp_path: Path) -> None:
    save(tmp_path / "file", WHOLE)
    load(tmp_path / "file")[:] = -1.0
    np.testing.assert_array_equal(load(tmp_path / "file"), WHOLE)


@pytest.mark.parametrize("kept", [0, 3, 200, 4000])
def test_a_file_that_was_cut_is_no_file(tmp_path: Path, kept: int) -> None:
    save(tmp_path / "file", WHOLE)
    (tmp_path / "cut").write_bytes((tmp_path / "file").read_bytes()[:kept])
    assert load(tmp_path / "cut") is None
    assert load(tmp_path / "absent") is None
