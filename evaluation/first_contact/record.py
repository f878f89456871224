"""Recording of first contacts by this checkout, or by a running service of another version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from app import __version__
from app.errors import BadInput, NotFound
from evaluation.first_contact import kernels, serving, steps
from evaluation.first_contact.ledger import Ask, ask_service, ask_shipped, path_of, record
from evaluation.first_contact.question import Source
from evaluation.render import commit
from evaluation.study import chosen, shipped_snapshot

SOURCES: dict[str, Source] = {source.name: source for source in (*serving.SOURCES, *steps.SOURCES, *kernels.SOURCES)}


def record_sources(
    data: Path, names: Sequence[str], url: str | None, version: str | None, progress: Callable[[str], None]
) -> None:
    """Record the named sources, or all that the ledger lacks; those without data are named and left."""
    if (url is None) != (version is None):
        raise BadInput("--url and --version go together: the ledger names the commit that answered.")
    sources = [source for source in chosen("source", SOURCES, names).values() if names or not path_of(source).exists()]
    if not sources:
        progress("the ledger has every source that is known: nothing to record")
        return
    if url is None:
        here = commit() or ""
        if not here or here.endswith("-dirty"):
            raise BadInput("The ledger names the commit that answered: commit what has changed first.")
        _record(sources, data, ask_shipped(shipped_snapshot()), {"version": __version__, "commit": here}, progress)
        return
    with httpx.Client(base_url=url) as client:
        answered_by = client.get("/openapi.json").raise_for_status().json()["info"]["version"]
        _record(sources, data, ask_service(client), {"version": answered_by, "commit": version or ""}, progress)


def _record(
    sources: Sequence[Source], data: Path, ask: Ask, version: dict[str, str], progress: Callable[[str], None]
) -> None:
    for source in sources:
        try:
            progress(f"{source.name}: written to {record(source, data, ask, version, progress).name}")
        except NotFound as missing:
            progress(f"{source.name}: {missing.detail}")
