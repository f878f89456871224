"""Folders of caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.runtime.cache_base import private_folder


def test_a_new_folder_is_the_user_s_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "cache")
    assert folder == tmp_path / "cache"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


@pytest.mark.parametrize("kind", ["writable by others", "a link", "a file"])
def test_a_folder_that_others_may_fill_is_not_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files are everybody's: another user may have made a folder of that name before."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = tmp_path / "cache"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        target.symlink_to(tmp_path / "elsewhere")
    elif kind == "a file":
        target.touch()
    else:
        target.mkdir()
        target.chmod(0o777)
    folder = private_folder(target)
    assert folder != target
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
