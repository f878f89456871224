"""Cache of compiled code: reused where possible, and never older than its source."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

from app.config import CHECKOUT
from app.runtime.code_cache import SOURCES, _LockedFiles
from app.runtime.compiled import COMPILES, compiled_per_row
from app.runtime.syntax import syntax_digest, syntax_digests

pytestmark = pytest.mark.slow

OWN = ("cache_base.py", "code_cache.py", "compiled.py", "lean_numba.py", "syntax.py")
MODULE = """
from app.ops import BYTES
from app.runtime.compiled import compiled

@compiled
def traffic(n):
    return n * BYTES
"""
# What an equal syntax tree may look like: other lines, a first docstring, comments and formatting.
SAME = '''"""Memory traffic."""
# Bytes, not bits.
from app.ops import BYTES

from app.runtime.compiled import compiled


@compiled
def traffic(n):
    """Bytes of `n` elements."""
    return (
        n * BYTES
    )
'''
ASK = "from app.predictors.physics import traffic as t; print(t(3), sum(t.stats.cache_misses.values()))"


# Root writes wherever it likes, unless it may not.
ORDINARY = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all"] if os.geteuid() == 0 else []


def run(code: str, cwd: Path, *, temporary: Path | None = None) -> str:
    """Output of Python in a copy of the application; with `temporary`, of a user who may not write where it is."""
    env = {**os.environ, "PYTHONPATH": str(cwd)} | ({} if temporary is None else {"TMPDIR": str(temporary)})
    words = [*([] if temporary is None else ORDINARY), sys.executable, "-c", code]
    return subprocess.run(words, cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """An application of one compiled function, which freezes a constant of another folder."""
    root = tmp_path / "first"
    for folder in SOURCES:
        (root / "app" / folder).mkdir(parents=True)
        (root / "app" / folder / "__init__.py").write_text("")
    (root / "app" / "__init__.py").write_text("")
    (root / "app" / "ops" / "__init__.py").write_text("BYTES = 2\n")
    (root / "app" / "predictors" / "physics.py").write_text(MODULE)
    for name in OWN:
        shutil.copy(CHECKOUT / "app" / "runtime" / name, root / "app" / "runtime")
    return root


def test_code_is_compiled_again_only_if_its_syntax_changed(copy: Path, tmp_path: Path) -> None:
    assert run(ASK, copy) == "6 1"
    assert run(ASK, copy) == "6 0"
    moved = tmp_path / "second"
    shutil.copytree(copy, moved)
    (moved / "app" / "predictors" / "physics.py").write_text(SAME)
    assert run(ASK, moved) == "6 0"
    (moved / "app" / "ops" / "__init__.py").write_text("BYTES = 4  # of fp32\n")
    assert run(ASK, moved) == "12 1"


def test_code_of_a_read_only_installation_is_not_compiled_again(copy: Path, tmp_path: Path) -> None:
    """An image brings its compiled code, and its container may have a read-only root."""
    assert run(ASK, copy) == "6 1"
    for folder, _, _ in os.walk(copy / "app"):
        Path(folder).chmod(0o555)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert run(ASK, copy, temporary=temporary) == "6 0"
    assert len(list(temporary.glob("gpucast-*/compiled-*"))) == 1
    assert run(ASK, copy, temporary=temporary) == "6 0"
    for folder, _, _ in os.walk(copy / "app"):
        Path(folder).chmod(0o755)


def test_digests_are_noted_by_file_and_follow_a_change(tmp_path: Path) -> None:
    source, notes = tmp_path / "a.py", tmp_path / "notes"
    source.write_text("A = 1\n")
    first = syntax_digests(tmp_path, [source], notes)
    assert first == {"a.py": syntax_digest(b'"""A."""\nA = 1  # one')}
    noted = next(notes.iterdir())
    noted.write_text(noted.read_text().replace(first["a.py"], "known"))
    assert syntax_digests(tmp_path, [source], notes) == {"a.py": "known"}
    source.write_text("A = 10\n")
    assert syntax_digests(tmp_path, [source], notes) == {"a.py": syntax_digest(b"A = 10")}
    noted.write_text("damaged")
    assert syntax_digests(tmp_path, [source], notes) == {"a.py": syntax_digest(b"A = 10")}


def test_digests_of_other_files_stay_noted_until_they_are_removed(tmp_path: Path) -> None:
    one, two, notes = tmp_path / "one.py", tmp_path / "two.py", tmp_path / "notes"
    for source in (one, two):
        source.write_text(f"A = {source.stem!r}\n")
        syntax_digests(tmp_path, [source], notes)
    noted = next(notes.iterdir())
    assert set(json.loads(noted.read_text())) == {"one.py", "two.py"}
    one.unlink()
    two.write_text("A = 3\n")
    syntax_digests(tmp_path, [two], notes)
    assert set(json.loads(noted.read_text())) == {"two.py"}


def test_docstrings_do_not_change_the_digest_but_values_do() -> None:
    plain = syntax_digest(b"class A:\n def f(self):\n  return 'x'\n")
    assert plain == syntax_digest(b"class A:\n 'of A'\n def f(self):\n  '''of f'''\n  return 'x'\n")
    assert plain != syntax_digest(b"class A:\n def f(self):\n  return 'y'\n")


def test_concurrent_writers_keep_each_others_code(tmp_path: Path) -> None:
    def save(number: int) -> None:
        _LockedFiles(str(tmp_path), "f", "stamp").save(number, f"code {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(64)))
    files = _LockedFiles(str(tmp_path), "f", "stamp")
    assert [files.load(number) for number in range(64)] == [f"code {number}" for number in range(64)]


def _compiled_outside() -> Iterator[tuple[str, ast.Module, ast.FunctionDef]]:
    """Compiled functions of files whose callees' files are not among those that name the cache's folder."""
    for path in sorted((CHECKOUT / "app").rglob("*.py")):
        if path.relative_to(CHECKOUT / "app").parts[0] not in SOURCES and "@compiled" in (text := path.read_text()):
            tree = ast.parse(text)
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and any(
                    ast.unparse(d).startswith("compiled") for d in node.decorator_list
                ):
                    yield path.relative_to(CHECKOUT).as_posix(), tree, node


def test_compiled_functions_elsewhere_use_only_their_own_file_and_these_folders() -> None:
    for name, tree, function in _compiled_outside():
        used = {node.id for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and used & {alias.asname or alias.name for alias in node.names}:
                root, _, rest = (node.module or "").partition(".")
                assert root != "app" or rest.startswith(SOURCES), f"{name}: {function.name} uses {node.module}"


def _allocates(n: int) -> float:
    return float(np.empty(n)[0])


@pytest.mark.skipif(not COMPILES, reason="Python always counts")
def test_functions_per_row_may_not_allocate() -> None:
    with pytest.raises(NumbaError, match="empty"):
        compiled_per_row(_allocates)(3)


def test_warming_up_needs_no_database() -> None:
    run("from app.bootstrap.warm import main; main()", CHECKOUT)
