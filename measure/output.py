"""The file of a run: Parquet in the measurements form, written now and then, and a journal of what came since.

Rows are flattened as POST /measurements takes them, with a column `outcome`: of one that is not `measured` there is no
time. The schema's metadata holds, in JSON, the device as POST /gpus takes it (DEVICE of
app.formats.base); libraries, driver and clocks (FACTS); and the digest of every row's point (POINTS).
A journal that a killed run left is taken up by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import BadInput
from app.formats import DEVICE
from measure.point import BUSY, INTERRUPTED, Point

FACTS, POINTS = b"gpucast.facts", b"gpucast.points"
# Figures of a CPU that are the highest seen, as no data sheet tells them.
PEAKS = ("boost_clock_hz", "memory_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s")
# A killed run's Parquet file is at most so old.
_WRITTEN_EVERY_S = 20.0
Row = dict[str, Any]


class Output:
    """What is done, by the digest of its point; every point that is added is safe on disk."""

    def __init__(self, path: Path, description: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Take up what an earlier run on the device left; BadInput where the file is of another device."""
        self.path = path
        self._journal = path.with_name(f"{path.name}.part")
        self._device, self.facts = dict(description), dict(facts)
        self._written = time.monotonic()
        self.rows: dict[str, Row] = {}
        if path.exists():
            self.rows |= self._read()
        if taken_up := self._taken_up():
            self.rows |= taken_up
            self.write()  # what follows a line that was cut would be lost with it

    @property
    def device(self) -> Mapping[str, Any]:
        """What POST /gpus takes of it."""
        return self._device

    def raise_to(self, seen: Mapping[str, Any]) -> None:
        """Take over figures of a CPU that were seen higher, by an earlier run or in what was measured."""
        if self._device.get("kind") != "cpu":
            return
        known = self._device
        better = {name: max(known[name], seen[name]) for name in PEAKS if name in seen and name in known}
        if not better:
            return
        faster = better["boost_clock_hz"] / known["boost_clock_hz"] if "boost_clock_hz" in better else 1.0
        peaks = {pipe: faster * rate for pipe, rate in known["peak_flops"].items()}
        self._device = known | better | {"peak_flops": peaks}
        memory = self._device["memory_bandwidth_bytes_per_s"]  # all of which passes the cache
        self._device["l2_bandwidth_bytes_per_s"] = max(self._device["l2_bandwidth_bytes_per_s"], memory)

    @property
    def device_name(self) -> str:
        """What rows call the device."""
        return str(self._device["name"])

    def of(self, points: Sequence[Point]) -> list[Row]:
        """The rows of those points that were tried."""
        return [self.rows[point.digest] for point in points if point.digest in self.rows]

    def is_done(self, digest: str) -> bool:
        """Whether the point needs no other try: one that met a busy machine does, or in which a run ended."""
        return self.outcome(digest) not in (None, BUSY, INTERRUPTED)

    def outcome(self, digest: str) -> str | None:
        """What became of a point; None: it was not tried."""
        row = self.rows.get(digest)
        return None if row is None else str(row["outcome"])

    def add(self, digest: str, row: Row) -> None:
        """Keep a row."""
        self.rows[digest] = row
        with self._journal.open("a") as journal:
            journal.write(json.dumps([digest, row]) + "\n")
        if time.monotonic() - self._written >= _WRITTEN_EVERY_S:
            self.write()

    def write(self) -> None:
        """The Parquet file, whole or not at all; then the journal goes."""
        facts = {DEVICE: self._device, FACTS: self.facts, POINTS: list(self.rows)}
        metadata = {key: json.dumps(value) for key, value in facts.items()}
        unfinished = self.path.with_name(f"{self.path.name}.new")
        pq.write_table(table(list(self.rows.values())).replace_schema_metadata(metadata), unfinished)
        os.replace(unfinished, self.path)
        self._journal.unlink(missing_ok=True)
        self._written = time.monotonic()

    def _taken_up(self) -> dict[str, Row]:
        """The rows of a journal that a killed run left, if one did."""
        rows = dict(_lines(self._journal)) if self._journal.exists() else {}
        others = {str(row.get("gpu", self.device_name)) for row in rows.values()} - {self.device_name}
        if others:
            raise BadInput(f"{self._journal} holds measurements of {others.pop()}: name another file for this device.")
        return rows

    def _read(self) -> dict[str, Row]:
        try:
            stored = pq.read_table(self.path)
            metadata = stored.schema.metadata or {}
            device, digests = json.loads(metadata[DEVICE]), json.loads(metadata[POINTS])
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise BadInput(f"{self.path} is no file of gpucast measure: name another one.") from error
        if device["name"] != self._device["name"]:
            raise BadInput(f"{self.path} holds measurements of {device['name']}: name another file for this device.")
        self.raise_to(device)
        rows = [{name: cell for name, cell in row.items() if cell is not None} for row in stored.to_pylist()]
        return dict(zip(digests, rows, strict=True))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Be the only run that measures into a file, for each writes all of it; BadInput while another one does.

    The lock goes with its process, however that ends; a file `.lock` that a killed one left holds nobody up.
    """
    _make_room(path)
    lock = path.with_name(f"{path.name}.lock")
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.path.samestat(os.fstat(held.fileno()), lock.stat())  # the one before removes what it held
        except OSError:
            taken = False
        if not taken:
            raise BadInput(f"Another gpucast measure writes {path}: wait for it, or name another file.")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _make_room(path: Path) -> None:
    """The folder, where a file can be made."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"No file can be written in {path.parent}: name another one.")


def _lines(journal: Path) -> list[tuple[str, Row]]:
    """Its whole lines: the last one of a killed run may be cut."""
    lines = journal.read_text().split("\n")[:-1]
    return [tuple(json.loads(line)) for line in lines]


def table(rows: Sequence[Row]) -> pa.Table:
    """Rows as columns, null where a row has no such field."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: pa.array(_alike([row.get(name) for row in rows])) for name in names})


def _alike(cells: list[Any]) -> list[Any]:
    """Cells of one type: where some sides differ ([3, 5]), all are pairs."""
    if not any(isinstance(cell, list) for cell in cells):
        return cells
    return [cell if cell is None or isinstance(cell, list) else [cell, cell] for cell in cells]
