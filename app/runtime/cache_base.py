"""Where caches of an installation are, and digests of the code that their content depends on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from app.runtime.syntax import syntax_digests

APP = Path(__file__).parent.parent
# Caches that an image brings, in a folder that may be read-only.
BESIDE = Path(__file__).parent / "__pycache__"


def writable_base() -> Path:
    """Return a folder beside the sources if writable, else one among the user's temporary files."""
    writable = os.access(BESIDE if BESIDE.exists() else BESIDE.parent, os.W_OK)
    return BESIDE if writable else Path(tempfile.gettempdir()) / f"gpucast-{os.getuid()}"


def sources_digest(folders: Iterable[str]) -> str:
    """Return a digest of the syntax trees of all sources in folders of the application."""
    sources = (source for folder in folders for source in (APP / folder).rglob("*.py"))
    digests = syntax_digests(APP, sources, writable_base())
    joined = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return blake2b(joined.encode(), digest_size=8).hexdigest()
