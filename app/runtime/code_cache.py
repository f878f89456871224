"""Cache compiled functions by the syntax tree of the code, not by its bytes.

Numba's own cache keys a function by the bytes of its file and its line there, so a changed docstring would cost a
compilation; and two processes that compile a function for different types may overwrite each other's code.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

from app.runtime.cache_base import APP, BESIDE, sources_digest, writable_base
from app.runtime.lean_numba import caching
from app.runtime.syntax import syntax_digest, syntax_digests

# Folders whose functions and constants may be compiled into other functions.
SOURCES = ("runtime", "tables", "ops", "bands", "predictors", "serving")


def _cache_folder() -> Path:
    """Return the cache folder, named by a digest of all sources, since callees may be in other files."""
    base = writable_base()
    folder = base / f"compiled-{sources_digest(SOURCES)}"
    if base != BESIDE and (BESIDE / folder.name).is_dir() and not folder.exists():
        _copy_whole(BESIDE / folder.name, folder)
    return folder


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a folder; it appears whole. Code that an image brings is used where its own folder is read-only."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary, suppress(OSError):  # another process was first
        copy = Path(temporary, "copy")
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        for folder in (copy, *(path for path in copy.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
        copy.rename(target)


FOLDER = _cache_folder()


@cache
def _stamp(file: Path) -> str:
    """Return a digest of the file if it lies outside the folders whose digest names FOLDER."""
    if any(file.is_relative_to(APP / folder) for folder in SOURCES):
        return ""
    if not file.is_relative_to(APP):
        return syntax_digest(file.read_bytes())
    return syntax_digests(APP, [file], writable_base())[file.relative_to(APP).as_posix()]


@cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()


class _SourceLocator(caching._CacheLocator):
    """Cache location of one function: the folder and name of its module, regardless of its line."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> Self:
        return cls(_resolved(file))

    def get_cache_path(self) -> str:
        inside = self._file.is_relative_to(APP)
        return str(FOLDER / (self._file.parent.relative_to(APP) if inside else self._file.parent.name))

    def get_source_stamp(self) -> str:
        return _stamp(self._file)

    def get_disambiguator(self) -> str:
        return ""


class _Locations(caching.CompileResultCacheImpl):
    """Numba's format of compiled code, in our folder."""

    _locator_classes = [_SourceLocator]  # type: ignore[list-item]  # noqa: RUF012 - as Numba declares it


class _LockedFiles(caching.IndexDataCacheFile):
    """An index with numbered code files. Writers lock, because two of them could take the same number."""

    def save(self, key: object, data: object) -> None:
        with Path(self._cache_path, "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().save(key, data)  # type: ignore[no-untyped-call]


class CodeCache(caching.FunctionCache):
    """Compiled code of one function without closure."""

    _impl_class = _Locations

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        names, stamp = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = _LockedFiles(self._cache_path, names, stamp)  # type: ignore[no-untyped-call]

    def _index_key(self, types: object, codegen: Any) -> object:
        """Return the key: argument types and processor. Numba's own adds the bytecode, which docstrings change."""
        return types, codegen.magic_tuple()
