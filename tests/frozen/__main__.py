"""`python -m tests.frozen`: freeze today's answers, and print what differs from those frozen before."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from fastapi.testclient import TestClient

from app.config import Settings
from app.main import create_app
from app.store.postgres import VOLATILE, EmbeddedPostgres
from tests.frozen.answers import FILE, Answers, collect
from tests.frozen.differences import differences

_SHOWN = 3


def main() -> None:
    """Write the file; with `--compare` only print the differences, and end with 1 where there are any."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder, "postgres"), VOLATILE) as server:
        data = Path(folder, "data")
        data.mkdir()
        settings = Settings(database_url=server.url, data_dir=data, seed_measurements_dir=data / "none")
        with TestClient(create_app(settings), raise_server_exceptions=False) as client:
            new = collect(client, settings)
    old = Answers.read(FILE) if FILE.exists() else Answers()
    different = differences(old, new)
    for name, lines in different.items():
        print(name, *lines[:_SHOWN], *([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []), sep="\n  ")
    print(f"{len(different)} of {len(new.answers)} answers differ from {FILE.name}")
    if "--compare" in sys.argv:
        sys.exit(bool(different))
    new.write(FILE)


if __name__ == "__main__":
    main()
