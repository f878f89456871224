"""Backup and restore on real databases: what comes back is what was there, rows and artefacts."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.bootstrap.runtime import open_runtime
from app.config import Settings
from app.store import artifacts, backup, keys, measurements, queue, schema, versions
from app.store.roles import Role
from app.store.session import Database
from app.store.sql_tables import METADATA
from tests import forked
from tests.conftest import new_database
from tests.learning import kernel_rows

pytestmark = pytest.mark.slow


def run(settings: Settings, *words: object) -> subprocess.CompletedProcess[str]:
    """`gpucast backup` or `gpucast restore`, as a process."""
    return forked.run_command(*words, env=os.environ | settings.environment())


def rows(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, but for the revision, which a restoration raises."""
    with database.begin() as connection:
        names = [*METADATA.tables, "procrastinate_jobs", "procrastinate_events"]
        read = {name: connection.execute(sa.text(f"SELECT t::text FROM {name} t")).all() for name in names}
    return {name: sorted(tuple(row) for row in found) for name, found in read.items() if name != "revision"}


@pytest.fixture(scope="module")
def filled(settings: Settings, database: Database) -> Settings:
    """An installation with measurements, keys, a waiting retraining, and a served version with its artefact."""
    sha256 = artifacts.publish(settings.models_dir, {"weights": np.arange(5.0)}, {"predictor": "ridge"})
    with database.begin() as connection:
        measurements.insert(connection, kernel_rows())
        keys.create(connection, "tab\t\\N\nand line, \u00fc", Role.READ)
        versions.add(
            connection,
            predictor="ridge",
            gpu_id="*",
            artifact_sha256=sha256,
            training_set_sha256="0",
            card={"error": 0.1},
            state="served",
        )
        versions.share_artifact(connection, settings.models_dir, sha256)
    return settings


@pytest.fixture
def saved(filled: Settings, tmp_path: Path) -> Path:
    file = tmp_path / "gpucast.backup"
    done = run(filled, "backup", file)
    assert done.returncode == 0 and done.stdout.startswith("Wrote ") and not done.stderr, done.stderr
    return file


@pytest.fixture
def empty(settings: Settings, postgres_url: str, tmp_path: Path) -> Iterator[Settings]:
    with new_database(postgres_url) as url:
        yield dataclasses.replace(settings, database_url=url, data_dir=tmp_path / "restored")


def test_rows_sequences_and_artefacts_come_back(
    filled: Settings, saved: Path, empty: Settings, database: Database
) -> None:
    assert saved.stat().st_mode & 0o777 == 0o600, "it holds the keys' hashes"
    done = run(empty, "restore", saved)
    assert done.returncode == 0, done.stderr
    restored = Database(empty.database_url or "")
    assert rows(restored) == rows(database)
    schema.check(restored)
    with restored.begin() as connection:
        (version,) = versions.history(connection, "ridge")
        versions.fetch_artifact(connection, empty.models_dir, version.artifact_sha256)
        loaded = artifacts.load(empty.models_dir, version.artifact_sha256)
        assert loaded["weights"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        next_id = keys.create(connection, "after", Role.READ)[0].id
    with database.begin() as connection:
        assert next_id == keys.create(connection, "after", Role.READ)[0].id
    with restored.begin() as connection:
        queue.check(connection)
    restored.close()
    with open_runtime(empty):
        pass


def test_a_target_with_tables_needs_the_flag(filled: Settings, saved: Path, empty: Settings) -> None:
    with open_runtime(empty) as runtime, runtime.database.begin() as connection:
        keys.create(connection, "gone afterwards", Role.ADMIN)
    refused = run(empty, "restore", saved)
    assert refused.returncode == 1 and "--replace" in refused.stderr
    assert run(empty, "restore", saved, "--replace").returncode == 0
    opened = Database(empty.database_url or "")
    with opened.begin() as connection:
        assert "gone afterwards" not in {key.name for key in keys.listed(connection)}
    opened.close()


def test_a_backup_is_not_overwritten_and_is_of_something(filled: Settings, saved: Path, empty: Settings) -> None:
    before = saved.read_bytes()
    again = run(filled, "backup", saved)
    assert again.returncode == 1 and "exists" in again.stderr and saved.read_bytes() == before
    nothing = run(empty, "backup", saved.with_name("other"))
    assert nothing.returncode == 1 and "nothing to back up" in nothing.stderr
    assert not saved.with_name("other").exists()


# Changes of what the contents say.
CHANGED = {
    "newer schema": (b'"schema": "', b'"schema": "9'),
    "no schema": (b'"schema": "', b'"schema": "", "of": "'),
    "other tables": (b'"name": "api_keys"', b'"name": "pg_class"'),
    "fewer rows": (b'"rows": ', b'"rows": 7'),
    "another sequence": (b'"sequences": {', b'"sequences": {"pg_class": 1,'),
    "a huge sequence": (b'_id_seq": ', b'_id_seq": 9999999999999999999'),
}


@pytest.mark.parametrize(
    "harm", ["cut", "flipped", "text", "encrypted", "packed otherwise", "other artefact", "rows twice", *CHANGED]
)
def test_a_damaged_or_foreign_file_changes_nothing(
    filled: Settings, saved: Path, empty: Settings, tmp_path: Path, harm: str
) -> None:
    data = saved.read_bytes()
    broken = tmp_path / "broken"
    if harm == "cut":
        broken.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        with zipfile.ZipFile(saved) as archive:
            at = archive.getinfo("tables/measurements").header_offset + 200
        broken.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    elif harm == "text":
        broken.write_text("not a backup")
    elif harm in ("encrypted", "packed otherwise"):  # as an entry of the directory says
        at = data.index(b"PK\x01\x02") + (8 if harm == "encrypted" else 10)
        broken.write_bytes(data[:at] + bytes([data[at] | 1]) + data[at + 1 :])
    elif harm == "rows twice":
        with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(broken, "w") as written:
            for name in archive.namelist():
                written.writestr(name, archive.read(name) * (2 if name == "tables/measurements" else 1))
    elif harm == "other artefact":
        with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(broken, "w") as written:
            for name in archive.namelist():
                content = archive.read(name)
                written.writestr(name, content[:-2] + b"0\n" if name == "tables/artifact_chunks" else content)
    else:
        old, new = CHANGED[harm]
        with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(broken, "w") as written:
            for name in archive.namelist():
                content = archive.read(name)
                written.writestr(name, content.replace(old, new) if name == backup.CONTENTS else content)
    done = run(empty, "restore", broken)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    opened = Database(empty.database_url or "")
    with opened.begin() as connection:
        assert schema.current(connection) is None and not sa.inspect(connection).get_table_names()
    opened.close()


def test_an_artefact_that_is_not_there_is_told(filled: Settings, empty: Settings, tmp_path: Path) -> None:
    opened = Database(filled.database_url or "")
    with opened.begin() as connection:
        versions.add(connection, predictor="li", gpu_id="*", artifact_sha256="f" * 64, training_set_sha256="0", card={})
    made = run(filled, "backup", tmp_path / "file")
    with opened.begin() as connection:
        connection.execute(sa.text("DELETE FROM predictor_versions WHERE predictor = 'li'"))
    opened.close()
    assert made.returncode == 0 and f"names the artefact {'f' * 64}" in made.stderr
    done = run(empty, "restore", tmp_path / "file")
    assert done.returncode == 0 and "which the backup lacks" in done.stderr
