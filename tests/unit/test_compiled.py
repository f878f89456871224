"""Compiled code: kept where it can be, and never older than what it came from."""

import os
import subprocess
import sys
from pathlib import Path

from app.config import CHECKOUT


def run(code: str, cwd: Path) -> str:
    """Output of Python in a copy of the application."""
    env = {**os.environ, "PYTHONPATH": str(cwd)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_changed_source_has_a_cache_of_its_own(tmp_path: Path) -> None:
    for folder in ("tables", "ops", "predictors"):
        (tmp_path / "app" / folder).mkdir(parents=True)
        (tmp_path / "app" / folder / "__init__.py").write_text("")
    (tmp_path / "app" / "__init__.py").write_text("")
    source = (CHECKOUT / "app" / "predictors" / "compiled.py").read_text()
    (tmp_path / "app" / "predictors" / "compiled.py").write_text(source)
    where = "import app.predictors.compiled, os; print(os.environ['NUMBA_CACHE_DIR'])"
    before = run(where, tmp_path)
    assert before == run(where, tmp_path)
    (tmp_path / "app" / "ops" / "__init__.py").write_text("CHANGED = True\n")
    assert before != run(where, tmp_path)


def test_warming_up_needs_no_database() -> None:
    run("from app.services.warm import main; main()", CHECKOUT)
