"""Where Chromium is: named, on the path, or installed once where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

# Chromium without windows takes two thirds of the processor time of the whole browser.
SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of the browser's own may ask anything of the network. Pages of a context share a process.
FLAGS = (
    "--process-per-site",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Another test process may be at it.
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 -o Acquire::http::Timeout=15"


def executable() -> str:
    """The browser's path; CHROMIUM names one, and root on Debian gets a package."""
    return os.environ.get("CHROMIUM") or _installed()


@cache
def _installed() -> str:
    """The first of NAMES on the path: the headless shell where it can be installed, else whatever is there."""
    problem = _install(SHELL)
    if _on_path() is None:
        problem = _install("chromium")
    if found := _on_path():
        return found
    if problem:
        pytest.fail(f"Chromium could not be installed by apt-get:\n{problem[-2000:]}", pytrace=False)
    pytest.fail(
        "The browser tests need Chromium: install it (Debian: apt-get install chromium) or name it in CHROMIUM.",
        pytrace=False,
    )


def _install(package: str) -> str:
    """Install a package of Debian as root unless it is there; what apt-get said against it."""
    if shutil.which(package) or not shutil.which("apt-get") or os.geteuid() != 0:
        return ""
    install = f"{_APT} install --no-install-recommends -y {package} fonts-dejavu-core"
    done = subprocess.run(
        f"{install} || {{ {_APT} update && {install}; }}", shell=True, capture_output=True, text=True, check=False
    )
    return done.stderr if done.returncode else ""


def _on_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


if __name__ == "__main__":
    executable()
