"""Where compiled functions are kept: by the syntax of the code that they came from, not by its bytes.

Numba's own cache goes by the bytes of a function's file and by its line there, so that a docstring would cost a
compilation; and two processes that compile a function for different types may overwrite each other's code.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

from app.runtime.syntax import syntax_digest, syntax_digests

_APP = Path(__file__).parent.parent
# Where a function or constant that is compiled into another function may come from.
_SOURCES = ("runtime", "tables", "ops", "predictors")


def _writable_base() -> Path:
    """A folder beside the sources, or else among the user's temporary files."""
    beside = Path(__file__).parent / "__pycache__"
    writable = os.access(beside if beside.exists() else beside.parent, os.W_OK)
    return beside if writable else Path(tempfile.gettempdir()) / f"gpucast-{os.getuid()}"


def _cache_folder() -> Path:
    """Named by a digest of all sources: a function's own file does not tell whether one that it calls has changed."""
    base = _writable_base()
    sources = (source for folder in _SOURCES for source in (_APP / folder).rglob("*.py"))
    digests = syntax_digests(_APP, sources, base)
    joined = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return base / f"compiled-{blake2b(joined.encode(), digest_size=8).hexdigest()}"


FOLDER = _cache_folder()


@cache
def _digest(file: Path) -> str:
    return syntax_digest(file.read_bytes())


class _SourceLocator(_CacheLocator):
    """The files of one function: by the folder and the name of its module, whatever line it stands on."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> Self:
        return cls(Path(file).resolve())

    def get_cache_path(self) -> str:
        inside = self._file.is_relative_to(_APP)
        return str(FOLDER / (self._file.parent.relative_to(_APP) if inside else self._file.parent.name))

    def get_source_stamp(self) -> str:
        """What else the code follows from than the folders whose digest names FOLDER: a file outside of them."""
        inside = any(self._file.is_relative_to(_APP / folder) for folder in _SOURCES)
        return "" if inside else _digest(self._file)

    def get_disambiguator(self) -> str:
        return ""


class _Locations(CompileResultCacheImpl):
    """Numba's form of compiled code, in our folder."""

    _locator_classes = [_SourceLocator]  # type: ignore[list-item]  # noqa: RUF012 - as Numba declares it


class _LockedFiles(IndexDataCacheFile):
    """An index with numbered files of code; writers take turns, else two could take the same number."""

    def save(self, key: object, data: object) -> None:
        with Path(self._cache_path, "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().save(key, data)  # type: ignore[no-untyped-call]


class CodeCache(FunctionCache):
    """The compiled code of one function without a closure."""

    _impl_class = _Locations

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        names, stamp = self._impl.filename_base, self._impl.locator.get_source_stamp()
        self._cache_file = _LockedFiles(self._cache_path, names, stamp)  # type: ignore[no-untyped-call]

    def _index_key(self, types: object, codegen: Any) -> object:
        """Types of the arguments, and the processor; Numba's own has the bytecode too, which a docstring changes."""
        return types, codegen.magic_tuple()
