"""`python -m tests.documentation`: write the figures that README and docs show of answers, as they are today."""

from __future__ import annotations

import os
import sys

import pytest

from tests.documentation.page import WRITE

if __name__ == "__main__":
    os.environ[WRITE] = "1"
    sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "tests/api/test_documentation.py", *sys.argv[1:]]))
