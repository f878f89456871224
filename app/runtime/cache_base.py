"""Where caches of an installation are, and digests of the code that their content depends on."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from app.coefficients import digest
from app.runtime.syntax import syntax_digests

APP = Path(__file__).parent.parent
# Caches that an image brings, in a folder that may be read-only.
BESIDE = Path(__file__).parent / "__pycache__"


@cache
def writable_base() -> Path:
    """Return a folder beside the sources if writable, else one among the user's temporary files."""
    writable = os.access(BESIDE if BESIDE.exists() else BESIDE.parent, os.W_OK)
    return BESIDE if writable else private_folder(Path(tempfile.gettempdir()) / f"gpucast-{os.getuid()}")


def private_folder(folder: Path) -> Path:
    """Return the folder if nobody else can write to it, else a new one: what caches hold is executed."""
    with suppress(OSError):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        state = folder.lstat()
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            return Path(tempfile.mkdtemp(prefix="gpucast-"))
    return folder


def sources_digest(folders: Iterable[str]) -> str:
    """Return a digest of the syntax trees of all sources in folders of the application, and of its coefficients."""
    sources = (source for folder in folders for source in (APP / folder).rglob("*.py"))
    digests = syntax_digests(APP, sources, writable_base())
    joined = "".join(f"{name} {of_file}\n" for name, of_file in sorted(digests.items()))
    return blake2b(f"{joined}{digest()}".encode(), digest_size=8).hexdigest()
