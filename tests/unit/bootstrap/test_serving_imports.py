"""Imports of a serving process: libraries of training would cost it a fifth of its memory."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_SCIPY = ("scipy.special", "scipy.sparse", "scipy.stats", "scipy.optimize")
_ONLY_TRAINING = ("sklearn", *_SCIPY, "pandas", "torch")
_PROGRAM = f"""
import sys
from app.main import create_app
from app.bootstrap.warm import main
create_app()
main()
print([name for name in {_ONLY_TRAINING!r} if name in sys.modules])
"""


def test_serving_imports_no_library_of_training() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
