"""`python -m tests.frozen`: freeze today's answers, and print what differs from those frozen before.

`--moved REVISION` asks nothing: it prints the predictions that have left their own 80 % interval since that revision of
the repository, as lines of the changelog.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from fastapi.testclient import TestClient

from app.config import CHECKOUT, Settings
from app.main import create_app
from app.store.postgres import VOLATILE, EmbeddedPostgres
from tests.frozen.answers import FILE, Answers, collect
from tests.frozen.cases import cases
from tests.frozen.differences import differences
from tests.frozen.moved import moved

_SHOWN = 3


def print_moved(revision: str) -> None:
    """Print the lines between the answers frozen in a revision and those frozen now."""
    place = FILE.relative_to(CHECKOUT).as_posix()
    shown = subprocess.run(["git", "show", f"{revision}:{place}"], cwd=CHECKOUT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder, FILE.name)
        old.write_bytes(shown.stdout)
        for line in moved(Answers.read(old), Answers.read(FILE), {case.name: case.body for case in cases()}):
            print(line)


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
    if "--moved" in sys.argv:
        print_moved(sys.argv[sys.argv.index("--moved") + 1])
    else:
        main()
