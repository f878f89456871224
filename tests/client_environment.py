"""Python environments with this client and packages that the service does not need, kept between runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.config import CHECKOUT

CLIENT = CHECKOUT / "clients" / "python"


def client_python(name: str, requirement: str, extra: str = "") -> Path:
    """Return a Python that has the requirement and this client with its `extra`.

    Skips the test where the requirement cannot be installed; an error of the client's own package fails it.
    """
    folder = CHECKOUT / "build" / name
    python, marker = folder / "bin" / "python", folder / requirement
    uv = Path(sys.executable).with_name("uv")
    if not marker.exists():
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
            [uv, "pip", "install", "--quiet", "--python", python, requirement, "httpx", "setuptools>=77"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{requirement} cannot be installed: {done.stderr[-300:]}")
        marker.touch()
    install = [uv, "pip", "install", "--quiet", "--no-build-isolation", "--offline", "--python", python]
    done = subprocess.run([*install, f"{CLIENT}{extra}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python
