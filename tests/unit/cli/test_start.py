"""Start of commands: what they import before they do anything."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from app.cli import COMMANDS, build

HEAVY = ("alembic", "fastapi", "numba", "numpy", "psycopg", "pyarrow", "scipy", "sklearn", "sqlalchemy", "uvicorn")
SHOW = """
import json, sys
from typer.testing import CliRunner
from app.cli import COMMANDS, build
loaded = {}
for name, _, _ in COMMANDS:
    shown = CliRunner().invoke(build(name), [name, "--help"])
    assert shown.exit_code == 0, shown.output
    loaded[name] = [module for module in sys.modules if module.partition(".")[0] == module]
print(json.dumps(loaded))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Packages in memory after the help of each command, one after the other in one process."""
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_help_imports_nothing_heavy(name: str, loaded: dict[str, list[str]]) -> None:
    assert not set(HEAVY) & set(loaded[name])


def test_a_prediction_imports_neither_the_queue_nor_the_server() -> None:
    program = "import app.bootstrap.assemble, app.services.dispatch, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"procrastinate", "fastapi", "alembic", "pyarrow", "sklearn"} & set(done.stdout.split())


def test_the_help_line_of_each_command_is_not_truncated() -> None:
    shown = CliRunner().invoke(build(None), ["--help"]).output
    assert all(line in shown for _, _, line in COMMANDS)
